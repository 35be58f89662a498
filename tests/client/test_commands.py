"""The commands that people look with: what they ask for, and what they print."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import time
from typing import TYPE_CHECKING, Any

import pytest

from client.command import line
from client.fake_broker import PATIENCE, Connection, FakeBroker, FakeLife, Refused
from perilog.cli.main import COMMANDS
from perilog.cli.text import age, event_text, keep, safe, status, table

if TYPE_CHECKING:
    from pathlib import Path

    from client.command import Command

NOW = 1_900_000_000.0

HOLD = {
    "phase": "completion",
    "name": "drain",
    "owner": "provider:dws",
    "stage": "active",
    "since": NOW,
    "deadline": 1.0,
    "keep": {"nodes": "n[1-2]", "storage": "0"},
    "progress": 40,
    "note": "12 of 30\x1b[2J",
}
JOB = {
    "id": 17,
    "key": "slurm.4711",
    "name": "climate",
    "userid": 0,
    "state": "COMPLETION",
    "nodes": "n[1-4]",
    "alloc": "n[1-4]",
    "held": "n[1-2]",
    "attributes": {"dw": True},
    "holds": [HOLD],
    "exceptions": [{"type": "quota", "severity": 2, "note": "nearly full", "userid": 0, "timestamp": 0.0}],
    "scripts": [{"phase": "completion", "action": "copy", "state": "running", "pid": 4242, "since": NOW}],
    "attempt": 1,
    "exit_status": 768,
    "result": None,
    "exit_code": None,
    "environment": {"DW_JOB": "/mnt"},
    "memo": {},
    "submitted": 0.0,
    "since": NOW,
    "waiting_for": "completion hold drain: 12 of 30, 40 %",
}
EVENTS = [
    {"seq": 4, "timestamp": 100.0, "name": "submit", "context": {"userid": 0, "attributes": {"a": None}}},
    {"seq": 9, "timestamp": 100.5, "name": "alloc", "context": {"nodes": "n[1-4]", "x": "é\x1b"}},
    {"seq": 12, "timestamp": 2166.000123, "name": "clean", "context": {}},
]


def test_every_command_explains_itself(perilog: Command) -> None:
    """Each command has a help text with an example, and the overview lists each."""
    overview = perilog("--help").stdout
    for name in COMMANDS:
        told = perilog(name, "--help").stdout
        assert told.startswith(f"usage: perilog {name}")
        assert f"example: perilog {name}" in told or name == "relay"
        assert f"\n  {name} " in overview


def test_no_command(perilog: Command) -> None:
    """Without a command, the overview comes on stderr, with status 2."""
    assert "usage: perilog" in perilog(status=2).stderr


def test_list(perilog: Command, fake: FakeBroker) -> None:
    """List asks for live jobs, state by state and page by page, and says of each what it waits for."""
    ended = {**JOB, "id": 18, "state": "INACTIVE", "result": "FAILED", "exit_code": 3, "waiting_for": ""}

    def listed(_: Connection, state: str | None = None, after: int = 0, **__: Any) -> list[dict[str, Any]]:
        return [job for job in (JOB, ended) if state in (None, job["state"]) and int(str(job["id"])) > after]

    fake.answers = {"job.list": listed}
    shown = perilog("list").stdout
    assert shown.splitlines()[0].split() == [
        "JOB",
        "USER",
        "NAME",
        "STATE",
        "SINCE",
        "NODES",
        "WAITING",
        "FOR",
    ]
    assert shown.splitlines()[1].startswith("17   root  climate  COMPLETION")
    assert shown.splitlines()[1].endswith("n[1-4]  completion hold drain: 12 of 30, 40 %")
    assert len(shown.splitlines()) == 2
    assert perilog("list", "--all").stdout.splitlines()[2].endswith("FAILED, exit code 3")
    assert json.loads(perilog("list", "--json").stdout) == [JOB]
    fake.requests.clear()
    assert (
        perilog("list", "--state", "PROLOG", "--user", "root", "--node", "n1", "--held-by", "0").stdout == ""
    )
    assert fake.requests == [("job.list", {"state": "PROLOG", "userid": 0, "node": "n1", "held_by": 0})]
    assert "no such user" in perilog("list", "--user", "nobody-has-this-name", status=2).stderr


def test_show(perilog: Command, fake: FakeBroker) -> None:
    """Show tells all about one job, named by id or key; what others wrote cannot reach the terminal."""
    fake.answers = {"job.get": JOB}
    shown = perilog("show", "slurm.4711").stdout
    assert fake.requests == [("job.get", {"key": "slurm.4711"}), ("job.get", {"id": 17})]
    assert "waiting for  completion hold drain: 12 of 30, 40 %\n" in shown
    assert "still held   n[1-2]\n" in shown
    assert "application  exit code 3\n" in shown
    assert "attributes   dw=True\n" in shown
    assert "12 of 30\\u001b[2J" in shown
    assert "nearly full" in shown
    assert "4242" in shown
    assert "result" not in shown
    assert json.loads(perilog("--json", "show", "17").stdout) == JOB


def test_eventlog(perilog: Command, fake: FakeBroker) -> None:
    """Eventlog prints seconds since the first event, name and context; or RFC 18, one object a line."""
    pages = {0: EVENTS[:2], 10: EVENTS[2:], 13: []}
    fake.answers = {"job.events": lambda _, **given: pages[given.get("from", 0)]}
    assert perilog("eventlog", "17").stdout.splitlines() == [
        '    0.000000 submit userid=0 attributes={"a":null}',
        '    0.500000 alloc nodes="n[1-4]" x="é\\u001b"',
        " 2066.000123 clean",
    ]
    exported = perilog("eventlog", "17", "--format", "json").stdout
    assert exported == perilog("eventlog", "17", "--json").stdout
    assert [json.loads(line) for line in exported.splitlines()] == [
        {key: event[key] for key in ("timestamp", "name", "context")} for event in EVENTS
    ]
    assert perilog("--json", "eventlog", "17", "--format", "text").stdout[:4] == "    "
    fake.answers = {"job.events": Refused("ENOENT: no such job: 17")}
    assert perilog("eventlog", "17", status=5).stderr == "perilog: ENOENT: no such job: 17\n"


def test_eventlog_follows_to_the_end(perilog: Command, life: FakeLife) -> None:
    """With --follow the log is printed as it grows, over broker restarts, until clean."""
    life.ready = False
    perilog("submit")
    process = perilog.start("eventlog", "--follow", "17")
    assert [line(process, "stdout").split()[1] for _ in range(3)] == ["submit", "depend", "alloc"]
    life.stop()
    life.start()
    life.post("ready")
    assert line(process, "stdout").split()[1] == "ready"
    life.finish(0)
    out, _ = process.communicate(timeout=PATIENCE)
    assert [text.split()[1] for text in out.splitlines()] == ["finish", "clean"]
    assert process.returncode == 0


@pytest.mark.parametrize(
    ("words", "asked"), [((), {}), (("--all",), {"from": 0}), (("--from", "7"), {"from": 7})]
)
def test_events(words: tuple[str, ...], asked: dict[str, int], perilog: Command, fake: FakeBroker) -> None:
    """Events follows all jobs, from now, from the oldest event, or from a sequence number."""
    fake.answers = {"job.watch": {"watch": 1, "oldest": 1}}
    process = perilog.start("events", *words)
    assert fake.until("job.watch") == [asked]
    fake.notify("event", watch=1, job=17, **EVENTS[1])
    told = line(process, "stdout")
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=PATIENCE)[1] == ""
    moment = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(100.5))
    assert told == f'9 {moment} 17 alloc nodes="n[1-4]" x="é\\u001b"\n'
    assert process.returncode == -signal.SIGINT


def test_events_end_with_their_reader(perilog: Command, fake: FakeBroker) -> None:
    """When nobody reads its output any more, events ends without waiting for another event."""
    fake.answers = {"job.watch": {"watch": 1, "oldest": 1}}
    process = perilog.start("events")
    fake.until("job.watch")
    assert process.stdout is not None
    process.stdout.close()
    assert process.wait(PATIENCE) == -signal.SIGPIPE
    assert process.stderr is not None
    assert process.stderr.read() == ""
    process.stderr.close()


def test_events_as_json(perilog: Command, fake: FakeBroker) -> None:
    """With --json each event is an object on a line, with job and sequence number."""
    fake.answers = {"job.watch": {"watch": 1, "oldest": 1}}
    process = perilog.start("events", "--json")
    fake.until("job.watch")
    fake.notify("event", watch=1, job=17, **EVENTS[2])
    assert json.loads(line(process, "stdout")) == {"job": 17, **EVENTS[2]}
    process.kill()
    process.communicate(timeout=PATIENCE)


def test_holds(perilog: Command, fake: FakeBroker) -> None:
    """Holds lists what holds all jobs or one, and can be narrowed."""
    other = {**HOLD, "phase": "prolog", "name": "x", "outcome": "failed", "status": 256, "owner": 0}
    fake.answers = {
        "hold.list": lambda _, after=0, **__: [] if after else [{"id": 17, **HOLD}],
        "job.get": {**JOB, "holds": [HOLD, other]},
    }
    row = perilog("holds").stdout.splitlines()[1].split()
    assert row[:4] == ["17", "completion", "drain", "provider:dws"]
    assert row[5:9] == ["passed", "n[1-2]:storage=0", "40%", "active"]
    perilog("holds", "--phase", "prolog", "--owner", "1000", "--name", "n")
    assert fake.named("hold.list")[2] == {"phase": "prolog", "owner": 1000, "name": "n"}
    shown = perilog("holds", "17").stdout
    assert "failed (exit code 1)" in shown
    assert len(shown.splitlines()) == 3
    assert json.loads(perilog("--json", "holds", "17", "--phase", "prolog").stdout) == [{"id": 17, **other}]


def test_scripts(perilog: Command, fake: FakeBroker) -> None:
    """Scripts lists runs, of all jobs or one with usage, and kill sends a signal."""
    ended = {
        "id": 17, "phase": "epilog", "action": "scratch", "state": "ended", "outcome": "failed", "status": 9,
        "wall": 1.5, "cpu_user": 0.25, "cpu_system": 0.5, "max_rss": 3 << 20,
    }  # fmt: skip
    fake.answers = {"script.list": [{"id": 17, **JOB["scripts"][0]}, ended], "script.kill": {}}  # type: ignore[index]
    lines = perilog("scripts").stdout.splitlines()
    assert lines[1].split()[:6] == ["17", "completion", "copy", "running", "-", "4242"]
    assert lines[2].split() == [
        "17",
        "epilog",
        "scratch",
        "failed",
        "killed",
        "by",
        "signal",
        "9",
        "-",
        "-",
        "-",
        "1.500",
        "0.750",
        "3.0MiB",
    ]
    assert len(json.loads(perilog("scripts", "list", "17", "--json").stdout)) == 2
    assert fake.named("script.list") == [{}, {"id": 17}]
    perilog("scripts", "kill", "17", "epilog", "scratch")
    perilog("scripts", "kill", "17", "epilog", "scratch", "--signal", "kill")
    perilog("scripts", "kill", "17", "epilog", "scratch", "--signal", "10")
    run = {"id": 17, "phase": "epilog", "action": "scratch"}
    assert fake.named("script.kill") == [run, {**run, "signal": 9}, {**run, "signal": 10}]
    assert "kill needs" in perilog("scripts", "kill", "17", status=2).stderr
    assert "list takes" in perilog("scripts", "list", "17", "prolog", status=2).stderr
    assert "--signal" in perilog("scripts", "kill", "17", "epilog", "x", "--signal", "BOOM", status=2).stderr


def test_output(perilog: Command, fake: FakeBroker) -> None:
    """Output prints what one script wrote, byte for byte, or what each script of the job wrote."""
    wrote = {
        "copy": {"head": b"abc\xff", "tail": b"xyz\n", "size": 1007},
        "quiet": {"head": b"", "tail": b"", "size": 0},
    }
    runs = [{"id": 17, "phase": "completion", "action": name} for name in ("copy", "quiet", "copy")]
    fake.answers = {
        "script.output": lambda _, action, **__: wrote[action],
        "script.list": runs,
    }
    done = subprocess.run(
        [perilog.program, "output", "17", "completion", "copy"],
        env=perilog.environment, stdout=subprocess.PIPE, check=True,
    )  # fmt: skip
    assert done.stdout == b"abc\xff\n[... 999 bytes were not kept ...]\nxyz\n"
    fake.requests.clear()
    wrote["copy"]["head"] = b"abc\n"
    assert perilog("output", "17").stdout.startswith("==> completion copy <==\nabc\n\n[... 999")
    assert fake.named("script.list") == [{"id": 17}]
    assert [given["action"] for given in fake.named("script.output")] == ["copy", "quiet"]
    (shown,) = json.loads(perilog("--json", "output", "17").stdout)
    assert (shown["head"], shown["tail"], shown["action"]) == ("abc\n", "xyz\n", "copy")
    assert "PHASE goes with ACTION" in perilog("output", "17", "prolog", status=2).stderr


def test_drain(perilog: Command, fake: FakeBroker) -> None:
    """Drain takes nodes out of service with a reason, and without nodes lists those that are out."""
    rows = [
        {"nodes": "n1", "state": "drained", "reason": "fan\tbroken", "since": 0.0, "by": "uid 0", "jobs": []},
        {"nodes": "n[2-9]", "state": "allocated", "jobs": [17]},
    ]
    fake.answers = {"node.list": rows, "node.drain": {}, "node.undrain": {}}
    shown = perilog("drain").stdout
    assert "fan\\tbroken" in shown
    assert "n[2-9]" not in shown
    assert json.loads(perilog("drain", "--json").stdout) == rows[:1]
    perilog("drain", "n[1-2]", "fan", "broken", "--force")
    perilog("drain", "n1")
    perilog("undrain", "n1", "--force")
    assert fake.requests[2:] == [
        ("node.drain", {"nodes": "n[1-2]", "reason": "fan broken", "force": True}),
        ("node.drain", {"nodes": "n1"}),
        ("node.undrain", {"nodes": "n1", "force": True}),
    ]


def test_what_the_broker_says_of_itself(perilog: Command, fake: FakeBroker) -> None:
    """ping, stats, config and methods print for people, and as JSON with --json."""
    config = {
        "broker": {"admins": ["root"], "guest-nodes": "n1"},
        "action": [{"name": "x", "match": {"a": True}}],
    }
    methods = [
        {
            "name": "job.get", "roles": ["admin", "owner"], "doc": "Show a job.",
            "arguments": [{"name": "id", "type": "integer", "required": True, "doc": "the job"}],
        }
    ]  # fmt: skip
    fake.answers = {
        "broker.ping": {},
        "hello": {"protocol": 1, "version": "0.1.0", "role": "admin", "uid": 0},
        "broker.stats": {"jobs": {"RUN": 2}, "events": 7},
        "broker.config": config,
        "broker.methods": methods,
    }
    assert "perilogd 0.1.0" in perilog("ping").stdout
    assert "your role is admin" in perilog("ping").stdout
    assert json.loads(perilog("ping", "--json").stdout)["role"] == "admin"
    assert perilog("stats").stdout == "jobs.RUN 2\nevents 7\n"
    assert perilog("config").stdout == (
        '[broker]\nadmins = ["root"]\nguest-nodes = "n1"\n\n[[action]]\nname = "x"\nmatch = { a = true }\n\n'
    )
    assert json.loads(perilog("config", "--json").stdout) == config
    assert perilog("methods").stdout == ("job.get  (admin, owner)  Show a job.\n    id: integer  the job\n")
    assert json.loads(perilog("methods", "--json").stdout) == methods


def test_reload(perilog: Command, fake: FakeBroker) -> None:
    """Reload is silent when it worked; a refused configuration gives the broker's words and a failure."""
    fake.answers = {"broker.reload": {}}
    assert perilog("reload").stdout == ""
    fake.answers = {"broker.reload": Refused("EINVAL: perilogd.toml: [broker] sokcet: unknown key")}
    assert "sokcet: unknown key" in perilog("reload", status=2).stderr


