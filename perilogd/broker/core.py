"""The broker's loop, in one place: validate → append → apply → act.

`transact` takes a job and the steps of a command. Each event is appended to the batch being collected and
applied at once, so that the next request is judged by it; everything that leaves the broker (replies,
notifications, requests to the executor) goes through `writer.after` and so waits for the commit. What
a job's state calls for is then derived from the state (`act`), never remembered from the request.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, NamedTuple, Protocol

import msgpack
import structlog
import trio

from perilogd.broker.clock import Clock
from perilogd.broker.drains import Drains
from perilogd.broker.timers import Timers
from perilogd.broker.writer import Writer
from perilogd.config import Config
from perilogd.errors import Refusal
from perilogd.journal import Batch, Entry, Journal, NewJob
from perilogd.lifecycle import commands, effects, holds
from perilogd.lifecycle.apply import apply
from perilogd.lifecycle.job import Event, Hold, Job, Origin, Stage, State, Step
from perilogd.lifecycle.policy import Policy
from perilogd.lifecycle.settle import settle

_log = structlog.get_logger()

_pack = msgpack.Packer().pack


class Record(NamedTuple):
    """A committed event, as watchers get it; `context` is a packed map, `userid` the job's owner."""

    seq: int
    job: int
    wall: float
    name: str
    context: bytes
    userid: int


class Scripts(Protocol):
    """What the broker asks of the runs (see `runs`)."""

    def recall(self, job: Job) -> None:
        """Note the runs that the broker before us may have asked for."""

    def want(self, job: Job, hold: Hold, wanted: effects.Want) -> None:
        """Bring an active script's run to what is wanted of it."""

    def pump(self) -> None:
        """Ask for the runs that have a place now."""


def _nothing() -> None:
    """Stand in until the server is there."""


