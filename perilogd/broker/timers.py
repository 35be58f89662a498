"""Deadlines: what is to be called when, by CLOCK_BOOTTIME.

One heap and one task for all of them. What a deadline means is not known here.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Hashable
from itertools import count

import trio

from perilogd.broker.clock import Clock

#: Longest sleep in seconds: Trio's clock stands still while the machine is suspended.
_LONGEST_SLEEP = 60.0


class Timers:
    """A set of deadlines, each under a key; setting a key again moves its deadline.

    Args:
        clock: where the time comes from.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._heap: list[tuple[float, int, Hashable]] = []
        self._set: dict[Hashable, tuple[float, Callable[[], None]]] = {}
        self._count = count()
        self._changed = trio.Event()

    def set(self, key: Hashable, when: float, act: Callable[[], None]) -> None:
        """Have `act` called once at `when` (seconds of CLOCK_BOOTTIME), in place of an earlier setting."""
        known = self._set.get(key)
        self._set[key] = (when, act)
        if known is not None and known[0] == when:
            return
        heapq.heappush(self._heap, (when, next(self._count), key))
        if self._heap[0][2] == key:
            self._changed.set()
        if len(self._heap) > 64 + 4 * len(self._set):
            self._heap = [(when, next(self._count), key) for key, (when, _) in self._set.items()]
            heapq.heapify(self._heap)

    def clear(self, key: Hashable) -> None:
        """Forget a deadline, if there is one."""
        self._set.pop(key, None)

    def due(self) -> list[Callable[[], None]]:
        """Take out and return what is due, earliest first."""
        now = self._clock.boottime()
        acts: list[Callable[[], None]] = []
        while self._heap and self._heap[0][0] <= now:
            when, _, key = heapq.heappop(self._heap)
            entry = self._set.get(key)
            if entry is not None and entry[0] == when:
                del self._set[key]
                acts.append(entry[1])
        return acts

    async def run(self) -> None:
        """Call what is due, for ever."""
        while True:
            for act in self.due():
                act()
            wait = self._heap[0][0] - self._clock.boottime() if self._heap else math.inf
            self._changed = trio.Event()
            with trio.move_on_after(max(0.0, min(wait, _LONGEST_SLEEP))):
                await self._changed.wait()
