"""Finding a job that a request names: live, or ended and only in the journal.

Reading only. Ended jobs are replayed from their events in a worker thread.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from typing import TypeVar

import structlog
import trio

from perilogd.broker.core import Broker
from perilogd.broker.restore import Damaged, replay
from perilogd.errors import Refusal
from perilogd.journal import Entry, JournalError
from perilogd.lifecycle.job import Job, State
from perilogd.methods import authority
from perilogd.rpc.method import Call

_log = structlog.get_logger()

T = TypeVar("T")

#: Events of one job that are read at a time.
_PAGE = 1000


def reading(read: Callable[..., T], *args: object) -> T:
    """Read from the journal; what cannot be read is refused and reported: only a failed commit ends us."""
    try:
        return read(*args)
    except JournalError as error:
        _log.error("the journal cannot be read", error=str(error))
        raise Refusal("ESTATE", f"the journal cannot be read: {error}") from error


class Lookup:
    """Finds jobs.

    Args:
        broker: has the live ones, and the journal for the others.
    """

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    async def read(self, call: Call, read: Callable[..., T], *args: object) -> T:
        """Read from the journal in a worker thread; all that was appended before is there by then.

        Args:
            call: the request.
            read: the function; it may block.
            args: its arguments.
        """
        await self.committed()
        return await call.connection.slowly(reading, read, *args)

    def on(self, call: Call, id: int, do: Callable[[Job], T]) -> T | Awaitable[T]:
        """Do something with a job that the caller may see: at once with a live one, else once it is read.

        An ended job is handed over as well: the commands know best what may still be said to it.

        Raises:
            Refusal: ENOENT, EPERM.
        """
        job = self.live_or_none(call, id)
        return do(job) if job is not None else self._on_ended(call, id, do)

    async def _on_ended(self, call: Call, id: int, do: Callable[[Job], T]) -> T:
        return do(await self.any(call, id))

    def live_or_none(self, call: Call, id: int) -> Job | None:
        """Return a live job that the caller may see, None if it has ended or never was."""
        job = self._broker.jobs.get(id)
        if job is not None:
            authority.require_sight(call, job)
        return job

    async def any(self, call: Call, id: int) -> Job:
        """Return a job that the caller may see, live or ended.

        Raises:
            Refusal: ENOENT, EPERM.
        """
        while (job := self.live_or_none(call, id)) is None:
            job = await self.read(call, self.from_journal, id)
            if job is None:
                raise Refusal("ENOENT", f"no such job: {id}")
            if id in self._broker.damaged:
                raise Refusal("ESTATE", f"job {id} is set aside: its log is damaged, see the broker's log")
            if job.state is State.INACTIVE:
                authority.require_sight(call, job)
                break
            # It was submitted, or it ended, while we read. A copy of a job that goes on must never be
            # acted upon: look again.
        return job

    async def ended(self, id: int) -> Job | None:
        """Return a job that is not live from the journal, None if it knows none; for the broker itself."""
        await self.committed()
        return await trio.to_thread.run_sync(reading, self.from_journal, id)

    async def committed(self) -> None:
        """Wait until everything appended so far is durable, and so in the journal for readers."""
        done = trio.Event()
        self._broker.writer.after(done.set)
        await done.wait()

    def from_journal(self, id: int) -> Job | None:
        """Replay a job from the journal (blocking), None if it knows none."""
        try:
            job = replay(id, self.log(id))
        except Damaged as damage:
            raise Refusal("ESTATE", str(damage)) from damage
        return job if job.last_seq else None

    def log(self, id: int) -> Iterator[Entry]:
        """Read the events of a job from the journal (blocking), page by page."""
        start = 0
        while True:
            page = self._broker.journal.events(id, start, _PAGE)
            yield from page
            if len(page) < _PAGE:
                return
            start = page[-1].seq + 1

    async def own_key(self, call: Call, key: str) -> int | None:
        """Return the id of the caller's job with a key, None if he has none."""
        live = self._broker.keys.get((call.uid, key))
        if live is not None:
            return live
        return await self.read(call, self._broker.journal.job_of_key, call.uid, key)

    async def by_key(self, call: Call, key: str) -> int:
        """Return the id of the job with a key: the caller's own, or the only one that there is.

        Raises:
            Refusal: ENOENT; EINVAL if several users have jobs of that key, none of them the caller.
        """
        own = await self.own_key(call, key)
        if own is not None:
            return own
        ids = await self.read(call, self._broker.journal.jobs_of_key, key)
        if authority.sees_all(call):
            if len(ids) == 1:
                return ids[0]
            if ids:
                some = ", ".join(str(id) for id in ids[:10])
                raise Refusal("EINVAL", f"key: {key!r} names several users' jobs ({some}); give the id")
        else:
            for id in ids:  # submitted for the caller by somebody else
                job = await self.any_or_none(call, id)
                if job is not None and job.userid == call.uid:
                    return id
        raise Refusal("ENOENT", f"no job with key {key!r}")

    async def any_or_none(self, call: Call, id: int) -> Job | None:
        """Return a job, live or ended, whoever asks. For a look at it only."""
        return self._broker.jobs.get(id) or await self.read(call, self.from_journal, id)