def test_shutdown(perilog: Command, fake: FakeBroker) -> None:
    """Shutdown asks the broker to stop, at once and for nothing else."""
    fake.answers = {"broker.shutdown": {}}
    perilog("shutdown")
    assert fake.requests == [("broker.shutdown", {})]


def busy(fake: FakeBroker) -> list[dict[str, Any]]:
    """Give a broker one job that runs; return the list of its jobs."""
    jobs = [{**JOB, "state": "EPILOG"}]
    fake.answers = {
        "broker.drain": {},
        "broker.shutdown": {},
        "job.watch": {"watch": 1, "oldest": 1},
        "job.list": lambda _, state, after=0, **__: [] if after else [j for j in jobs if j["state"] == state],
    }
    return jobs


def test_shutdown_after_a_drain(perilog: Command, fake: FakeBroker) -> None:
    """With --drain no new job is taken, what is left is listed, and the broker stops when nothing runs."""
    jobs = busy(fake)
    process = perilog.start("shutdown", "--drain")
    assert line(process, "stdout") == "jobs that are left: 1\n"
    assert fake.requests[0] == ("broker.drain", {"on": True})
    assert process.poll() is None
    jobs.clear()
    fake.notify("event", watch=1, job=17, **EVENTS[2])
    out, _ = process.communicate(timeout=PATIENCE)
    assert "climate" in out
    assert process.returncode == 0
    assert fake.requests[-1] == ("broker.shutdown", {})


