"""What has happened since the broker was told last.

It is collected here while a turn of the loop lasts, and encoded at its end; what is said is wire's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from perilogd.executor import wire

if TYPE_CHECKING:
    from perilogd.executor.run import Run


class Reports:
    """What the broker is to be told at the end of a turn."""

    def __init__(self) -> None:
        self.started: list[Run] = []
        self.ended: list[Run] = []
        self.died: list[Run] = []

    def encode(self, journal: str) -> bytes:
        """Return the messages for the broker of a journal."""
        parts = []
        if started := [
            (run.id, run.pid, run.since, run.deadline) for run in self.started if run.journal == journal
        ]:
            parts.append(wire.encode("started", {"runs": started}))
        if records := [run.record for run in self.ended if run.record and run.journal == journal]:
            parts.append(wire.encode_exits(records))
        parts += [
            wire.encode("died", {"id": run.id, "status": run.died})
            for run in self.died
            if run.journal == journal
        ]
        return b"".join(parts)
