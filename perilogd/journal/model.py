"""The rows of the journal, and the batch that one commit writes.

Plain data lives here, in the order of the tables' columns, so that a row is bound and read without
being taken apart. SQL does not live here.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgpack


class Entry(NamedTuple):
    """One event of one job.

    Attributes:
        seq: its number in the whole journal, from 1, without holes when it is written.
        job: the job's id.
        wall: seconds since the Unix epoch.
        boottime: seconds of CLOCK_BOOTTIME.
        boot: which boot `boottime` counts in (`Journal.boots`).
        name: the event's name.
        context: a msgpack map with text keys.
    """

    seq: int
    job: int
    wall: float
    boottime: float
    boot: int
    name: str
    context: bytes


class NewJob(NamedTuple):
    """A job's record, as it is made by `submit`.

    Attributes:
        id: the job's id, never used before in this journal.
        submitter: uid that submitted it; `key` is unique among this uid's jobs.
        userid: uid that the job belongs to.
        key: the submitter's own name for it, if he gave one.
        wall: seconds since the Unix epoch.
    """

    id: int
    submitter: int
    userid: int
    key: str | None
    wall: float


class DrainRow(NamedTuple):
    """A drained node: why, since when (seconds since the Unix epoch), by whom, and for which job."""

    node: str
    reason: str
    wall: float
    by: str
    job: int | None


class Output(NamedTuple):
    """What is kept of the output of a script run that went wrong; `node` is empty for the whole job's run."""

    job: int
    phase: str
    action: str
    attempt: int
    node: str
    wall: float
    text: bytes


class Run(NamedTuple):
    """What a script run used: seconds of wall and CPU time, bytes of peak memory; and how it ended.

    `node` is empty for the whole job's run; `status` is a wait(2) status.
    """

    job: int
    phase: str
    action: str
    attempt: int
    node: str
    wall_seconds: float
    cpu_user: float
    cpu_system: float
    max_rss: int
    outcome: str
    status: int


@dataclass(slots=True)
class Batch:
    """What one commit writes: all of it, or nothing.

    Attributes:
        entries: events, by ascending `seq`.
        jobs: jobs that were submitted.
        ended: pairs of a job that became inactive, and when (seconds since the Unix epoch).
        drains: in order, nodes drained (a row, which replaces an older one) or undrained (the name).
        outputs: output to keep.
        runs: usage to keep.
        meta: keys and values to set. Keys that begin with `journal.` are the journal's own.
    """

    entries: list[Entry] = field(default_factory=list)
    jobs: list[NewJob] = field(default_factory=list)
    ended: list[tuple[int, float]] = field(default_factory=list)
    drains: list[DrainRow | str] = field(default_factory=list)
    outputs: list[Output] = field(default_factory=list)
    runs: list[Run] = field(default_factory=list)
    meta: dict[str, str] = field(default_factory=dict)

    def __bool__(self) -> bool:
        """Tell whether there is anything to write."""
        return bool(
            self.entries or self.jobs or self.ended or self.drains or self.outputs or self.runs or self.meta
        )


def decode(context: bytes) -> dict[str, Any]:
    """Return an event's context as a map.

    Raises:
        ValueError: it is not one whole msgpack map: the row is damaged.
    """
    try:
        value = msgpack.unpackb(context)
    except (ValueError, TypeError) as error:
        raise ValueError(f"the context cannot be decoded: {str(error) or type(error).__name__}") from error
    if not isinstance(value, dict):
        raise ValueError(f"the context is not a map but {type(value).__name__}")  # noqa: TRY004 - damage, not misuse
    return value
