"""One job's life told step by step, for tests of single rules.

Every step returns what it added to the log, as "prolog-start a", and is judged by the checker of all promises
on the way, so that a test needs to say only what it is about.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from lifecycle.checker import Checker
from lifecycle.world import ALICE, ALL_PROMISES, ROOT, Scenario, World, replay, start_hold
from perilogd.errors import Refusal
from perilogd.lifecycle import commands, holds, view
from perilogd.lifecycle.effects import want
from perilogd.lifecycle.job import Drain, Hold, Job, Step
from perilogd.lifecycle.policy import Phase, Policy


class Life:
    """A job on four nodes, submitted by its owner.

    Args:
        policy: the configuration.
        nodes: with what nodes it is submitted; "" for none.
        submit: more of the `submit` event's context.
    """

    def __init__(self, policy: Policy | None = None, nodes: str = "n[1-4]", **submit: Any) -> None:
        given = {**submit, "nodes": nodes} if nodes else submit
        self.world = World(Scenario(policy or Policy(), given, nodes="n[1-4]"), Checker(ALL_PROMISES))
        self.drains: list[Drain] = []
        self.world.examine()

    @property
    def job(self) -> Job:
        """The job."""
        return self.world.job

    @property
    def state(self) -> str:
        """The job's state."""
        return self.job.state.value

    @property
    def log(self) -> list[str]:
        """The whole log, in short."""
        return self._short(0)

    @property
    def waiting_for(self) -> str:
        """What the job says that it waits for."""
        return view.waiting_for(self.job, self.world.now)

    def hold_of(self, phase: Phase, name: str) -> Hold:
        """Return a hold."""
        return holds.require(self.job, phase, name)

    def want(self, phase: Phase, name: str) -> str:
        """Return what should become of an active script."""
        return want(self.job, self.hold_of(phase, name)).value

    def active(self) -> list[str]:
        """Return the active holds, as "phase name"."""
        return [f"{hold.phase} {hold.name}" for hold in self.job.active_holds()]

    def left(self, phase: Phase, name: str) -> float | None:
        """Return the seconds to a hold's deadline, rounded."""
        remaining = self.hold_of(phase, name).remaining(self.world.now)
        return None if remaining is None else round(remaining)

    def last(self, event: str) -> dict[str, Any]:
        """Return the context of the newest event of this name."""
        return next(entry.context for entry in reversed(self.world.log) if entry.name == event)

    def exceptions(self) -> list[tuple[str, int]]:
        """Return type and severity of all exceptions."""
        return [(item.type, item.severity) for item in self.job.exceptions]

    def _short(self, start: int) -> list[str]:
        return [
            " ".join([entry.name, *filter(None, [entry.context.get("description")])])
            for entry in self.world.log[start:]
        ]

    def take(self, steps: Iterable[Step]) -> list[str]:
        """Run any command."""
        self.world.checker.step()
        return self._take(steps)

    def _take(self, steps: Iterable[Step]) -> list[str]:
        start = len(self.world.log)
        done = self.world.take(steps)
        self.drains += [step for step in done if isinstance(step, Drain)]
        self.world.checker.done()
        self.world.examine()
        return self._short(start)

    # -- what the workload manager and people do

    def alloc(self, nodes: str = "n[1-4]") -> list[str]:
        """Give it nodes."""
        return self.take(commands.alloc(self.job, self.world.policy, nodes, None))

    def start(self, attempt: int | None = None, *, lease: bool = False) -> list[str]:
        """Start the application."""
        return self.take(commands.start(self.job, attempt, lease=lease))

    def exit(self, status: int = 0, attempt: int | None = None, outcome: str | None = None) -> list[str]:
        """End the application."""
        return self.take(commands.exit_(self.job, self.world.policy, status, attempt, outcome))

    def rerun(self, attempt: int | None = None) -> list[str]:
        """Have the application started again."""
        return self.take(commands.rerun(self.job, ALICE, attempt))

    def throw(self, kind: str, severity: int = 0, *, abandon: bool = False) -> list[str]:
        """Raise an exception."""
        steps = commands.raise_(
            self.job, self.world.policy, kind, severity, "because", userid=ALICE, abandon=abandon
        )
        return self.take(steps)

    def cancel(self, *, abandon: bool = False) -> list[str]:
        """Cancel it."""
        return self.throw("cancel", abandon=abandon)

    # -- what scripts and holders do

    def begin(self, phase: Phase, *names: str) -> None:
        """Have the executor begin scripts."""
        for name in names:
            self.world.do_begin(phase, name)

    def end(self, phase: Phase, name: str, outcome: str = "ok", status: int = 0, **more: Any) -> list[str]:
        """Have a script end, having begun it if nobody has."""
        hold = self.hold_of(phase, name)
        if (phase, name, hold.attempt) not in self.world.spawned:
            self.world.do_begin(phase, name)
        self.world.spawned -= {(phase, name, hold.attempt)}
        self.world.checker.step()
        self.world.checker.tell(phase, name, outcome, status, script=True)
        ending = holds.Ending(outcome, status, **more)
        return self._take(holds.script_ended(self.job, self.world.policy, hold, ending))

    def prevent(self, phase: Phase, name: str) -> list[str]:
        """Have a script end that was never begun, because it was canceled in time."""
        self.world.checker.step()
        self.world.checker.tell(phase, name, "canceled", 15, script=True)
        hold, ending = self.hold_of(phase, name), holds.Ending("canceled", 15)
        return self._take(holds.script_ended(self.job, self.world.policy, hold, ending))

    def hold(self, phase: Phase, name: str, owner: int | str = ALICE, **more: Any) -> list[str]:
        """Take a hold, for ten minutes if nothing else is said."""
        return self.take(start_hold(self.job, self.world.policy, phase, name, owner, **more))

    def release(
        self, phase: Phase, name: str, status: int | None = 0, *, uid: int = ALICE, **more: Any
    ) -> list[str]:
        """Give a hold up."""
        hold = self.hold_of(phase, name)
        self.world.checker.step()
        if hold.outcome is None:
            forced = status is None and more.get("force")
            outcome = "canceled" if forced else "failed" if status else "ok"
            self.world.checker.tell(phase, name, outcome, 15 if forced else status or 0, script=False)
        return self._take(holds.finish(self.job, self.world.policy, hold, uid, status=status, **more))

    def force(self, phase: Phase, name: str, status: int | None = None, note: str = "") -> list[str]:
        """End a hold in its holder's stead."""
        return self.release(phase, name, status, uid=ROOT, force=True, note=note)

    def update(self, phase: Phase, name: str, **more: Any) -> list[str]:
        """Move a hold's deadline, or keep less."""
        steps = holds.update(
            self.job, self.world.policy, self.hold_of(phase, name), self.world.now, ALICE, **more
        )
        return self.take(steps)

    def expire(self, phase: Phase, name: str) -> list[str]:
        """Let a hold's deadline pass, and the broker act on it."""
        hold = self.hold_of(phase, name)
        remaining = hold.remaining(self.world.now)
        assert remaining is not None
        self.wait(remaining)
        cut = self.job.abandoned and phase == "completion"
        outcome, status = ("canceled", 15) if cut else ("timeout", 31744)
        self.world.checker.step()
        self.world.checker.tell(phase, name, outcome, status, script=False)
        return self._take(holds.expire(self.job, self.world.policy, hold))

    def judge(self, text: str, *, met: bool, why: str = "") -> list[str]:
        """Have the job that a dependency names come to a point that decides it."""
        self.world.checker.step()
        if met:
            self.world.checker.tell("depend", text, "ok", 0, script=False)
        return self._take(commands.dependency_end(self.job, text, self.world.policy, met=met, why=why))

    # -- what happens to the broker

    def wait(self, seconds: float) -> None:
        """Let time pass."""
        wall, boottime, boot = self.world.now
        self.world.now = self.world.now._replace(wall=wall + seconds, boottime=boottime + seconds, boot=boot)

    def reload(self, policy: Policy) -> None:
        """Put another configuration in force."""
        self.world.policy = policy

    def restart(self) -> None:
        """Make the job anew from its log."""
        self.world.job = replay(self.job.id, self.world.log)


def running(policy: Policy | None = None, **submit: Any) -> Life:
    """Return a job whose application runs, all that came before it having ended well."""
    life = Life(policy, **submit)
    while life.state in ("DEPEND", "PROLOG"):
        for hold in life.job.active_holds():
            if hold.is_script:
                life.end(hold.phase, hold.name)
            else:
                life.release(hold.phase, hold.name)
    life.start()
    return life


def refused(do: Callable[[], object]) -> str:
    """Return the text with which a request is refused."""
    try:
        do()
    except Refusal as refusal:
        return str(refusal)
    raise AssertionError("it was not refused")
