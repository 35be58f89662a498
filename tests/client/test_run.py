"""`perilog run` and `perilog attach`: the application, its signals, and brokers that come and go."""

from __future__ import annotations

import json
import os
import select
import signal
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from client.command import ended, line
from client.fake_broker import PATIENCE, Connection, FakeLife, Refused

if TYPE_CHECKING:
    from client.command import Command

#: An application that says that it runs, and then waits for its end.
WAITING = ("sh", "-c", "echo running; exec sleep 1000")


def test_a_job_around_a_command(perilog: Command, life: FakeLife) -> None:
    """The command runs between start and exit, with a lease, here; all is silent and ends with 0."""
    done = perilog("run", "--name", "hello", "--", "echo", "hello")
    assert (done.stdout, done.stderr) == ("hello\n", "")
    assert life.names() == ["submit", "depend", "alloc", "ready", "start", "exit", "finish", "clean"]
    assert life.event("start") == {"attempt": 1, "lease": True}
    assert life.event("exit") == {"status": 0, "attempt": 1}
    submitted = life.event("submit")
    assert submitted["name"] == "hello"
    assert submitted["nodes"] == os.uname().nodename, "without --nodes it is this host"


def test_the_commands_environment(perilog: Command, life: FakeLife) -> None:
    """The command has the caller's environment, over it the job's variables, over them what names the job."""
    life.environment = {"DW_JOB_scratch": "/mnt/1", "OURS": "job's", "PERILOG_JOB_ID": "4711"}
    done = perilog("run", "--nodes", "n[1-2]", "--key", "k", "--", "env", OURS="caller's", THEIRS="x")
    found = dict(entry.split("=", 1) for entry in done.stdout.splitlines())
    assert found["DW_JOB_scratch"] == "/mnt/1"
    assert (found["OURS"], found["THEIRS"]) == ("job's", "x")
    assert found["PERILOG_SOCKET"] == str(life.path)
    assert (found["PERILOG_JOB_ID"], found["PERILOG_JOB_KEY"]) == ("17", "k")
    assert (found["PERILOG_JOB_NODES"], found["PERILOG_ATTEMPT"]) == ("n[1-2]", "1")


@pytest.mark.parametrize(
    ("script", "status", "code"), [("exit 3", 768, 3), ("kill -9 $$", 9, 137), ("exit 0", 0, 0)]
)
def test_the_jobs_exit_code_is_its_own(
    script: str, status: int, code: int, perilog: Command, life: FakeLife
) -> None:
    """The wait status is reported as it is; the exit code is the job's, and a bad one is told."""
    done = perilog("run", "--", "sh", "-c", script, status=code)
    assert life.event("exit")["status"] == status
    assert done.stderr == (f"perilog: job 17: FAILED, exit code {code}\n" if code else "")


@pytest.mark.parametrize(
    ("make", "status"), [("", 127 << 8), ("x", 126 << 8), ("#!/no/such/interpreter", 127 << 8)]
)
def test_a_command_that_cannot_be_started(
    make: str, status: int, perilog: Command, life: FakeLife, folder: Path
) -> None:
    """What cannot be started is said, and reported as 127 or 126, never as success."""
    command = folder / "command"
    if make:
        command.write_text(make)
        command.chmod(0o755 if make.startswith("#!") else 0o644)
    done = perilog("run", "--", str(command), status=status >> 8)
    assert f"perilog: cannot start {command}: " in done.stderr
    assert life.event("exit")["status"] == status


def test_a_job_that_never_gets_ready(perilog: Command, life: FakeLife) -> None:
    """A job that dies before its start never runs the command; the note is shown, the exit code is not 0."""
    life.ready = False
    process = perilog.start("run", "--", "echo", "no")
    life.until("job.watch")
    life.post("prolog-finish", description="scratch", status=768, outcome="failed", message="quota exceeded")
    life.post("exception", type="prolog", severity=0, note="prolog scratch failed for job 17: exit code 3")
    life.post("clean")
    status, out, err = ended(process)
    assert (status, out) == (1, "")
    assert "perilog: job 17: scratch: quota exceeded\n" in err
    assert "perilog: job 17: prolog: prolog scratch failed for job 17: exit code 3\n" in err
    assert "start" not in life.names()


