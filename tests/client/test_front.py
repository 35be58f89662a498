"""The fast front of the command: what it sends, what it costs to load, how it fails, how it is started."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import perilog as perilog_package
from client.fake_broker import PATIENCE, FakeBroker, Refused
from perilog.errors import EXIT
from perilog.front import scan
from perilog.verbs import VERBS

if TYPE_CHECKING:
    from client.command import Command

HOLD = {"id": 17, "phase": "completion", "name": "drain"}

#: Command line → the one request that it makes.
REQUESTS: dict[str, tuple[str, dict[str, Any]]] = {
    "submit": ("job.submit", {}),
    "submit --key slurm.1 --nodes=n[1-4] --name 'x y' --max-reruns 2 --user 4711": (
        "job.submit",
        {"key": "slurm.1", "nodes": "n[1-4]", "name": "x y", "max_reruns": 2, "userid": 4711},
    ),
    "submit --attr dw --attr a=b=c --attr no=false --depends afterok:3 --depends after:key:k": (
        "job.submit",
        {
            "attributes": {"dw": True, "a": "b=c", "no": False},
            "dependencies": ["afterok:3", "after:key:k"],
        },
    ),
    "submit --hold completion:drain:2h --hold=depend:wait --hold prolog:a:b --hold epilog:a:1.5h:5": (
        "job.submit",
        {
            "holds": [
                {"phase": "completion", "name": "drain", "timeout": "2h"},
                {"phase": "depend", "name": "wait"},
                {"phase": "prolog", "name": "a:b"},
                {"phase": "epilog", "name": "a:1.5h", "timeout": "5"},
            ]
        },
    ),
    "submit --user root --resources cores=0-3,8,gpus=0": (
        "job.submit",
        {"userid": 0, "resources": {"cores": "0-3,8", "gpus": "0"}},
    ),
    "alloc 17 n[1-4] --resources cores=0": (
        "job.alloc",
        {"id": 17, "nodes": "n[1-4]", "resources": {"cores": "0"}},
    ),
    "start 17 --attempt 2": ("job.start", {"id": 17, "attempt": 2}),
    "exit 17 --status 9": ("job.exit", {"id": 17, "status": 9}),
    "exit --code 3 17": ("job.exit", {"id": 17, "status": 768}),
    "exit 17 --lost": ("job.exit", {"id": 17, "status": 65280, "outcome": "lost"}),
    "rerun 17": ("job.rerun", {"id": 17}),
    "cancel 17 --note 'why not' --abandon": (
        "job.cancel",
        {"id": 17, "note": "why not", "abandon": True},
    ),
    "raise 17 quota": ("job.raise", {"id": 17, "type": "quota", "severity": 0}),
    "raise 17 quota --severity 2": ("job.raise", {"id": 17, "type": "quota", "severity": 2}),
    "memo 17 a=b c=": ("job.memo", {"id": 17, "memo": {"a": "b", "c": ""}}),
    "hold 17 completion drain --timeout 30m --keep n[1-2]:cores=0,2,storage=0 --note ü": (
        "hold.start",
        {
            **HOLD,
            "timeout": "30m",
            "keep": {"nodes": "n[1-2]", "cores": "0,2", "storage": "0"},
            "note": "ü",
        },
    ),
    "update 17 completion drain --keep @rack:1": ("hold.update", {**HOLD, "keep": "@rack:1"}),
    "progress 17 completion drain 40": ("hold.update", {**HOLD, "progress": 40.0}),
    "progress 17 completion drain 33.3% 'a third'": (
        "hold.update",
        {**HOLD, "progress": 33.3, "note": "a third"},
    ),
    "release 17 completion drain": ("hold.finish", HOLD),
    "release 17 completion drain --code 1 --env A=1 --env B= --force --note n": (
        "hold.finish",
        {**HOLD, "status": 256, "environment": {"A": "1", "B": ""}, "force": True, "note": "n"},
    ),
    "wait 17 finish --timeout 1h": ("job.wait", {"id": 17, "event": "finish", "timeout": "1h"}),
}


def answer_all(fake: FakeBroker) -> None:
    """Have every verb's method succeed."""
    fake.answers = {verb.method: {"id": 17, "created": True} for verb in VERBS.values()}


