"""Writing and reading the journal.

Every query on its tables lives here. What an event means, what is purged when, and what happens after
a fault do not: those are decisions of the broker.

One connection writes, and a lock makes the threads that use it take turns; readers have their own.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Self

from perilogd.journal.errors import JournalError, closed, code_of, explain
from perilogd.journal.model import DrainRow, Entry, Output, Run, decode
from perilogd.journal.readers import Readers
from perilogd.journal.schema import prepare

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator
    from pathlib import Path

    from perilogd.journal.model import Batch

_SET_META = "INSERT OR REPLACE INTO meta VALUES (?, ?)"
_NEW_JOB = "INSERT INTO jobs (id, submitter, userid, key, wall) VALUES (?, ?, ?, ?, ?)"
_NEW_RUN = "INSERT OR REPLACE INTO runs VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
_NEW_OUTPUT = "INSERT OR REPLACE INTO outputs VALUES (?, ?, ?, ?, ?, ?, ?)"
_ENTRY = "SELECT seq, job, wall, boottime, boot, name, context FROM events"
_OF_ACTIVE = "WHERE job IN (SELECT id FROM jobs WHERE id BETWEEN ? AND ? AND ended IS NULL) ORDER BY job, seq"
_OUTPUT = "SELECT job, phase, action, attempt, node, wall, text FROM outputs"
_RUN = (
    "SELECT job, phase, action, attempt, node, wall_seconds, cpu_user, cpu_system, max_rss, outcome, status "
    "FROM runs"
)
#: Phases in the order of a job's life, not of the alphabet; actions within one run side by side.
_BY_PHASE = (
    "ORDER BY CASE phase WHEN 'prolog' THEN 1 WHEN 'completion' THEN 2 ELSE 3 END, attempt, action, node"
)

#: Jobs read by one query at start: enough that a query's own cost vanishes, few enough to hold in memory.
_READ_CHUNK = 500
#: Jobs removed by one transaction of a purge: a commit that comes meanwhile waits a few milliseconds for it.
_PURGE_CHUNK = 100

#: Primary result codes that say "these rows cannot be read, others can". 0: Python could not decode a text.
_UNREADABLE = frozenset({0, sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_IOERR})


class Journal:
    """A journal that is open: at most one per file, behind a `StateLock`.

    Attributes:
        path: its file.
        journal_id: 16 hex digits, made with the file, which tell its jobs from another journal's.
        boot: the number of the present boot, for `Entry.boot`.
        next_seq: the number that the next event is to have.
        next_job: the id that the next job is to have.
    """

    path: Path
    journal_id: str
    boot: int
    next_seq: int
    next_job: int

    def __init__(self, path: Path, writer: sqlite3.Connection) -> None:
        self.path = path
        self._writer = writer
        self._writing = threading.Lock()
        self._readers = Readers(path)
        self._read = self._readers.read
        self._closed = False

    @classmethod
    def open(cls, path: Path, *, boot_id: str) -> Self:
        """Open the journal, or make it.

        Args:
            path: its file, on a local file system.
            boot_id: the kernel's random id of this boot, from /proc/sys/kernel/random/boot_id.

        Raises:
            JournalError: it cannot be used; the text says why and what to do next.
        """
        self = cls(path, prepare(path))
        try:
            self._load(boot_id)
        except BaseException:
            self.close()
            raise
        return self

    def _load(self, boot_id: str) -> None:
        """Note the boot, and read where this journal's numbers stand."""
        with self._transaction("open") as writer:
            writer.execute("INSERT OR IGNORE INTO boots (boot_id) VALUES (?)", (boot_id,))
        self.boot = next(number for number, known in self.boots().items() if known == boot_id)
        journal_id = self.meta("journal.id")
        if journal_id is None:
            raise JournalError(
                f"cannot open the journal {self.path}: its id is gone; put a backup in its place"
            )
        self.journal_id = journal_id
        # What was purged must not come back as a number either: whoever remembers it would be misled.
        self.next_seq = max(self._number("SELECT max(seq) FROM events"), self.purged_through()) + 1
        self.next_job = max(self._number("SELECT max(id) FROM jobs"), self._purged_job()) + 1

    def close(self) -> None:
        """Close the journal. Queries under way are finished; a purge soon ends with JournalError."""
        with self._writing:
            self._closed = True
            self._writer.close()
        self._readers.close()

    # Writing.

    def commit(self, batch: Batch) -> None:
        """Write a batch, whole or not at all. It is on disk when this returns.

        Raises:
            JournalFull: there is no room; nothing was written, and the same batch can be committed again.
            JournalError: anything else. Whether the batch is on disk is not known: only a restart tells.
        """
        # The order of drains matters only between those of one node, where the last one counts.
        drains = {change if isinstance(change, str) else change.node: change for change in batch.drains}
        with self._transaction("commit to") as writer:
            if batch.jobs:
                writer.executemany(_NEW_JOB, batch.jobs)
            if batch.entries:
                writer.executemany("INSERT INTO events VALUES (?, ?, ?, ?, ?, ?, ?)", batch.entries)
            if batch.ended:
                ended = ((wall, job) for job, wall in batch.ended)
                writer.executemany("UPDATE jobs SET ended = ? WHERE id = ?", ended)
            # What is not acknowledged is reported again: the same run a second time is no fault.
            if batch.runs:
                writer.executemany(_NEW_RUN, batch.runs)
            if batch.outputs:
                writer.executemany(_NEW_OUTPUT, batch.outputs)
            if drains:
                writer.executemany("DELETE FROM drains WHERE node = ?", ((node,) for node in drains))
                rows = (row for row in drains.values() if not isinstance(row, str))
                writer.executemany("INSERT INTO drains VALUES (?, ?, ?, ?, ?)", rows)
            if batch.meta:
                writer.executemany(_SET_META, batch.meta.items())
        if batch.entries:
            self.next_seq = batch.entries[-1].seq + 1
        if batch.jobs:
            self.next_job = batch.jobs[-1].id + 1

    def purge(self, *, older_than_wall: float, keep_newest: int) -> int:
        """Forget jobs that ended before a time, and all but the newest ones; active jobs stay.

        Everything of a job goes with it, its key too. This takes long when much is to go: call it from a
        thread of its own; commits go on in between.

        Args:
            older_than_wall: seconds since the Unix epoch; jobs that ended before are removed.
            keep_newest: how many ended jobs may stay.

        Returns:
            How many jobs were removed.

        Raises:
            JournalError: as `commit`; what was removed until then stays removed.
        """
        # What has ended stays ended, so a reader may choose: the sort does not hold up the writer.
        doomed = self._ids(
            "SELECT id FROM jobs WHERE ended IS NOT NULL ORDER BY ended DESC, id DESC LIMIT -1 "
            "OFFSET min((SELECT count(*) FROM jobs WHERE ended >= ?), ?)",
            (older_than_wall, keep_newest),
        )
        doomed.reverse()  # the oldest first
        for chunk in _chunks(doomed, _PURGE_CHUNK):
            began = time.monotonic()
            self._forget(chunk)
            # A lock that is taken again at once is never had by those who wait: leave them as much time.
            time.sleep(time.monotonic() - began)
        return len(doomed)

    def _forget(self, jobs: list[int]) -> None:
        """Remove jobs in one transaction, and remember how far the numbers had come."""
        ids = [(job,) for job in jobs]
        last_seq, last_job = self.purged_through(), max(self._purged_job(), *jobs)
        with self._transaction("purge") as writer:
            for row in ids:
                (seq,) = writer.execute("SELECT max(seq) FROM events WHERE job = ?", row).fetchone()
                last_seq = max(last_seq, seq or 0)
            for sql in (
                "DELETE FROM events WHERE job = ?",
                "DELETE FROM outputs WHERE job = ?",
                "DELETE FROM runs WHERE job = ?",
                "DELETE FROM jobs WHERE id = ?",
            ):
                writer.executemany(sql, ids)
            marks = [("journal.purged-seq", str(last_seq)), ("journal.purged-job", str(last_job))]
            writer.executemany(_SET_META, marks)

    @contextmanager
    def _transaction(self, doing: str) -> Iterator[sqlite3.Connection]:
        """Run a block as one transaction of the writing connection, rolled back if it raises."""
        with self._writing:
            if self._closed:
                raise closed(self.path, doing)
            writer = self._writer
            try:
                writer.execute("BEGIN IMMEDIATE")
                try:
                    yield writer
                    writer.execute("COMMIT")
                finally:
                    # After some errors SQLite has rolled back by itself (https://sqlite.org/lang_transaction.html).
                    if writer.in_transaction:
                        writer.execute("ROLLBACK")
            except sqlite3.Error as error:
                raise explain(error, self.path, doing) from error

    # Reading.

    def boots(self) -> dict[int, str]:
        """Return the kernel's boot ids by the numbers that entries carry."""
        return dict(self._read("SELECT boot, boot_id FROM boots"))

    def meta(self, key: str) -> str | None:
        """Return the value that some batch gave to a key."""
        rows = self._read("SELECT value FROM meta WHERE key = ?", (key,))
        return rows[0][0] if rows else None

    def active(self, on_damage: Callable[[int, str], None]) -> Iterator[tuple[int, list[Entry]]]:
        """Read the jobs that have not ended, by ascending id, each with all of its events in order.

        This is for the start, while nothing is committed yet.

        Args:
            on_damage: called with a job's id and a text when its rows cannot be read, before the job is
                yielded with those that can: they must not be replayed, but may tell which nodes it had.

        Raises:
            JournalError: the list of jobs cannot be read, or reading fails for a reason that is no job's.
        """
        ids = self._ids("SELECT id FROM jobs WHERE ended IS NULL ORDER BY id")
        for chunk in _chunks(ids, _READ_CHUNK):
            found: dict[int, list[Entry]] = {job: [] for job in chunk}
            faults: dict[int, str | None] = {}
            rows, fault = self._try(f"{_ENTRY} {_OF_ACTIVE}", (chunk[0], chunk[-1]))
            if fault is None:
                for row in rows:
                    found[row[1]].append(Entry._make(row))
            else:  # somewhere in there: ask for each job by itself, to learn whose rows they are
                for job in chunk:
                    found[job], faults[job] = self._salvage(job)
            for job, entries in found.items():
                fault = faults.get(job) or _fault(entries)
                if fault is None:
                    yield job, entries
                else:
                    on_damage(job, f"job {job} is damaged in the journal {self.path}: {fault}")
                    yield job, [entry for entry in entries if _fault([entry]) is None]

    def _salvage(self, job: int) -> tuple[list[Entry], str | None]:
        """Read a job's entries row by row, and say what is wrong if not all could be read."""
        seqs, fault = self._try("SELECT seq FROM events WHERE job = ? ORDER BY seq", (job,))
        entries = [Entry._make(row) for seq in seqs for row in self._try(f"{_ENTRY} WHERE seq = ?", seq)[0]]
        if fault is None and len(entries) < len(seqs):
            fault = f"{len(seqs) - len(entries)} of its {len(seqs)} events cannot be read"
        return entries, fault

    def _try(self, sql: str, values: tuple[object, ...]) -> tuple[list[tuple[Any, ...]], str | None]:
        """Run one query; instead of rows that are damaged, return none and say why."""
        try:
            with self._readers.lend() as reader:
                return reader.execute(sql, values).fetchall(), None
        except sqlite3.Error as error:
            if code_of(error) & 0xFF not in _UNREADABLE:
                raise explain(error, self.path, "read") from error
            return [], str(error)

    def events(self, job: int, start: int = 0, limit: int = 1000) -> list[Entry]:
        """Return a job's events with `seq` at or after `start`, in order, at most `limit`."""
        return self._entries("WHERE job = ? AND seq >= ? ORDER BY seq LIMIT ?", (job, start, limit))

    def events_since(
        self, start: int, limit: int = 1000, names: Collection[str] | None = None
    ) -> list[Entry]:
        """Return all jobs' events with `seq` at or after `start`, in order.

        Args:
            start: the first number wanted.
            limit: how many at most; fewer mean that there were no more.
            names: if given, only events of these names.
        """
        if names is None:
            return self._entries("WHERE seq >= ? ORDER BY seq LIMIT ?", (start, limit))
        marks = ",".join("?" * len(names))
        where = f"WHERE seq >= ? AND name IN ({marks}) ORDER BY seq LIMIT ?"
        return self._entries(where, (start, *names, limit))

    def oldest(self) -> int:
        """Return the number of the oldest event that is kept; `next_seq` when there is none."""
        return self._number("SELECT min(seq) FROM events") or self.next_seq

    def purged_through(self) -> int:
        """Return the highest number of an event that purge took: up to it events may be missing."""
        return int(self.meta("journal.purged-seq") or 0)

    def _purged_job(self) -> int:
        return int(self.meta("journal.purged-job") or 0)

    def job_of_key(self, submitter: int, key: str) -> int | None:
        """Return the job to which this uid gave this key."""
        jobs = self._ids("SELECT id FROM jobs WHERE key = ? AND submitter = ?", (key, submitter))
        return jobs[0] if jobs else None

    def jobs_of_key(self, key: str) -> list[int]:
        """Return the jobs to which anybody gave this key, by ascending id."""
        return self._ids("SELECT id FROM jobs WHERE key = ? ORDER BY id", (key,))

    def ended_jobs(self, after: int = 0, limit: int = 1000, userid: int | None = None) -> list[int]:
        """Return jobs that have ended, by ascending id.

        Args:
            after: only ids above this one.
            limit: how many at most; fewer mean that there were no more.
            userid: if given, only jobs that belong to this uid.
        """
        return self._ids(
            "SELECT id FROM jobs WHERE id > ? AND ended IS NOT NULL AND (? IS NULL OR userid = ?) "
            "ORDER BY id LIMIT ?",
            (after, userid, userid, limit),
        )

    def owners(self, jobs: Collection[int]) -> dict[int, int]:
        """Return the uids that these jobs belong to, without those that are not there."""
        marks = ",".join("?" * len(jobs))
        sql = f"SELECT id, userid FROM jobs WHERE id IN ({marks})"  # noqa: S608 - question marks only
        return dict(self._read(sql, tuple(jobs)))

    def exists(self, job: int) -> bool:
        """Tell whether there is a record of this job."""
        return bool(self._ids("SELECT id FROM jobs WHERE id = ?", (job,)))

    def drains(self) -> list[DrainRow]:
        """Return all drained nodes, by name."""
        rows = self._read('SELECT node, reason, wall, "by", job FROM drains ORDER BY node')
        return list(map(DrainRow._make, rows))

    def output(
        self, job: int, phase: str, action: str, attempt: int | None = None, node: str = ""
    ) -> Output | None:
        """Return what is kept of one run's output: of the newest attempt, unless one is named."""
        rows = self._read(
            f"{_OUTPUT} WHERE job = ? AND phase = ? AND action = ? AND node = ? "
            "AND (? IS NULL OR attempt = ?) ORDER BY attempt DESC LIMIT 1",
            (job, phase, action, node, attempt, attempt),
        )
        return Output._make(rows[0]) if rows else None

    def outputs(self, job: int) -> list[Output]:
        """Return all output kept of a job, by phase in the order of its life, attempt, action and node."""
        return list(map(Output._make, self._read(f"{_OUTPUT} WHERE job = ? {_BY_PHASE}", (job,))))

    def runs(self, job: int) -> list[Run]:
        """Return what a job's runs used, by phase in the order of its life, attempt, action and node."""
        return list(map(Run._make, self._read(f"{_RUN} WHERE job = ? {_BY_PHASE}", (job,))))

    def _entries(self, where: str, values: tuple[object, ...]) -> list[Entry]:
        return list(map(Entry._make, self._read(f"{_ENTRY} {where}", values)))

    def _ids(self, sql: str, values: tuple[object, ...] = ()) -> list[int]:
        return [job for (job,) in self._read(sql, values)]

    def _number(self, sql: str) -> int:
        """Return the one number that a query gives, 0 for none."""
        return self._read(sql)[0][0] or 0


def _chunks(jobs: list[int], size: int) -> Iterator[list[int]]:
    return (jobs[start : start + size] for start in range(0, len(jobs), size))


def _fault(entries: list[Entry]) -> str | None:
    """Say what is wrong with a job's entries as rows; whether they make a life is not judged here."""
    if not entries:
        return "it has no events"
    for entry in entries:
        if not (type(entry.name) is str and type(entry.wall) is type(entry.boottime) is float):
            return f"event {entry.seq}: a column holds a value of the wrong type"
        try:
            decode(entry.context)
        except ValueError as error:
            return f"event {entry.seq}: {error}"
    return None
