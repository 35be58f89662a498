"""The processes themselves: a broker without privileges, and the executor's socket and folder."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgpack
import pytest

from bed import until
from perilogd.config import load
from raw import ALICE, IS_ROOT, NOBODY, Raw, run_as

if TYPE_CHECKING:
    from bed import Bed

#: Runs a private broker and a job in it, as whoever runs this, and prints what became of it.
LIFE = """
import json, os, pathlib, sys
import perilog
from perilog.testing import PrivateBroker

folder = pathlib.Path(sys.argv[1])
script = folder / "script"
script.write_text(f'#!/bin/sh\\nid -u > {folder}/$PERILOG_PHASE.$PERILOG_JOB_ID\\n')
script.chmod(0o755)
with PrivateBroker(folder) as broker:
    command = json.dumps([str(script)])
    broker.config.write_text(
        f'[[action]]\\nname = "a"\\nprolog = {command}\\ncompletion = {command}\\nepilog = {command}\\n'
    )
    broker.start()
    with perilog.connect(str(broker.socket)) as client:
        found = {"hello": client.call("hello", client="test")}
        for userid in (os.geteuid(), int(sys.argv[2])):
            job = client.submit(nodes="n1", userid=userid)
            client.wait(job, "ready", 60)
            client.call("job.start", id=job)
            client.call("job.exit", id=job, status=0)
            client.wait(job, "clean", 60)
            found[job] = client.call("job.events", id=job)
        found["executor"] = client.call("broker.stats")["executor"]
    with open(broker.config, "a") as config:
        config.write('user = "root"\\n')
    with perilog.connect(str(broker.socket)) as client:
        try:
            client.call("broker.reload")
        except perilog.Error as error:
            found["reload"] = str(error)
print(json.dumps(found))
"""


def test_a_broker_needs_no_privileges(folder: Path, other_user_venv: Path) -> None:
    """Any user can run a broker with its own executor, and a whole job in it; what needs root says so."""
    uid = NOBODY if IS_ROOT else os.geteuid()
    folder.chmod(0o755)
    os.chown(folder, uid, -1)
    found = json.loads(
        run_as(uid, [str(other_user_venv / "python3"), "-c", LIFE, str(folder), str(ALICE)]).stdout
    )
    assert (found["hello"]["uid"], found["hello"]["role"]) == (uid, "admin")
    assert found["executor"]["uid"] == uid
    names = [event["name"] for event in found["1"]]
    assert names == [
        "submit",
        "depend",
        "alloc",
        "prolog-start",
        "prolog-finish",
        "ready",
        "start",
        "exit",
        "completion-start",
        "completion-finish",
        "finish",
        "epilog-start",
        "epilog-finish",
        "release",
        "clean",
    ]
    for phase in ("prolog", "completion", "epilog"):
        assert (folder / f"{phase}.1").read_text() == f"{uid}\n"
    # Another user's completion script would have to run as him.
    (ended,) = [event["context"] for event in found["2"] if event["name"] == "completion-finish"]
    assert (ended["outcome"], ended["status"]) == ("failed", 126 << 8)
    assert "which needs root" in ended["note"]
    assert not (folder / "completion.2").exists()
    assert (folder / "epilog.2").read_text() == f"{uid}\n"
    assert "running scripts as another user needs root" in found["reload"]


def hello(connection: socket.socket) -> bytes:
    """Say hello as a broker would, and return the answer; nothing if there is none."""
    connection.settimeout(60)
    try:
        connection.sendall(msgpack.packb(["hello", {"protocol": 1, "journal": "00"}]))
        return connection.recv(1 << 16)
    except (BrokenPipeError, ConnectionResetError):
        return b""


def test_the_executors_socket_is_private(bed: Bed) -> None:
    """Only its owner may connect to the executor's socket, and list or read what is in its folder."""
    bed.action("a", prolog=f"sleep 1000 & echo $! > {bed.folder}/pid; wait")
    bed.start()
    bed.executor_answers()
    job = bed.submit()
    bed.wait(job, "prolog-start")
    folder = bed.run_dir / "exec"
    assert (folder / "exec.sock").stat().st_mode & 0o777 == 0o600
    for path in (folder, folder / "runs"):
        assert path.stat().st_mode & 0o066 == 0
    for path in (folder / "runs").iterdir():
        assert path.stat().st_mode & 0o077 == 0, path
    assert (bed.state_dir / "journal.sqlite").stat().st_mode & 0o077 == 0
    bed.call("job.cancel", id=job)
    bed.wait(job, "clean")


