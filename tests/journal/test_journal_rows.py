"""What is committed is read back: events, jobs, keys, drains, outputs, runs, meta, boots."""

from __future__ import annotations

import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgpack
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from journal.helpers import BOOT, add_job, entry, no_damage, opened
from perilogd.journal import Batch, DrainRow, Entry, JournalError, NewJob, Output, Run, decode

if TYPE_CHECKING:
    from perilogd.journal import Journal


def test_new_journal_is_empty(journal: Journal) -> None:
    """A new journal counts from 1, has a random id, and holds nothing."""
    assert (journal.next_seq, journal.next_job, journal.boot) == (1, 1, 1)
    assert len(journal.journal_id) == 16
    assert int(journal.journal_id, 16) >= 0
    assert journal.boots() == {1: BOOT}
    assert list(journal.active(no_damage)) == []
    assert journal.events_since(0) == []
    assert (journal.oldest(), journal.purged_through()) == (1, 0)


def test_reopened_journal_goes_on(path: Path) -> None:
    """The id stays, numbers go on, and each boot has its own number."""
    with opened(path) as journal:
        identity = journal.journal_id
        job = add_job(journal, "alloc")
        assert (journal.next_seq, journal.next_job) == (3, job + 1)
    with opened(path, boot_id="other") as journal:
        assert journal.journal_id == identity
        assert (journal.next_seq, journal.next_job) == (3, job + 1)
        assert (journal.boot, journal.boots()) == (2, {1: BOOT, 2: "other"})
    with opened(path) as journal:
        assert journal.boot == 1
    with opened(path.with_name("another.sqlite")) as journal:
        assert journal.journal_id != identity


def test_commits_are_synced(journal: Journal) -> None:
    """The writing connection syncs at every commit, and the file logs ahead."""
    assert journal._writer.execute("PRAGMA synchronous").fetchone() == (2,)
    assert journal._writer.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_readers_cannot_write(journal: Journal) -> None:
    """A reading connection refuses to change anything."""
    with pytest.raises(JournalError, match="readonly"):
        journal._read("DELETE FROM events")


def test_jobs_and_keys(journal: Journal) -> None:
    """A key is its submitter's, is found for him or for all, and outlives the job's end."""
    first = add_job(journal, key="k", submitter=1)
    second = add_job(journal, key="k", submitter=2, ended=5.0)
    third = add_job(journal)
    assert journal.job_of_key(1, "k") == first
    assert journal.job_of_key(2, "k") == second
    assert journal.job_of_key(3, "k") is None
    assert journal.jobs_of_key("k") == [first, second]
    assert journal.jobs_of_key("other") == []
    assert [journal.exists(job) for job in (first, second, third, third + 1)] == [True, True, True, False]
    assert [job for job, _ in journal.active(no_damage)] == [first, third]


def test_numbers_beyond_all_rows(journal: Journal) -> None:
    """A number that msgpack can carry but SQLite cannot is one that no job, event or user has."""
    add_job(journal, ended=1.0)
    huge = 2**64 - 1
    assert not journal.exists(huge)
    assert journal.events(huge) == journal.events(1, huge) == journal.events_since(huge) == []
    assert journal.ended_jobs(after=huge) == journal.ended_jobs(userid=huge) == []
    assert journal.job_of_key(huge, "k") is None


def test_ended_jobs_are_paged(journal: Journal) -> None:
    """Ended jobs come by id, whenever they ended, after a given one, up to a limit, for one user or all."""
    ids = [add_job(journal, ended=100.0 - number, userid=1000 + number % 2) for number in range(6)]
    add_job(journal)
    assert journal.ended_jobs() == ids
    assert journal.ended_jobs(after=ids[1], limit=2) == ids[2:4]
    assert journal.ended_jobs(userid=1001) == ids[1::2]
    assert journal.ended_jobs(after=ids[5]) == []


