"""The methods that follow a job's log: `job.events`, `job.wait`, `job.watch`, `watch.cancel`; and export.

Reading only.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import trio

from perilogd.broker.core import Broker, Record
from perilogd.errors import Refusal
from perilogd.journal import Entry, Journal, decode
from perilogd.lifecycle.job import Job
from perilogd.lifecycle.table import can_come
from perilogd.methods import authority
from perilogd.methods.kinds import DURATION
from perilogd.methods.lookup import Lookup
from perilogd.rpc.method import USERS, Call, Method
from perilogd.rpc.params import (
    JOB_ID,
    LIMIT,
    NAME,
    SEQUENCE,
    Anything,
    Argument,
    Boolean,
    Integer,
    ListOf,
    MapOf,
)
from perilogd.rpc.watch import Page, Watches

#: Bytes of events after which a page is not made longer: what one client asks for is bounded.
_MOST_BYTES = 1 << 20


class Waiter:
    """A call that waits for an event of a job.

    Args:
        event: the event's name.
        match: keys and values that its context must have.

    Attributes:
        job: the job, once it is known.
        seen: the newest event of the job that was looked at.
        found: the event, once it has come.
        woken: set when it has come, or no longer can.
    """

    __slots__ = ("event", "found", "job", "match", "seen", "woken")

    def __init__(self, event: str, match: Mapping[str, Any] | None) -> None:
        self.event = event
        self.match = match or {}
        self.job: Job | None = None
        self.seen = 0
        self.found: Record | None = None
        self.woken = trio.Event()

    def fits(self, name: str, context: Mapping[str, Any]) -> bool:
        """Tell whether an event is the one."""
        return name == self.event and all(
            key in context and context[key] == value for key, value in self.match.items()
        )

    @property
    def in_vain(self) -> bool:
        """Whether the event can no longer come; the job may be ahead of what has been seen of its log."""
        job = self.job
        return job is not None and job.last_seq <= self.seen and not can_come(job, self.event)

    def see(self, record: Record, context: Mapping[str, Any]) -> None:
        """Look at an event that has just been committed."""
        self.seen = record.seq
        if self.found is None and self.fits(record.name, context):
            self.found = record
        if self.found is not None or self.in_vain:
            self.woken.set()


class Waiters:
    """Calls that wait for an event of one job; listens to the broker."""

    def __init__(self) -> None:
        self._of_job: dict[int, set[Waiter]] = {}

    def publish(self, records: list[Record]) -> None:
        """Show committed events to whoever waits for one of their job."""
        if not self._of_job:
            return
        for record in records:
            waiters = self._of_job.get(record.job)
            if waiters:
                context = decode(record.context)
                for waiter in waiters:
                    waiter.see(record, context)

    @contextmanager
    def of(self, job_id: int, waiter: Waiter) -> Iterator[None]:
        """Show a waiter the events of a job from now on."""
        waiters = self._of_job.setdefault(job_id, set())
        waiters.add(waiter)
        try:
            yield
        finally:
            waiters.remove(waiter)
            if not waiters:
                del self._of_job[job_id]


class FollowMethods:
    """Builds the table's entries.

    Args:
        broker: has the log.
        lookup: finds jobs.
        watches: serves watches.
        waiters: told of committed events.
    """

    def __init__(self, broker: Broker, lookup: Lookup, watches: Watches, waiters: Waiters) -> None:
        self._broker = broker
        self._lookup = lookup
        self._watches = watches
        self._waiters = waiters

    def methods(self) -> list[Method]:
        """Return the entries."""
        job = Argument("id", JOB_ID, required=True, doc="the job")
        return [
            Method(
                "job.events",
                self.events,
                [
                    job,
                    Argument("from", SEQUENCE, doc="the first sequence number wanted", into="start"),
                    Argument("limit", LIMIT, doc="at most so many"),
                ],
                roles=USERS,
                doc="Return a job's events.",
                result="an array of events, each {seq, timestamp, name, context}",
            ),
            Method(
                "job.wait",
                self.wait,
                [
                    job,
                    Argument("event", NAME, required=True, doc="the event's name"),
                    Argument(
                        "match", MapOf(NAME, Anything(), 64), doc="keys and values that its context must have"
                    ),
                    Argument("timeout", DURATION, doc="how long to wait"),
                ],
                roles=USERS,
                doc="Wait for an event of a job; refused at once when it can no longer come.",
                result="the event",
            ),
            Method(
                "job.watch",
                self.watch,
                [
                    Argument("id", JOB_ID, doc="only this job; default: every job that the caller may see"),
                    Argument("from", SEQUENCE, doc="the first sequence number wanted", into="start"),
                    Argument("names", ListOf(NAME, 100), doc="only events of these names"),
                    Argument("progress", Boolean(), doc="tell progress, too"),
                ],
                roles=USERS,
                doc="Be sent events as they are committed: notifications `event`, `gap`, `progress`.",
                result="{watch, oldest, from}: the first sequence numbers that are kept, and that are sent",
            ),
            Method(
                "watch.cancel",
                self.cancel,
                [Argument("watch", Integer(1, 1 << 62), required=True, doc="what job.watch returned")],
                roles=USERS,
                doc="End a watch.",
                result="{}",
            ),
        ]

    async def events(self, call: Call, id: int, start: int = 0, limit: int = 1000) -> list[dict[str, Any]]:
        """Read a job's log."""
        await self._lookup.any(call, id)
        return await self._lookup.read(call, self._page, id, start, limit)

    def _page(self, id: int, start: int, limit: int) -> list[dict[str, Any]]:
        """Read a page of a job's log (blocking); it is short where events are large, but never empty then."""
        return [shown(entry) for entry in _bounded(self._broker.journal.events(id, start, limit))]

    async def wait(
        self,
        call: Call,
        id: int,
        event: str,
        match: Mapping[str, Any] | None = None,
        timeout: float | None = None,  # noqa: ASYNC109 - the protocol's argument
    ) -> dict[str, Any]:
        """Wait for an event."""
        waiter = Waiter(event, match)
        with self._waiters.of(id, waiter):  # from here on nothing is missed
            job = await self._lookup.any(call, id)
            past, seen = await self._lookup.read(call, self._find, id, waiter)
            if past is not None:
                return shown(past)
            waiter.job, waiter.seen = job, max(waiter.seen, seen)
            expired = False
            if waiter.found is None and not waiter.in_vain:
                with trio.move_on_after(math.inf if timeout is None else timeout) as patience:
                    await waiter.woken.wait()
                expired = patience.cancelled_caught
        if waiter.found is not None:
            return shown(waiter.found)
        if expired:
            raise Refusal(
                "ETIMEDOUT",
                f"no event {event!r} of job {id} within {timeout:g} s; the job is in state {job.state.value}",
            )
        raise Refusal(
            "ESTATE",
            f"event {event!r} of job {id} can no longer come; the job is in state {job.state.value}",
        )

    def _find(self, id: int, waiter: Waiter) -> tuple[Entry | None, int]:
        """Look for the event in a job's log (blocking); return it, and the number of the newest one read."""
        seen = 0
        for entry in self._lookup.log(id):
            seen = entry.seq
            if entry.name == waiter.event and waiter.fits(entry.name, decode(entry.context)):
                return entry, seen
        return None, seen

    def watch(
        self,
        call: Call,
        id: int | None = None,
        start: int | None = None,
        names: list[str] | None = None,
        progress: bool = False,
    ) -> object:
        """Open a watch."""

        def do(job: Job | None) -> dict[str, Any]:
            first = start
            if first is None:
                first = self._broker.next_seq if job is None else 0
            watch = self._watches.open(
                call,
                start=first,
                job=None if job is None else job.id,
                names=names,
                userid=None if authority.sees_all(call) else call.uid,
                progress=progress,
            )
            return {"watch": watch, "oldest": self._broker.oldest, "from": first}

        return do(None) if id is None else self._lookup.on(call, id, do)

    def cancel(self, call: Call, watch: int) -> dict[str, Any]:
        """End a watch."""
        self._watches.cancel(call.connection, watch)
        return {}


