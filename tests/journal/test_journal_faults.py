"""What is said and done when the journal's file is not what it should be, cannot be used, or is full."""

from __future__ import annotations

import os
import re
import resource
import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from journal.helpers import BOOT, add_job, entry, no_damage, opened
from perilogd.journal import Batch, DrainRow, Journal, JournalError, JournalFull, schema
from perilogd.journal.errors import explain

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def _change(path: Path, sql: str) -> None:
    """Do something to the file that perilogd would never do."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute(sql)


def _other_application(path: Path) -> None:
    _change(path, "CREATE TABLE t (x)")


def _other_application_id(path: Path) -> None:
    _change(path, "PRAGMA application_id = 7")


def _newer(path: Path) -> None:
    opened(path).__enter__().close()
    _change(path, f"PRAGMA user_version = {schema.SCHEMA_VERSION + 1}")


def _older(path: Path) -> None:
    opened(path).__enter__().close()
    _change(path, "PRAGMA user_version = 0")


def _without_id(path: Path) -> None:
    opened(path).__enter__().close()
    _change(path, "DELETE FROM meta")


def _damaged(path: Path) -> None:
    opened(path).__enter__().close()
    with path.open("r+b") as file:
        file.seek(100)  # the first page's tree, right after the file's header
        file.write(b"\xff" * 200)


def _text(path: Path) -> None:
    path.write_bytes(b"# not a database\n" * 100)


def _short(path: Path) -> None:
    path.write_bytes(b"short")


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (
            _text,
            r"file is not a database \(SQLITE_NOTADB\); this is no journal, and it is left as it is: move",
        ),
        (_short, "not a database.*left as it is"),
        (_other_application, r"another application's SQLite database \(application id 0x0, 1 tables"),
        (_other_application_id, "another application's SQLite database .*0x7, .*left as it is; name another"),
        (
            _newer,
            r"a newer perilogd wrote it \(schema 2, this one knows schema 1\); start that version again",
        ),
        (_older, r"an older perilogd wrote it \(schema 0, this"),
        (_damaged, "SQLITE_CORRUPT.*the file is damaged: stop perilogd, copy .*backup"),
        (_without_id, "its id is gone; put a backup"),
    ],
)
def test_wrong_file(path: Path, make: Callable[[Path], None], said: str) -> None:
    """A file that is no journal of ours is refused with what it is and what to do, and is not changed."""
    make(path)
    before = path.read_bytes()
    with pytest.raises(JournalError, match=f"cannot open the journal {path}: .*{said}"):
        Journal.open(path, boot_id=BOOT)
    assert path.read_bytes() == before


def test_empty_file_is_begun(path: Path) -> None:
    """An empty file, as a crash at the first start leaves it, becomes a journal."""
    path.touch()
    with opened(path) as journal:
        assert add_job(journal) == 1


def test_not_a_file(path: Path) -> None:
    """A folder, and a link that leads nowhere, are refused as what they are."""
    path.mkdir()
    with pytest.raises(JournalError, match="not a regular file"):
        Journal.open(path, boot_id=BOOT)
    link = path / "link"
    link.symlink_to("nowhere")
    with pytest.raises(JournalError, match="not a regular file"):
        Journal.open(link, boot_id=BOOT)


def test_missing_folder(path: Path) -> None:
    """A folder that does not exist is named, with the setting that names it."""
    with pytest.raises(JournalError, match=r"No such file or directory; its folder must exist.*state-dir"):
        Journal.open(path / "journal.sqlite", boot_id=BOOT)


def test_unreachable_folder(plain_folder: Path) -> None:
    """A new journal in a folder that may not be written is refused with the kernel's reason and our uid."""
    plain_folder.chmod(0o500)
    with pytest.raises(JournalError, match=f"Permission denied; .* uid {os.geteuid()} write"):
        Journal.open(plain_folder / "journal.sqlite", boot_id=BOOT)