@pytest.mark.parametrize("line", REQUESTS)
def test_front_and_full_command_send_the_same_request(line: str, perilog: Command, fake: FakeBroker) -> None:
    """Each verb makes exactly the documented request, by the fast front and by the full command alike."""
    answer_all(fake)
    words = shlex.split(line)
    assert scan(words) is not None, "the front itself is to answer this"
    assert perilog(*words).stderr == ""
    perilog("--json", *words)
    assert fake.requests == [REQUESTS[line]] * 2


def test_every_verb_is_covered() -> None:
    """No verb of the table is left out of the test above."""
    assert {line.split()[0] for line in REQUESTS} == set(VERBS)


@pytest.mark.parametrize("form", ["K", "key:K"])
def test_a_key_is_looked_up_first(form: str, perilog: Command, fake: FakeBroker) -> None:
    """Where JOB is a key, its id is asked for on the same connection and then used."""
    fake.answers = {"job.get": {"id": 17, "state": "RUN", "since": 1.5}, "job.start": {}}
    perilog("start", form)
    assert fake.requests == [("job.get", {"key": "K"}), ("job.start", {"id": 17})]
    assert len(fake.connections) == 1


def test_submit_prints_the_id_alone(perilog: Command, fake: FakeBroker) -> None:
    """The id is all that submit prints, so that a script can take it; the other verbs print nothing."""
    answer_all(fake)
    assert perilog("submit").stdout == "17\n"
    assert perilog("start", "17").stdout == ""
    assert perilog("start", "17", "--json").stdout == '{"id":17,"created":true}\n'


UNUSUAL = """
--help
hold --help
hold 17 prolog
hold 17 prolog x y
hold 17 prolog x --note
hold 17 prolog x --note -y
hold 17 prolog x --frobnicate 1
exit 17
exit 17 --lost --code 1
exit 17 --lost=1
exit 17 --code 256
exit 17 --code x
start 9999999999999999999
start 17 --json
start -- 17
progress 17 prolog x much
memo 17
memo 17 =x
memo 17 a=\udc80
submit --hold prolog
submit --user nobody-has-this-name
submit --resources 0-3
-s ssh:h start 17
list
frobnicate
"""


@pytest.mark.parametrize("line", UNUSUAL.split("\n")[:-1])
def test_what_is_unusual_is_left_to_the_full_command(line: str) -> None:
    """Help, JSON, ssh: sockets and all faults in the arguments are not for the front."""
    assert scan(line.split()) is None


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["exit", "17"], "--status, --code or --lost must be given"),
        (["exit", "17", "--code", "256"], "expected a whole number from 0 to 255, not '256'"),
        (["exit", "17", "--lost", "--code", "1"], "status is given twice"),
        (["progress", "17", "prolog", "x", "much"], "expected a number from 0 to 100, not 'much'"),
        (["hold", "17", "prolog"], "NAME"),
        (["memo", "17", "x"], "expected NAME=VALUE, not 'x'"),
        (["submit", "--hold", "prolog"], "expected PHASE:NAME or PHASE:NAME:TIMEOUT, not 'prolog'"),
        (["submit", "--user", "nobody-has-this-name"], "no such user on this host"),
        (["submit", "--resources", "0-3"], "expected cores=SET,gpus=SET,storage=SET"),
        (["start", "17", "--frobnicate"], "--frobnicate"),
        (["memo", "17", b"a=\x80"], "only text in UTF-8 can be sent"),
        (["frobnicate"], "no such command: 'frobnicate'"),
    ],
)
def test_a_wrong_command_line_is_explained(
    words: list[str], told: str, perilog: Command, fake: FakeBroker
) -> None:
    """A fault in the arguments ends with status 2 and says what was expected; nothing is sent."""
    done = perilog(*words, status=2)
    assert told in done.stderr
    assert "usage:" in done.stderr
    assert fake.requests == []