def test_a_commit_is_whole(journal: Journal) -> None:
    """A batch with one impossible row, here a key that is taken, leaves nothing of itself behind."""
    job = add_job(journal, key="k", submitter=1)
    batch = Batch(
        entries=[entry(journal.next_seq, job + 1)],
        jobs=[NewJob(job + 1, 1, 1, "new", 0.0), NewJob(job + 2, 1, 1, "k", 0.0)],
        drains=[DrainRow("n1", "r", 1.0, "me", None)],
        meta={"a": "b"},
    )
    with pytest.raises(JournalError, match=r"cannot commit to .*UNIQUE.*fault of perilogd"):
        journal.commit(batch)
    assert not journal.exists(job + 1)
    assert (journal.events(job + 1), journal.drains(), journal.meta("a")) == ([], [], None)
    assert (journal.next_seq, journal.next_job) == (2, job + 1)
    batch.jobs.pop()
    journal.commit(batch)
    assert journal.exists(job + 1)


def test_drains_in_order(path: Path) -> None:
    """Of several changes to one node the last counts; a row replaces an older one; a restart keeps them."""
    a, b, c = (DrainRow(node, "reason", 1.5, "root", 7) for node in ("a", "b", "c"))
    with opened(path) as journal:
        journal.commit(Batch(drains=[c, a, b]))
        assert journal.drains() == [a, b, c]
        again = a._replace(reason="other", job=None)
        journal.commit(Batch(drains=["a", again, b._replace(reason="lost"), "b", "unknown"]))
    with opened(path) as journal:
        assert journal.drains() == [again, c]


def test_outputs(journal: Journal) -> None:
    """Output is found by run; without an attempt the newest is meant; the list follows the job's life."""
    first, second = (Output(1, "epilog", "scratch", attempt, "", 1.0, b"\x00\xff") for attempt in (1, 2))
    node = Output(1, "prolog", "scratch", 1, "n1", 1.0, b"")
    other = Output(2, "prolog", "scratch", 1, "", 1.0, b"x")
    journal.commit(Batch(outputs=[second, first, node, other]))
    assert journal.output(1, "epilog", "scratch") == second
    assert journal.output(1, "epilog", "scratch", attempt=1) == first
    assert journal.output(1, "prolog", "scratch", node="n1") == node
    assert journal.output(1, "prolog", "scratch") is None
    assert journal.output(1, "epilog", "scratch", attempt=3) is None
    assert journal.outputs(1) == [node, first, second]


def test_runs(journal: Journal) -> None:
    """Usage of runs is listed in the order of the job's life, and a run that is reported twice is one run."""
    order = [
        ("prolog", "b", 1),
        ("completion", "a", 1),
        ("completion", "a", 2),
        ("epilog", "a", 1),
        ("epilog", "b", 1),
    ]
    runs = [
        Run(1, phase, name, attempt, "", 1.5, 0.25, 0.5, 1 << 20, "ok", 0) for phase, name, attempt in order
    ]
    journal.commit(
        Batch(runs=[*reversed(runs), Run(2, "prolog", "b", 1, "", 0.0, 0.0, 0.0, 0, "failed", 256)])
    )
    journal.commit(Batch(runs=[runs[0]]))
    assert journal.runs(1) == runs
    assert journal.runs(3) == []


def test_meta_is_set_and_replaced(journal: Journal) -> None:
    """A key has the value that was given last."""
    journal.commit(Batch(meta={"a": "1", "b": "2"}))
    journal.commit(Batch(meta={"a": "3"}))
    assert [journal.meta(key) for key in "abc"] == ["3", "2", None]


def test_a_batch_with_anything_in_it_is_true() -> None:
    """An empty batch is false, and one of any single part is true."""
    parts: list[dict[str, Any]] = [
        {"entries": [entry(1)]},
        {"jobs": [NewJob(1, 0, 0, None, 0.0)]},
        {"ended": [(1, 2.0)]},
        {"drains": ["n1"]},
        {"outputs": [Output(1, "p", "a", 1, "", 0.0, b"")]},
        {"runs": [Run(1, "p", "a", 1, "", 0.0, 0.0, 0.0, 0, "ok", 0)]},
        {"meta": {"a": "b"}},
    ]
    assert not Batch()
    for part in parts:
        assert Batch(**part)


