"""A job and its holds, as folded from the job's eventlog.

Only state lives here. What may happen to it stands in `table`, how an event changes it in `apply`,
what follows from it in `settle` and `effects`. Nothing here knows the time, a file or a process.
"""

from __future__ import annotations

from enum import Enum
from typing import Any, NamedTuple

from perilogd.lifecycle.policy import Phase, Seconds


class State(Enum):
    """What a job is waiting for; the values are the names that clients see."""

    NEW = "NEW"
    DEPEND = "DEPEND"
    SCHED = "SCHED"
    PROLOG = "PROLOG"
    RUN = "RUN"
    COMPLETION = "COMPLETION"
    EPILOG = "EPILOG"
    INACTIVE = "INACTIVE"


class Stamp(NamedTuple):
    """A moment, told so that neither a stepped clock nor a reboot can move it.

    Args:
        wall: seconds since the epoch (CLOCK_REALTIME).
        boottime: seconds since boot (CLOCK_BOOTTIME).
        boot: which boot `boottime` belongs to, an index that the journal keeps.
    """

    wall: float
    boottime: float
    boot: int

    def until(self, later: Stamp) -> float:
        """Return the seconds from this moment to `later`: by boot time within a boot, else by wall time."""
        if self.boot == later.boot:
            return later.boottime - self.boottime
        return later.wall - self.wall


class Event(NamedTuple):
    """One entry of an eventlog before it has its time and number (RFC 18 without `timestamp`)."""

    name: str
    context: dict[str, Any]


class Drain(NamedTuple):
    """A wish of the lifecycle beside the log: take these nodes out of service, for this reason."""

    nodes: str
    reason: str


#: What the commands and `settle` yield. An `Event` must have been applied before the generator is resumed.
Step = Event | Drain


class Outcome:
    """The words that say how a hold or a script ended."""

    OK = "ok"
    FAILED = "failed"
    TIMEOUT = "timeout"
    CANCELED = "canceled"
    STUCK = "stuck"
    LOST = "lost"
    SKIPPED = "skipped"


#: wait(2) statuses for what ended without one of its own.
STATUS = {
    Outcome.OK: 0,
    Outcome.FAILED: 256,
    Outcome.TIMEOUT: 124 << 8,
    Outcome.STUCK: 124 << 8,
    Outcome.LOST: 255 << 8,
    Outcome.SKIPPED: 255 << 8,
    Outcome.CANCELED: 15,
}


class Stage(Enum):
    """Where a hold is in its own life."""

    DECLARED = "declared"  # for a phase that has not come
    DUE = "due"  # its phase has come, its turn has not
    ACTIVE = "active"
    ENDED = "ended"


class Origin(Enum):
    """How a hold came to be: it decides what happens to the hold when the job takes a turn."""

    ACTION = "action"
    STANDING = "standing"
    DECLARED = "declared"
    CLIENT = "client"
    DEPENDENCY = "dependency"


#: What a hold keeps: "all", "none", a node set, or {"nodes": …, "cores": …, "gpus": …, "storage": …}.
Keep = str | dict[str, str]


class Hold:
    """A named reference on a phase of a job.

    Args:
        phase: the phase that it holds.
        name: unique within the phase and attempt.
        owner: a uid, `action:NAME`, `provider:NAME` or `job:ID`.
        origin: how it came to be.
        timeout: seconds from `armed` to its deadline, None for no deadline.
        attempt: the attempt of the job that it belongs to.
    """

    __slots__ = (
        "armed",
        "attempt",
        "definition",
        "drains",
        "ended",
        "ending",
        "forced",
        "keep",
        "message",
        "name",
        "note",
        "origin",
        "outcome",
        "owner",
        "phase",
        "predecessors",
        "progress",
        "since",
        "stage",
        "status",
        "successor",
        "timeout",
        "traits",
    )

    def __init__(
        self,
        phase: Phase,
        name: str,
        owner: int | str,
        origin: Origin,
        timeout: Seconds,
        attempt: int,
    ) -> None:
        self.phase: Phase = phase
        self.name = name
        self.owner = owner
        self.origin = origin
        self.timeout = timeout
        self.attempt = attempt
        self.stage = Stage.DECLARED
        self.predecessors: tuple[str, ...] = ()  # names of the same phase that come first
        self.since: Stamp | None = None  # its start event
        self.armed: Stamp | None = None  # from when its timeout counts
        self.ended: Stamp | None = None
        self.ending: str = Outcome.TIMEOUT  # the outcome that its deadline would give it
        self.keep: Keep = "all"
        self.note: str = ""
        self.progress: float | None = None  # live only: not journaled
        self.status: int | None = None
        self.outcome: str | None = None
        self.message: str = ""
        self.forced: int | None = None  # uid of the administrator who ended it in its holder's stead
        self.drains = False  # whether nodes that it still keeps at its deadline are drained
        self.successor: Hold | None = None  # what takes its name once it has ended
        self.definition: str = ""  # actions: which definition runs
        self.traits: dict[str, Any] = {}  # actions: what later phases need of the plan's entry

    @property
    def is_script(self) -> bool:
        """Whether the executor runs it."""
        return self.origin is Origin.ACTION

    @property
    def open(self) -> bool:
        """Whether its phase waits for it."""
        return self.stage is Stage.ACTIVE or self.stage is Stage.DUE

    def remaining(self, now: Stamp) -> Seconds:
        """Return the seconds to its deadline (negative: passed), None if none is counting."""
        if self.timeout is None or self.armed is None or self.stage is not Stage.ACTIVE:
            return None
        return self.timeout - self.armed.until(now)


