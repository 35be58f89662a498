"""Group commit: what was appended becomes durable, and only then does anything that has seen it leave.

One commit is in flight at a time; what is appended meanwhile makes up the next (no timer is needed to
form groups). Nothing here knows what an event means.
"""

from __future__ import annotations

from collections.abc import Callable

import structlog
import trio

from perilogd.journal import Batch, Journal, JournalFull

#: Seconds between attempts to commit while the disk is full.
_RETRY_FULL = 1.0

_log = structlog.get_logger()


class Writer:
    """Commits batches in a thread and runs what waits for them, in order.

    Args:
        journal: where batches go.
        published: called with each committed batch, before anything that waited for it.
        released: called once after all that waited for a commit has run: the moment to flush buffers.
    """

    def __init__(
        self, journal: Journal, published: Callable[[Batch], None], released: Callable[[], None]
    ) -> None:
        self._journal = journal
        self._published = published
        self._released = released
        self.batch = Batch()  # being collected
        self._actions: list[Callable[[], None]] = []  # wait for `batch`
        self._flying: list[Callable[[], None]] | None = None  # wait for the commit in flight, if there is one
        self._wake = trio.Event()
        self._thread = trio.CapacityLimiter(1)  # its own: no number of readers keeps a commit waiting
        self.commits = 0
        self.full = False  # the disk is: nothing can be confirmed until it has room

    def after(self, action: Callable[[], None]) -> None:
        """Run `action` once everything appended so far is durable: at once if it is.

        Actions run in the order in which they were handed in; they must not block, and may append.
        """
        if self.batch:
            self._actions.append(action)
        elif self._flying is not None:
            self._flying.append(action)
        else:
            action()

    def wake(self) -> None:
        """Say that `batch` has grown."""
        self._wake.set()

    async def run(self) -> None:
        """Commit for ever; a cancel takes effect between commits, or while the disk is full.

        Raises:
            JournalError: a commit failed for another reason than a full disk. The broker must end: what it
                has in memory is ahead of what it can keep.
        """
        while True:
            await self._wake.wait()
            self._wake = trio.Event()
            while self.batch:
                await trio.lowlevel.checkpoint_if_cancelled()  # never with a batch in hand
                await self._commit_one()

    async def _commit_one(self) -> None:
        batch, self.batch = self.batch, Batch()
        self._flying, self._actions = self._actions, []
        while True:
            try:
                with trio.CancelScope(shield=True):  # what comes later must never be written without this
                    await trio.to_thread.run_sync(self._journal.commit, batch, limiter=self._thread)
                break
            except JournalFull as error:
                if not self.full:
                    _log.error("journal is full: nothing is confirmed until there is room", error=str(error))
                self.full = True
                await trio.sleep(_RETRY_FULL)
        if self.full:
            self.full = False
            _log.warning("journal has room again")
        self.commits += 1
        self._published(batch)
        # Actions may hand in further ones; those that need no later commit join this list as it is walked.
        for action in self._flying:
            action()
        self._flying = None
        self._released()

    async def drain(self) -> None:
        """Commit what is left, for a broker that stops; runs what waited for it.

        Raises:
            JournalError: as in `run`.
        """
        while self.batch and not self.full:
            await self._commit_one()
