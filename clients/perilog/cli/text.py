"""How things are shown: tables, times, events, JSON.

Only forms live here: nothing that asks the broker. What comes from other people (notes, names) is
never handed to the terminal as it is.
"""

from __future__ import annotations

import functools
import json
import math
import os
import pwd
import sys
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

#: Keys of an exported event, in the order of Flux RFC 18.
RFC18 = ("timestamp", "name", "context")


def print_json(value: Any, *, flush: bool = False) -> None:
    """Print a value as one line of JSON."""
    print(compact(value, ascii_only=True), flush=flush)


def compact(value: Any, *, ascii_only: bool = False) -> str:
    """Return a value as JSON without spaces. Bytes become text, numbers that JSON has not become text too."""
    return json.dumps(plain(value), separators=(",", ":"), ensure_ascii=ascii_only, allow_nan=False)


def plain(value: Any) -> Any:
    """Return a value of the wire as JSON can hold it."""
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, bytes):
        return value.decode(errors="backslashreplace")
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


def safe(text: object) -> str:
    """Return a text on one line, with what a terminal might obey instead of showing written as escapes."""
    line = str(text)
    if line.isprintable():
        return line
    return "".join(char if char.isprintable() else json.dumps(char)[1:-1] for char in line)


def event_text(name: str, context: Mapping[str, Any]) -> str:
    """Return an event's name and context on one line: `alloc nodes="n[1-4]"`.

    Of a phase's plan, people want to know who takes part; the rest is in the JSON form.
    """
    return safe(" ".join([name, *(f"{key}={_value(key, value)}" for key, value in context.items())]))


def _value(key: str, value: Any) -> str:
    if key == "plan" and isinstance(value, list):
        return compact([entry.get("name") for entry in value if isinstance(entry, dict)])
    return compact(value)


def table(headings: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Lay out rows in columns as wide as needed; None and empty values become "-"."""
    lines = [list(headings), *([_cell(value) for value in row] for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(headings) - 1)]
    return "\n".join(
        "  ".join(
            [*(cell.ljust(width) for cell, width in zip(line, widths, strict=False)), line[-1]]
        ).rstrip()
        for line in lines
    )


def _cell(value: object) -> str:
    return "-" if value is None or value == "" else safe(value)


@functools.cache
def user(uid: int | None) -> str:
    """Return the name of a user on this host, or the number where it has none."""
    if uid is None:
        return "-"
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def clock(timestamp: float | None) -> str:
    """Return a point in time as local date and time of day."""
    return "-" if timestamp is None else time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(timestamp))


def age(seconds: float) -> str:
    """Return a length of time in its two largest units: `2h05m`, `3m07s`, `12s`."""
    whole = max(0, int(seconds))
    for size, unit, small, smaller in ((86400, "d", 3600, "h"), (3600, "h", 60, "m"), (60, "m", 1, "s")):
        if whole >= size:
            return f"{whole // size}{unit}{whole % size // small:02}{smaller}"
    return f"{whole}s"


def since(timestamp: float | None) -> str:
    """Return how long ago a point in time is."""
    return "-" if timestamp is None else age(time.time() - timestamp)


def until(timestamp: float | None) -> str:
    """Return how far in the future a point in time is; one that has passed is `passed`."""
    if timestamp is None:
        return "-"
    left = timestamp - time.time()
    return age(left) if left >= 0 else "passed"


def keep(value: object) -> str:
    """Return what a hold keeps, as the option --keep takes it."""
    if not isinstance(value, dict):
        return str(value)
    parts = ",".join(f"{name}={part}" for name, part in value.items() if name != "nodes")
    return f"{value.get('nodes', 'all')}:{parts}" if parts else str(value.get("nodes"))


def status(value: int | None) -> str:
    """Return a wait status in words."""
    if value is None:
        return "-"
    code = os.waitstatus_to_exitcode(value)
    return f"exit code {code}" if code >= 0 else f"killed by signal {-code}"


def say(text: str) -> None:
    """Tell the person something, on stderr."""
    print(f"perilog: {safe(text)}", file=sys.stderr, flush=True)