@pytest.mark.parametrize("code", [*EXIT, "EPROTO", "EEXIST", "EAGAIN", "ESTATE", "ENOSPC", "ESHUTDOWN"])
def test_each_code_has_one_exit_status(code: str, perilog: Command, fake: FakeBroker) -> None:
    """A refusal ends front and full command with the same status and the same text, the broker's own."""
    expected = {"EINVAL": 2, "ENOTCONN": 3, "EPERM": 4, "ENOENT": 5, "ETIMEDOUT": 124}.get(code, 1)
    fake.answers["job.start"] = Refused(f"{code}: it is so: 17")
    for words in (["start", "17"], ["--json", "start", "17"]):
        assert perilog(*words, status=expected).stderr == f"perilog: {code}: it is so: 17\n"


@pytest.mark.parametrize("words", [["start", "17"], ["--json", "start", "17"], ["list"]])
def test_no_broker(words: list[str], perilog: Command, socket_path: Path) -> None:
    """Without a broker the status is 3, and the text says which socket was tried, and why in vain."""
    told = perilog(*words, status=3).stderr
    assert str(socket_path) in told
    assert "No such file or directory" in told
    assert "$PERILOG_SOCKET" in told


@pytest.mark.parametrize("words", [["start", "17"], ["--json", "start", "17"]])
def test_a_connection_that_breaks(words: list[str], perilog: Command, fake: FakeBroker) -> None:
    """If the broker dies before the reply the status is 3, and the text says that asking again is safe."""

    def die(connection: Any, *_: object) -> bool:
        connection.cut()
        return False

    fake.before = die
    assert "safe to ask again" in perilog(*words, status=3).stderr


@pytest.mark.parametrize("words", [["start", "17"], ["--json", "start", "17"]])
@pytest.mark.parametrize("reply", [b"HTTP/1.0 400 Bad Request\r\n\r\n", b"\xc1", b"\x94\x01\x00\xa1\xff\xc0"])
def test_something_else_answers(words: list[str], reply: bytes, perilog: Command, socket_path: Path) -> None:
    """What does not speak the protocol is reported as such with status 3, without a traceback."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(socket_path))
        listener.listen()
        process = perilog.start(*words)
        with listener.accept()[0] as connection:
            connection.recv(65536)
            connection.sendall(reply)
            _, told = process.communicate(timeout=PATIENCE)
    assert process.returncode == 3
    assert "does not speak perilogd's protocol" in told


def test_a_refused_connection_tells_why(perilog: Command, socket_path: Path) -> None:
    """A broker that turns a client away says so in a reply; that is what the person reads."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(socket_path))
        listener.listen()
        process = perilog.start("start", "17")
        with listener.accept()[0] as connection:
            connection.sendall(b"\x94\x01\x00\x92\x01\xb1EAGAIN: too many!\xc0")
        _, told = process.communicate(timeout=PATIENCE)
    assert process.returncode == 1
    assert told == "perilog: EAGAIN: too many!\n"


def test_output_that_cannot_be_written(perilog: Command, fake: FakeBroker) -> None:
    """An id that cannot be printed is a failure, never a silent success."""
    answer_all(fake)
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [perilog.program, "submit"],
            env=perilog.environment,
            stdout=full,
            stderr=subprocess.PIPE,
            check=False,
        )
    assert done.returncode == 1
    assert b"cannot write to standard output: No space left on device" in done.stderr


@pytest.mark.parametrize("words", [["wait", "17", "finish"], ["--json", "wait", "17", "finish"]])
def test_ctrl_c_ends_it_as_a_signal_does(words: list[str], perilog: Command, fake: FakeBroker) -> None:
    """SIGINT ends a waiting command by that signal, quietly, so that a calling shell stops too."""
    fake.before = lambda *_: False
    process = perilog.start(*words)
    fake.until("job.wait")
    process.send_signal(signal.SIGINT)
    _, told = process.communicate(timeout=PATIENCE)
    assert process.returncode == -signal.SIGINT
    assert told == ""