@pytest.mark.other_users
def test_the_executor_believes_the_kernel(bed: Bed, other_user_venv: Path) -> None:
    """A process of another user is refused even where the socket's mode lets it in; the broker goes on."""
    bed.action("a", prolog="true")
    bed.start()
    executor = bed.executor_answers()
    path = bed.run_dir / "exec/exec.sock"
    python = str(other_user_venv / "python3")
    connect = "import socket, sys; socket.socket(socket.AF_UNIX).connect(sys.argv[1])"
    with pytest.raises(AssertionError, match="Permission denied"):
        run_as(ALICE, [python, "-c", connect, str(path)])
    path.chmod(0o666)
    with Raw.of(ALICE, path, other_user_venv / "python3") as stranger:
        assert hello(stranger.sock) == b""
    job = bed.submit()
    bed.wait(job, "ready")
    assert bed.executor_answers() == executor


@pytest.mark.other_users
def test_a_captured_broker_gets_no_rights_from_the_executor(folder: Path, other_user_venv: Path) -> None:
    """Whoever speaks for the broker has scripts run that root wrote down, as they are, and nothing else."""
    folder.chmod(0o755)
    evil, sprung, out = folder / "evil", folder / "sprung", folder / "out"
    evil.write_text(f"id > {sprung}\n")
    script = folder / "script"
    script.write_text(f'#!/bin/bash\necho "$PERILOG_RUN_ID" >> {out}\n')
    script.chmod(0o755)
    config = folder / "perilogd.toml"
    config.write_text(f'[[action]]\nname = "a"\nprolog = ["{script}"]\nepilog = ["{script}"]\n')
    definition = load(config, uid=0).actions[0].definition
    program = Path(sys.executable).with_name("perilog-exec")
    options = ["--config", str(config), "--run-dir", str(folder / "run"), "--broker-user", "nobody"]
    run = {
        "id": "00,1,prolog,1,a",
        "job": 1,
        "phase": "prolog",
        "action": "a",
        "definition": definition,
        "attempt": 1,
        "userid": 0,
        "jobname": "$(reboot)",
        "key": "",
        "nodes": "n1",
        "socket": "/nonexistent",
        "variables": {"BASH_ENV": str(evil), "ENV": str(evil), "PATH": str(folder)},
        "user_variables": {"BASH_ENV": str(evil)},
        "document": b"{}",
    }
    attacks = [
        ["hello", {"protocol": 1, "journal": "../.."}],
        ["run", run | {"id": "00,1,prolog,1,../../../../../../tmp/x", "action": "../../../../../../tmp/x"}],
        ["run", run | {"id": "00,1,prolog,1,a", "action": "b"}],
        ["run", run | {"phase": "completion; reboot"}],
        ["run", run | {"variables": {"A=B": "x"}}],
        ["run", run | {"document": "text"}],
        ["run", []],
        ["exec", {"command": ["/bin/sh", "-c", f"touch {sprung}"]}],
    ]
    with (folder / "log").open("ab") as log, subprocess.Popen([program, *options], stderr=log) as executor:
        try:
            path = folder / "run/exec/exec.sock"
            until(path.exists)
            for attack in attacks:
                with Raw.of(NOBODY, path, other_user_venv / "python3") as broker:
                    broker.send(msgpack.packb(["hello", {"protocol": 1, "journal": "00"}]))
                    assert broker.message()[0] == "hello"
                    broker.send(msgpack.packb(attack))
                    assert broker.message()[0] == "error"
                    assert broker.message() is None
            with Raw.of(NOBODY, path, other_user_venv / "python3") as broker:
                broker.send(msgpack.packb(["hello", {"protocol": 1, "journal": "00"}]))
                command = {"command": ["/bin/sh", "-c", f"touch {sprung}"], "user": "root", "timeout": None}
                unknown = run | command | {"id": "00,2,prolog,1,a", "job": 2, "definition": "0" * 64}
                broker.send(msgpack.packb(["run", run | command]) + msgpack.packb(["run", unknown]))
                ended: dict[str, Any] = {}
                while len(ended) < 2:
                    kind, body = broker.message()
                    if kind == "exits":
                        ended |= {record["id"]: record for record in body["records"]}
        finally:
            executor.terminate()
    assert ended["00,1,prolog,1,a"]["outcome"] == "ok"
    assert ended["00,2,prolog,1,a"]["status"] == 127 << 8
    assert out.read_text() == "00,1,prolog,1,a\n"
    assert not sprung.exists()