def test_what_others_wrote_does_not_reach_the_terminal(perilog: Command, life: FakeLife) -> None:
    """Control characters in notes of others are shown as escapes."""
    life.ready = False
    process = perilog.start("run", "--", "echo")
    life.until("job.watch")
    life.post("exception", type="x", severity=2, note="a\x1b[2Jb\nc")
    life.post("clean")
    assert "a\\u001b[2Jb\\nc\n" in ended(process)[2]


def test_the_command_is_not_started_after_a_cancel(perilog: Command, life: FakeLife) -> None:
    """If the start is refused because the job was canceled in between, the command does not run."""

    def cancel_first(_: Connection, method: str, _arguments: dict[str, Any]) -> bool:
        if method == "job.start":
            life.post("exception", type="cancel", severity=0, note="")
        return True

    life.before = cancel_first
    process = perilog.start("run", "--", "echo", "no")
    life.until("job.start")
    life.post("clean")
    status, out, err = ended(process)
    assert (status, out) == (1, "")
    assert err == "perilog: job 17: cancel\nperilog: job 17: CANCELED, exit code 1\n"


def test_a_fatal_exception_ends_the_command(perilog: Command, life: FakeLife) -> None:
    """On a fatal exception the command gets SIGTERM; what it makes of that is reported as its exit."""
    process = perilog.start(
        "run", "--", "sh", "-c", "trap 'echo bye; exit 5' TERM; echo running; while :; do sleep 0.01; done"
    )
    assert line(process, "stdout") == "running\n"
    life.post("exception", type="timelimit", severity=2, note="soon")
    life.post("exception", type="timelimit", severity=0, note="time is up")
    status, out, err = ended(process)
    assert (status, out) == (5, "bye\n")
    assert "perilog: job 17: timelimit: time is up\n" in err
    assert life.event("exit")["status"] == 5 << 8


def test_a_command_that_does_not_end_is_killed(perilog: Command, life: FakeLife) -> None:
    """After --kill-timeout a command that ignores SIGTERM gets SIGKILL."""
    process = perilog.start(
        "run",
        "--kill-timeout",
        "100ms",
        "--",
        "sh",
        "-c",
        "trap '' TERM; echo running; while :; do sleep 1; done",
    )
    assert line(process, "stdout") == "running\n"
    life.post("exception", type="cancel", severity=0, note="")
    assert ended(process)[0] == 128 + signal.SIGKILL
    assert life.event("exit")["status"] == signal.SIGKILL


def test_ctrl_c_once_warns_twice_cancels(perilog: Command, life: FakeLife) -> None:
    """The first SIGINT only warns; a second within two seconds cancels the job, which ends the command."""
    process = perilog.start("run", "--", *WAITING)
    assert line(process, "stdout") == "running\n"
    process.send_signal(signal.SIGINT)
    assert line(process) == "perilog: press ctrl-C again within 2 s to cancel job 17\n"
    assert "exception" not in life.names()
    process.send_signal(signal.SIGINT)
    status, _, err = ended(process)
    assert status == 128 + signal.SIGTERM
    assert "perilog: cancelling job 17\n" in err
    assert life.event("exception") == {"type": "cancel", "severity": 0, "note": "interrupted by ctrl-C"}
    assert life.event("exit")["status"] == signal.SIGTERM


def test_ctrl_c_while_the_job_is_not_ready(perilog: Command, life: FakeLife) -> None:
    """The same while the prolog still runs: warned, then canceled, and the command never starts."""
    life.ready = False
    process = perilog.start("run", "--", "echo", "no")
    life.until("job.watch")
    process.send_signal(signal.SIGINT)
    assert "again within 2 s" in line(process)
    process.send_signal(signal.SIGINT)
    status, out, _ = ended(process)
    assert (status, out) == (1, "")
    assert life.names()[-2:] == ["exception", "clean"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1])
def test_other_signals_are_the_commands(number: signal.Signals, perilog: Command, life: FakeLife) -> None:
    """SIGTERM, SIGHUP, SIGUSR1 and the like are passed on to the running command."""
    name = number.name.removeprefix("SIG")
    process = perilog.start(
        "run", "--", "sh", "-c", f"trap 'exit 6' {name}; echo running; while :; do sleep 0.01; done"
    )
    assert line(process, "stdout") == "running\n"
    process.send_signal(number)
    assert ended(process)[0] == 6
    assert life.event("exit")["status"] == 6 << 8


