"""Explores everything that can happen to a job in a small configuration.

States are told apart by what the future can depend on (`World.key`), so each is looked at once however many
ways lead to it. Every job that a step starts from was made from its log: each step is also a restart.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Hashable, Iterable
from typing import NamedTuple

from lifecycle.checker import Checker, Violation
from lifecycle.world import ALL_PROMISES, Scenario, World


class Exploration(NamedTuple):
    """What was seen.

    Args:
        states: how many different states.
        steps: how many steps between them.
        sequences: how many ways from `submit` to the end.
        visited: how many states of the world there are, by the job's state.
        counts: how often each promise was put to the test.
    """

    states: int
    steps: int
    sequences: int
    visited: Counter[str]
    counts: Counter[str]


def explore(scenario: Scenario, promises: Iterable[str] = ALL_PROMISES, limit: int = 50_000) -> Exploration:
    """Look at every state that a scenario can come to.

    Args:
        scenario: what may happen.
        promises: which promises to watch over.
        limit: more states than this are a mistake in the scenario.

    Raises:
        Violation: a promise is broken, or a job can go round in circles.
    """
    first = World(scenario, Checker(promises))
    visited: Counter[str] = Counter()
    known: dict[Hashable, int] = {first.key(): 0}
    edges: list[list[int]] = []
    todo = deque([first])
    while todo:
        world = todo.popleft()
        world.examine()
        visited[world.job.state.value] += 1
        following: list[int] = []
        for what in world.inputs():
            child = world.fork()
            child.do(what)
            key = child.key()
            if key not in known:
                known[key] = len(known)
                assert len(known) <= limit
                todo.append(child)
            following.append(known[key])
        edges.append(following)
    return Exploration(len(known), sum(map(len, edges)), _ways(edges), visited, first.checker.counts)


def _ways(edges: list[list[int]]) -> int:
    """Return the number of ways from the first state to an end.

    Raises:
        Violation: there is a circle: a job could go round in it for ever.
    """
    arriving = [0] * len(edges)
    for following in edges:
        for node in following:
            arriving[node] += 1
    ways = [0] * len(edges)
    ways[0] = 1
    todo, ended, seen = [0], 0, 0
    while todo:
        node = todo.pop()
        seen += 1
        if not edges[node]:
            ended += ways[node]
        for child in edges[node]:
            ways[child] += ways[node]
            arriving[child] -= 1
            if not arriving[child]:
                todo.append(child)
    if seen < len(edges):
        raise Violation("P5: a job can go round in circles")
    return ended
