"""The transition table: complete, and as the design says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from perilogd.lifecycle.apply import IllegalEvent, apply
from perilogd.lifecycle.diagram import document
from perilogd.lifecycle.job import Hold, Job, Origin, Stage, Stamp, State
from perilogd.lifecycle.policy import PHASES
from perilogd.lifecycle.table import ahead, passed

# Written from DESIGN §2 and §3, not from the table. The columns are the states: New, Depend, Sched, Prolog,
# Run before the first start, run with the Application running, run between two attempts (aGain), Completion,
# Epilog, Inactive. A letter: goes to that state; "=": may stand there and moves nothing; ".": illegal.
_MATRIX = """
                    N D S P R A G C E I
submit              D . . . . . . . . .
depend              . S . . . . . . . .
alloc               . . P . . . . . . .
ready               . . . R . . . . . .
start               . . . . = . = . . .
exit                . . . . . C . . . .
rerun               . . . . . . . R . .
finish              . . . . . . . E . .
clean               . . . . . . . . I .
fatal               . E E E E = C = = .
exception           . = = = = = = = = .
dependency-add      . = . . . . . . . .
dependency-remove   . = . . . . . . = .
prolog-start        . = = = . . . . . .
prolog-finish       . = = = . . . . = .
completion-start    . = = = = = = = . .
completion-finish   . = = = = = = = = .
epilog-start        . = = = = = = = = .
epilog-finish       . = = = = = = = = .
hold-update         . = = = = = = = = .
environment         . = = = = = = = = .
node-lost           . = = = = = = = = .
release             . . . . . . . = = .
memo                . = = = = = = = = .
broker-restart      . = = = = = = = = .
"""

_LETTERS = {state.value[0]: state for state in State} | {"A": State.RUN, "G": State.RUN}

_CONTEXTS: dict[str, dict[str, Any]] = {
    "submit": {"userid": 1},
    "alloc": {"nodes": "n1"},
    "start": {"attempt": 1},
    "exit": {"attempt": 1, "status": 0},
    "rerun": {"attempt": 2, "userid": 1, "nodes": "n1"},
    "finish": {"status": 0},
    "fatal": {"type": "cancel", "severity": 0, "note": ""},
    "exception": {"type": "cancel", "severity": 1, "note": ""},
    "hold-update": {"phase": "epilog", "description": "on", "userid": 1, "timeout": 1.0},
    "environment": {"description": "on", "variables": {}},
    "release": {"nodes": "n1", "final": True},
    "node-lost": {"nodes": "n1", "reason": "gone"},
    "memo": {"key": "value"},
}

_ROWS = [line.split() for line in _MATRIX.strip().splitlines()[1:]]
_COLUMNS = _MATRIX.split()[:10]
_FIELDS = [(row[0], column, cell) for row in _ROWS for column, cell in zip(_COLUMNS, row[1:], strict=True)]


def _job(column: str) -> Job:
    """Return a job in a state, with a hold called "on" active in each phase."""
    job = Job(1)
    job.state = _LETTERS[column]
    job.started = column in "AC"
    job.ever_started = column in "AGCE"
    job.attempt = 2 if column == "G" else 1
    for phase in PHASES:
        job.holds[phase, "on"] = Hold(phase, "on", 1, Origin.CLIENT, None, 1)
        job.holds[phase, "on"].stage = Stage.ACTIVE
    return job


@pytest.mark.parametrize(("event", "column", "cell"), _FIELDS)
def test_every_event_in_every_state_is_listed_or_illegal(event: str, column: str, cell: str) -> None:
    """Each event moves the job, may stand, or is illegal, exactly as the design says."""
    job = _job(column)
    name = "new" if event.endswith(("-start", "-add")) else "on"
    context = _CONTEXTS.get(event, {"description": name, "owner": 1, "status": 0, "outcome": "ok"})
    before = job.state
    stamp = Stamp(1.0, 1.0, 1)
    kind = "exception" if event == "fatal" else event
    if cell == ".":
        with pytest.raises(IllegalEvent, match="job 1: "):
            apply(job, kind, context, stamp)
        assert job.state is before
    else:
        apply(job, kind, context, stamp)
        assert job.state is (before if cell == "=" else _LETTERS[cell])


@pytest.mark.parametrize("state", State)
def test_unknown_names_are_skipped(state: State) -> None:
    """An event of an unknown name may stand anywhere and changes nothing (RFC 18)."""
    job = Job(1)
    job.state = state
    apply(job, "from-the-future", {"some": "thing"}, Stamp(1.0, 1.0, 1))
    assert job.state is state


@pytest.mark.parametrize(
    ("event", "context"),
    [
        ("prolog-start", {"description": "on", "owner": 1}),
        ("prolog-finish", {"description": "off", "status": 0, "outcome": "ok"}),
        ("hold-update", {"phase": "prolog", "description": "off", "userid": 1}),
    ],
)
def test_holds_begin_once_and_end_only_what_has_begun(event: str, context: dict[str, Any]) -> None:
    """A log in which a hold begins twice, or ends or changes without having begun, is damaged."""
    with pytest.raises(IllegalEvent, match="hold"):
        apply(_job("P"), event, context, Stamp(1.0, 1.0, 1))


def test_a_log_cannot_start_after_a_fatal_exception() -> None:
    """A `start` after a fatal exception is a damaged log, wherever it comes from."""
    job = _job("R")
    job.fatal = "cancel"
    with pytest.raises(IllegalEvent, match="fatal"):
        apply(job, "start", {"attempt": 1}, Stamp(1.0, 1.0, 1))


def test_phases_are_ahead_then_present_then_passed() -> None:
    """Each phase is ahead of a job, then present in exactly one state, then passed."""
    states = list(State)
    for phase, state in zip(PHASES, ("DEPEND", "PROLOG", "COMPLETION", "EPILOG"), strict=True):
        here = states.index(State(state))
        assert [ahead(s, phase) for s in states] == [True] * here + [False] * (len(states) - here)
        assert [passed(s, phase) for s in states] == [False] * (here + 1) + [True] * (len(states) - here - 1)


def test_the_document_is_up_to_date() -> None:
    """docs/lifecycle.md is what `python -m perilogd.lifecycle.diagram` prints."""
    kept = Path(__file__).resolve().parents[2] / "docs" / "lifecycle.md"
    assert kept.read_text() == document()
