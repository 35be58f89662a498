"""The world around one job, for tests: who can do what to it next, and what comes of it.

Scripts are driven by what `effects.want` says, as the broker drives them; holders, the workload manager and
people do as they like. Every step is judged by `checker`, and the job can be made anew from its log at any
time.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast

import msgpack

from lifecycle.checker import PROMISES, Checker, Violation, exit_code
from perilogd.errors import Refusal
from perilogd.lifecycle import commands, effects, holds, view
from perilogd.lifecycle.apply import apply
from perilogd.lifecycle.effects import Want
from perilogd.lifecycle.job import Drain, Hold, Job, Origin, Stage, Stamp, State, Step
from perilogd.lifecycle.policy import ActionPolicy, Phase, Policy, ProviderPolicy, Seconds
from perilogd.lifecycle.settle import settle
from perilogd.lifecycle.table import ahead, can_come, passed

ALICE = 1001
ROOT = 0

ALL_PROMISES = PROMISES | {"P5", "P9"}

#: What can become of a script that runs: outcome and wait status. A person may stop one, too.
ENDINGS = {
    "ok": ("ok", 0),
    "failed": ("failed", 768),
    "timeout": ("timeout", 31744),
    "stuck": ("stuck", 31744),
    "lost": ("lost", 65280),
    "canceled": ("canceled", 36608),
    "obeyed": ("canceled", 0),
}

#: … of one that was told to stop.
_STOPPED = ("canceled", "obeyed", "ok", "stuck")


def action(name: str, phases: str = "prolog epilog", **more: Any) -> ActionPolicy:
    """Return an action with scripts in these phases, and a time limit of ten minutes each."""
    which = cast("frozenset[Phase]", frozenset(phases.split()))
    given: dict[str, Any] = {"definition": f"{name}-1", "timeout": dict.fromkeys(which, 600.0), **more}
    return ActionPolicy(name, which, **given)


def provider(name: str, *taken: str, timeout: Seconds = 600.0, **more: Any) -> ProviderPolicy:
    """Return a provider that takes holds, each written as "phase" or "phase:name"."""
    pairs = [text.partition(":") for text in taken]
    named = tuple((cast("Phase", phase), own or name) for phase, _, own in pairs)
    return ProviderPolicy(name, named, timeout={phase: timeout for phase, _ in named}, **more)


@dataclass(frozen=True)
class Scenario:
    """What may happen to a job.

    Args:
        policy: the configuration.
        submit: more of the `submit` context.
        nodes: the nodes that the workload manager gives; given with `submit` when empty.
        clients: holds that a client may take whenever it likes, each once.
        endings: what can become of scripts, of `ENDINGS`.
        statuses: what holders and the application end with.
        raises: (type, abandon) of exceptions, each raised at most once.
        expiring: whether deadlines pass.
        forcing: whether an administrator ends holds in others' stead, early ones too.
        unrun: whether scripts end without having been begun.
        lease: whether the application can lose its client.
    """

    policy: Policy
    submit: Mapping[str, Any] = field(default_factory=dict)
    nodes: str = ""
    clients: tuple[tuple[Phase, str], ...] = ()
    endings: tuple[str, ...] = tuple(ENDINGS)
    statuses: tuple[int, ...] = (0, 256)
    raises: tuple[tuple[str, bool], ...] = (("cancel", False),)
    expiring: bool = True
    forcing: bool = False
    unrun: bool = False
    lease: bool = False


class Input(NamedTuple):
    """Something that can happen next.

    Args:
        kind: what, as a method of `World` without its `do_`.
        args: its arguments.
        helpful: whether the job waits for it; else it is a blow, or a whim.
    """

    kind: str
    args: tuple[Any, ...] = ()
    helpful: bool = True

    def __str__(self) -> str:
        """Return it as a reader of a failed test wants it."""
        return " ".join(str(item) for item in (self.kind, *self.args))


class Entry(NamedTuple):
    """One event of a log; its context has been through msgpack, as by way of the journal."""

    name: str
    context: dict[str, Any]
    stamp: Stamp


def replay(number: int, log: Iterable[Entry]) -> Job:
    """Make a job from its log, as a restarted broker does."""
    job = Job(number)
    for entry in log:
        apply(job, entry.name, entry.context, entry.stamp)
    return job


class World:
    """One job and all that surrounds it.

    Args:
        scenario: what may happen.
        checker: judges every step.
    """

    __slots__ = ("checker", "history", "job", "left", "log", "now", "policy", "scenario", "spawned")

    def __init__(self, scenario: Scenario, checker: Checker) -> None:
        self.scenario = scenario
        self.checker = checker
        self.policy = scenario.policy
        self.job = Job(1)
        self.log: list[Entry] = []
        self.history: list[Input] = []
        self.now = Stamp(1e9, 100.0, 1)
        self.spawned: frozenset[tuple[str, str, int]] = frozenset()  # phase, name, attempt
        self.left = frozenset(scenario.raises) | frozenset(scenario.clients)
        context = {"userid": ALICE, "submitter": ALICE, **scenario.submit}
        if not scenario.nodes:
            context["nodes"] = "n[1-4]"
        self.checker.step()
        self.take(commands.submit(self.job, self.policy, context))

    def fork(self) -> World:
        """Return an independent copy, whose job was made from the log: the broker has been restarted."""
        twin = World.__new__(World)
        for slot in self.__slots__:
            setattr(twin, slot, getattr(self, slot))
        twin.job = replay(self.job.id, self.log)
        twin.checker = self.checker.copy()
        twin.log, twin.history = list(self.log), list(self.history)
        return twin

    def key(self) -> Hashable:
        """Return what the future can depend on: worlds with equal keys have the same future."""
        return (fingerprint(self.job), self.checker.key(), self.spawned, self.left)

    # -- one step

    def do(self, what: Input) -> None:
        """Let something happen.

        Raises:
            Violation: a promise is broken.
        """
        self.history.append(what)
        self.checker.step()
        try:
            getattr(self, f"do_{what.kind}")(*what.args)
            self.checker.done()
            self._compare()
        except Violation as violation:
            violation.add_note(self.story())
            raise

    def story(self) -> str:
        """Tell what happened, and the log that it left."""
        steps = "\n".join(f"  {what}" for what in self.history)
        events = "\n".join(f"  {entry.name} {entry.context}" for entry in self.log)
        return f"what happened:\n{steps}\nthe log:\n{events}"

    def take(self, steps: Iterable[Step]) -> list[Step]:
        """Run a command and what follows from it, as the broker does."""
        return [step for part in (steps, settle(self.job, self.policy)) for step in self._append(part)]

    def _append(self, steps: Iterable[Step]) -> Iterator[Step]:
        for step in steps:
            if isinstance(step, Drain):
                self.checker.drain(step.nodes, step.reason)
            else:
                self.now = Stamp(self.now.wall + 0.001, self.now.boottime + 0.001, self.now.boot)
                kept = msgpack.unpackb(msgpack.packb(step.context))
                self.log.append(Entry(step.name, kept, self.now))
                expected = can_come(self.job, step.name)
                self.checker.must("P8", expected, f"{step.name} comes, and it was said that it cannot")
                apply(self.job, step.name, step.context, self.now)
                self.checker.event(step.name, kept, self.policy)
            yield step

    def _compare(self) -> None:
        """See that the job's state says what its log says."""
        job, log, must = self.job, self.checker, self.checker.must
        must("P8", job.state.value == log.state, f"state {job.state.value}, by the log {log.state}")
        must("P8", job.result == log.result, f"result {job.result}, by the log {log.result}")
        must("P8", job.completion_status == log.failure, "the completion's status is not the log's")
        must("P8", job.finish_status == log.finish_status, "the job's status is not the log's")
        must("P8", job.abandoned == log.abandoned, f"abandoned {job.abandoned}, by the log {log.abandoned}")
        if job.state is State.INACTIVE:
            code = exit_code(log.finish_status, log.result)
            must("P8", view.exit_code(job) == code, f"exit code {view.exit_code(job)}, by the log {code}")

    # -- what can happen

    def inputs(self) -> list[Input]:
        """Return all that can happen next."""
        return [*self._helpful(), *self._other()]

    def _helpful(self) -> Iterator[Input]:
        job = self.job
        for hold in job.active_holds():
            where = (hold.phase, hold.name)
            if hold.is_script:
                yield from self._of_script(hold)
            elif hold.origin is Origin.DEPENDENCY:
                yield Input("judge", (hold.name, True))
                yield Input("judge", (hold.name, False))
            else:
                for status in self.scenario.statuses:
                    yield Input("finish", (*where, status))
                if self.scenario.expiring and effects.expires(hold):
                    yield Input("expire", where)
        if job.state is State.SCHED:
            yield Input("alloc")
        if job.state is State.RUN and not job.started:
            yield Input("start")
        if job.state is State.RUN and job.started:
            for status in self.scenario.statuses:
                yield Input("exit", (status,))
            if self.scenario.lease:
                yield Input("lose")

    def _of_script(self, hold: Hold) -> Iterator[Input]:
        where = (hold.phase, hold.name)
        wanted = effects.want(self.job, hold)
        must = self.checker.wanted(*where)
        self.checker.must("P1", wanted.value == must, f"{where} is to {wanted.value}, but must {must}")
        if (*where, hold.attempt) in self.spawned:
            self.checker.must("P1", wanted is not Want.WAIT, f"{where} is to wait after its begin")
            for how in self.scenario.endings if wanted is Want.RUN else _STOPPED:
                yield Input("end", (*where, how))
        elif wanted is Want.CANCEL:
            yield Input("end", (*where, "canceled"))
        elif wanted is Want.RUN:
            yield Input("begin", where)
            if self.scenario.unrun:
                yield Input("end", (*where, "failed"))

    def _other(self) -> Iterator[Input]:
        job = self.job
        for kind, abandon in self.scenario.raises:
            if (kind, abandon) in self.left and job.state is not State.INACTIVE:
                yield Input("raise", (kind, abandon), helpful=False)
        for phase, name in self.scenario.clients:
            abandoned = phase == "completion" and job.abandoned
            if (phase, name) in self.left and not passed(job.state, phase) and not abandoned:
                yield Input("take_hold", (phase, name), helpful=False)
        if job.state is State.COMPLETION and job.fatal is None and job.attempt <= job.max_reruns:
            yield Input("rerun", helpful=False)
        if self.scenario.forcing:
            for hold in list(job.holds.values()):
                if hold.stage is Stage.DUE and not hold.is_script:
                    yield Input("finish", (hold.phase, hold.name, 0, True), helpful=False)
                if hold.stage is Stage.DECLARED:
                    for status in self.scenario.statuses:
                        yield Input("finish", (hold.phase, hold.name, status), helpful=False)
                if hold.stage is Stage.ACTIVE and not hold.is_script:
                    yield Input("finish", (hold.phase, hold.name, None, True), helpful=False)

    # -- the things that happen

    def do_begin(self, phase: Phase, name: str) -> None:
        """The executor begins a script."""
        hold = self.job.holds[phase, name]
        self.spawned |= {(phase, name, hold.attempt)}
        self.checker.begin(phase, name)

    def do_end(self, phase: Phase, name: str, how: str) -> None:
        """A script ends, or is never begun."""
        hold = self.job.holds[phase, name]
        run = (phase, name, hold.attempt)
        outcome, status = ENDINGS[how]
        if run not in self.spawned:
            status = 15 if outcome == "canceled" else 32512
        self.spawned -= {run}
        self.checker.tell(phase, name, outcome, status, script=True)
        self.take(holds.script_ended(self.job, self.policy, hold, holds.Ending(outcome, status, 4242)))

    def do_finish(self, phase: Phase, name: str, status: int | None, force: bool = False) -> None:
        """A holder gives its hold up, or an administrator does it in its stead."""
        hold = holds.require(self.job, phase, name)
        outcome = "ok" if status == 0 else "failed" if status else "canceled"
        self.checker.tell(phase, name, outcome, 15 if status is None else status, script=False)
        self.take(holds.finish(self.job, self.policy, hold, ROOT, status=status, force=force))

    def do_expire(self, phase: Phase, name: str) -> None:
        """A deadline passes."""
        hold = self.job.holds[phase, name]
        cut = self.checker.abandoned and phase == "completion"
        outcome, status = ("canceled", 15) if cut else ("timeout", 31744)
        self.checker.tell(phase, name, outcome, status, script=False)
        self.take(holds.expire(self.job, self.policy, hold))

    def do_judge(self, text: str, met: bool) -> None:
        """A dependency is met, or can no longer be met."""
        if met:
            self.checker.tell("depend", text, "ok", 0, script=False)
        self.take(commands.dependency_end(self.job, text, self.policy, met=met, why="it failed"))

    def do_take_hold(self, phase: Phase, name: str, owner: int | str | None = None) -> None:
        """A client takes a hold."""
        self.left -= {(phase, name)}
        if owner is None:
            owner = ALICE if phase == "completion" else ROOT
        self.take(start_hold(self.job, self.policy, phase, name, owner))

    def do_raise(self, kind: str, abandon: bool) -> None:
        """Somebody raises a fatal exception."""
        self.left -= {(kind, abandon)}
        self.take(commands.raise_(self.job, self.policy, kind, 0, "so be it", userid=ALICE, abandon=abandon))

    def do_alloc(self) -> None:
        """The workload manager gives nodes."""
        self.take(commands.alloc(self.job, self.policy, self.scenario.nodes, None))

    def do_start(self) -> None:
        """The application starts."""
        self.take(commands.start(self.job, None, lease=self.scenario.lease))

    def do_exit(self, status: int) -> None:
        """The application ends."""
        self.take(commands.exit_(self.job, self.policy, status, None, None))

    def do_lose(self) -> None:
        """The application's client goes away for good."""
        self.take(commands.lose(self.job, self.policy, "the client went away"))

    def do_rerun(self) -> None:
        """The owner wants the application once more."""
        self.take(commands.rerun(self.job, ALICE, None))

    # -- what holds in every state

    def examine(self) -> None:
        """Put the promises that concern a state, rather than a step, to the test.

        Raises:
            Violation: one is broken.
        """
        try:
            self._repeat()
            self._restart()
            self._outlook()
        except Violation as violation:
            violation.add_note(self.story())
            raise

    def _repeat(self) -> None:
        """P4: starting and finishing twice is harmless, a name that was never held is an error."""
        job, policy, must = self.job, self.policy, self.checker.must
        for (phase, name), hold in list(job.holds.items()):
            if hold.stage is not Stage.ENDED or (phase, name) in self.checker.ended:
                again = start_hold(job, policy, phase, name, 5)
                must("P4", not list(again), f"{phase} hold {name} starts twice")
            if hold.stage is Stage.ENDED and not hold.is_script:
                kept = holds.finish(job, policy, holds.require(job, phase, name), 5, status=256)
                must("P4", not list(kept), f"{phase} hold {name} is finished twice")
            if hold.is_script:
                refused = refusal(holds.finish(job, policy, hold, ROOT, status=0, force=True))
                must("P4", refused == "EPERM", f"the script {name} was finished from outside")
        try:
            holds.require(job, "prolog", "nobody")
        except Refusal as refused_:
            must("P4", refused_.code == "ENOENT", "a name that was never held")
        else:
            must("P4", False, "a name that was never held was found")

    def _restart(self) -> None:
        """P9: the log makes the same job, which has nothing left to do by itself."""
        if "P9" not in self.checker.promises:
            return
        again = replay(self.job.id, self.log)
        differing = differences(self.job, again)
        self.checker.must("P9", not differing, f"replay differs: {differing}")
        for policy in (self.policy, Policy()):
            more = list(settle(again, policy))
            self.checker.must("P9", not more, f"a restart goes on by itself: {more}")
        if effects.needs_restart_note(again):
            apply(again, "broker-restart", {}, self.now)
            changed = differences(self.job, again)
            self.checker.must("P9", not changed, f"broker-restart changes {changed}")

    def _outlook(self) -> None:
        """P5: there is always somebody who can help the job on, and it says who."""
        job, must = self.job, self.checker.must
        waits = view.waiting_for(job, self.now)
        if job.state is State.INACTIVE:
            must("P5", not waits, f"an ended job waits for {waits}")
            return
        must("P5", any(True for _ in self._helpful()), f"nobody can help the job on from {job.state.value}")
        must("P5", waits, f"a job in {job.state.value} does not say what it waits for")
        for hold in job.active_holds():
            counting = hold.is_script or ahead(job.state, hold.phase) or effects.expires(hold)
            unlimited = hold.timeout is None or hold.origin is Origin.DEPENDENCY
            must("P5", counting or unlimited, f"the deadline of {hold.phase} {hold.name} does not count")


