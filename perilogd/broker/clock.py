"""The clocks that the broker reads, and nothing that waits for them (see `timers`)."""

from __future__ import annotations

import time
from pathlib import Path

from perilogd.lifecycle.job import Stamp


def boot_id() -> str:
    """Return the kernel's id of this boot (random(4), /proc/sys/kernel/random/boot_id)."""
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


class Clock:
    """Wall time, and CLOCK_BOOTTIME (clock_gettime(2)), which a stepped clock does not move.

    Args:
        boot: the journal's number of the present boot.
    """

    def __init__(self, boot: int) -> None:
        self.boot = boot

    def now(self) -> Stamp:
        """Return this moment."""
        return Stamp(time.time(), time.clock_gettime(time.CLOCK_BOOTTIME), self.boot)

    @staticmethod
    def boottime() -> float:
        """Return the seconds since boot, suspends included."""
        return time.clock_gettime(time.CLOCK_BOOTTIME)
