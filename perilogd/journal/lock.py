"""One broker per state folder.

The lock lives here. It guards a whole folder, not the journal's file: SQLite's own locks come and
go with each transaction.
"""

from __future__ import annotations

import fcntl
import os
from typing import TYPE_CHECKING, Self

from perilogd.journal.errors import JournalError

if TYPE_CHECKING:
    from pathlib import Path
    from types import TracebackType


class StateLock:
    """The right to use a state folder, held until it is released or this process dies.

    It is a flock(2) on the file `lock`, which goes away with the process however that ends; the file itself
    stays, since removing it would let two processes lock two files of one name.

    Args:
        state_dir: the folder; it must exist.

    Raises:
        JournalError: another process holds it (the text names its pid), or the file cannot be used.
    """

    def __init__(self, state_dir: Path) -> None:
        path = state_dir / "lock"
        try:
            # Close-on-exec: no child of ours may keep the lock when we are gone.
            self._fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            raise JournalError(
                f"cannot lock the state folder {state_dir}: {path}: {error.strerror}; the folder must exist, "
                f"and let uid {os.geteuid()} write in it ([broker] state-dir)"
            ) from error
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(self._fd, 0)
            os.pwrite(self._fd, f"{os.getpid()}\n".encode(), 0)
        except BlockingIOError as error:
            # Empty for the moment between its lock and its pid.
            pid = os.pread(self._fd, 32, 0).decode("ascii", "replace").strip() or "unknown"
            self.release()
            raise JournalError(
                f"cannot lock the state folder {state_dir}: another perilogd uses it (pid {pid}); stop that "
                "one first, or give this one a folder of its own (--state-dir)"
            ) from error
        except OSError as error:
            self.release()
            raise JournalError(
                f"cannot lock the state folder {state_dir}: {path}: {error.strerror}; it must be on a local "
                "file system that has room and knows flock(2)"
            ) from error

    def release(self) -> None:
        """Let another process have the folder."""
        os.close(self._fd)

    def __enter__(self) -> Self:
        """Return the lock; it is released at the end of the block."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Release the lock."""
        self.release()