@pytest.mark.parametrize("mode", [0o000, 0o400])
def test_unusable_file(plain_folder: Path, mode: int) -> None:
    """A journal that may not be read, or not be written, is refused with its owner and mode and our uid."""
    path = plain_folder / "journal.sqlite"
    opened(path).__enter__().close()
    path.chmod(mode)
    with pytest.raises(
        JournalError,
        match=f"{path} belongs to uid {os.geteuid()}, .*mode {mode:04o}; .* correct owner and mode",
    ):
        Journal.open(path, boot_id=BOOT)


def test_read_only_folder(plain_folder: Path) -> None:
    """A journal whose folder may not be written is refused, naming the folder: the log needs it."""
    path = plain_folder / "journal.sqlite"
    opened(path).__enter__().close()
    plain_folder.chmod(0o500)
    with pytest.raises(JournalError, match=f"{plain_folder} belongs to uid .*mode 0500"):
        Journal.open(path, boot_id=BOOT)


def test_file_system_without_shared_memory(path: Path) -> None:
    """Where SQLite cannot log ahead, as on a network file system or in memory, the journal is refused."""
    with (
        closing(sqlite3.connect(":memory:")) as connection,
        pytest.raises(
            JournalError, match=r"cannot do write-ahead logging \(SQLite stays in mode memory\); put it"
        ),
    ):
        schema._log_ahead(connection, path)


def test_files_are_private(path: Path) -> None:
    """The journal and the files beside it are for their owner alone, whatever the umask."""
    umask = os.umask(0)
    try:
        with opened(path) as journal:
            add_job(journal)
            modes = {file.name: file.stat().st_mode & 0o777 for file in path.parent.iterdir()}
    finally:
        os.umask(umask)
    assert modes == dict.fromkeys(("journal.sqlite", "journal.sqlite-wal", "journal.sqlite-shm"), 0o600)


