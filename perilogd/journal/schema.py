"""The journal's file: its tables, how it is made, what is checked before it is trusted.

Connections are made here and nowhere else, so every one has the same settings. Queries on the
tables do not live here.
"""

from __future__ import annotations

import os
import secrets
import sqlite3
from typing import TYPE_CHECKING

from perilogd.journal.errors import JournalError, explain, ground

if TYPE_CHECKING:
    from pathlib import Path

#: Marks the file as ours for file(1) and for `prepare`; https://sqlite.org/fileformat.html#application_id.
APPLICATION_ID = int.from_bytes(b"Plog", "big")

#: Goes up with every change that an older perilogd would not understand; kept in user_version.
SCHEMA_VERSION = 1

#: Seconds that a connection waits for a lock. Nobody else writes to the journal, but an administrator's
#: sqlite3 shell may lock it for a moment, and that must not stop the daemon.
_BUSY_TIMEOUT = 10.0

# - Ids and sequence numbers are the tables' own row ids: no second tree, and appending is cheap.
# - An index ends in the row id, so events_by_job is ordered by (job, seq) without storing seq twice.
# - A key is looked up at every submit, and stays unique even if the broker errs; no key costs nothing.
# - Runs are small and only read by job: they lie in the tree of their key. Outputs are too large for that.
# - There is no index on `ended`: start and purge alone need it, and a scan of all jobs takes milliseconds.
# - No STRICT, no RETURNING: Python 3.11 on enterprise distributions may sit on SQLite 3.34.
_TABLES = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE boots (boot INTEGER PRIMARY KEY, boot_id TEXT NOT NULL UNIQUE);
CREATE TABLE jobs (
    id INTEGER PRIMARY KEY, submitter INTEGER NOT NULL, userid INTEGER NOT NULL, key TEXT,
    wall REAL NOT NULL, ended REAL
);
CREATE UNIQUE INDEX jobs_by_key ON jobs (key, submitter) WHERE key IS NOT NULL;
CREATE TABLE events (
    seq INTEGER PRIMARY KEY, job INTEGER NOT NULL, wall REAL NOT NULL, boottime REAL NOT NULL,
    boot INTEGER NOT NULL, name TEXT NOT NULL, context BLOB NOT NULL
);
CREATE INDEX events_by_job ON events (job);
CREATE TABLE drains (
    node TEXT PRIMARY KEY, reason TEXT NOT NULL, wall REAL NOT NULL, "by" TEXT NOT NULL, job INTEGER
) WITHOUT ROWID;
CREATE TABLE outputs (
    job INTEGER NOT NULL, phase TEXT NOT NULL, action TEXT NOT NULL, attempt INTEGER NOT NULL,
    node TEXT NOT NULL, wall REAL NOT NULL, text BLOB NOT NULL,
    PRIMARY KEY (job, phase, action, attempt, node)
);
CREATE TABLE runs (
    job INTEGER NOT NULL, phase TEXT NOT NULL, action TEXT NOT NULL, attempt INTEGER NOT NULL,
    node TEXT NOT NULL, wall_seconds REAL NOT NULL, cpu_user REAL NOT NULL, cpu_system REAL NOT NULL,
    max_rss INTEGER NOT NULL, outcome TEXT NOT NULL, status INTEGER NOT NULL,
    PRIMARY KEY (job, phase, action, attempt, node)
) WITHOUT ROWID;
"""


def connect(path: Path, *, read_only: bool) -> sqlite3.Connection:
    """Open one connection to the journal, to be used by one thread at a time.

    Raises:
        sqlite3.Error: it cannot be opened.
    """
    connection = sqlite3.connect(
        path.absolute(),  # a relative path could be taken for a URI
        timeout=_BUSY_TIMEOUT,
        isolation_level=None,  # transactions begin and end where we say so
        check_same_thread=False,  # its threads take turns
    )
    if read_only:
        connection.execute("PRAGMA query_only = ON")
        return connection
    # FULL syncs the write-ahead log at every commit; with NORMAL a power failure would take confirmed commits
    # (https://sqlite.org/pragma.html#pragma_synchronous). The file does not keep it: each writer must ask.
    connection.execute("PRAGMA synchronous = FULL")
    # Pages of the log after which a commit also copies them back into the file, with a sync of both. This is
    # SQLite's default, stated since a distribution may change it: more is no faster, but pauses get longer.
    connection.execute("PRAGMA wal_autocheckpoint = 1000")
    # The log outgrows that only behind a long reader, such as a backup; afterwards it is cut back to this.
    connection.execute(f"PRAGMA journal_size_limit = {16 << 20}")
    return connection


def prepare(path: Path) -> sqlite3.Connection:
    """Open the journal for writing; make it if there is none; check that it is one.

    Returns:
        The writing connection.

    Raises:
        JournalError: with a text that says what stands in the way.
        JournalFull: there is no room to make it.
    """
    _reach(path)
    try:
        connection = connect(path, read_only=False)
        try:
            _check(connection, path)
        except BaseException:
            connection.close()
            raise
    except sqlite3.Error as error:
        raise explain(error, path, "open") from error
    return connection


def _reach(path: Path) -> None:
    """Create the file if it is missing, and see that we may use it: SQLite says no more than "unable"."""
    try:
        # Not left to SQLite, which would use the umask; -wal and -shm get the mode of this file.
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(folder)  # the name must survive a power failure as its contents do
        finally:
            os.close(folder)
    except FileExistsError:
        pass
    except OSError as error:
        raise JournalError(
            f"cannot open the journal {path}: {error.strerror}; its folder must exist, on a local file "
            f"system with room, and let uid {os.geteuid()} write in it ([broker] state-dir, [journal] path)"
        ) from error
    if not path.is_file():
        raise JournalError(f"cannot open the journal {path}: it is not a regular file; move it away")
    for place in (path, path.parent):
        # Opening the file to find out would be wrong: closing it drops every lock that SQLite holds on it in
        # this process (https://sqlite.org/howtocorrupt.html, 2.2).
        if not os.access(place, os.R_OK | os.W_OK, effective_ids=True):
            raise JournalError(
                f"cannot open the journal {path}: {ground(place)}; perilogd must be able to read and write "
                "it, and its folder, where SQLite keeps two more files: correct owner and mode, or a "
                "mount that is read-only"
            )


def _check(connection: sqlite3.Connection, path: Path) -> None:
    """See that the file is a journal of a version that we know; make an empty file one."""
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (objects,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if application == APPLICATION_ID:
        if version != SCHEMA_VERSION:
            age = "a newer" if version > SCHEMA_VERSION else "an older"
            raise JournalError(
                f"cannot open the journal {path}: {age} perilogd wrote it (schema {version}, this one knows "
                f"schema {SCHEMA_VERSION}); start that version again, or move the file away to begin anew"
            )
        _log_ahead(connection, path)
    elif application == 0 and version == 0 and objects == 0:
        _log_ahead(connection, path)
        _create(connection)
    else:
        raise JournalError(
            f"cannot open the journal {path}: it is another application's SQLite database (application id "
            f"{application:#x}, {objects} tables and indices), and is left as it is; name another file as "
            "[journal] path"
        )


def _log_ahead(connection: sqlite3.Connection, path: Path) -> None:
    """Switch to write-ahead logging: one sync a commit, and readers that never wait for the writer."""
    (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
    if mode != "wal":
        raise JournalError(
            f"cannot use the journal {path}: its file system cannot do write-ahead logging (SQLite stays in "
            f"mode {mode}); put it on a local file system ([broker] state-dir or [journal] path)"
        )


def _create(connection: sqlite3.Connection) -> None:
    """Make the tables, in one transaction: a crash leaves a journal, or an empty file that is begun again."""
    connection.executescript(f"BEGIN IMMEDIATE; {_TABLES}")
    connection.execute("INSERT INTO meta VALUES ('journal.id', ?)", (secrets.token_hex(8),))
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
    connection.execute("COMMIT")
