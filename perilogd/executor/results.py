"""What a script leaves: its record, with the line for the user, the variables and the output in it.

The files were writable by the script, which may be any user's: what is in them is bounded and checked here.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from perilogd.executor.processes import boottime
from perilogd.executor.wire import MESSAGE_LIMIT, RECORD_OUTPUT, VARIABLE_NAME, VARIABLES_LIMIT

if TYPE_CHECKING:
    from perilogd.executor.output import Outputs
    from perilogd.executor.records import Folder
    from perilogd.executor.run import Run
    from perilogd.executor.wire import Outcome

#: How many wrong lines are told one by one.
_LINES_TOLD = 3


def record(
    folder: Folder, outputs: Outputs, limit: int, run: Run, outcome: Outcome, status: int
) -> dict[str, Any]:
    """Return a run's record, as far as files and clocks tell it, and bound its output.

    Args:
        folder: the executor's.
        outputs: the output files.
        limit: bytes of output kept of one run.
        run: which has ended, or is stuck.
        outcome: of the run.
        status: wait status.
    """
    made: dict[str, Any] = {
        "id": run.id,
        "status": status,
        "outcome": outcome,
        "pid": run.pid,
        "started": run.started,
        "ended": time.time(),
        "wall": boottime() - run.since,
        "cpu_user": None,
        "cpu_system": None,
        "max_rss": None,
    }
    if run.reason is not None:
        made["reason"] = run.reason
    if run.pid is None:
        return made
    if (line := message(folder, run.id)) is not None:
        made["message"] = line
    if status == 0:
        handed_back, wrong = variables(folder, run.id)
        if handed_back:
            made["environment"] = handed_back
        if wrong:
            made["error"] = wrong
    if outcome != "ok" and (excerpt := outputs.excerpt(run.id, min(RECORD_OUTPUT, limit))) and excerpt.size:
        made["output"] = excerpt.text()
    run.output = outputs.trim(run.id, limit) > 0
    return made


def message(folder: Folder, run: str) -> str | None:
    """Return the line that a run has for the user.

    Args:
        folder: the executor's.
        run: the run's id.

    Returns:
        The first line of its message file with whatever is not printable replaced, cut to 256 bytes of UTF-8
        at a character; None if that is empty.
    """
    name = f"{run}.message"
    if not folder.size(name):
        return None
    line = folder.read(name, MESSAGE_LIMIT * 4).lstrip(b"\n").split(b"\n", 1)[0]
    text = "".join(c if c.isprintable() else "?" for c in line.decode("utf-8", "replace").rstrip())
    return text.encode()[:MESSAGE_LIMIT].decode("utf-8", "ignore") or None


def variables(folder: Folder, run: str) -> tuple[dict[str, str] | None, str | None]:
    """Return the variables that a run hands back.

    Args:
        folder: the executor's.
        run: the run's id.

    Returns:
        The variables (the last of a name counts), None if there are none; and what was wrong, None if nothing
        was. Lines that are wrong are left out; a file that is too long is left out as a whole, since half of
        an environment is worse than none.
    """
    file = f"{run}.environment"
    if not folder.size(file):
        return None, None
    data = folder.read(file, VARIABLES_LIMIT + 1)
    if len(data) > VARIABLES_LIMIT:
        return None, f"PERILOG_ENVIRONMENT: more than {VARIABLES_LIMIT} bytes were written, all were ignored"
    found: dict[str, str] = {}
    wrong: list[str] = []
    for number, line in enumerate(data.split(b"\n"), start=1):
        if not line:
            continue
        variable, equals, value = line.partition(b"=")
        try:
            name, text = variable.decode("ascii"), value.decode()
        except UnicodeDecodeError:
            name, text = "", ""
        if not equals or not VARIABLE_NAME.fullmatch(name) or "\0" in text:
            wrong.append(str(number))
        else:
            found[name] = text
    if not wrong:
        return found or None, None
    told = ", ".join(wrong[:_LINES_TOLD]) + (
        f" and {len(wrong) - _LINES_TOLD} more" if wrong[_LINES_TOLD:] else ""
    )
    return found or None, f"PERILOG_ENVIRONMENT: expected NAME=value, ignored line {told}"
