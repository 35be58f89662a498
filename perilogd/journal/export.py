"""Events as text: RFC 18 lines for programs, and a short form for people.

Only the formats live here. Reading the journal does not.
"""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

from perilogd.journal.model import decode

if TYPE_CHECKING:
    from perilogd.journal.model import Entry


def rfc18(entry: Entry) -> str:
    """Return an event as one JSON object on one line, without the line's end.

    The keys and their order are those of Flux RFC 18; `context` is always there. The line is pure ASCII, so
    no reader splits it at a character that Unicode, but not JSON, takes for the end of a line.

    Raises:
        ValueError: the entry's context is damaged.
    """
    event = {"timestamp": entry.wall, "name": entry.name, "context": _plain(decode(entry.context))}
    return json.dumps(event, separators=(",", ":"), allow_nan=False)


def relative(entry: Entry, zero: float) -> str:
    """Return an event as `flux job eventlog` prints it, without the line's end.

    As in `    0.000123 alloc nodes="n[1-4]"`: seconds since the job's first event, name, context.

    Args:
        entry: the event.
        zero: the wall time that counts as 0, usually that of the job's first event.

    Raises:
        ValueError: the entry's context is damaged.
    """
    fields = (f" {key}={_compact(value)}" for key, value in _plain(decode(entry.context)).items())
    return _printable(f"{entry.wall - zero:12.6f} {entry.name}{''.join(fields)}")


def _compact(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def _printable(text: str) -> str:
    """Escape, as JSON does, what a terminal might obey instead of showing."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else json.dumps(char)[1:-1] for char in text)


def _plain(value: Any) -> Any:
    """Return a value of msgpack as JSON can hold it: bytes become text, and so do numbers that are none."""
    if isinstance(value, dict):
        return {_plain(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, bytes):
        return value.decode("utf-8", "backslashreplace")
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value