def test_a_drain_that_is_given_up(perilog: Command, fake: FakeBroker) -> None:
    """ctrl-C while draining: new jobs are taken again, and the broker goes on."""
    busy(fake)
    process = perilog.start("shutdown", "--drain")
    line(process, "stdout")
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=PATIENCE)
    assert process.returncode == -signal.SIGINT
    assert "takes new jobs again" in err
    assert fake.named("broker.drain") == [{"on": True}, {"on": False}]
    assert fake.named("broker.shutdown") == []


@pytest.mark.parametrize(("words", "given"), [(("x.toml",), "--config x.toml --check"), ((), "--check")])
def test_check_asks_the_daemon(words: tuple[str, ...], given: str, perilog: Command) -> None:
    """Check is answered by the perilogd beside the command, with its output and its status."""
    daemon = perilog.program.with_name("perilogd")
    daemon.write_text('#!/bin/sh\necho "$@"\nexit 7\n')
    daemon.chmod(0o755)
    try:
        assert perilog("check", *words, status=7).stdout == f"{given}\n"
    finally:
        daemon.unlink()


def test_check_without_a_daemon(perilog: Command) -> None:
    """Where no perilogd is installed, check says where it looked."""
    told = perilog("check", status=1, PATH="/nonexistent").stderr
    assert f"perilogd is installed neither beside this command ({perilog.program.parent})" in told


