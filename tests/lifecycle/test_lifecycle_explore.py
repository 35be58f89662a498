"""Every state of the small configurations, under all promises that the pure core can show."""

from __future__ import annotations

from typing import Any

import pytest

from lifecycle.checker import Checker, Violation
from lifecycle.explore import explore
from lifecycle.scenarios import SCENARIOS
from lifecycle.world import ALL_PROMISES, Scenario, World, action
from perilogd.lifecycle.policy import Policy


@pytest.mark.parametrize("name", SCENARIOS)
def test_every_interleaving_keeps_the_promises(name: str) -> None:
    """In each small configuration, whatever happens in whatever order, no promise is broken in any state."""
    seen = explore(SCENARIOS[name])
    assert set(seen.counts) == ALL_PROMISES
    assert {"PROLOG", "RUN", "EPILOG", "INACTIVE"} <= set(seen.visited)
    assert seen.sequences > 0


Log = list[tuple[str, dict[str, Any]]]

_STARTED: Log = [
    ("submit", {"userid": 1}),
    ("depend", {}),
    ("alloc", {"nodes": "n1"}),
    ("prolog-start", {"description": "a", "owner": "action:a"}),
]
_CANCEL = {"type": "cancel", "severity": 0, "note": ""}
_OK = {"description": "a", "status": 0, "outcome": "ok"}


@pytest.mark.parametrize(
    ("promise", "log"),
    [
        ("P1", [*_STARTED, ("exception", _CANCEL), ("clean", {})]),
        ("P1", [*_STARTED, ("prolog-start", {"description": "b", "owner": "action:b"})]),
        ("P2", [*_STARTED, ("ready", {})]),
        ("P2", [*_STARTED, ("start", {"attempt": 1})]),
        ("P3", [*_STARTED, ("release", {"nodes": "n1", "final": True})]),
        ("P3", [*_STARTED[:1], ("exception", _CANCEL), ("clean", {}), ("clean", {})]),
        ("P4", [*_STARTED, _STARTED[-1]]),
        ("P4", [*_STARTED, ("prolog-finish", _OK)]),
        ("P4", [*_STARTED, ("prolog-finish", {**_OK, "description": "b"})]),
        ("P8", [*_STARTED, ("prolog-finish", {**_OK, "status": 256})]),
    ],
)
def test_a_broken_log_is_noticed(promise: str, log: Log) -> None:
    """The checker is no yes-man: each kind of broken log is found, under its promise's number."""
    policy = Policy((action("a"), action("b", after=("a",))))
    checker = Checker({promise})
    for name, context in log[:-1]:
        checker.event(name, context, policy)
    name, context = log[-1]
    with pytest.raises(Violation, match=f"^{promise}: "):
        checker.event(name, context, policy)


def test_a_job_that_nobody_can_help_is_noticed() -> None:
    """P5's check fails when a job waits and nobody can do anything about it."""
    world = World(Scenario(Policy((action("a"),))), Checker({"P5"}))
    world.examine()
    world.job.holds.clear()
    with pytest.raises(Violation, match="nobody can help"):
        world.examine()