def test_a_lent_connection_delays_no_other(journal: Journal) -> None:
    """While one query is under way another gets its own connection; closing closes both."""
    with journal._readers.lend() as busy:
        assert journal.oldest() == 1
        (idle,) = journal._readers._idle
        assert idle is not busy
        journal.close()
        busy.execute("SELECT 1").fetchone()
    for connection in (busy, idle):
        with pytest.raises(Exception, match="closed database"):
            connection.execute("SELECT 1")


def test_closed_journal_says_so(journal: Journal) -> None:
    """Every use of a closed journal raises JournalError, not an error of SQLite."""
    add_job(journal, ended=1.0)
    journal.close()
    with pytest.raises(JournalError, match=r"cannot commit to .* closed"):
        journal.commit(Batch(meta={"a": "b"}))
    with pytest.raises(JournalError, match=r"cannot read .* closed"):
        journal.oldest()


def test_readers_follow_a_writer(journal: Journal) -> None:
    """Readers in other threads see every event once, in order, whole batches at a time."""
    batches, size = 100, 7
    seen: dict[int, list[int]] = {}

    def follow(reader: int) -> None:
        numbers: list[int] = []
        while len(numbers) < batches * size:
            page = journal.events_since(len(numbers) + 1)
            assert len(page) % size == 0
            numbers += [row.seq for row in page]
        seen[reader] = numbers

    threads = [threading.Thread(target=follow, args=(reader,)) for reader in range(2)]
    for thread in threads:
        thread.start()
    for batch in range(batches):
        journal.commit(Batch(entries=[entry(batch * size + at, 1) for at in range(1, size + 1)]))
    for thread in threads:
        thread.join()
    assert seen == {reader: list(range(1, batches * size + 1)) for reader in range(2)}


_values: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False)
    | st.text(st.characters(codec="utf-8"))
    | st.binary(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=8,
)
_event = st.tuples(
    st.integers(1, 5),
    st.sampled_from(["submit", "memo", "release"]),
    st.dictionaries(st.text(max_size=9), _values),
)
_times = st.floats(allow_nan=False, allow_infinity=False)


@settings(max_examples=40, deadline=None)
@given(
    batches=st.lists(st.lists(_event, max_size=12), max_size=5),
    wall=_times,
    boottime=_times,
    page=st.integers(1, 5),
    start=st.integers(0, 30),
)
def test_round_trip_and_paging(
    batches: list[list[tuple[int, str, dict[str, Any]]]], wall: float, boottime: float, page: int, start: int
) -> None:
    """Whatever was committed in whatever batches is read back the same, by job, by page, and by name."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "journal.sqlite"
        with opened(path) as journal:
            journal.commit(Batch(jobs=[NewJob(job, 0, 0, None, 0.0) for job in range(1, 6)]))
            written: list[Entry] = []
            contexts: list[dict[str, Any]] = []
            for batch in batches:
                rows = [
                    Entry(len(written) + at, job, wall, boottime, 1, name, msgpack.packb(context))
                    for at, (job, name, context) in enumerate(batch, 1)
                ]
                journal.commit(Batch(entries=rows))
                written += rows
                contexts += [context for _, _, context in batch]
        with opened(path) as journal:
            assert journal.next_seq == len(written) + 1
            assert [decode(row.context) for row in journal.events_since(0)] == contexts
            by_job = {job: [row for row in written if row.job == job] for job in range(1, 6)}
            damaged: list[int] = []
            assert dict(journal.active(lambda job, _: damaged.append(job))) == by_job
            assert damaged == [job for job, rows in by_job.items() if not rows]
            for job, rows in by_job.items():
                assert _paged(lambda at, job=job: journal.events(job, at, page), page) == rows
            assert _paged(lambda at: journal.events_since(at, page), page) == written
            assert journal.events_since(start) == written[max(start, 1) - 1 :]
            assert journal.events(1, start) == [row for row in by_job[1] if row.seq >= start]
            names = {"submit", "release"}
            filtered = [row for row in written if row.name in names]
            assert _paged(lambda at: journal.events_since(at, page, names), page) == filtered
            assert journal.events_since(0, names=()) == []


def _paged(read: Any, page: int) -> list[Entry]:
    rows: list[Entry] = []
    while True:
        more = read(rows[-1].seq + 1 if rows else 0)
        assert len(more) <= page
        rows += more
        if len(more) < page:
            return rows
