"""What the journal's tests share: making rows and opening journals. No test lives here."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import msgpack

from perilogd.journal import Batch, Entry, Journal, NewJob

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

BOOT = "b0000000-0000-4000-8000-000000000001"


@contextmanager
def opened(path: Path, boot_id: str = BOOT) -> Iterator[Journal]:
    """Open a journal for the time of a block."""
    journal = Journal.open(path, boot_id=boot_id)
    try:
        yield journal
    finally:
        journal.close()


def entry(seq: int, job: int = 1, name: str = "memo", **context: Any) -> Entry:
    """Return an event whose times tell its number."""
    return Entry(seq, job, 1000.0 + seq, 10.0 + seq, 1, name, msgpack.packb(context))


def add_job(
    journal: Journal,
    *names: str,
    ended: float | None = None,
    submitter: int = 0,
    userid: int = 1000,
    key: str | None = None,
) -> int:
    """Commit a job with events of these names (at least `submit`), and return its id."""
    job, seq = journal.next_job, journal.next_seq
    journal.commit(
        Batch(
            jobs=[NewJob(job, submitter, userid, key, 1000.0)],
            entries=[entry(seq + at, job, name, at=at) for at, name in enumerate(("submit", *names))],
            ended=[] if ended is None else [(job, ended)],
        )
    )
    return job


def no_damage(job: int, text: str) -> None:
    """Fail: to be given to `Journal.active` where nothing is damaged."""
    raise AssertionError(f"job {job} called damaged: {text}")