def start_hold(
    job: Job, policy: Policy, phase: Phase, name: str, owner: int | str = ALICE, **more: Any
) -> Iterator[Step]:
    """Return the steps of taking a hold, for ten minutes if nothing else is said."""
    given = {"timeout": 600.0, "keep": "all", "note": "", "drain": owner != ALICE, **more}
    return holds.start(job, policy, phase, name, owner=owner, **given)


def refusal(steps: Iterable[Step]) -> str | None:
    """Return the code with which a command refuses, None if it does not."""
    try:
        list(steps)
    except Refusal as refused:
        return refused.code
    return None


def differences(one: Job, other: Job) -> list[str]:
    """Return the names of the slots in which two jobs differ; progress is not journaled."""
    found = [slot for slot in Job.__slots__ if slot != "holds" and getattr(one, slot) != getattr(other, slot)]
    if list(one.holds) != list(other.holds):
        return [*found, "holds"]
    pairs: list[tuple[Hold | None, Hold | None]] = list(
        zip(one.holds.values(), other.holds.values(), strict=True)
    )
    while pairs:
        mine, its = pairs.pop()
        if mine is None or its is None:
            if mine is not its:
                found.append("successor")
            continue
        found += [
            f"{mine.phase} {mine.name}: {slot}"
            for slot in Hold.__slots__
            if slot not in ("progress", "successor") and getattr(mine, slot) != getattr(its, slot)
        ]
        pairs.append((mine.successor, its.successor))
    return found


def fingerprint(job: Job) -> Hashable:
    """Return what the future of a job depends on.

    Not in it: times (any deadline may pass at any moment), texts, and how exactly things ended that have
    ended. That these are right is judged at the step that sets them, and no rule looks at them later.
    """
    return (
        job.state,
        job.fatal is None,
        job.result == "COMPLETED",
        job.abandoned,
        job.attempt,
        job.started,
        job.exit_status == 0,
        job.completion_status == 0,
        tuple(_fingerprint(hold) for hold in job.holds.values()),
    )


def _fingerprint(hold: Hold) -> Hashable:
    if hold.stage is Stage.ENDED:
        return (hold.phase, hold.name, hold.owner, hold.origin, hold.attempt, hold.since is None)
    return (
        hold.phase,
        hold.name,
        hold.owner,
        hold.origin,
        hold.attempt,
        hold.stage,
        hold.armed is None,
        hold.ending,
        hold.predecessors,
        None if hold.successor is None else _fingerprint(hold.successor),
    )
