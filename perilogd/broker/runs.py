"""Which script is where: the run queue, and what the executor says of the runs it was asked for.

A run is journaled (its `…-start` event) before it is asked for. Each phase has its own number of places,
so that long completions never block prologs; within a phase, users take turns. Whoever waits here is
not charged for it: a script's time is counted by the executor from its start.
"""

from __future__ import annotations

import json
import os
from collections import Counter, OrderedDict, deque
from collections.abc import Iterable, Mapping
from enum import Enum
from functools import partial
from typing import Any, Protocol

import structlog

from perilogd.broker.core import Broker
from perilogd.executor import wire
from perilogd.journal import Output
from perilogd.journal import Run as Usage
from perilogd.lifecycle import effects, holds, view
from perilogd.lifecycle.job import STATUS, Hold, Job, Outcome, Stage
from perilogd.lifecycle.policy import Phase

_log = structlog.get_logger()

#: Journal key: the executor's folder that runs were last asked of.
_EPOCH = "executor.epoch"

#: Most bytes of a job as JSON. An order holds little else, but its variables once more; one that the executor
#: does not read would end the connection, and be sent again over the next, for ever.
_LARGEST_JOB = wire.REQUEST_LIMIT // 2 - (64 << 10)

#: One part in so many of a phase's places is kept for users who have none.
_KEPT = 4

#: The order in which phases are served: what gives nodes back comes first.
_SERVED: tuple[Phase, ...] = ("epilog", "completion", "prolog")


class Link(Protocol):
    """The way to the executor (see `link`)."""

    up: bool

    def send(self, kind: str, body: Mapping[str, Any]) -> None:
        """Send a message; lost if the executor is away."""


class Place(Enum):
    """Where a run is."""

    QUEUED = "queued"  # never asked for
    ASKED = "asked"
    RUNNING = "running"
    UNKNOWN = "unknown"  # asked for, but the executor has not said what became of it


class Run:
    """One run of a script that has not ended.

    Args:
        id: its name between processes, see `run_id`.
        job: whose it is.
        hold: the hold that it stands for.
        place: where it is.
    """

    __slots__ = ("canceled", "deadline", "hold", "id", "job", "pid", "place", "since")

    def __init__(self, id: str, job: Job, hold: Hold, place: Place) -> None:
        self.id = id
        self.job = job
        self.hold = hold
        self.place = place
        self.canceled = False
        self.pid: int | None = None
        self.since: float | None = None  # boot time of its spawn
        self.deadline: float | None = None  # boot time

    def listed(self, now_boottime: float, now_wall: float) -> dict[str, Any]:
        """Return the run as `script.list` shows it; times in seconds since the epoch."""
        offset = now_wall - now_boottime
        return {
            "id": self.job.id,
            "phase": self.hold.phase,
            "action": self.hold.name,
            "attempt": self.hold.attempt,
            "state": self.place.value,
            "pid": self.pid,
            "since": None if self.since is None else self.since + offset,
            "deadline": None if self.deadline is None else self.deadline + offset,
            "canceled": self.canceled,
        }