def read_page(journal: Journal, page: Page) -> Sequence[Record]:
    """Read a page of events for a watch that is behind (blocking, in a thread).

    Args:
        journal: where from.
        page: what is wanted.
    """
    if page.job is not None:
        entries = journal.events(page.job, page.start, page.limit)
    else:
        entries = journal.events_since(page.start, page.limit, page.names)
    entries = _bounded(entries)
    owners = journal.owners({entry.job for entry in entries})
    return [
        Record(entry.seq, entry.job, entry.wall, entry.name, entry.context, owners.get(entry.job, -1))
        for entry in entries
    ]


def _bounded(entries: list[Entry]) -> list[Entry]:
    """Return the first events of a page, as many as are good for one reply; one at least, if there is any."""
    sizes = itertools.accumulate((len(entry.context) for entry in entries), initial=0)
    return [entry for entry, before in zip(entries, sizes, strict=False) if before <= _MOST_BYTES]


def purged_through(journal: Journal, job: int | None) -> int:
    """Return the highest sequence number that purge has taken (blocking); of a job: 0 while it is there."""
    return 0 if job is not None and journal.exists(job) else journal.purged_through()


def shown(entry: Entry | Record) -> dict[str, Any]:
    """Return an event for clients."""
    return {
        "seq": entry.seq,
        "timestamp": entry.wall,
        "name": entry.name,
        "context": decode(entry.context),
    }
