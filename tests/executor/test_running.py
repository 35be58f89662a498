"""A script is started, ends by itself, and its record tells the truth about it."""

from __future__ import annotations

import json
import os
import resource
import signal
import stat
from typing import TYPE_CHECKING, Any

import pytest

from exec_bed import ExecBed, eventually

if TYPE_CHECKING:
    from exec_bed import Signpost


def test_a_script_that_exits_with_zero_is_ok(bed: ExecBed) -> None:
    """Start and end of a script are reported, with its status, its times and what it used."""
    bed.action("a", "exit 0", timeout="1m")
    peer = bed.start()
    run = bed.run(peer, "a")
    record = peer.record(run)
    pid, since, deadline = peer.started(run)
    assert deadline == since + 60
    assert [kind for kind, _ in peer.seen if kind in {"started", "exits"}] == ["started", "exits"]
    assert record["started"] <= record["ended"]
    assert record["wall"] > 0
    assert record["cpu_user"] + record["cpu_system"] > 0
    assert record["max_rss"] > 0
    expected = {"id": run, "status": 0, "outcome": "ok", "pid": pid}
    assert {key: record[key] for key in expected} == expected
    assert set(record) == {*expected, "started", "ended", "wall", "cpu_user", "cpu_system", "max_rss"}


@pytest.mark.parametrize(
    ("body", "status"), [("exit 3", 3 << 8), ("kill -9 $$", 9), ("kill -SEGV $$", int(signal.SIGSEGV))]
)
def test_another_end_is_failed_with_the_scripts_own_status(bed: ExecBed, body: str, status: int) -> None:
    """A script that fails or is killed by somebody has its own wait status, and its output in the record."""
    bed.action("a", f"ulimit -c 0; echo out; echo err >&2; {body}")
    peer = bed.start()
    record = peer.record(bed.run(peer, "a"))
    assert (record["outcome"], record["status"], record["output"]) == ("failed", status, b"out\nerr\n")


def test_every_run_of_a_flood_is_begun_once_and_reported_once(bed: ExecBed) -> None:
    """Many scripts asked for in one piece all run, each once, and none is forgotten."""
    log = bed.folder / "begun"
    bed.action("a", f'echo "$PERILOG_JOB_ID" >> {log}')
    log.touch()
    os.chown(log, bed.uid, -1)
    peer = bed.start()
    definition = bed.definition("a")
    jobs = range(1, 201)
    peer.say(*(("run", bed.order("a", job=job, definition=definition)) for job in jobs))
    for job in jobs:
        assert peer.record(bed.order("a", job=job, definition=definition)["id"])["outcome"] == "ok"
    assert sorted(map(int, log.read_text().split())) == list(jobs)
    assert len(peer.records()) == len(jobs)


def test_a_script_gets_a_built_environment_and_nothing_else(bed: ExecBed, signpost: Signpost) -> None:
    """Folder, stdin, umask, session, signals, descriptors and variables are as promised."""
    bed.action(
        "a",
        f"""#!{bed.python} -IS
import json, os
fds = os.listdir("/proc/self/fd")
masks = [line.split()[1] for line in open("/proc/self/status") if line.startswith(("SigBlk", "SigIgn"))]
told = [os.getcwd(), os.umask(0), os.read(0, 9).decode(), os.getpid() == os.getsid(0) == os.getpgid(0)]
print(json.dumps([told, fds, masks, dict(os.environ)]), file=open("{signpost}", "w"))
""",
        timeout="1h",
    )
    peer = bed.start()
    assert peer.record(bed.run(peer, "a", userid=12345))["outcome"] == "ok"
    told, descriptors, masks, variables = json.loads(signpost.line())
    assert told == ["/", 0o022, "", True]
    assert set(descriptors) == {"0", "1", "2", "3"}  # 3: the listing itself
    assert masks[0] == "0" * 16
    ignored = {number for number in range(1, 32) if int(masks[1], 16) >> (number - 1) & 1}
    assert ignored == {signal.SIGPIPE, signal.SIGXFSZ}  # Python's own doing
    variables.pop("LC_CTYPE", None)  # Python's, too
    assert set(variables) == {
        *("PATH", "LANG", "HOME", "PERILOG_SOCKET", "PERILOG_JOB_ID", "PERILOG_JOB_KEY"),
        *("PERILOG_JOB_USERID", "PERILOG_JOB_NAME", "PERILOG_JOB_NODES", "PERILOG_PHASE", "PERILOG_ACTION"),
        *("PERILOG_ATTEMPT", "PERILOG_DEADLINE", "PERILOG_RUN_ID", "PERILOG_JOB", "PERILOG_MESSAGE"),
        "PERILOG_ENVIRONMENT",
    }


