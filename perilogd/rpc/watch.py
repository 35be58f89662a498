"""Watches: clients that follow the log, live and from the past, each event once and in order.

Who gets which event, and from where, lives here. What an event means does not, nor who may open a
watch: the method that opens it has checked that.

A watch is live, or it is behind. A live one gets each event when it is published, that is, after
its commit. One that begins in the past, or whose client does not read as fast as events come, is
behind: a task of its connection reads pages from the journal, as fast as the client takes them,
until it has everything that was published. Between that test and going live nothing else runs, so
no event can slip through; `Watch.next` says what is due, so none comes twice.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, NamedTuple, Protocol

import msgpack
import structlog

from perilogd.errors import Refusal
from perilogd.rpc.connection import HIGH_MARK, Connection
from perilogd.rpc.framing import notification
from perilogd.rpc.method import Call

log = structlog.get_logger(__name__)

#: Events in a page: large enough to be worth a thread, small enough that the loop is not kept for long.
PAGE = 256

#: The group of watches that are for all users' jobs.
_ALL = ("all", 0)


class Record(Protocol):
    """An event, as the journal keeps it."""

    @property
    def seq(self) -> int:
        """Its number in the whole journal."""

    @property
    def job(self) -> int:
        """The job's id."""

    @property
    def userid(self) -> int:
        """The uid that the job belongs to."""

    @property
    def wall(self) -> float:
        """Seconds since the Unix epoch."""

    @property
    def name(self) -> str:
        """The event's name."""

    @property
    def context(self) -> bytes:
        """A msgpack map."""


class Page(NamedTuple):
    """What a watch that is behind asks the journal for: events from `start` on, at most `limit`.

    The reader must keep to `start`, `limit` and `job`. It may leave out what `names` and `userid` leave out,
    but need not; if it does, then before it counts to `limit`.
    """

    start: int
    limit: int
    job: int | None
    names: frozenset[str] | None
    userid: int | None


@dataclass(eq=False, slots=True)
class Watch:
    """What a client follows.

    Attributes:
        id: its number, in all connections together.
        connection: the client's.
        job: only this job's events.
        names: only events of these names.
        userid: only events of this uid's jobs.
        progress: whether progress reports are wanted too.
        next: no event before this sequence number is due.
        live: whether it gets what is published.
        told: the highest sequence number that a gap was told for.
        head: the beginning of each notification, up to the watch's id.
    """

    id: int
    connection: Connection
    job: int | None
    names: frozenset[str] | None
    userid: int | None
    progress: bool
    next: int
    live: bool = False
    told: int = 0
    head: bytes = b""

    @property
    def group(self) -> tuple[str, int]:
        """Which live watches it is one of: those of a job, of a user, or of all."""
        if self.job is not None:
            return "job", self.job
        return _ALL if self.userid is None else ("user", self.userid)

    def wants(self, record: Record) -> bool:
        """Tell whether an event of this job, user and name is for this watch."""
        return (
            (self.names is None or record.name in self.names)
            and (self.userid is None or record.userid == self.userid)
            and (self.job is None or record.job == self.job)
        )


