"""What can go wrong with the journal, said so that a person can act on it.

Exceptions and their texts live here. Which fault is fatal is the broker's decision: this package
only tells a full disk, after which the same write can be tried again, from everything else.
"""

from __future__ import annotations

import os
import sqlite3
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


class JournalError(Exception):
    """The journal cannot be used; the text says why, and what to do next."""


class JournalFull(JournalError):  # noqa: N818 - it names a state of the disk, which passes
    """There was no room for a write; nothing of it was written, and it can be tried again."""


#: What to do, by SQLite's primary result code (https://sqlite.org/rescode.html).
_ADVICE = {
    sqlite3.SQLITE_FULL: "there is no room: free some on its file system; nothing of this write was kept",
    sqlite3.SQLITE_NOTADB: (
        "this is no journal, and it is left as it is: move it away, or name another file as [journal] path"
    ),
    sqlite3.SQLITE_CORRUPT: (
        "the file is damaged: stop perilogd, copy the file with its -wal, and rescue what is in it with "
        "sqlite3's .recover command, or put a backup in its place"
    ),
    sqlite3.SQLITE_BUSY: "another process has it locked: find it (fuser, lsof) and end it",
    sqlite3.SQLITE_IOERR: (
        "the disk or file system reports an error: look into dmesg and at the quota, then start perilogd"
    ),
    sqlite3.SQLITE_READONLY: "it cannot be written: look at the owner and mode of the file and its folder",
    sqlite3.SQLITE_CANTOPEN: (
        "look at the owner and mode of the file and its folder, and at the limit of open files"
    ),
    sqlite3.SQLITE_NOMEM: "memory ran out: see what else runs on this machine, then start perilogd",
}

#: A full disk has a second face: SQLite cannot enlarge the shared index of its write-ahead log (the
#: -shm file), and says IOERR_SHMSIZE instead of FULL. Nothing was written then either.
_FULL = frozenset({sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_SHMSIZE})


def code_of(error: sqlite3.Error) -> int:
    """Return SQLite's extended result code, or 0 for an error that Python's own layer raised."""
    return getattr(error, "sqlite_errorcode", 0)


def explain(error: sqlite3.Error, path: Path, doing: str) -> JournalError:
    """Return the exception to raise for an error of SQLite.

    Args:
        error: what SQLite raised.
        path: the journal.
        doing: what was being done to it, as in "commit to".
    """
    code = code_of(error)
    full = code in _FULL
    primary = sqlite3.SQLITE_FULL if full else code & 0xFF
    advice = _ADVICE.get(primary, "this is a fault of perilogd: report it with this text")
    name = f" ({error.sqlite_errorname})" if code else ""
    text = f"cannot {doing} the journal {path}: {error}{name}; {advice}"
    return JournalFull(text) if full else JournalError(text)


def ground(path: Path) -> str:
    """Describe who may do what with a file or folder, and who we are."""
    status = path.stat()
    return (
        f"{path} belongs to uid {status.st_uid}, gid {status.st_gid}, mode {status.st_mode & 0o7777:04o}; "
        f"this process is uid {os.geteuid()}, gid {os.getegid()}"
    )


def closed(path: Path, doing: str) -> JournalError:
    """Return the exception for a use of the journal after it was closed."""
    return JournalError(f"cannot {doing} the journal {path}: it is closed, since perilogd is stopping")