def test_an_epilog_is_told_how_the_job_and_its_prolog_ended(bed: ExecBed, signpost: Signpost) -> None:
    """What the broker says of a job reaches the script under the promised names."""
    bed.action(
        "a",
        f'echo "$PERILOG_JOB_STATUS|$PERILOG_REASON|$PERILOG_PROLOG_STATUS|$PERILOG_PHASE|$PERILOG_ACTION|'
        f"$PERILOG_ATTEMPT|$PERILOG_JOB_ID|$PERILOG_JOB_KEY|$PERILOG_JOB_NAME|$PERILOG_JOB_NODES|"
        f'$PERILOG_JOB_USERID|$PERILOG_SOCKET|$PERILOG_RUN_ID|${{PERILOG_DEADLINE:-none}}" > {signpost}',
        "epilog",
        timeout="infinity",
    )
    peer = bed.start()
    run = bed.run(peer, "a", "epilog", 7, status=256, reason="finish", prolog_status=0, attempt=2, userid=77)
    assert signpost.line() == (
        f"256|finish|0|epilog|a|2|7|a key|a job|n[1-4]|77|/run/perilogd/perilogd.sock|{run}|none"
    )
    assert peer.record(run)["outcome"] == "ok"
    assert peer.started(run)[2] is None


def test_a_script_finds_the_job_as_a_file(bed: ExecBed, signpost: Signpost) -> None:
    """PERILOG_JOB holds the document; it and the files to write are the script user's alone."""
    bed.action(
        "a",
        f'stat -c "%a %u" "$PERILOG_JOB" "$PERILOG_MESSAGE" "$PERILOG_ENVIRONMENT" > {signpost}\n'
        f'cat "$PERILOG_JOB" > {signpost}; echo > {signpost}',
    )
    peer = bed.start()
    bed.run(peer, "a", document='{"name":"Käse"}'.encode())
    assert [signpost.line() for _ in range(4)] == [
        f"600 {bed.uid}",
        f"600 {bed.uid}",
        f"600 {bed.uid}",
        '{"name":"Käse"}',
    ]


@pytest.mark.parametrize(
    ("written", "message"),
    [
        (b"all is well\nmore\n", "all is well"),
        (b"\n\nlate\n", "late"),
        (b"tab\there\x1b[31mred\x00\x7f\xff", "tab?here?[31mred??\N{REPLACEMENT CHARACTER}"),
        ("ü".encode() * 1000, "ü" * 128),
        (b"x" + "ü".encode() * 1000, "x" + "ü" * 127),
        (b"", None),
        (b"\n", None),
        (b"x" * (1 << 20), "x" * 256),
    ],
)
def test_a_message_is_one_printable_line_of_256_bytes(
    own_bed: ExecBed, written: bytes, message: str | None
) -> None:
    """Whatever a script writes to PERILOG_MESSAGE, the record has text that can be shown."""
    (own_bed.folder / "written").write_bytes(written)
    own_bed.action("a", f'cat {own_bed.folder}/written > "$PERILOG_MESSAGE"; exit 1')
    peer = own_bed.start()
    assert peer.record(own_bed.run(peer, "a")).get("message") == message


@pytest.mark.parametrize(
    ("body", "result"),
    [
        (
            "printf 'A=1\\n_b2=x=y z\\nA=2\\nEMPTY=\\n'",
            {"environment": {"A": "2", "_b2": "x=y z", "EMPTY": ""}},
        ),
        (
            "printf 'A=1\\nno variable\\n2B=3\\n=x\\nC=\\377\\nD=a\\0b\\nE=5'",
            {
                "environment": {"A": "1", "E": "5"},
                "error": "PERILOG_ENVIRONMENT: expected NAME=value, ignored line 2, 3, 4 and 2 more",
            },
        ),
        (
            "printf A=; head -c 70000 /dev/zero | tr '\\0' x",
            {"error": "PERILOG_ENVIRONMENT: more than 65536 bytes were written, all were ignored"},
        ),
        (":", {}),
    ],
)
def test_variables_are_handed_back(own_bed: ExecBed, body: str, result: dict[str, Any]) -> None:
    """Lines of PERILOG_ENVIRONMENT become variables; wrong ones are told and change nothing else."""
    own_bed.action("a", f'{{ {body}; }} > "$PERILOG_ENVIRONMENT"')
    peer = own_bed.start()
    record = peer.record(own_bed.run(peer, "a"))
    assert record["outcome"] == "ok"
    assert {key: record[key] for key in ("environment", "error") if key in record} == result


