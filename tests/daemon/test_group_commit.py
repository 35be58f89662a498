"""The writer between broker and journal: what a stop may leave out, and what it may not."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import trio
import trio.testing

from perilogd.broker.writer import Writer
from perilogd.journal import Batch, Entry, Journal


async def test_a_stop_in_the_middle_of_a_commit_leaves_no_hole(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stop while one commit is in flight and the next waits writes both, then what came after them."""
    journal = Journal.open(folder / "journal", boot_id="here")
    gate = threading.Event()
    commit = journal.commit

    def slowly(batch: Batch) -> None:
        gate.wait()
        commit(batch)

    monkeypatch.setattr(journal, "commit", slowly)
    published: list[int] = []
    confirmed: list[int] = []
    writer = Writer(journal, lambda batch: published.extend(e.seq for e in batch.entries), lambda: None)

    def append(seq: int) -> None:
        writer.batch.entries.append(Entry(seq, 1, 0.0, 0.0, journal.boot, "memo", b"\x80"))
        writer.wake()
        writer.after(lambda: confirmed.append(seq))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(writer.run)
        append(1)
        await trio.testing.wait_all_tasks_blocked()
        append(2)
        nursery.cancel_scope.cancel()
        gate.set()
    append(3)
    await writer.drain()
    assert published == confirmed == [1, 2, 3]
    assert [entry.seq for entry in journal.events(1)] == [1, 2, 3]
    journal.close()
