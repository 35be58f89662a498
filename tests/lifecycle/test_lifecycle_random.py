"""Lives of jobs chosen by hypothesis: larger than those that can be explored, and reloaded on the way."""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from lifecycle.checker import Checker, Violation
from lifecycle.world import (
    ALICE,
    ALL_PROMISES,
    ROOT,
    Input,
    Scenario,
    World,
    action,
    differences,
    provider,
    refusal,
    replay,
    start_hold,
)
from perilogd.errors import Refusal
from perilogd.lifecycle import commands, holds
from perilogd.lifecycle.job import Stage, Stamp, State
from perilogd.lifecycle.policy import PHASES, Phase, Policy

#: More steps than any of these jobs can need.
_PATIENCE = 1000

_ACTIONS = ("a", "b", "c", "d")
_PROVIDERS = {"p": ("p", "p-data"), "q": ("q",)}
_CLIENT_NAMES = ("x", "y", "a", "c", "p")  # some of which a reload may give to an action or a provider
_SCRIPTS = ("prolog epilog", "prolog completion epilog", "completion", "epilog", "prolog")
_PHASES: st.SearchStrategy[Phase] = st.sampled_from(PHASES)
_KEEPS = st.sampled_from(["all", "none", "n1", "n[2-3]", "n[1-4]", {"nodes": "n1", "storage": "0"}])
_TIMES = st.sampled_from([None, 0.0, 30.0, 600.0])


@st.composite
def policies(draw: st.DrawFn, version: int) -> Policy:
    """Choose a configuration; its order has no circles, and its definitions are its own."""
    order = draw(st.permutations([*_ACTIONS, *_PROVIDERS]))
    present = set(order) - draw(st.sets(st.sampled_from(order), max_size=3))

    def common(name: str) -> dict[str, Any]:
        earlier = [other for other in order[: order.index(name)] if other in present]
        return {
            "after": tuple(draw(st.sets(st.sampled_from(earlier)))) if earlier else (),
            "match": draw(st.sampled_from([{}, {}, {"big": True}])),
        }

    actions = [
        action(
            name,
            draw(st.sampled_from(_SCRIPTS)),
            definition=f"{name}-{version}",
            cancel_on_exception=draw(st.booleans()),
            **common(name),
        )
        for name in _ACTIONS
        if name in present
    ]
    providers = [
        provider(
            name,
            *(f"{phase}:{hold}" for hold in _PROVIDERS[name] for phase in draw(st.sets(_PHASES, max_size=2))),
            timeout=draw(_TIMES),
            **common(name),
        )
        for name in _PROVIDERS
        if name in present
    ]
    maximum = draw(st.sampled_from([None, 3600.0]))
    return Policy(tuple(actions), tuple(providers), maximum=dict.fromkeys(PHASES, maximum), holds_per_job=30)


