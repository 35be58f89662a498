"""The rules of a job's life, as a table.

1. A job is in one state at a time, and only the transitions below move it. Each is caused by one
   event; the event that enters a phase carries that phase's plan.
2. An event that moves nothing may still stand only in the states listed for it in `ALLOWED`.
3. "fatal" is an `exception` of severity 0; what it does depends on whether the application has run:
   - before any `start`, the job goes to EPILOG, without a `finish`;
   - while the application runs, the job stays in RUN until its `exit`;
   - between attempts (a `rerun` whose `start` has not come), the job goes back to COMPLETION: the
     data of the attempt that did run still waits to be moved;
   - after `exit`, it is recorded.

Nothing else lives here: the folding of events is in `apply`, and docs/lifecycle.md is generated from
this module (`python -m perilogd.lifecycle.diagram`).
"""

from __future__ import annotations

from typing import NamedTuple

from perilogd.lifecycle.job import Job, State
from perilogd.lifecycle.policy import Phase


class Transition(NamedTuple):
    """One row: in state `source`, `trigger` leads to `target`."""

    source: State
    trigger: str
    target: State
    when: str


TRANSITIONS: tuple[Transition, ...] = (
    Transition(State.NEW, "submit", State.DEPEND, "the job is submitted"),
    Transition(State.DEPEND, "depend", State.SCHED, "no depend hold is left"),
    Transition(State.SCHED, "alloc", State.PROLOG, "nodes are given"),
    Transition(State.PROLOG, "ready", State.RUN, "the prolog's plan is done"),
    Transition(State.RUN, "exit", State.COMPLETION, "the application has ended"),
    Transition(State.COMPLETION, "rerun", State.RUN, "the owner wants the application once more"),
    Transition(State.COMPLETION, "finish", State.EPILOG, "the completion plan is done"),
    Transition(State.EPILOG, "clean", State.INACTIVE, "nothing is held, owed or running"),
    Transition(State.DEPEND, "fatal", State.EPILOG, "fatal exception"),
    Transition(State.SCHED, "fatal", State.EPILOG, "fatal exception"),
    Transition(State.PROLOG, "fatal", State.EPILOG, "fatal exception"),
    Transition(State.RUN, "fatal, never started", State.EPILOG, "fatal exception before any start"),
    Transition(
        State.RUN, "fatal, between attempts", State.COMPLETION, "fatal exception before a rerun's start"
    ),
)

NEXT: dict[tuple[State, str], State] = {(row.source, row.trigger): row.target for row in TRANSITIONS}

_ALIVE = frozenset(State) - {State.NEW, State.INACTIVE}
_BEFORE_RUN = frozenset({State.DEPEND, State.SCHED, State.PROLOG})
_BEFORE_EPILOG = _ALIVE - {State.EPILOG}

#: Where an event that moves nothing may stand.
ALLOWED: dict[str, frozenset[State]] = {
    "dependency-add": frozenset({State.DEPEND}),
    "dependency-remove": frozenset({State.DEPEND, State.EPILOG}),
    "prolog-start": _BEFORE_RUN,
    "prolog-finish": _BEFORE_RUN | {State.EPILOG},
    "completion-start": _BEFORE_EPILOG,
    "completion-finish": _ALIVE,
    "epilog-start": _ALIVE,
    "epilog-finish": _ALIVE,
    "hold-update": _ALIVE,
    "environment": _ALIVE,
    "start": frozenset({State.RUN}),
    "exception": _ALIVE,
    "node-lost": _ALIVE,
    "release": frozenset({State.COMPLETION, State.EPILOG}),
    "memo": _ALIVE,
    "broker-restart": _ALIVE,
}

#: The phase that a state belongs to; SCHED and RUN belong to none.
PHASE_OF: dict[State, Phase] = {
    State.DEPEND: "depend",
    State.PROLOG: "prolog",
    State.COMPLETION: "completion",
    State.EPILOG: "epilog",
}

#: The names of a phase's start and finish events.
START: dict[Phase, str] = {
    "depend": "dependency-add",
    "prolog": "prolog-start",
    "completion": "completion-start",
    "epilog": "epilog-start",
}
FINISH: dict[Phase, str] = {
    "depend": "dependency-remove",
    "prolog": "prolog-finish",
    "completion": "completion-finish",
    "epilog": "epilog-finish",
}
PHASE_OF_EVENT: dict[str, Phase] = {
    event: phase for table in (START, FINISH) for phase, event in table.items()
}

_POSITION = {state: number for number, state in enumerate(State)}
_STATE_OF: dict[Phase, State] = {phase: state for state, phase in PHASE_OF.items()}


def passed(state: State, phase: Phase) -> bool:
    """Tell whether a job in `state` has `phase` behind it, so that nothing can hold it any more."""
    return _POSITION[state] > _POSITION[_STATE_OF[phase]]


def ahead(state: State, phase: Phase) -> bool:
    """Tell whether a job in `state` has `phase` still before it."""
    return _POSITION[state] < _POSITION[_STATE_OF[phase]]


#: The last state in which an event can still come, for those that do not come to every job until its end.
_LAST_CHANCE: dict[str, frozenset[State]] = {
    "submit": frozenset({State.NEW}),
    "dependency-add": frozenset({State.DEPEND}),
    "depend": frozenset({State.DEPEND}),
    "alloc": frozenset({State.DEPEND, State.SCHED}),
    "prolog-start": _BEFORE_RUN,
    "ready": _BEFORE_RUN,
    "start": _BEFORE_EPILOG,
    "exit": _BEFORE_EPILOG,
    "rerun": _BEFORE_EPILOG,
    "finish": _BEFORE_EPILOG,
    "completion-start": _BEFORE_EPILOG,
}


def can_come(job: Job, event: str) -> bool:
    """Tell whether an event may still come to a job: "no" is certain, "yes" is not.

    Args:
        job: the job.
        event: the event's name.
    """
    if job.state is State.INACTIVE:
        return False
    if event == "start" and job.fatal is not None and not job.started:
        return False
    return job.state in _LAST_CHANCE.get(event, _ALIVE)
