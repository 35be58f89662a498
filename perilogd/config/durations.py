"""Durations as people write them: "250ms", "30m", "1.5h", "infinity".

Parsing and printing live here, after Flux RFC 23 (Flux Standard Duration). What a duration is for,
and whether it may be without end, is said where it is used.
"""

from __future__ import annotations

import re

_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION = re.compile(r"((?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)(ms|s|m|h|d|)")

#: What is longer than a century was meant to be without end, or was a slip of the hand.
_LONGEST = 36525 * 86400.0

#: What to tell who wrote something else.
EXPECTED = 'a duration such as "250ms", "30m", "1.5h" or "infinity"'


def parse(text: str, *, zero: float | None = None) -> float | None:
    """Return the seconds of a duration.

    Args:
        text: a decimal number and one of the units ms, s, m, h, d (without one: seconds), or "infinity".
        zero: what "0" means. Of a deadline it means that there is none; of a delay it would be 0.0.

    Returns:
        Seconds, or None for a duration without end.

    Raises:
        ValueError: anything else; the text says what was found and what was expected.
    """
    if text == "infinity":
        return None
    parts = _DURATION.fullmatch(text)
    if parts is None:
        raise ValueError(f"found {text!r:.80}; expected {EXPECTED}")
    seconds = float(parts[1]) * _UNITS.get(parts[2], 1.0)
    if seconds > _LONGEST:
        raise ValueError(f"found {text!r:.80}, which is more than a century; expected {EXPECTED}")
    return seconds or zero


def format(seconds: float | None) -> str:  # noqa: A001 - it is read as durations.format
    """Return a duration as text, in the largest unit that gives a whole number.

    Args:
        seconds: not negative; None for a duration without end.

    Returns:
        A text for which `parse` returns the same seconds.
    """
    if seconds is None:
        return "infinity"
    if seconds == 0:
        return "0"
    for unit, length in reversed(_UNITS.items()):
        number = round(seconds / length)
        if number and number * length == seconds:
            return f"{number}{unit}"
    return f"{float(seconds)!r}s"
