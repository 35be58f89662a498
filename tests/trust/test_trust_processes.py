"""The processes themselves: a broker without privileges, and the executor's socket and folder."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING

import msgpack
import pytest

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