def test_a_termination_before_the_start_cancels(perilog: Command, life: FakeLife) -> None:
    """Told to terminate before the command runs, it cancels the job, and ends as if by the signal."""
    life.ready = False
    process = perilog.start("run", "--", "echo", "no")
    life.until("job.watch")
    process.send_signal(signal.SIGTERM)
    assert ended(process)[0] == 128 + signal.SIGTERM
    assert life.event("exception")["note"] == "perilog run got SIGTERM"


def test_a_termination_after_the_command(perilog: Command, life: FakeLife) -> None:
    """Told to terminate while the data moves, it ends and leaves the job to itself."""
    life.finishing = False
    process = perilog.start("run", "--", "true")
    life.until("job.exit")
    process.send_signal(signal.SIGTERM)
    assert ended(process)[0] == 128 + signal.SIGTERM
    assert "exception" not in life.names()


def test_the_command_does_not_outlive_its_lease(perilog: Command, life: FakeLife) -> None:
    """If `perilog run` itself is killed, and its lease with it, the command is terminated."""
    process = perilog.start("run", "--", "sh", "-c", "echo $$; exec sleep 1000")
    child = os.pidfd_open(int(line(process, "stdout")))
    assert life.names()[-1] == "start"
    process.kill()
    ended(process)
    wait_for_end(child)


def test_it_waits_for_completion(perilog: Command, life: FakeLife) -> None:
    """After the command it stays until the result is final; that counts, not the command's own status."""
    life.finishing = False
    process = perilog.start("run", "--", "true")
    life.until("job.exit")
    assert process.poll() is None
    life.post(
        "exception", type="completion", severity=2, note="completion drain failed for job 17: exit code 3"
    )
    life.finish(768)
    status, _, err = ended(process)
    assert status == 3
    assert "completion drain failed for job 17: exit code 3" in err


def test_a_rerun_starts_the_command_again(perilog: Command, life: FakeLife) -> None:
    """A rerun while completion is held starts the command again, as the next attempt."""
    life.finishing = False
    starts: list[dict[str, Any]] = []
    exits: list[dict[str, Any]] = []

    def start(_: Connection, **given: Any) -> dict[str, Any]:
        starts.append(given)
        return {}

    def end(_: Connection, **given: Any) -> dict[str, Any]:
        exits.append(given)
        life.post("exit", status=given["status"], attempt=given["attempt"])
        if len(exits) == 1:
            life.post("rerun", attempt=2, userid=0, nodes="n1")
        else:
            life.finish(given["status"])
        return {}

    life.answers |= {"job.start": start, "job.exit": end}
    done = perilog("run", "--", "sh", "-c", "echo $PERILOG_ATTEMPT; test $PERILOG_ATTEMPT = 2")
    assert done.stdout == "1\n2\n"
    assert [start["attempt"] for start in starts] == [1, 2]
    assert [(end["attempt"], end["status"]) for end in exits] == [(1, 256), (2, 0)]


@pytest.mark.parametrize(
    ("words", "attributes", "broker", "last"),
    [
        ((), {}, {}, "finish"),
        ((), {}, {"wait_event": "clean"}, "clean"),
        ((), {"wait-event": "clean"}, {"wait_event": "finish"}, "clean"),
        (("--wait-event", "exit"), {"wait-event": "clean"}, {}, "exit"),
    ],
)
def test_what_is_waited_for(
    words: tuple[str, ...],
    attributes: dict[str, str],
    broker: dict[str, str],
    last: str,
    perilog: Command,
    life: FakeLife,
) -> None:
    """The option decides what is waited for, else the job's attribute, else the broker, else the result."""
    life.finishing = False
    life.answers["broker.ping"] = broker
    options = [word for name, value in attributes.items() for word in ("--attr", f"{name}={value}")]
    process = perilog.start("run", *words, *options, "--", "true")
    life.until("job.exit")
    for name in ("finish", "clean"):
        if last != "exit":
            assert process.poll() is None
            life.post(name, **({"status": 0} if name == "finish" else {}))
        if last == name:
            break
    assert ended(process)[0] == 0


def test_a_broker_restart_while_the_command_runs(perilog: Command, life: FakeLife) -> None:
    """Over a broker restart the command runs on, the lease is taken again for the same attempt."""
    process = perilog.start(
        "run", "--", "sh", "-c", "echo running; read answer < $FIFO; exit 4", FIFO=fifo(life)
    )
    assert line(process, "stdout") == "running\n"
    life.stop()
    assert "went away" in line(process)
    life.start()
    assert line(process) == "perilog: the broker is back\n"
    again = life.until("job.start", 2)
    assert again[0] == again[1] == {"id": 17, "attempt": 1, "lease": True}
    Path(fifo(life)).write_text("go\n")
    assert ended(process)[0] == 4
    assert life.names()[4:] == ["start", "exit", "finish", "clean"]