def test_a_reader_that_goes_away(perilog: Command, fake: FakeBroker) -> None:
    """As in `perilog list | head -1`, a reader that has had enough is no reason for noise."""
    fake.answers = {"broker.methods": [{"name": "x" * 1000, "roles": [], "doc": ""}] * 2000}
    pipeline = subprocess.run(
        ["sh", "-c", '"$0" methods | head -c 1', str(perilog.program)],
        env=perilog.environment, capture_output=True, check=True,
    )  # fmt: skip
    assert pipeline.stdout == b"x"
    assert pipeline.stderr == b""


def test_relay_passes_bytes(perilog: Command, socket_path: Path) -> None:
    """Relay passes bytes both ways untouched, tells the end of input on, and ends with the connection."""
    data = os.urandom(150_000)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(socket_path))
        listener.listen()
        process = subprocess.Popen(
            [perilog.program, "relay"], env=perilog.environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert process.stdin is not None
        assert process.stdout is not None
        connection, _ = listener.accept()
        with connection:
            process.stdin.write(b"hello")
            process.stdin.flush()
            assert connection.recv(100) == b"hello"
            process.stdin.close()
            assert connection.recv(100) == b""
            connection.settimeout(PATIENCE)
            connection.sendall(data[:1000])
            assert process.stdout.read(1000) == data[:1000]
            connection.sendall(data)
        assert process.stdout.read() == data
        assert process.wait(PATIENCE) == 0
        process.stdout.close()


def test_relay_ends_with_its_client(perilog: Command, socket_path: Path) -> None:
    """When nobody writes to it nor reads from it any more, relay ends: a lease may hang on it."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(socket_path))
        listener.listen()
        process = subprocess.Popen(
            [perilog.program, "relay"], env=perilog.environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        with listener.accept()[0]:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.close()
            process.stdout.close()
            assert process.wait(PATIENCE) == 0


def test_forms() -> None:
    """Times, statuses, what a hold keeps, events and tables are shown in the documented forms."""
    assert [age(seconds) for seconds in (-1, 5, 65, 3600, 90061)] == ["0s", "5s", "1m05s", "1h00m", "1d01h"]
    assert [status(value) for value in (None, 0, 768, 9)] == [
        "-", "exit code 0", "exit code 3", "killed by signal 9",
    ]  # fmt: skip
    assert [keep(value) for value in ("all", {"nodes": "n1"}, {"nodes": "n1", "cores": "0"})] == [
        "all", "n1", "n1:cores=0",
    ]  # fmt: skip
    assert safe("a\nb\x1b\u2028ü") == "a\\nb\\u001b\\u2028ü"
    assert event_text("x", {"s": "a b", "b": b"\xff", "f": float("inf")}) == 'x s="a b" b="\\\\xff" f="inf"'
    assert table(("A", "B"), [(1, None), ("", "x")]) == "A  B\n1  -\n-  x"
