"""The transition table as a document: `python -m perilogd.lifecycle.diagram > docs/lifecycle.md`.

Everything in that document but its sentences is generated from `table`; a test sees that it is up to date.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from perilogd.lifecycle.job import State
from perilogd.lifecycle.table import ALLOWED, FINISH, NEXT, PHASE_OF, START, TRANSITIONS

_INTRODUCTION = """\
# A job's life

This page is generated from `perilogd/lifecycle/table.py` by `python -m perilogd.lifecycle.diagram`.

A job is in one state at a time. Each state is left by one event of the job's log, as soon as nothing that
the state waits for is left; *fatal* stands for an `exception` of severity 0. The event that enters a phase
carries its plan: who is due in it, and in what order.
"""

_PHASES = """\
## Phases

A phase lasts as long as something holds it. Each hold has a pair of events, whoever takes it: a script, a
provider, a client, or a dependency on another job. Clients may take a hold before its phase, and those
declared at submit can be given up before it.
"""

_EVENTS = """\
## Events that move nothing

Where each may stand. In EPILOG the holds of earlier phases end as well: scripts when they have ended, all
others at once. A log in which one of these events stands anywhere else is damaged; names that are not on
this page are skipped by readers.
"""


def document() -> str:
    """Return the text of docs/lifecycle.md."""
    return "\n".join(
        (
            _INTRODUCTION,
            "```mermaid",
            *_diagram(),
            "```",
            "",
            "## Transitions",
            "",
            *_table(("from", "event", "to", "when"), _transitions()),
            "",
            _PHASES,
            *_table(("state", "begins to be held", "is held no longer"), _phases()),
            "",
            _EVENTS,
            *_table(("event", *(state.value for state in _LIVE)), _events()),
            "",
        )
    )


_LIVE = [state for state in State if state not in (State.NEW, State.INACTIVE)]


def _diagram() -> Iterable[str]:
    """Yield the lines of a Mermaid state diagram."""
    yield "stateDiagram-v2"
    for row in TRANSITIONS:
        source = "[*]" if row.source is State.NEW else row.source.value
        yield f"    {source} --> {row.target.value}: {row.trigger}"
    ends = {row.target for row in TRANSITIONS} - {source for source, _ in NEXT}
    for state in ends:
        yield f"    {state.value} --> [*]"


def _transitions() -> Iterable[Sequence[str]]:
    for row in TRANSITIONS:
        event = f"*{row.trigger}*" if row.trigger.startswith("fatal") else f"`{row.trigger}`"
        yield (row.source.value, event, row.target.value, row.when)


def _phases() -> Iterable[Sequence[str]]:
    for state, phase in PHASE_OF.items():
        yield (state.value, f"`{START[phase]}`", f"`{FINISH[phase]}`")


def _events() -> Iterable[Sequence[str]]:
    for event, states in ALLOWED.items():
        yield (f"`{event}`", *("x" if state in states else "" for state in _LIVE))


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterable[str]:
    """Yield the lines of a Markdown table whose columns are aligned for people who read the source."""
    lines = [head, *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    for number, line in enumerate(lines):
        cells = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        yield f"| {' | '.join(cells)} |"
        if number == 0:
            yield f"|{'|'.join('-' * (width + 2) for width in widths)}|"


if __name__ == "__main__":
    print(document(), end="")