class Broker:
    """All live jobs and the loop that changes them.

    Args:
        config: the configuration in force.
        journal: where events go.
        hostname: this host; it is never drained.
    """

    def __init__(self, config: Config, journal: Journal, hostname: str) -> None:
        self.config = config
        self.journal = journal
        self.clock = Clock(journal.boot)
        self.timers = Timers(self.clock)
        self.jobs: dict[int, Job] = {}  # by ascending id
        self.jobs_of: dict[int, dict[int, Job]] = {}  # the same for each owner
        self.keys: dict[tuple[int, str], int] = {}  # of live jobs: (submitter, key) → id
        self.writer = Writer(journal, self._published, self._released)
        self.drains = Drains(journal.drains(), hostname)
        self.listeners: list[Callable[[list[Record]], None]] = []  # are told of committed events, in order
        self.flush: Callable[[], None] = _nothing  # sends what listeners and replies have put into buffers
        self.scripts: Scripts
        self.draining = False  # takes no new jobs
        self.damaged: list[int] = []  # jobs set aside at the start
        self.oldest = journal.oldest()  # oldest sequence number that is kept
        self.ready_at: float | None = None  # boot time of READY
        self.next_seq = journal.next_seq
        self._next_job = journal.next_job
        self._dependents: dict[int, set[tuple[int, str]]] = {}  # target → (dependent, dependency's text)
        self.ended_targets: list[tuple[int, tuple[int, str]]] = []  # to be looked up in the journal
        self.ended_targets_wake = trio.Event()
        self._records: list[Record] = []  # appended, not yet published
        self._todo: deque[Callable[[], None]] = deque()
        self._catching_up = False

    @property
    def policy(self) -> Policy:
        """The part of the configuration that the lifecycle sees."""
        return self.config.policy

    # -- validate, append, apply

    def transact(self, job: Job, steps: Iterable[Step]) -> None:
        """Run a command on a job: all of its events, and all that follow from them, in one transaction.

        Args:
            job: the job; a new one if the first event is its `submit`.
            steps: a command of `perilogd.lifecycle`.

        Raises:
            Refusal: the command refuses; then nothing has changed.
        """
        if self._take(job, steps):
            self._go_on(job)

    def resume(self, job: Job, steps: Iterable[Step]) -> None:
        """Let a job go on from wherever its log ends, after `steps`, of which there may be none."""
        self._take(job, steps)
        self._go_on(job)

    def _go_on(self, job: Job) -> None:
        self._take(job, settle(job, self.policy))
        self.writer.wake()
        self.act(job)
        for entry in sorted(self._dependents.get(job.id, ())):
            self.later(partial(self._judge, job, entry))
        if job.state is State.INACTIVE:
            self._forget(job)
        self.catch_up()

    def later(self, action: Callable[[], None]) -> None:
        """Have something done right after the present transaction: it may be one on the same job."""
        self._todo.append(action)

    def catch_up(self) -> None:
        """Do what was put off until a transaction is over, and ask for the runs that have a place."""
        if self._catching_up:
            return
        self._catching_up = True
        while self._todo:
            self._todo.popleft()()
        self._catching_up = False
        self.scripts.pump()

    def require_room(self) -> None:
        """Refuse a request that would write while the disk is full.

        Raises:
            Refusal: ENOSPC.
        """
        if self.writer.full:
            raise Refusal("ENOSPC", "the journal's disk is full; nothing can be written until it has room")

    def _take(self, job: Job, steps: Iterable[Step]) -> bool:
        """Append and apply steps as they come; tells whether there was any."""
        now = self.clock.now()
        batch = self.writer.batch
        any_step = False
        for step in steps:
            any_step = True
            if not isinstance(step, Event):
                batch.drains += self.drains.add(step.nodes, step.reason, now.wall, "perilogd", job.id)
                _log.warning("nodes drained", job=job.id, nodes=step.nodes, reason=step.reason)
                continue
            if step.name == "exception" and "userid" not in step.context:  # nobody asked for it
                _log.warning(step.context["note"], job=job.id, severity=step.context["severity"])
            packed = _pack(step.context)
            seq = self.next_seq
            self.next_seq = seq + 1
            batch.entries.append(Entry(seq, job.id, *now, step.name, packed))
            apply(job, step.name, step.context, now)
            job.last_seq = seq
            job.length += 1
            self._records.append(Record(seq, job.id, now.wall, step.name, packed, job.userid))
        return any_step

    def submit(self, context: dict[str, Any]) -> Job:
        """Make a job of a checked `submit` context and bring it to life.

        Raises:
            Refusal: as `transact`.
        """
        job = Job(self._next_job)
        self._next_job += 1
        submitter, key = context["submitter"], context.get("key")
        row = NewJob(job.id, submitter, context["userid"], key, self.clock.now().wall)
        self.writer.batch.jobs.append(row)
        self.add(job, context["userid"])
        if key is not None:
            self.keys[submitter, key] = job.id
        self.transact(job, commands.submit(job, self.policy, context))
        return job

    def add(self, job: Job, userid: int) -> None:
        """Take a job among the live ones; its id is greater than theirs."""
        self.jobs[job.id] = job
        self.jobs_of.setdefault(userid, {})[job.id] = job

    def _forget(self, job: Job) -> None:
        """Let go of a job whose log is closed; the journal remembers it until the purge."""
        self.writer.batch.ended.append((job.id, self.clock.now().wall))
        del self.jobs[job.id]
        of_owner = self.jobs_of[job.userid]
        del of_owner[job.id]
        if not of_owner:
            del self.jobs_of[job.userid]
        for hold in job.holds.values():
            self.timers.clear(("hold", job.id, hold.phase, hold.name))
        if job.key is not None:
            self.keys.pop((job.submitter, job.key), None)

    # -- act

    def act(self, job: Job) -> None:
        """Bring the world to what a job's state calls for; can be called at any time, any number of times."""
        for hold in list(job.holds.values()):
            if hold.stage is not Stage.ACTIVE:
                continue
            if hold.is_script:
                self.scripts.want(job, hold, effects.want(job, hold))
            elif hold.origin is Origin.DEPENDENCY:
                self._depend(job, hold)
            elif effects.expires(hold):
                self._arm(job, hold)

    def _arm(self, job: Job, hold: Hold) -> None:
        now = self.clock.now()
        left = hold.remaining(now)
        if left is not None:
            self._set_timer(job, hold, now.boottime + left)

    def _set_timer(self, job: Job, hold: Hold, when: float) -> None:
        self.timers.set(("hold", job.id, hold.phase, hold.name), when, lambda: self._expire(job, hold))

    def _expire(self, job: Job, hold: Hold) -> None:
        if hold.stage is not Stage.ACTIVE or job.id not in self.jobs:
            return
        now = self.clock.now()
        left = hold.remaining(now)
        if left is None:
            return
        when = now.boottime + left
        if self.ready_at is not None and when < self.ready_at:
            # It passed while the broker was down: holders get a moment to report first.
            when = self.ready_at + self.config.holds.restart_grace
        if when > now.boottime:
            self._set_timer(job, hold, when)
            return
        self.transact(job, holds.expire(job, self.policy, hold))

    # -- dependencies between jobs

    def _depend(self, job: Job, hold: Hold) -> None:
        """Remember who waits for whom, and judge what can be judged already."""
        target_id = int(str(hold.owner).partition(":")[2])
        entry = (job.id, hold.name)
        waiting = self._dependents.setdefault(target_id, set())
        if entry in waiting:
            return
        waiting.add(entry)
        target = self.jobs.get(target_id)
        if target is not None:
            self.later(partial(self._judge, target, entry))
        else:
            self.ended_targets.append((target_id, entry))
            self.ended_targets_wake.set()

    def judge_ended(self, target_id: int, target: Job | None, entry: tuple[int, str]) -> None:
        """Judge a dependency on a job that is not live.

        Args:
            target_id: its id.
            target: the job as the journal remembers it, None if it was purged.
            entry: the dependent's id and the dependency's text.
        """
        self._judge(target if target is not None else Job(target_id), entry, gone=target is None)
        self.catch_up()

    def _judge(self, target: Job, entry: tuple[int, str], *, gone: bool = False) -> None:
        dependent_id, text = entry
        dependent = self.jobs.get(dependent_id)
        hold = dependent.holds.get(("depend", text)) if dependent is not None else None
        waits = dependent is not None and hold is not None and hold.stage is Stage.ACTIVE
        met = False if gone else commands.dependency_verdict(target, text.partition(":")[0])
        if waits and met is None:
            return
        waiting = self._dependents.get(target.id, set())
        waiting.discard(entry)
        if not waiting:
            self._dependents.pop(target.id, None)
        if dependent is None or not waits:
            return
        why = "its record is gone" if gone else f"job {target.id} is {target.result or target.state.value}"
        steps = commands.dependency_end(dependent, text, self.policy, met=bool(met), why=why)
        self.transact(dependent, steps)

    # -- after a commit

    def _published(self, batch: Batch) -> None:
        count = len(batch.entries)
        records, self._records = self._records[:count], self._records[count:]
        if records:
            for listener in self.listeners:
                listener(records)

    def _released(self) -> None:
        self.flush()
