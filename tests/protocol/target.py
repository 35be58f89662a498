"""A broker under fire, and the proof that it was not hit.

What is fired lives in the tests.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bed import Bed

#: A value that each type of argument takes, by the type's name in `broker.methods`.
GOOD: dict[str, Any] = {
    "integer": 1,
    "number": 1,
    "word": "completion",
    "boolean": False,
    "text": "x",
    "name": "x",
    "key": "x",
    "duration": "1s",
    "node set": "n1",
    "map": {"x": "x"},
    "array": [],
    "word or node set or map": "none",
    "integer or name": "x",
}
#: The same for arguments that want something special.
SPECIAL: dict[str, Any] = {
    "phase": "completion",
    "outcome": "lost",
    "state": "RUN",
    "event": "memo",
    "attempt": 2,
}


def calm(job: dict[str, Any]) -> dict[str, Any]:
    """Return a job's map without what changes by itself while time passes."""
    holds = [{name: value for name, value in hold.items() if name != "deadline"} for hold in job["holds"]]
    return {**job, "holds": holds, "waiting_for": ""}


class Target:
    """A running broker, with a client that was connected before anything happened.

    Args:
        bed: the broker.

    Attributes:
        bed: the broker; its own connection is a bystander's.
        methods: what `broker.methods` returns, by the methods' names.
    """

    def __init__(self, bed: Bed) -> None:
        self.bed = bed
        self.methods: dict[str, dict[str, Any]] = {
            method["name"]: method for method in bed.call("broker.methods")
        }

    def required(self, method: str) -> dict[str, Any]:
        """Return right values for the arguments that a method must have."""
        return {
            argument["name"]: SPECIAL.get(argument["name"], GOOD.get(argument["type"]))
            for argument in self.methods[method]["arguments"]
            if argument["required"]
        }

    def _state(self) -> tuple[Any, ...]:
        """Return all that a client can change, as the bystander sees it."""
        call = self.bed.call
        stats = call("broker.stats")
        return (
            stats["events"],
            stats["watches"],
            stats["draining"],
            call("broker.config"),
            call("node.list"),
            call("script.list"),
            [calm(job) for job in call("job.list")],
        )

    @contextmanager
    def unharmed(self) -> Iterator[None]:
        """Prove that what is done in the block changes nothing, and that a bystander is served as ever."""
        before = self._state()
        yield
        assert self._state() == before
