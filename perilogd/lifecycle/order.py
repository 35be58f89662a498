"""Who is due in a phase, and in what order: the plan that the event entering a phase carries.

A plan is a list of maps, one for each script or standing hold:

    name        the hold's name
    owner       "action:NAME" or "provider:NAME"
    timeout     seconds; absent: no deadline
    after       names in the same plan that must have ended first; absent: none
    definition  actions: which definition of the action runs
    undo        prologs: an epilog is owed once this has begun; its timeout in seconds, None for no limit
    order       prologs with an undo: the configured `after`, kept for the day when the action is gone
    cancel      scripts that a fatal exception does not end: False

Prologs and completions follow `after`; epilogs run the other way round: what was set up last is
undone first. Today's configuration says in what order; what it no longer has keeps the order in which
it was set up. What was declared or started by clients is not part of a plan: it has no order.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from perilogd.lifecycle.job import Hold, Job, Origin
from perilogd.lifecycle.policy import ActionPolicy, Phase, Policy, ProviderPolicy, matches

Plan = list[dict[str, Any]]

#: Participant → the names that it comes after.
Order = Mapping[str, tuple[str, ...]]


def plan(job: Job, phase: Phase, policy: Policy) -> Plan:
    """Return the plan of a phase that the job is about to enter.

    Args:
        job: the job, still in the state before.
        phase: the phase to be entered.
        policy: the configuration of this moment.

    Returns:
        The plan as described above; empty if nobody is due.
    """
    if phase == "completion" and job.abandoned:
        return []
    got_nodes = bool(job.alloc) or phase == "prolog"
    actions = [a for a in policy.actions if matches(a.match, job.attributes)]
    providers = [p for p in policy.providers if matches(p.match, job.attributes)]
    after = {a.name: a.after for a in actions} | {p.name: p.after for p in providers}
    orders: list[Order] = [after]

    entries: dict[str, Plan] = {}  # participant → its entries
    if phase == "epilog":
        begun = _begun(job)
        after |= {a.name: a.after for a in policy.actions if a.name in begun}
        orders.append(_remembering(after, begun, policy.participants))
        entries = {entry["name"]: [entry] for entry in _owed(begun, policy, actions, got_nodes=got_nodes)}
    elif phase != "depend":
        for action in actions:
            if phase in action.phases:
                entries[action.name] = [_script(action, phase)]
    for provider in providers:
        standing = _standing(job, provider, phase, got_nodes=got_nodes)
        if standing:  # beside the epilog that an action of this name may owe from before a reload
            entries.setdefault(provider.name, []).extend(standing)

    _order(entries, orders, reverse=phase == "epilog")
    return [entry for group in entries.values() for entry in group]


def _script(action: ActionPolicy, phase: Phase) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "name": action.name,
        "owner": f"action:{action.name}",
        "definition": action.definition,
    }
    timeout = action.timeout.get(phase)
    if timeout is not None:
        entry["timeout"] = timeout
    if phase == "prolog":
        if "epilog" in action.phases:
            entry["undo"] = action.timeout.get("epilog")
            if action.after:
                entry["order"] = list(action.after)
        if not action.cancel_on_exception:
            entry["cancel"] = False
    return entry


def _standing(job: Job, provider: ProviderPolicy, phase: Phase, *, got_nodes: bool) -> Plan:
    """Return a provider's holds in a phase.

    An epilog hold is owed to a job that got nodes, or in which the provider has begun something.
    """
    owner = f"provider:{provider.name}"
    if (
        phase == "epilog"
        and not got_nodes
        and not any(hold.owner == owner and hold.since is not None for hold in job.holds.values())
    ):
        return []
    timeout = provider.timeout.get(phase)
    extra: dict[str, Any] = {} if timeout is None else {"timeout": timeout}
    return [{"name": name, "owner": owner, **extra} for where, name in provider.holds if where == phase]


def _begun(job: Job) -> dict[str, Hold]:
    """Return the prolog scripts that have begun, by action."""
    return {
        hold.name: hold
        for hold in job.holds.values()
        if hold.phase == "prolog" and hold.origin is Origin.ACTION and hold.since is not None
    }


def _owed(
    begun: Mapping[str, Hold], policy: Policy, matching: Iterable[ActionPolicy], *, got_nodes: bool
) -> Iterator[dict[str, Any]]:
    """Yield the epilogs that the job owes: of each prolog that was begun, and those without a prolog.

    An owed epilog uses the definition of this moment if the action still has an epilog, whatever jobs it
    is now meant for, else the one that its prolog was begun with.
    """
    current = {action.name: action for action in policy.actions if "epilog" in action.phases}
    for name, hold in begun.items():
        if name in current:
            yield _script(current[name], "epilog")
        elif "undo" in hold.traits:
            entry: dict[str, Any] = {"name": name, "owner": hold.owner, "definition": hold.definition}
            if hold.traits["undo"] is not None:
                entry["timeout"] = hold.traits["undo"]
            yield entry
    if got_nodes:
        for action in matching:
            if action.name in current and action.name not in begun and "prolog" not in action.phases:
                yield _script(action, "epilog")


def _remembering(after: Order, begun: Mapping[str, Hold], configured: Collection[str]) -> Order:
    """Add to today's order the one that prologs were begun in, where today does not know both sides."""
    remembered = {
        name: tuple(
            earlier
            for earlier in hold.traits.get("order", ())
            if name not in configured or earlier not in configured
        )
        for name, hold in begun.items()
    }
    return {**after, **{name: (*after.get(name, ()), *order) for name, order in remembered.items()}}


def _order(entries: Mapping[str, Plan], orders: Iterable[Order], *, reverse: bool) -> None:
    """Write each entry's `after`: the hold names of the participants that come before it.

    A participant that takes no part in this phase passes its own order on; one that does not match the job is
    void. A remembered order can contradict today's, which comes first in `orders`: an edge that would close a
    circle is left out.
    """
    before: dict[str, set[str]] = {name: set() for name in entries}
    for order in orders:
        for name in entries:
            for earlier in _participants(name, order, entries):
                source, target = (earlier, name) if not reverse else (name, earlier)
                if not _reaches(target, source, before):
                    before[target].add(source)
    for name, group in entries.items():
        predecessors = [
            entry["name"] for other in entries if other in before[name] for entry in entries[other]
        ]
        for entry in group:
            if predecessors:
                entry["after"] = predecessors


def _participants(name: str, after: Order, entries: Mapping[str, Plan]) -> list[str]:
    """Return the nearest participants that `name` comes after."""
    found: list[str] = []
    seen = {name}
    todo = list(after.get(name, ()))
    while todo:
        candidate = todo.pop(0)
        if candidate in seen:
            continue
        seen.add(candidate)
        if candidate in entries:
            found.append(candidate)
        else:
            todo.extend(after.get(candidate, ()))
    return found


def _reaches(start: str, goal: str, before: Mapping[str, set[str]]) -> bool:
    """Tell whether `start` already comes before `goal`, so that an edge goal → start would close a circle."""
    todo, seen = [goal], set()
    while todo:
        name = todo.pop()
        if name == start:
            return True
        if name not in seen:
            seen.add(name)
            todo.extend(before[name])
    return False