class Watches:
    """All watches of all clients.

    Args:
        read: reads a page of the journal, in ascending order; called in a thread, may block. It may be short
            though there are more; an empty one means that there were none.
        purged_through: the highest sequence number that purge has taken, of a job if one is given (0 while
            that job is there: jobs are purged whole); called in a thread, after `read`.
        published: the sequence number of the newest event that is committed.
        limit: most watches of one connection; may be changed at any time.
    """

    def __init__(
        self,
        *,
        read: Callable[[Page], Sequence[Record]],
        purged_through: Callable[[int | None], int],
        published: int,
        limit: int,
    ) -> None:
        self.limit = limit
        self.published = published
        self._read = read
        self._purged_through = purged_through
        self._ids = itertools.count(1)
        # Live watches only, so that the others cost nothing when an event comes; nor do other users' jobs.
        self._live: dict[tuple[str, int], set[Watch]] = {}

    def open(
        self,
        call: Call,
        *,
        start: int,
        job: int | None = None,
        names: Collection[str] | None = None,
        userid: int | None = None,
        progress: bool = False,
    ) -> int:
        """Open a watch for the client that calls. The first event goes out after the reply to the call.

        Args:
            call: the request.
            start: the first sequence number wanted; the next one to be appended means "now".
            job: only this job.
            names: only events of these names.
            userid: only jobs of this uid: for those who may not see others'.
            progress: also tell progress reports.

        Returns:
            The watch's id.

        Raises:
            Refusal: EAGAIN, the connection has too many.
        """
        connection = call.connection
        if len(connection.watches) >= self.limit:
            raise Refusal("EAGAIN", f"this connection has {self.limit} watches already ([limits] watches)")
        ident = next(self._ids)
        watch = Watch(
            id=ident,
            connection=connection,
            job=job,
            names=None if names is None else frozenset(names),
            userid=userid,
            progress=progress,
            next=start,
            head=_EVENT + msgpack.packb(ident),
        )
        connection.watches[ident] = watch
        call.then = partial(self._begin, watch)
        return ident

    def cancel(self, connection: Connection, ident: int) -> None:
        """Cancel a watch: nothing more is sent for it.

        Raises:
            Refusal: ENOENT, this connection has no such watch.
        """
        watch = connection.watches.pop(ident, None)
        if watch is None:
            raise Refusal("ENOENT", f"this connection has no watch {ident}")
        self._remove(watch)
        connection.moved()

    def forget(self, connection: Connection) -> None:
        """Cancel all watches of a connection that has ended."""
        for watch in connection.watches.values():
            self._remove(watch)
        connection.watches.clear()

    def confine(self, connection: Connection) -> None:
        """Have a connection's watches tell of its own user's jobs only, from now on."""
        for watch in connection.watches.values():
            live = watch.live
            self._remove(watch)
            watch.userid = connection.credentials.uid
            if live:
                self._go_live(watch)

    def publish(self, records: Sequence[Record]) -> None:
        """Tell who watches of events that have been committed, in order. The caller flushes the server."""
        if not records:
            return
        for record in records if self._live else ():
            tail = b""
            seq = record.seq
            for watch in self._audience(record.job, record.userid):
                if seq < watch.next or not watch.wants(record):
                    continue
                connection = watch.connection
                if connection.buffered > HIGH_MARK:
                    connection.flush()
                    if connection.buffered > HIGH_MARK:
                        watch.next = seq
                        self._remove(watch)
                        connection.start(self._catch_up, watch)
                        continue
                if not tail:
                    tail = _tail(record)
                connection.send(watch.head, tail)
        self.published = records[-1].seq

    def tell_progress(self, job: int, userid: int, report: Mapping[str, Any]) -> None:
        """Tell who wants it how far a hold is. Whoever is behind is not told: the next report will do.

        Args:
            job: the job's id.
            userid: the uid that the job belongs to.
            report: keys and values beside `watch` and `job`.
        """
        for watch in self._audience(job, userid):
            if (
                watch.progress
                and (watch.userid is None or watch.userid == userid)
                and watch.connection.buffered <= HIGH_MARK
            ):
                watch.connection.send(notification("progress", {"watch": watch.id, "job": job, **report}))

    def _begin(self, watch: Watch) -> None:
        if watch.next > self.published:
            self._go_live(watch)
        else:
            watch.connection.start(self._catch_up, watch)

    def _go_live(self, watch: Watch) -> None:
        watch.live = True
        self._live.setdefault(watch.group, set()).add(watch)

    def _remove(self, watch: Watch) -> None:
        """Take a watch out of the live ones."""
        if not watch.live:
            return
        watch.live = False
        group = self._live[watch.group]
        group.discard(watch)
        if not group:
            del self._live[watch.group]

    def _audience(self, job: int, userid: int) -> list[Watch]:
        """Return the live watches that an event of a user's job may be for."""
        live = self._live
        return [*live.get(_ALL, ()), *live.get(("user", userid), ()), *live.get(("job", job), ())]

    async def _catch_up(self, watch: Watch) -> None:
        """Send what has been published, page by page, until the watch can go live."""
        connection = watch.connection
        while True:
            published = self.published
            if watch.id not in connection.watches:
                return
            if watch.next > published:
                self._go_live(watch)
                return
            page = Page(watch.next, PAGE, watch.job, watch.names, watch.userid)
            try:
                records, purged = await connection.slowly(self._read_page, page)
            except Refusal as refusal:
                log.warning(
                    "a watch cannot go on", watch=watch.id, connection=connection.id, error=refusal.text
                )
                connection.end()
                return
            if watch.id not in connection.watches:
                return
            self._tell_gap(watch, purged)
            for record in records:
                if watch.wants(record):
                    connection.send(watch.head, _tail(record))
            connection.flush()
            if records:
                watch.next = records[-1].seq + 1
            else:
                watch.next = max(watch.next, published + 1)

    def _read_page(self, page: Page) -> tuple[Sequence[Record], int]:
        # Asked for after the page: what purge took before the page was read is then known to be gone.
        return self._read(page), self._purged_through(page.job)

    def _tell_gap(self, watch: Watch, purged: int) -> None:
        """Tell what purge may have taken of what is due."""
        first = max(watch.next, watch.told + 1)
        if purged >= first:
            watch.connection.send(notification("gap", {"watch": watch.id, "from": first, "to": purged}))
            watch.told = purged


# The notification `event` is put together by hand: all of it but the watch's id is the same for every watch
# and is encoded once; the context is the journal's own bytes. Integers have their widest form, which every
# decoder reads.
_EVENT = b"\x93\x02\xa5event\x91\x86\xa5watch"
_NUMBERS = struct.Struct(">5sQ5sQ11sd")


def _tail(record: Record) -> bytes:
    """Return an event's notification from behind the watch's id to its end."""
    numbers = _NUMBERS.pack(
        b"\xa3job\xcf", record.job, b"\xa3seq\xcf", record.seq, b"\xa9timestamp\xcb", record.wall
    )
    return numbers + _name(record.name) + record.context


@lru_cache(256)
def _name(name: str) -> bytes:
    packed: bytes = msgpack.packb(name)
    return b"\xa4name" + packed + b"\xa7context"