class Exception_(NamedTuple):  # noqa: N801 - RFC 21's word; the underscore keeps Python's own apart
    """An exception raised on a job (RFC 21)."""

    type: str
    severity: int
    note: str
    userid: int | None
    abandon: bool
    wall: float


class Job:
    """Everything that is known about one job; `Job(id)` is the job before its `submit`."""

    __slots__ = (
        "abandon_grace",
        "abandoned",
        "alloc",
        "attempt",
        "attributes",
        "completion_status",
        "declared",
        "entered",
        "environment",
        "ever_started",
        "exceptions",
        "exits",
        "fatal",
        "finish_status",
        "held",
        "holds",
        "id",
        "key",
        "last_seq",
        "lease",
        "length",
        "max_reruns",
        "memo",
        "name",
        "nodes",
        "owner_environment",
        "resources",
        "result",
        "started",
        "state",
        "submitted",
        "submitter",
        "userid",
        "wanted",
    )

    def __init__(self, id: int) -> None:
        self.id = id
        self.state = State.NEW
        self.entered: Stamp | None = None  # when the present state was entered
        self.submitted: Stamp | None = None
        self.last_seq = 0
        self.length = 0  # events in its log
        self.userid = -1
        self.submitter = -1
        self.key: str | None = None
        self.name = ""
        self.attributes: dict[str, Any] = {}
        self.resources: dict[str, str] | None = None
        self.max_reruns = 0
        self.wanted = ""  # nodes given with submit
        self.alloc = ""  # the whole allocation
        self.nodes = ""  # the application's: the allocation less lost and tolerated nodes
        self.held = ""  # not yet released
        self.declared: tuple[dict[str, Any], ...] = ()  # holds as submitted
        self.holds: dict[tuple[Phase, str], Hold] = {}
        self.exceptions: list[Exception_] = []
        self.fatal: str | None = None  # type of the exception that decided the result
        self.result: str | None = None
        self.abandoned = False
        self.abandon_grace = 0.0
        self.attempt = 1
        self.started = False  # this attempt
        self.ever_started = False
        self.lease = False
        self.exits: dict[int, int] = {}  # attempt → wait status
        self.completion_status = 0  # first failure of a completion hold of this attempt
        self.finish_status: int | None = None
        self.environment: dict[str, str] = {}  # from actions, providers, administrators
        self.owner_environment: dict[str, str] = {}  # from holds of the job's owner
        self.memo: dict[str, Any] = {}

    @property
    def exit_status(self) -> int | None:
        """The wait status of the last attempt that has ended, None before."""
        return next(reversed(self.exits.values()), None) if self.exits else None

    @property
    def ending(self) -> bool:
        """Whether the job will not start (again): it is past `finish` or has a fatal exception."""
        return self.fatal is not None or self.state in (State.EPILOG, State.INACTIVE)

    def bygone(self, hold: Hold) -> bool:
        """Tell whether a hold ended in an earlier attempt, so that its name is free again in this one."""
        return hold.phase == "completion" and hold.stage is Stage.ENDED and hold.attempt < self.attempt

    def open_holds(self, phase: Phase) -> list[Hold]:
        """Return the holds that `phase` waits for."""
        return [hold for hold in self.holds.values() if hold.phase == phase and hold.open]

    def active_holds(self) -> list[Hold]:
        """Return every active hold, of whatever phase."""
        return [hold for hold in self.holds.values() if hold.stage is Stage.ACTIVE]