def fifo(life: FakeLife) -> str:
    """Return a named pipe, made when first asked for."""
    path = life.path.with_name("fifo")
    if not path.exists():
        os.mkfifo(path)
    return str(path)


def test_the_exit_is_reported_after_the_broker_is_back(perilog: Command, life: FakeLife) -> None:
    """A command that ends while there is no broker: its exit is reported when there is one again."""
    process = perilog.start("run", "--", "sh", "-c", "echo $$; read answer < $FIFO; exit 4", FIFO=fifo(life))
    command = os.pidfd_open(int(line(process, "stdout")))
    life.stop()
    assert "went away" in line(process)
    Path(fifo(life)).write_text("go\n")
    wait_for_end(command)
    life.start()
    assert ended(process)[0] == 4
    assert life.event("exit")["status"] == 4 << 8


def wait_for_end(pidfd: int) -> None:
    """Wait until a process has ended."""
    assert select.select([pidfd], [], [], PATIENCE)[0] == [pidfd]
    os.close(pidfd)


def test_the_exit_is_reported_until_it_is_confirmed(perilog: Command, life: FakeLife) -> None:
    """A report without a reply is repeated, though the first was carried out; so too with a full disk."""
    answers = iter(["die", "full", "take"])

    def unsteady(connection: Connection, method: str, arguments: dict[str, Any]) -> bool:
        if method != "job.exit":
            return True
        answer = next(answers)
        if answer == "die":
            life.answers["job.exit"](connection, **arguments)
            connection.cut()
            return False
        life.answers["job.exit"] = Refused("ENOSPC: the journal is full") if answer == "full" else take
        return True

    take = life.answers["job.exit"]
    life.before = unsteady
    done = perilog("run", "--", "sh", "-c", "exit 4", status=4)
    assert "ENOSPC: the journal is full; trying again" in done.stderr
    assert len(life.named("job.exit")) == 3
    assert life.names().count("exit") == 1


def test_a_lease_that_was_lost(perilog: Command, life: FakeLife) -> None:
    """If the broker gave the command up meanwhile, the command is ended, and the result is the broker's."""
    process = perilog.start("run", "--", *WAITING)
    assert line(process, "stdout") == "running\n"
    life.stop()
    life.post("exception", type="exec", severity=0, note="lease of job 17 ended")
    life.post("exit", status=65280, attempt=1, outcome="lost")
    life.start()
    life.until("job.exit")
    life.finish(65280)
    status, _, err = ended(process)
    assert status == 255
    assert "lease of job 17 ended" in err
    assert "the application's exit code 143 came too late" in err


def test_a_job_that_the_broker_forgot(perilog: Command, life: FakeLife) -> None:
    """If the broker comes back without the job, the command is ended and the status is 5."""
    process = perilog.start("run", "--", *WAITING)
    assert line(process, "stdout") == "running\n"
    life.stop()
    life.answers["job.watch"] = Refused("ENOENT: no such job: 17")
    life.start()
    status, _, err = ended(process)
    assert status == 5
    assert "no such job: 17" in err


def test_a_lost_submit_is_asked_again(perilog: Command, life: FakeLife) -> None:
    """If the connection breaks before the reply to submit, it is repeated by key: one job, run once."""
    first = iter([True])

    def die(connection: Connection, method: str, arguments: dict[str, Any]) -> bool:
        if method == "job.submit" and next(first, False):
            life.answers["job.submit"](connection, **arguments)
            connection.cut()
            return False
        return True

    life.before = die
    assert perilog("run", "--", "echo", "once").stdout == "once\n"
    keys = [given["key"] for given in life.named("job.submit")]
    assert len(keys) == 2
    assert keys[0] == keys[1]