class Runs:
    """All runs that have not ended, and the queue.

    Args:
        broker: whose runs these are.
        link: the way to the executor.
    """

    def __init__(self, broker: Broker, link: Link) -> None:
        self._broker = broker
        self._link = link
        self.runs: dict[str, Run] = {}
        self.stuck: dict[str, dict[str, Any]] = {}  # ended as stuck, process still there
        self.stock_taken = False  # an executor has told what it knows, `stuck` included
        self._queues: dict[Phase, OrderedDict[int, deque[Run]]] = {phase: OrderedDict() for phase in _SERVED}
        self._taken: dict[Phase, Counter[int]] = {phase: Counter() for phase in _SERVED}  # places, by user
        self._epoch = broker.journal.meta(_EPOCH)  # None: nothing was ever asked for

    def run_id(self, job: Job, hold: Hold) -> str:
        """Return a run's id: journal, job, phase, attempt, action."""
        return wire.run_id(self._broker.journal.journal_id, job.id, hold.phase, hold.attempt, hold.name)  # type: ignore[arg-type]

    def of_job(self, job: Job) -> list[Run]:
        """Return a job's runs that have not ended."""
        names = [
            self.run_id(job, hold)
            for hold in job.holds.values()
            if hold.is_script and hold.stage is Stage.ACTIVE
        ]
        return [self.runs[name] for name in names if name in self.runs]

    def owed_definitions(self) -> set[str]:
        """Return the definitions that live jobs may still need: of scripts not ended, and of undos owed."""
        return {
            hold.definition
            for job in self._broker.jobs.values()
            for hold in job.holds.values()
            if hold.is_script and (hold.stage is not Stage.ENDED or "undo" in hold.traits)
        }

    # -- what the broker wants

    def recall(self, job: Job) -> None:
        """Note the runs that the broker before us may have asked for: scripts that its log says may run."""
        for hold in job.active_holds():
            if hold.is_script and effects.want(job, hold) is not effects.Want.WAIT:
                name = self.run_id(job, hold)
                self.runs[name] = Run(name, job, hold, Place.UNKNOWN)

    def want(self, job: Job, hold: Hold, wanted: effects.Want) -> None:
        """Bring an active script's run to what is wanted of it."""
        if wanted is effects.Want.WAIT:
            return
        name = self.run_id(job, hold)
        run = self.runs.get(name)
        if run is None:
            run = self.runs[name] = Run(name, job, hold, Place.QUEUED)
            self._enqueue(run)
        if wanted is effects.Want.CANCEL:
            self.cancel(run)

    def cancel(self, run: Run) -> None:
        """Stop a run: one that was never asked for never will be, any other gets TERM, once."""
        if run.canceled:
            return
        run.canceled = True
        if run.place is Place.QUEUED:
            self._dequeue(run)
            self._broker.later(lambda: self._end_unrun(run))
        elif run.place is not Place.UNKNOWN:
            self._broker.writer.after(lambda: self._send_cancel(run))

    def _send_cancel(self, run: Run) -> None:
        if run.id in self.runs and run.place is not Place.UNKNOWN:
            self._link.send("cancel", {"id": run.id, "reason": effects.reason(run.job)})

    def _end_unrun(self, run: Run) -> None:
        self._end(run, holds.Ending(Outcome.CANCELED, STATUS[Outcome.CANCELED]))

    def signal(self, name: str, number: int) -> None:
        """Send a signal to everything that a run, be it stuck, has started."""
        self._broker.writer.after(lambda: self._link.send("signal", {"id": name, "signal": number}))

    # -- the queue

    def _enqueue(self, run: Run) -> None:
        users = self._queues[run.hold.phase]
        users.setdefault(run.job.userid, deque()).append(run)

    def _dequeue(self, run: Run) -> None:
        users = self._queues[run.hold.phase]
        queue = users[run.job.userid]
        queue.remove(run)
        if not queue:
            del users[run.job.userid]

    def pump(self) -> None:
        """Ask for the runs that have a place now."""
        if not self._link.up:
            return
        places = self._broker.config.executor.concurrency
        for phase in _SERVED:
            users, taken = self._queues[phase], self._taken[phase]
            free = places - taken.total() if users else 0
            while users and free > 0:
                # The last places are for users who have none: one user's scripts must not keep all of them.
                few = free <= places // _KEPT
                user = next((user for user in users if not (few and taken[user])), None)
                if user is None:
                    break
                queue = users[user]
                run = queue.popleft()
                users.move_to_end(user)
                if not queue:
                    del users[user]
                self._ask(run)
                free -= 1

    def _ask(self, run: Run) -> None:
        run.place = Place.ASKED
        self._take_place(run)
        self._broker.writer.after(lambda: self._send(run))

    def _take_place(self, run: Run) -> None:
        self._taken[run.hold.phase][run.job.userid] += 1

    def _leave_place(self, run: Run) -> None:
        taken = self._taken[run.hold.phase]
        taken[run.job.userid] -= 1
        if not taken[run.job.userid]:
            del taken[run.job.userid]

    def _send(self, run: Run) -> None:
        if run.id not in self.runs or run.place is not Place.ASKED:
            return  # the executor went away meanwhile; it is asked again when it is back
        if run.canceled:
            self._leave_place(run)
            self._end_unrun(run)
            return
        order = self._order(run)
        size = len(order["document"])
        if size > _LARGEST_JOB:
            self._leave_place(run)
            detail = f"not started: the job takes {size} bytes as JSON, perilog-exec reads {_LARGEST_JOB}"
            self._end(run, holds.Ending(Outcome.FAILED, wire.NOT_FOUND, detail=detail))
            return
        self._link.send("run", order)

    def _order(self, run: Run) -> dict[str, Any]:
        """Return the executor's order for a run: names and facts, never a command."""
        job, hold = run.job, run.hold
        order: dict[str, Any] = {
            "id": run.id,
            "job": job.id,
            "phase": hold.phase,
            "action": hold.name,
            "definition": hold.definition,
            "attempt": hold.attempt,
            "userid": job.userid,
            "jobname": job.name,
            "key": job.key or "",
            "nodes": job.nodes or job.alloc,
            "socket": str(self._broker.config.broker.socket),
            "variables": job.environment,
            "user_variables": job.owner_environment,
            "document": _document(job),
        }
        if job.exit_status is not None:
            order["status"] = job.exit_status
        if hold.phase == "epilog":
            order["reason"] = effects.reason(job)
            prolog = job.holds.get(("prolog", hold.name))
            if prolog is not None and prolog.status is not None and prolog.since is not None:
                order["prolog_status"] = prolog.status
        return order

    # -- what the executor says

    def greeted(self, epoch: str, known: Iterable[Mapping[str, Any]]) -> None:
        """Take stock with an executor that has just answered. Nothing new is asked of it before `pump`.

        Args:
            epoch: names the executor's folder; another one means that the records of earlier runs are gone.
            known: the runs of this journal that it knows, see `perilogd.executor.wire`.
        """
        gone = self._epoch not in (None, epoch)
        if self._epoch != epoch:
            self._epoch = epoch
            self._broker.writer.batch.meta[_EPOCH] = epoch
            self._broker.writer.wake()
        records = []
        self.stock_taken = True
        self.stuck.clear()
        for entry in known:
            run = self.runs.get(entry["id"])
            if entry.get("record") is not None:
                records.append(entry["record"])
            elif (
                run is None and entry.get("pid") is None
            ):  # given up while the executor was away, not yet begun
                gone_id = {"id": entry["id"], "reason": "gone"}
                self._broker.writer.after(partial(self._link.send, "cancel", gone_id))
            elif run is None:
                self._note_stuck(entry)  # given up likewise, and still there
            else:
                self._running(run, entry["pid"], entry.get("since"), entry.get("deadline"))
                if run.canceled:
                    self._broker.writer.after(partial(self._send_cancel, run))
        self.ended(records)
        for entry in known:
            if "died" in entry:
                self.stuck.pop(entry["id"], None)
        for run in [run for run in self.runs.values() if run.place is Place.UNKNOWN]:
            if run.id not in self.runs:
                continue  # ended with another of its job
            if gone:
                detail = "the machine was restarted, or the executor's folder removed"
                self._end(run, holds.Ending(Outcome.LOST, STATUS[Outcome.LOST], detail=detail))
            elif run.canceled:
                self._end_unrun(run)
            else:
                run.place = Place.QUEUED
                self._enqueue(run)

    def started(self, name: str, pid: int, since: float, deadline: float | None) -> None:
        """Note that a run has begun."""
        run = self.runs.get(name)
        if run is not None:
            self._running(run, pid, since, deadline)

    def _running(self, run: Run, pid: int, since: float | None, deadline: float | None) -> None:
        if run.place in (Place.QUEUED, Place.UNKNOWN):
            if run.place is Place.QUEUED:
                self._dequeue(run)
            self._take_place(run)
        run.place = Place.RUNNING
        run.pid, run.since, run.deadline = pid, since, deadline

    def ended(self, records: Iterable[Mapping[str, Any]]) -> None:
        """Journal how runs ended, then tell the executor that it may forget them."""
        names = []
        for record in records:
            names.append(record["id"])
            run = self.runs.get(record["id"])
            if record["outcome"] == Outcome.STUCK:
                self._note_stuck(record)
            else:
                self.stuck.pop(record["id"], None)
            if run is None:
                continue  # journaled before, but the acknowledgement got lost
            if run.place in (Place.ASKED, Place.RUNNING):
                self._leave_place(run)
            elif run.place is Place.QUEUED:
                self._dequeue(run)
            self._keep(run, record)
            self._end(run, _ending(record, run.job, self._broker.config.limits.environment))
        if names:
            self._broker.writer.after(lambda: self._link.send("ack", {"ids": names}))

    def _end(self, run: Run, ending: holds.Ending) -> None:
        del self.runs[run.id]
        if run.job.id in self._broker.jobs and run.hold.stage is Stage.ACTIVE:
            self._broker.transact(run.job, holds.script_ended(run.job, self._broker.policy, run.hold, ending))

    def _keep(self, run: Run, record: Mapping[str, Any]) -> None:
        """Keep what a run used and, if it went wrong, what it wrote."""
        batch = self._broker.writer.batch
        where = (run.job.id, run.hold.phase, run.hold.name, run.hold.attempt, "")
        batch.runs.append(
            Usage(
                *where,
                record.get("wall") or 0.0,
                record.get("cpu_user") or 0.0,
                record.get("cpu_system") or 0.0,
                record.get("max_rss") or 0,
                record["outcome"],
                record["status"],
            )
        )
        text = record.get("output")
        if text:
            batch.outputs.append(Output(*where, record.get("ended") or 0.0, text))

    def _note_stuck(self, record: Mapping[str, Any]) -> None:
        _, job, phase, attempt, action = record["id"].split(",")[:5]
        self.stuck[record["id"]] = {
            "id": int(job),
            "phase": phase,
            "action": action,
            "attempt": int(attempt),
            "state": "stuck",
            "pid": record.get("pid"),
            "since": record.get("started"),  # nil in a hello: the executor's record has it
            "deadline": None,
            "canceled": True,
        }

    def died(self, name: str, status: int) -> None:
        """Note that the process of a stuck run has ended at last."""
        entry = self.stuck.pop(name, None)
        self._broker.writer.after(lambda: self._link.send("ack", {"ids": [name]}))
        _log.info("the process of a stuck script has ended", run=name, status=status, known=entry is not None)

    # -- the executor is away

    def link_lost(self) -> None:
        """Forget where runs are: the executor that knew has gone."""
        for run in self.runs.values():
            if run.place in (Place.ASKED, Place.RUNNING):
                self._leave_place(run)
                run.place = Place.UNKNOWN

    def absent(self, seconds: float) -> None:
        """Give up on an executor that has been away too long: no job waits for ever."""
        why = f"perilog-exec has not answered for {seconds:g} s"
        for run in list(self.runs.values()):
            if run.id not in self.runs:
                continue  # ended with another of its job
            if run.place is Place.QUEUED:
                self._dequeue(run)
                self._end(run, holds.Ending(Outcome.FAILED, 127 << 8, detail=f"not started: {why}"))
            elif run.place is Place.UNKNOWN:
                self._end(run, holds.Ending(Outcome.LOST, STATUS[Outcome.LOST], detail=why))


def _ending(record: Mapping[str, Any], job: Job, limit: int) -> holds.Ending:
    """Return a record as the lifecycle takes it; variables beyond `limit` bytes in all are left out."""
    detail = [record["error"]] if record.get("error") else []
    environment: Mapping[str, str] = record.get("environment") or {}
    merged = {**job.environment, **job.owner_environment, **environment}
    size = sum(len(name) + len(value.encode()) for name, value in merged.items())
    if environment and size > limit:
        detail.append(
            f"PERILOG_ENVIRONMENT was ignored: with it the job's variables would take {size} bytes,"
            f" [limits] environment allows {limit}"
        )
        environment = {}
    strays = record.get("strays") or 0
    if strays:
        detail.append(f"it left {strays} process{'es' if strays > 1 else ''} running")
    return holds.Ending(
        record["outcome"],
        record["status"],
        record.get("pid"),
        record.get("message") or "",
        environment,
        "; ".join(detail),
    )


def _document(job: Job) -> bytes:
    """Return the job as the file `$PERILOG_JOB` shows it."""
    return json.dumps(view.facts(job), separators=(",", ":"), default=_as_text).encode()


def _as_text(value: object) -> str:
    return os.fsdecode(value) if isinstance(value, bytes) else str(value)
