"""The small configurations that are explored to the last state.

Two actions, in order or not; one hold from outside in each phase, declared at submit, standing, or taken by a
client whenever it likes; scripts that end in every way; cancel, abandon, time limit, one rerun.
"""

from __future__ import annotations

from typing import Any

from lifecycle.world import ALICE, ROOT, Scenario, action, provider
from perilogd.lifecycle.policy import PHASES, Phase, Policy

_ALL = "prolog completion epilog"
_ONE = (action("a", _ALL),)
_SIDE_BY_SIDE = (action("a", _ALL), action("b", _ALL))
_ORDERED = (action("a", _ALL), action("b", _ALL, after=("a",)))

_BLOWS = (("cancel", False), ("cancel", True))
_RERUN: dict[str, Any] = {"max_reruns": 1}
#: Endings that the lifecycle treats differently; all five where scripts are what a scenario is about.
_FEW = ("ok", "failed", "stuck")


def _declared(*phases: Phase) -> dict[str, Any]:
    return {
        "holds": [
            {"phase": phase, "name": "h", "owner": ALICE if phase == "completion" else ROOT, "timeout": 60.0}
            for phase in phases
        ]
    }


SCENARIOS: dict[str, Scenario] = {
    # Scripts alone.
    "side by side": Scenario(Policy(_SIDE_BY_SIDE), _RERUN, raises=_BLOWS, statuses=(0, 9)),
    "in order": Scenario(Policy(_ORDERED), _RERUN, raises=(*_BLOWS, ("timelimit", False))),
    "not to be cancelled": Scenario(
        Policy((action("a", _ALL, cancel_on_exception=False), action("b", "epilog"))), raises=_BLOWS
    ),
    "never begun, lost": Scenario(Policy(_SIDE_BY_SIDE), raises=_BLOWS[:1], unrun=True, lease=True),
    # One hold from outside in each phase.
    "declared": Scenario(Policy(_ORDERED), {**_RERUN, **_declared(*PHASES)}, raises=_BLOWS, nodes="n[1-4]"),
    "declared, forced": Scenario(Policy(_ONE), {**_RERUN, **_declared(*PHASES)}, raises=_BLOWS, forcing=True),
    "standing": Scenario(
        Policy(_SIDE_BY_SIDE, (provider("p", *PHASES),)), _RERUN, raises=_BLOWS, endings=_FEW[:2]
    ),
    "standing in between": Scenario(
        Policy((action("a", _ALL), action("b", _ALL, after=("p",))), (provider("p", *PHASES, after=("a",)),)),
        _RERUN,
        raises=_BLOWS,
        forcing=True,
    ),
    "dependency": Scenario(
        Policy(_ONE), {"dependencies": ["afterok:7"], **_declared("depend")}, nodes="n[1-4]"
    ),
    **{
        f"client in {phase}": Scenario(
            Policy(_ORDERED if phase in ("depend", "prolog") else _ONE),
            _RERUN,
            raises=_BLOWS,
            clients=((phase, "h"),),
            nodes="n[1-4]",
            endings=_FEW,
        )
        for phase in PHASES
    },
    "clients": Scenario(
        Policy((action("a"),)),
        raises=_BLOWS[:1],
        clients=tuple((phase, "h") for phase in PHASES[1:]),
        endings=_FEW[:2],
    ),
}