def test_the_front_loads_next_to_nothing(installed: Path, fake: FakeBroker) -> None:
    """Of what makes Python slow to start (argparse, json, socket, os, typing, …) the front loads nothing."""
    answer_all(fake)
    bare = [sys.executable, "-I", "-S", "-X", "importtime"]
    hold = [str(installed), "-s", str(fake.path), "hold", "17", "prolog", "x"]
    loaded = _modules([*bare, *hold]) - _modules([*bare, "-c", "pass"])
    ours = {"perilog", "perilog.front", "perilog.errors", "perilog.verbs", "perilog.wire"}
    assert loaded <= ours | {"__future__", "_socket", "_struct"}
    assert ours <= loaded


def _modules(command: list[str]) -> set[str]:
    told = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    return {line.rpartition("|")[2].strip() for line in told.splitlines()}


def test_it_becomes_python_without_a_fork(perilog: Command, fake: FakeBroker) -> None:
    """The process that the caller started is itself the broker's client: nothing stands in between."""
    answer_all(fake)
    pids: list[int] = []

    def note(connection: Any, *_: object) -> bool:
        pids.append(connection.pid)
        return True

    fake.before = note
    process = perilog.start("start", "17")
    process.communicate(timeout=PATIENCE)
    assert pids == [process.pid]


@pytest.mark.parametrize("words", [["start", "17"], ["--json", "start", "17"]])
def test_it_is_found_on_the_path(words: list[str], perilog: Command, fake: FakeBroker) -> None:
    """Called by its bare name from a shell, in any folder, it finds its Python and its package."""
    answer_all(fake)
    done = subprocess.run(
        ["sh", "-c", 'cd / && perilog "$@"', "sh", *words],
        env={**perilog.environment, "PATH": f"{perilog.program.parent}:{os.environ['PATH']}"},
        check=False,
    )
    assert done.returncode == 0
    assert fake.requests == [("job.start", {"id": 17})]


@pytest.mark.parametrize("relative", [True, False])
def test_it_works_through_symlinks(relative: bool, perilog: Command, fake: FakeBroker, folder: Path) -> None:
    """Through a chain of symbolic links, elsewhere, it still uses its own installation's Python."""
    answer_all(fake)
    (folder / "one").mkdir()
    link = folder / "one" / "perilog"
    target = os.path.relpath(perilog.program, folder / "one") if relative else perilog.program
    link.symlink_to(target)
    (folder / "two").symlink_to("one/perilog")
    done = subprocess.run([folder / "two", "start", "17"], env=perilog.environment, check=False)
    assert done.returncode == 0
    assert fake.requests == [("job.start", {"id": 17})]


def test_a_package_elsewhere_is_found_by_site(fake: FakeBroker, folder: Path) -> None:
    """Without the package beside it (an editable installation) the command asks site, and works too."""
    answer_all(fake)
    venv = folder / "venv"
    packages = venv / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
    packages.mkdir(parents=True)
    (venv / "bin").mkdir()
    (venv / "pyvenv.cfg").write_text(f"home = {Path(sys.executable).resolve().parent}\n")
    (venv / "bin" / "python3").symlink_to(Path(sys.executable).resolve())
    (packages / "elsewhere.pth").write_text(f"{folder}/elsewhere\n")
    (folder / "elsewhere").mkdir()
    clients = Path(perilog_package.__file__).parents[1]
    (folder / "elsewhere" / "perilog").symlink_to(clients / "perilog")
    shutil.copy(clients / "bin" / "perilog", venv / "bin" / "perilog")
    done = subprocess.run([venv / "bin" / "perilog", "-s", fake.path, "start", "17"], check=False)
    assert done.returncode == 0
    assert fake.requests == [("job.start", {"id": 17})]