def test_locked_by_another(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A journal that somebody else keeps locked is an error that says how to find him."""
    monkeypatch.setattr(schema, "_BUSY_TIMEOUT", 0.0)
    with opened(path) as journal, closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(JournalError, match=r"locked \(SQLITE_BUSY\); another process .*fuser"):
            journal.commit(Batch(meta={"a": "b"}))
        other.execute("ROLLBACK")
        journal.commit(Batch(meta={"a": "b"}))
        assert journal.meta("a") == "b"


def test_full_disk(path: Path) -> None:
    """A batch that finds no room is rolled back whole; reads go on; with room it goes through, once."""
    with opened(path) as journal:
        job = add_job(journal)
        (pages,) = journal._writer.execute("PRAGMA page_count").fetchone()
        journal._writer.execute(f"PRAGMA max_page_count = {pages + 3}")
        batch = Batch(
            entries=[entry(seq, job, text="x" * 3000) for seq in range(2, 30)],
            ended=[(job, 1.0)],
            drains=[DrainRow("n1", "r", 1.0, "me", None)],
        )
        for _ in range(3):
            with pytest.raises(
                JournalFull, match=r"SQLITE_FULL\); there is no room: free some .* nothing of this"
            ):
                journal.commit(batch)
            assert [row.seq for row in journal.events_since(0)] == [1]
            assert (journal.next_seq, journal.drains(), journal.ended_jobs()) == (2, [], [])
        journal._writer.execute("PRAGMA max_page_count = 100000")
        journal.commit(batch)
    with opened(path) as journal:
        assert (journal.next_seq, journal.ended_jobs()) == (30, [job])
        assert journal.events_since(2) == batch.entries


def test_full_disk_for_the_shared_index(path: Path) -> None:
    """The other code by which SQLite reports a full disk counts as full too; a plain disk error does not."""
    error = sqlite3.OperationalError("disk I/O error")
    error.sqlite_errorcode, error.sqlite_errorname = sqlite3.SQLITE_IOERR_SHMSIZE, "SQLITE_IOERR_SHMSIZE"
    assert isinstance(explain(error, path, "commit to"), JournalFull)
    error.sqlite_errorcode, error.sqlite_errorname = sqlite3.SQLITE_IOERR_FSYNC, "SQLITE_IOERR_FSYNC"
    assert not isinstance(explain(error, path, "commit to"), JournalFull)


def test_disk_error(journal: Journal, path: Path) -> None:
    """A write that fails otherwise, here at the file size limit, is no full disk, and says where to look."""
    job = add_job(journal)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(
        resource.RLIMIT_FSIZE, (path.with_name("journal.sqlite-wal").stat().st_size, limits[1])
    )
    try:
        with pytest.raises(JournalError, match=r"SQLITE_IOERR_WRITE\).*dmesg") as caught:
            journal.commit(Batch(entries=[entry(2, job, text="x" * 100000)]))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert not isinstance(caught.value, JournalFull)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("context = x'c1'", "event 5: the context cannot be decoded: FormatError"),
        ("context = x'81'", "event 5: the context cannot be decoded: .*exceeds"),
        ("context = x'8080'", "event 5: the context cannot be decoded: unpack.b. received extra data"),
        ("context = 'text'", "event 5: the context cannot be decoded: a bytes-like object is required"),
        ("context = x'01'", "event 5: the context is not a map but int"),
        ("wall = 'noon'", "event 5: a column holds a value of the wrong type"),
        ("name = x'00'", "event 5: a column holds a value of the wrong type"),
        ("name = CAST(x'ff' AS TEXT)", "1 of its 3 events cannot be read"),
    ],
)
def test_damaged_row(path: Path, change: str, said: str) -> None:
    """A damaged row is reported for its job, which comes with the other rows, and touches no other job."""
    with opened(path) as journal:
        for _ in range(3):
            add_job(journal, "alloc", "depend")
        sound = dict(journal.active(no_damage))
    _change(path, f"UPDATE events SET {change} WHERE seq = 5")  # noqa: S608 - our own words
    reports: list[tuple[int, str]] = []
    with opened(path) as journal:
        found = dict(journal.active(lambda job, text: reports.append((job, text))))
        assert add_job(journal) == 4
    ((job, text),) = reports
    assert job == 2
    assert re.match(f"job 2 is damaged in the journal {path}: {said}", text)
    assert found == {1: sound[1], 2: [sound[2][0], sound[2][2]], 3: sound[3]}


def test_lost_rows(path: Path) -> None:
    """An active job of which no event is left is damaged, not a job without a past."""
    with opened(path) as journal:
        add_job(journal)
    _change(path, "DELETE FROM events")
    reports: list[str] = []
    with opened(path) as journal:
        assert list(journal.active(lambda _, text: reports.append(text))) == [(1, [])]
    assert reports == [f"job 1 is damaged in the journal {path}: it has no events"]


def test_damaged_page(path: Path) -> None:
    """A page that is overwritten with garbage costs the job whose rows lie there, and nobody else."""
    with opened(path) as journal:
        for job in (1, 2, 3):
            add_job(journal)
            # So large that each also fills pages of its own, which are chained by their first four bytes.
            rows = [entry(journal.next_seq + at, job, mark=f"<{job}-{at}>" * 3000) for at in range(3)]
            journal.commit(Batch(entries=rows))
        sound = dict(journal.active(no_damage))
        (size,) = journal._writer.execute("PRAGMA page_size").fetchone()
    with path.open("r+b") as file:
        pages = iter(lambda: file.read(size), b"")
        victim = next(at for at, page in enumerate(pages) if page.count(b"<2-1>") > size // 5 - 5)
        file.seek(victim * size)
        file.write(b"\xff" * 4)
    reports: list[int] = []
    with opened(path) as journal:
        found = dict(journal.active(lambda job, _: reports.append(job)))
        with pytest.raises(JournalError, match=r"cannot read the journal .*SQLITE_CORRUPT"):
            journal.events(2)
        assert journal.events(3) == sound[3]
    assert reports == [2]
    assert found.pop(2) == [*sound[2][:2], sound[2][3]]
    assert found == {1: sound[1], 3: sound[3]}


def test_fault_of_everybody_is_no_damage(journal: Journal) -> None:
    """A fault that is not about some rows, such as a missing table, is an error and no job's damage."""
    add_job(journal)
    journal._writer.execute("DROP TABLE events")
    with pytest.raises(JournalError, match="no such table"):
        list(journal.active(no_damage))
