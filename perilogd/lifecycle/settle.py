"""What follows by itself: the events that a job's state calls for, whoever caused it.

`settle` is run after every command, in the same journal write, and again after a restart. It looks at
the state alone, so a job goes on from wherever the journal ends. It never waits, and never decides
anything that somebody else (a workload manager, a holder, a script) has to say.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from perilogd.lifecycle.job import STATUS, Event, Hold, Job, Outcome, Stage, State
from perilogd.lifecycle.order import plan
from perilogd.lifecycle.policy import Policy
from perilogd.lifecycle.table import FINISH, PHASE_OF, START


def settle(job: Job, policy: Policy) -> Iterator[Event]:
    """Yield the events that follow from a job's state, until nothing more does.

    Args:
        job: the job; each event must have been applied to it before the next is asked for.
        policy: the configuration of this moment; used for the plan of a phase that is entered.
    """
    while True:
        yield from begin_turns(job)
        yield from _cancel_leftovers(job)
        event = _transition(job, policy)
        if event is None:
            return
        yield event
        if event.name == "clean":
            return


def begin_turns(job: Job) -> Iterator[Event]:
    """Yield the start of every hold whose phase has come and whose predecessors have ended."""
    phase = PHASE_OF.get(job.state)
    if phase is None:
        return
    for hold in list(job.holds.values()):
        if hold.phase == phase and hold.stage is Stage.DUE and _turn_has_come(job, hold):
            yield start_event(hold)


def _turn_has_come(job: Job, hold: Hold) -> bool:
    """Tell whether all that comes before a hold has ended: what it names, and what that comes after.

    A predecessor may have ended ahead of its own turn, by force or because its holder came early.
    """
    names, seen = list(hold.predecessors), set[str]()
    while names:
        name = names.pop()
        earlier = job.holds.get((hold.phase, name))
        if earlier is None or name in seen:
            continue
        if earlier.stage is not Stage.ENDED:
            return False
        seen.add(name)
        names += earlier.predecessors
    return True


def start_event(hold: Hold) -> Event:
    """Return the event that begins a hold which is declared or due."""
    context: dict[str, Any] = {"description": hold.name, "owner": hold.owner}
    if hold.timeout is not None:
        context["timeout"] = hold.timeout
    if hold.keep != "all":
        context["keep"] = hold.keep
    return Event(START[hold.phase], context)


def finish_event(hold: Hold, outcome: str, status: int | None = None, **extra: Any) -> Event:
    """Return the event that ends an active hold; without a status the outcome's own is used."""
    if status is None:
        status = STATUS[outcome]
    return Event(
        FINISH[hold.phase], {"description": hold.name, "status": status, "outcome": outcome, **extra}
    )


def _cancel_leftovers(job: Job) -> Iterator[Event]:
    """End the holds, scripts excepted, that a turn of the job has made pointless."""
    if job.state is State.EPILOG:
        for hold in job.active_holds():
            if hold.is_script or hold.phase == "epilog":
                continue
            outcome = Outcome.SKIPPED if hold.phase == "completion" else Outcome.CANCELED
            yield finish_event(hold, outcome)
    elif job.state is State.RUN and job.attempt > 1:
        for hold in job.active_holds():
            if hold.phase == "completion" and hold.attempt < job.attempt and not hold.is_script:
                yield finish_event(hold, Outcome.CANCELED)


def _transition(job: Job, policy: Policy) -> Event | None:
    """Return the event by which the job leaves its state, if nothing keeps it there."""
    state = job.state
    if state is State.DEPEND:
        return None if job.open_holds("depend") else Event("depend", {})
    if state is State.SCHED:
        return alloc_event(job, policy, job.wanted, job.resources) if job.wanted else None
    if state is State.PROLOG:
        return None if job.open_holds("prolog") else Event("ready", {})
    if state is State.COMPLETION:
        if job.open_holds("completion"):
            return None
        context: dict[str, Any] = {"status": job.exit_status or job.completion_status}
        return Event("finish", with_plan(context, plan(job, "epilog", policy)))
    if state is State.EPILOG:
        if job.open_holds("epilog") or job.active_holds():
            return None
        if job.held:
            return Event("release", {"nodes": job.held, "final": True})
        return Event("clean", {})
    return None


def alloc_event(job: Job, policy: Policy, nodes: str, resources: dict[str, str] | None) -> Event:
    """Return the event that gives a job its nodes."""
    context: dict[str, Any] = {"nodes": nodes}
    if resources:
        context["resources"] = resources
    return Event("alloc", with_plan(context, plan(job, "prolog", policy)))


def with_plan(context: dict[str, Any], entries: list[dict[str, Any]]) -> dict[str, Any]:
    """Add a phase's plan to the context of the event that enters it; an empty plan is left out."""
    if entries:
        context["plan"] = entries
    return context
