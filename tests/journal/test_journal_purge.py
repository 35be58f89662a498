"""Purge: what goes, what stays, and that no number ever comes back."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from journal.helpers import add_job, no_damage, opened
from perilogd.journal import Batch, Journal, JournalError, Output, Run

_EVER = float("-inf")


def test_purge_removes_all_of_a_job(journal: Journal) -> None:
    """Events, outputs, runs and the record go, and the key is free for a new job; drains stay."""
    job = add_job(journal, "clean", ended=10.0, key="k")
    journal.commit(
        Batch(
            outputs=[Output(job, "prolog", "a", 1, "", 0.0, b"x")],
            runs=[Run(job, "prolog", "a", 1, "", 0.0, 0.0, 0.0, 0, "ok", 0)],
        )
    )
    assert journal.purge(older_than_wall=10.0, keep_newest=10) == 0
    assert journal.purge(older_than_wall=10.5, keep_newest=10) == 1
    assert (journal.events(job), journal.outputs(job), journal.runs(job)) == ([], [], [])
    assert (journal.exists(job), journal.jobs_of_key("k")) == (False, [])
    assert add_job(journal, key="k") == job + 1


def test_purge_leaves_gaps_that_can_be_told(path: Path) -> None:
    """An older active job keeps its events; what was taken lies up to `purged_through`, restart or not."""
    with opened(path) as journal:
        active = add_job(journal)
        gone = add_job(journal, "clean", ended=1.0)
        kept = add_job(journal, "clean", ended=2.0)
        assert journal.purge(older_than_wall=_EVER, keep_newest=1) == 1
    with opened(path) as journal:
        assert (journal.oldest(), journal.purged_through()) == (1, 3)
        assert [row.seq for row in journal.events_since(0)] == [1, 4, 5]
        assert [job for job, _ in journal.active(no_damage)] == [active]
        assert journal.ended_jobs() == [kept]
        assert not journal.exists(gone)
        journal.commit(Batch(ended=[(active, 3.0)]))
        assert journal.purge(older_than_wall=2.5, keep_newest=5) == 1
        assert (journal.oldest(), journal.purged_through()) == (1, 5)


def test_numbers_are_never_used_again(path: Path) -> None:
    """After everything was purged, ids and sequence numbers go on where they were, also after a restart."""
    with opened(path) as journal:
        for number in range(3):
            add_job(journal, "clean", ended=float(number))
        assert journal.purge(older_than_wall=_EVER, keep_newest=0) == 3
        assert (journal.next_seq, journal.next_job, journal.oldest()) == (7, 4, 7)
    with opened(path) as journal:
        assert (journal.next_seq, journal.next_job, journal.oldest()) == (7, 4, 7)
        assert journal.purged_through() == 6
        assert journal.purge(older_than_wall=1e12, keep_newest=0) == 0


def test_purge_in_many_steps(path: Path) -> None:
    """More jobs than one transaction takes are all removed; the marks stay at the highest numbers taken."""
    count = 250
    with opened(path) as journal:
        for job in range(1, count + 1):
            add_job(journal, ended=float(count - job))  # so the highest ids are the oldest, and go first
        assert journal.purge(older_than_wall=_EVER, keep_newest=5) == count - 5
        assert journal.ended_jobs() == [1, 2, 3, 4, 5]
    with opened(path) as journal:
        assert (journal.purged_through(), journal.next_seq, journal.next_job) == (count, count + 1, count + 1)
        assert journal.purge(older_than_wall=_EVER, keep_newest=0) == 5
    with opened(path) as journal:
        assert (journal.purged_through(), journal.next_seq, journal.next_job) == (count, count + 1, count + 1)


def test_purge_of_a_closed_journal(journal: Journal) -> None:
    """A purge that finds the journal closed ends with an error that says so."""
    add_job(journal, ended=1.0)
    journal.close()
    with pytest.raises(JournalError, match="closed"):
        journal.purge(older_than_wall=_EVER, keep_newest=0)


@settings(max_examples=40, deadline=None)
@given(
    ends=st.lists(st.none() | st.integers(0, 9), max_size=12),
    older=st.integers(-1, 10),
    keep=st.integers(0, 13),
)
def test_purge_by_age_and_number(ends: list[int | None], older: int, keep: int) -> None:
    """Exactly the ended jobs go that are too old or not among the newest, for any ends and limits."""
    with tempfile.TemporaryDirectory() as folder, opened(Path(folder) / "journal.sqlite") as journal:
        for end in ends:
            add_job(journal, ended=None if end is None else float(end))
        newest = sorted(((end, job) for job, end in enumerate(ends, 1) if end is not None), reverse=True)
        stay = sorted(job for end, job in newest[:keep] if end >= older)
        assert journal.purge(older_than_wall=float(older), keep_newest=keep) == len(newest) - len(stay)
        assert journal.ended_jobs() == stay
        active = [job for job, end in enumerate(ends, 1) if end is None]
        assert [job for job, _ in journal.active(no_damage)] == active
        assert [row.seq for row in journal.events_since(0)] == sorted(stay + active)
        assert journal.next_job == len(ends) + 1