@st.composite
def declarations(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Choose holds to be declared at submit."""
    names = draw(st.sets(st.tuples(_PHASES, st.sampled_from(("x", "z"))), max_size=4))
    return [
        {"phase": phase, "name": name, "owner": draw(st.sampled_from([ALICE, ROOT])), "timeout": 600.0}
        for phase, name in sorted(names)
    ]


def _goes_well(what: Input) -> bool:
    return what.kind in ("begin", "alloc", "start") or str(what).endswith((" ok", " 0", " True"))


#: What happens to a job, and how likely; methods of `Life`.
_HAPPENINGS = (
    *("go_well",) * 5,
    *("go_somehow",) * 2,
    "rerun",
    *("hold",) * 2,
    "update",
    "reload",
    "restart",
    "misuse",
)


class Life(RuleBasedStateMachine):
    """One job, everything that can happen to it, and whoever asks for what may not be."""

    def __init__(self) -> None:
        super().__init__()
        self.version = 0
        self.sound = False  # the last step broke nothing
        self.world: World

    @initialize(data=st.data())
    def submit(self, data: st.DataObject) -> None:
        """The job is submitted."""
        submit: dict[str, Any] = {
            "attributes": data.draw(st.sampled_from([{"big": True}, {}])),
            "holds": data.draw(declarations()),
            "max_reruns": data.draw(st.integers(0, 2)),
            "dependencies": data.draw(st.sampled_from([[], [], ["afterok:7"]])),
        }
        scenario = Scenario(
            data.draw(policies(self.version)),
            submit,
            nodes=data.draw(st.sampled_from(["", "n[1-4]"])),
            statuses=(0, 256, 9),
            raises=(("cancel", False), ("cancel", True), ("timelimit", False), ("own", False)),
            forcing=True,
            unrun=True,
            lease=data.draw(st.booleans()),
        )
        self.world = World(scenario, Checker(ALL_PROMISES))

    @rule(what=st.sampled_from(_HAPPENINGS), data=st.data())
    def happen(self, what: str, data: st.DataObject) -> None:
        """Something happens: one rule for all, so that hypothesis cannot leave out what keeps a job going."""
        self.sound = False
        getattr(self, what)(data)

    def go_well(self, data: st.DataObject) -> None:
        """The job gets what it waits for, several times over."""
        for _ in range(data.draw(st.integers(1, 3))):
            good = [what for what in self.world.inputs() if what.helpful and _goes_well(what)]
            if good:
                self.world.do(data.draw(st.sampled_from(good)))
                self.world.examine()

    def go_somehow(self, data: st.DataObject) -> None:
        """Anything at all happens."""
        inputs = self.world.inputs()
        if inputs:
            self.world.do(data.draw(st.sampled_from(inputs)))

    def rerun(self, _: st.DataObject) -> None:
        """The owner wants the application once more."""
        if any(what.kind == "rerun" for what in self.world.inputs()):
            self.world.do(Input("rerun"))

    def hold(self, data: st.DataObject) -> None:
        """A client takes a hold, or a provider does ahead of its turn."""
        world = self.world
        phase, name = data.draw(_PHASES), data.draw(st.sampled_from(_CLIENT_NAMES))
        owners: list[int | str] = [ALICE, ROOT]
        if world.policy.reserved(name):  # the broker lets only the provider itself use such a name
            owners = [f"provider:{p.name}" for p in world.policy.providers if (phase, name) in p.holds]
        if owners:
            try:
                world.do(Input("take_hold", (phase, name, data.draw(st.sampled_from(owners)))))
            except Refusal:
                self._unchanged()

    def update(self, data: st.DataObject) -> None:
        """A holder moves its deadline, or keeps less."""
        world, job = self.world, self.world.job
        if not job.holds:
            return
        hold = data.draw(st.sampled_from([*job.holds.values()]))
        given: dict[str, Any] = (
            {"timeout": data.draw(_TIMES)} if data.draw(st.booleans()) else {"keep": data.draw(_KEEPS)}
        )
        world.checker.step()
        try:
            world.take(holds.update(job, world.policy, hold, world.now, ALICE, **given))
        except Refusal:
            self._unchanged()

    def reload(self, data: st.DataObject) -> None:
        """The administrator has changed the configuration."""
        self.version += 1
        self.world.policy = data.draw(policies(self.version))

    def restart(self, data: st.DataObject) -> None:
        """The broker is restarted after a while, perhaps with the machine, and with a stepped clock."""
        world = self.world
        seconds, step = data.draw(st.floats(0, 1e4)), data.draw(st.floats(-1e5, 1e5))
        wall, boottime, boot = world.now
        world.now = Stamp(wall + seconds + step, boottime + seconds, boot)
        if data.draw(st.booleans()):
            world.now = world.now._replace(boottime=5.0, boot=boot + 1)
        world.job = replay(world.job.id, world.log)

    def misuse(self, data: st.DataObject) -> None:
        """Requests that are wrong now, of all kinds, are refused and change nothing."""
        world, job, policy = self.world, self.world.job, self.world.policy
        status, attempt = data.draw(st.sampled_from([0, 9, 256, 65280])), job.attempt + 2
        wrong = [
            commands.raise_(job, policy, "timelimit", 0, "", abandon=True),
            commands.raise_(job, policy, "cancel", 2, "", abandon=True),
            commands.start(job, attempt, lease=False),
            commands.exit_(job, policy, status, attempt, None),
            commands.rerun(job, ALICE, attempt),
        ]
        if not (job.state is State.RUN and job.started) and status not in job.exits.values():
            wrong.append(commands.exit_(job, policy, status, None, None))
        if job.state is not State.RUN:
            wrong.append(commands.start(job, None, lease=True))
        if job.state is not State.COMPLETION or job.fatal is not None or job.attempt > job.max_reruns:
            wrong.append(commands.rerun(job, ALICE, None))
        if job.state is not State.SCHED:
            wrong.append(commands.alloc(job, policy, "m[1-9]", None))
        if job.state is State.INACTIVE:
            wrong.append(start_hold(job, policy, data.draw(_PHASES), "late"))
            wrong.append(commands.memo(job, {"key": "late"}))
        for hold in job.holds.values():
            if hold.is_script:
                wrong.append(holds.finish(job, policy, hold, ROOT, status=status, force=True))
            if hold.is_script or hold.stage is Stage.ENDED:
                wrong.append(holds.update(job, policy, hold, world.now, ROOT, timeout=1.0))
        for steps in wrong:
            assert refusal(steps) is not None
        self._unchanged()

    def _unchanged(self) -> None:
        world = self.world
        assert differences(world.job, replay(world.job.id, world.log)) == []

    @invariant()
    def promises(self) -> None:
        """What a state must promise."""
        self.world.examine()
        self.sound = True

    def teardown(self) -> None:
        """Whatever has happened: when everybody does his part, the job comes to its end."""
        if not self.sound:
            return
        for _ in range(_PATIENCE):
            if self.world.job.state is State.INACTIVE:
                return
            self.world.do(next(what for what in self.world.inputs() if what.helpful))
            self.world.examine()
        raise Violation(f"P9: the job does not end\n{self.world.story()}")


TestLife = Life.TestCase
TestLife.settings = settings(
    max_examples=100, stateful_step_count=25, deadline=None, derandomize=True, database=None
)
