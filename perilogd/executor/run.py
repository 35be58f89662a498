"""One run of a script: the states that it goes through, and the record that it ends with.

What a run is and how its outcome is told live here; doing anything to it is the supervisor's.

    WAITING ──► STARTING ──► RUNNING ──► ENDING ──► KILLING ──► STUCK ──► ENDED
       │   spawn (only for        cancel or    kill-timeout,   the same    the process
       │         other users)     deadline     on-stuck=kill   again       dies at last
       └──► ENDED    at every arrow: the process ends, or there never was one
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import msgpack

from perilogd.executor import wire
from perilogd.executor.processes import Process, Script

if TYPE_CHECKING:
    from perilogd.executor.wire import Outcome, Spec


class State(enum.Enum):
    """Where a run stands."""

    WAITING = enum.auto()  #: to be spawned, soon or (after a shortage) later
    STARTING = enum.auto()  #: forked; the child has not come to its exec
    RUNNING = enum.auto()
    ENDING = enum.auto()  #: SIGTERM was sent
    KILLING = enum.auto()  #: SIGKILL was sent
    STUCK = enum.auto()  #: its record is written, but the process is still there
    ENDED = enum.auto()  #: there is no process, and its record is written or soon will be


#: States in which the script may write, and must be watched.
LIVE = frozenset(set(State) - {State.WAITING, State.ENDED})


@dataclass(slots=True, eq=False)
class Run:
    """One run.

    Args:
        id: see `wire.run_id`.
        state: where it stands.
        spec: what was asked for; None once that does not matter any more.
        tries: spawns that failed for a shortage.
        pid: the script's process, None if there is none (yet).
        since: CLOCK_BOOTTIME of its spawn.
        started: wall time of its spawn, None while there was none.
        deadline: CLOCK_BOOTTIME, None for no limit.
        due: CLOCK_BOOTTIME at which the next thing is done to it by itself, None for nothing.
        kill_timeout: seconds.
        on_stuck: what to do with a script that ignores SIGTERM.
        ending: why it was told to end; the first reason counts.
        reason: the cancel's.
        fd: STARTING: the pipe from the child; adopted: the process's pidfd; else None.
        adopted: the process as it was found, if it is not our child.
        record: encoded, from the moment that it is written.
        refused: it was canceled before it was asked for.
        died: wait status of a stuck run's process.
        strays: whether it may have left processes behind, which may still write.
        output: whether it has written something.
    """

    id: str
    state: State = State.WAITING
    spec: Spec | None = None
    tries: int = 0
    pid: int | None = None
    since: float = 0.0
    started: float | None = None
    deadline: float | None = None
    due: float | None = None
    kill_timeout: float = 0.0
    on_stuck: Literal["drain", "kill"] = "drain"
    ending: Literal["timeout", "canceled"] | None = None
    reason: str | None = None
    fd: int | None = None
    adopted: Process | None = None
    record: bytes | None = None
    refused: bool = False
    died: int | None = None
    strays: bool = False
    output: bool = False

    @property
    def journal(self) -> str:
        """The journal that it belongs to."""
        return self.id.partition(",")[0]

    @property
    def script(self) -> Script:
        """Its process, to be signaled. It must have one."""
        assert self.pid is not None  # noqa: S101 - for the type checker
        return Script(self.id, self.pid, self.adopted.start if self.adopted else None)

    def listed(self) -> dict[str, Any]:
        """Return its entry in a hello."""
        state = "running"
        if self.state is State.STUCK:
            state = "stuck"
        elif self.record is not None:
            state = "refused" if self.refused else "ended"
        entry: dict[str, Any] = {
            "id": self.id,
            "state": state,
            "pid": self.pid,
            "since": None if self.pid is None else self.since,
            "deadline": self.deadline,
        }
        if self.record is not None:
            entry["record"] = msgpack.unpackb(self.record)
        if self.died is not None:
            entry["died"] = self.died
        return entry


def outcome(run: Run, status: int) -> Outcome:
    """Return the word for a script's own end.

    Whoever was told to end and did so, was canceled or timed out, whatever its status; whoever was not, is
    judged by it.
    """
    return run.ending or ("failed" if status else "ok")


#: Statuses of outcomes that have no process's status.
STATUS: dict[Outcome, int] = {
    "timeout": wire.TIMED_OUT,
    "stuck": wire.STUCK,
    "lost": wire.LOST,
    "canceled": wire.CANCELED,
}