def test_a_script_that_fails_hands_nothing_back(bed: ExecBed) -> None:
    """Variables count only if the script exits with 0."""
    bed.action("a", 'echo A=1 > "$PERILOG_ENVIRONMENT"; exit 1')
    peer = bed.start()
    assert "environment" not in peer.record(bed.run(peer, "a"))


def test_strange_things_in_place_of_the_files_do_no_harm(own_bed: ExecBed) -> None:
    """Who puts folders, pipes or links where the files were hands nothing back, and nobody waits."""
    own_bed.action("a", 'rm "$PERILOG_MESSAGE" "$PERILOG_ENVIRONMENT"; mkdir "$PERILOG_MESSAGE"; '
                        'mkfifo "$PERILOG_ENVIRONMENT"')  # fmt: skip
    own_bed.action("b", 'ln -sf /etc/passwd "$PERILOG_MESSAGE"; ln -sf /etc/passwd "$PERILOG_ENVIRONMENT"; '
                        'rm /proc/self/fd/1; rm -f "$PERILOG_JOB"')  # fmt: skip
    peer = own_bed.start()
    for action in "ab":
        run = own_bed.run(peer, action)
        record = peer.record(run)
        assert "message" not in record
        assert "environment" not in record
        peer.send("ack", ids=[run])
    peer.barrier()


@pytest.mark.parametrize(
    ("spoil", "status", "text"),
    [
        (lambda path: path.unlink(), 127, "there is no such file"),
        (
            lambda path: path.write_text("#!/no/such/interpreter -x\n"),
            127,
            "interpreter /no/such/interpreter is missing",
        ),
        (lambda path: path.chmod(0o644), 126, "may not be executed"),
        (lambda path: path.write_text("echo no first line\n"), 126, "has no '#!' line"),
        (lambda path: path.write_text("#!/etc/passwd\n"), 126, "interpreter /etc/passwd may not be executed"),
        (lambda path: path.write_bytes(b"\x7fELF nonsense"), 126, "is no program"),
        (lambda path: (path.unlink(), path.mkdir()), 126, "may not be executed"),
        (lambda path: (path.unlink(), path.symlink_to(path)), 126, "Too many levels of symbolic links"),
    ],
)
def test_what_cannot_be_started_says_why(bed: ExecBed, spoil: Any, status: int, text: str) -> None:
    """Each way in which a spawn can fail has its status, and a text that names the script and the reason."""
    path = bed.action("a", "exit 0")
    peer = bed.start()
    definition = bed.definition("a")
    spoil(path)
    run = bed.run(peer, "a", definition=definition)
    record = peer.record(run)
    assert (record["outcome"], record["status"], record["pid"]) == ("failed", status << 8, None)
    assert str(path) in record["error"]
    assert text in record["error"]
    assert record["started"] is None
    peer.send("ack", ids=[run])
    peer.barrier()
    assert bed.files(run) == set()


def test_what_no_process_can_be_given_fails_that_run_alone(bed: ExecBed) -> None:
    """A NUL or too much in a variable cannot be passed on: the run says so, and the connection goes on."""
    bed.action("a", "exit 0")
    peer = bed.start()
    broken = peer.record(bed.run(peer, "a", job=1, key="a\0b"))
    assert (broken["outcome"], broken["status"]) == ("failed", 126 << 8)
    assert "null" in broken["error"]
    large = peer.record(bed.run(peer, "a", job=2, nodes="n" * (1 << 20)))
    assert (large["outcome"], large["status"]) == ("failed", 126 << 8)
    assert "Argument list too long" in large["error"]
    assert peer.record(bed.run(peer, "a", job=3))["outcome"] == "ok"


def test_a_script_that_is_being_written_is_tried_again(bed: ExecBed) -> None:
    """A shortage that passes (here: the file is open for writing) delays a run, and nobody else."""
    path = bed.action("a", "exit 0")
    bed.action("b", "exit 0")
    peer = bed.start()
    with path.open("a"):
        waiting = bed.run(peer, "a")
        assert peer.record(bed.run(peer, "b"))["outcome"] == "ok"
        peer.barrier()
        assert bed.files(waiting) == {".run", ".job", ".message", ".environment"}
    assert peer.record(waiting)["outcome"] == "ok"


def test_a_script_that_stays_busy_is_given_up(bed: ExecBed) -> None:
    """If the shortage does not pass, the run ends as not started, with the reason."""
    path = bed.action("a", "exit 0")
    peer = bed.start()
    with path.open("a"):
        record = peer.record(bed.run(peer, "a"))
    assert (record["outcome"], record["status"]) == ("failed", 126 << 8)
    assert "Text file busy" in record["error"]