def test_a_key_that_is_taken(perilog: Command, life: FakeLife) -> None:
    """A key that names a job already is refused: the command of an existing job is not run again."""
    perilog("submit", "--key", "k")
    done = perilog("run", "--key", "k", "--", "echo", "no", status=1)
    assert done.stdout == ""
    assert "the key k already names job 17" in done.stderr
    assert "start" not in life.names()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ((), "a COMMAND must be given"),
        (("--",), "a COMMAND must be given"),
        (("--json", "--", "true"), "standard output is the command's"),
        (("--kill-timeout", "soon", "--", "true"), "--kill-timeout"),
        (("--frobnicate", "--", "true"), "--frobnicate"),
    ],
)
def test_a_wrong_command_line(words: tuple[str, ...], told: str, perilog: Command, life: FakeLife) -> None:
    """A fault in the arguments ends with status 2 before anything is submitted."""
    assert told in perilog("run", *words, status=2).stderr
    assert life.requests == []


def test_the_command_keeps_its_own_options(perilog: Command, life: FakeLife) -> None:
    """What follows the command is the command's, with and without `--`."""
    assert perilog("run", "--", "echo", "-n", "--name", "x").stdout == "--name x"
    life.log.clear()
    assert perilog("run", "echo", "-n", "--name", "--", "x").stdout == "--name -- x"


def test_attach_follows_and_gives_the_code(perilog: Command, life: FakeLife) -> None:
    """Attach prints how things stand on lines of their own, notes on stderr, and ends with the exit code."""
    life.ready = False
    perilog("submit", "--nodes", "n1")
    process = perilog.start("attach", "17")
    assert line(process, "stdout") == "job 17: PROLOG: waiting for prolog script scratch: for 3 s\n"
    life.post("exception", type="quota", severity=2, note="nearly full")
    assert line(process) == "perilog: job 17: quota: nearly full\n"
    life.finish(768)
    assert ended(process) == (3, "", "perilog: job 17: FAILED, exit code 3\n")


def test_attach_can_print_events(perilog: Command, life: FakeLife) -> None:
    """With --json attach prints the events themselves, as Flux RFC 18 has them."""
    perilog("submit")
    life.finish(0)
    printed = [json.loads(text) for text in perilog("attach", "17", "--json").stdout.splitlines()]
    assert [list(event) for event in printed] == [["timestamp", "name", "context"]] * 5
    assert printed[-1]["name"] == "finish"


def test_attach_to_what_cannot_come(perilog: Command, life: FakeLife) -> None:
    """If the job ends without the event that was waited for, that is said and the status is not 0."""
    perilog("submit")
    life.finish(0)
    done = perilog("attach", "17", "--wait-event", "never", status=1)
    assert "job 17 ended without the event never" in done.stderr


def test_attach_to_no_job(perilog: Command, life: FakeLife) -> None:
    """A job that does not exist: status 5 and the broker's words."""
    assert life.log == []
    assert perilog("attach", "4711", status=5).stderr == "perilog: ENOENT: no such job: 4711\n"


def test_attach_is_left_without_harm(perilog: Command, life: FakeLife) -> None:
    """SIGQUIT ends only the onlooker; ctrl-C twice cancels the job."""
    life.ready = False
    perilog("submit")
    process = perilog.start("attach", "17")
    line(process, "stdout")
    process.send_signal(signal.SIGQUIT)
    assert ended(process)[0] == 128 + signal.SIGQUIT
    assert "exception" not in life.names()
    process = perilog.start("attach", "17")
    line(process, "stdout")
    process.send_signal(signal.SIGINT)
    line(process)
    process.send_signal(signal.SIGINT)
    assert ended(process)[0] == 1
    assert "exception" in life.names()


def test_attach_survives_a_restart(perilog: Command, life: FakeLife) -> None:
    """Over a broker restart attach goes on where it was."""
    life.ready = False
    perilog("submit")
    process = perilog.start("attach", "17")
    line(process, "stdout")
    life.stop()
    assert "went away" in line(process)
    threading.Timer(0.2, life.start).start()
    assert "is back" in line(process)
    life.finish(0)
    assert ended(process)[0] == 0


def test_ctrl_c_without_a_broker_gives_up(perilog: Command, life: FakeLife) -> None:
    """While the broker is away, a cancel that is insisted on ends the onlooker all the same."""
    life.ready = False
    perilog("submit")
    process = perilog.start("attach", "17")
    line(process, "stdout")
    life.stop()
    line(process)
    for told in ("press", "cancelling", "press"):
        process.send_signal(signal.SIGINT)
        assert told in line(process)
    process.send_signal(signal.SIGINT)
    assert ended(process)[0] == 128 + signal.SIGINT
