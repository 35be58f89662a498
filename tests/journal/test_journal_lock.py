"""The lock on a state folder: one process, and only while it lives."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from perilogd.journal import JournalError, StateLock

_ROOT = Path(__file__).parents[2]

_HOLDER = """
import sys
from pathlib import Path
from perilogd.journal import StateLock
lock = StateLock(Path(sys.argv[1]))
print("locked", flush=True)
sys.stdin.read()
"""


def test_holder_is_named_until_it_dies(tmp_path: Path) -> None:
    """While another process holds the lock its pid is in the error; when it is killed the lock is free."""
    with subprocess.Popen(
        [sys.executable, "-c", _HOLDER, str(tmp_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={"PYTHONPATH": str(_ROOT)},
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"locked\n"
        with pytest.raises(
            JournalError, match=f"cannot lock the state folder {tmp_path}: .*pid {holder.pid}\\)"
        ):
            StateLock(tmp_path)
        holder.kill()
    with StateLock(tmp_path):
        assert (tmp_path / "lock").read_text() == f"{os.getpid()}\n"


def test_one_holder_within_a_process(tmp_path: Path) -> None:
    """The same process cannot take it twice, but can again after the release; folders are independent."""
    other = tmp_path / "other"
    other.mkdir()
    with StateLock(tmp_path), StateLock(other), pytest.raises(JournalError, match=f"pid {os.getpid()}"):
        StateLock(tmp_path)
    StateLock(tmp_path).release()


def test_children_do_not_keep_it(tmp_path: Path) -> None:
    """A program that was started meanwhile, and goes on, does not hold the lock."""
    lock = StateLock(tmp_path)
    with subprocess.Popen(
        ["/bin/cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, close_fds=False
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdin.write(b"\n")
        child.stdin.flush()
        assert child.stdout.readline() == b"\n"  # it runs: until then it may share our files
        lock.release()
        StateLock(tmp_path).release()
        assert child.poll() is None


def test_folder_that_cannot_be_locked(tmp_path: Path) -> None:
    """A folder that does not exist, or whose lock is something else, is an error with the reason."""
    with pytest.raises(JournalError, match=r"No such file or directory; the folder must exist.*state-dir"):
        StateLock(tmp_path / "missing")
    (tmp_path / "lock").symlink_to("elsewhere")
    with pytest.raises(JournalError, match="symbolic links"):
        StateLock(tmp_path)