def test_no_processes_left_delays_a_run_until_there_are(plain_bed: ExecBed) -> None:
    """With no process to be had (RLIMIT_NPROC), a spawn is tried again; others are served meanwhile."""
    plain_bed.action("a", "exit 0")
    peer = plain_bed.start()
    plain_bed.limit("nproc", "0")
    run = plain_bed.run(peer, "a")
    peer.barrier()
    assert peer.records() == []
    plain_bed.limit("nproc", resource.getrlimit(resource.RLIMIT_NPROC)[1])
    assert peer.record(run)["outcome"] == "ok"


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ({"definition": "0" * 64}, "does not know its definition 000000000000"),
        ({"phase": "epilog"}, "has no epilog of it"),
        ({"action": "b"}, "has no prolog of it"),
    ],
)
def test_what_the_configuration_does_not_say_is_not_run(
    bed: ExecBed, more: dict[str, Any], text: str
) -> None:
    """An unknown definition, or one that does not fit the run, is an outcome like any other: 127."""
    bed.action("a", "exit 0")
    peer = bed.start()
    order = {"action": "a", "definition": bed.definition("a"), **more}
    record = peer.record(bed.run(peer, **order))
    assert (record["outcome"], record["status"]) == ("failed", 127 << 8)
    assert text in record["error"]


def test_a_scripts_exit_ends_the_run_whoever_holds_its_output(bed: ExecBed, signpost: Signpost) -> None:
    """A background child that keeps stdout open and a daemon end with no run, but are counted (C16)."""
    bed.action(
        "a", f"sleep 1000 & setsid sh -c 'echo up > {signpost}; sleep 1000; :' & read x < {bed.folder}/go"
    )
    os.mkfifo(bed.folder / "go")
    peer = bed.start()
    run = bed.run(peer, "a")
    assert signpost.line() == "up"
    (bed.folder / "go").write_text("go\n")
    record = peer.record(run)
    assert (record["outcome"], record["strays"]) == ("ok", 2)


def test_a_daemon_that_got_away_earlier_is_counted_too(bed: ExecBed, signpost: Signpost) -> None:
    """What lost its parent while the script still ran is the run's stray, and no other run's."""
    bed.action("a", f"(setsid sleep 1000 &) ; echo up > {signpost}; read x < {bed.folder}/go; exit 0")
    bed.action("b", "exit 0")
    os.mkfifo(bed.folder / "go")
    peer = bed.start()
    run = bed.run(peer, "a")
    assert signpost.line() == "up"
    assert "strays" not in peer.record(bed.run(peer, "b"))
    (bed.folder / "go").write_text("go\n")
    assert peer.record(run)["strays"] == 1


def test_all_of_a_runs_files_go_once_it_is_acknowledged(bed: ExecBed) -> None:
    """A record is kept until the broker has journaled it; then nothing is left but output."""
    bed.action("quiet", "exit 0")
    bed.action("loud", "echo x")
    peer = bed.start()
    quiet, loud = bed.run(peer, "quiet"), bed.run(peer, "loud")
    peer.record(quiet)
    peer.record(loud)
    assert bed.files(quiet) == {".exit", ".job", ".message", ".environment", ".out"}
    peer.send("ack", ids=[quiet, loud])
    peer.barrier()
    assert bed.files(quiet) == set()
    assert bed.files(loud) == {".out"}
    assert stat.S_IMODE((bed.runs / f"{loud}.out").stat().st_mode) == 0o600


def test_a_record_that_cannot_be_written_is_reported_once_it_can(bed: ExecBed, signpost: Signpost) -> None:
    """With the folder full (here: RLIMIT_FSIZE) nothing is told that a crash could lose; it comes later."""
    os.mkfifo(bed.folder / "go")
    bed.action(
        "a", f"head -c 8000 /dev/zero | tr '\\0' x; echo up > {signpost}; read x < {bed.folder}/go; exit 5"
    )
    peer = bed.start()
    run = bed.run(peer, "a")
    assert signpost.line() == "up"
    bed.limit("fsize", "4000")
    (bed.folder / "go").write_text("go\n")
    eventually(lambda: "cannot write its record" in bed.log.read_text())
    refused = peer.record(bed.run(peer, "a", job=2, document=bytes(8000)))
    assert (refused["outcome"], refused["status"]) == ("failed", 126 << 8)
    assert "cannot write down the run" in refused["error"]
    assert [record["id"] for record in peer.records()] == [refused["id"]]
    bed.limit("fsize", "unlimited")
    assert peer.record(run)["status"] == 5 << 8
