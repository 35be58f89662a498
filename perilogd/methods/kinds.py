"""The kinds of argument that jobs, holds and nodes need beside the plain ones of `perilogd.rpc.params`.

What a value may look like is decided here; whether it makes sense for a job is not.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

import msgpack
import trio

from perilogd import nodeset
from perilogd.config import Config
from perilogd.config.durations import parse as parse_duration
from perilogd.errors import Refusal
from perilogd.lifecycle.commands import RESERVED_TYPES
from perilogd.lifecycle.policy import PHASES
from perilogd.rpc.params import (
    NAME,
    NOTE,
    Argument,
    Arguments,
    Duration,
    Either,
    Kind,
    Later,
    MapOf,
    Mismatch,
    OneOf,
    Parsed,
    Text,
    shown,
)

PHASE = OneOf(*PHASES)
DURATION = Duration(parse_duration)
STATES = OneOf("DEPEND", "SCHED", "PROLOG", "RUN", "COMPLETION", "EPILOG", "INACTIVE")
OUTCOME = OneOf("exited", "lost", "unknown")
EXCEPTION_TYPE = Text(
    f"an exception type: a name, such as {', '.join(sorted(RESERVED_TYPES))}",
    re.compile(r"[A-Za-z0-9._:@+-]{1,64}").fullmatch,
    "name",
)
#: Longest set of cores, gpus or storage that is read at all, and its largest number.
_INDICES_TEXT = 4096
_INDEX_MOST = 16_383
_INDICES = re.compile(r"\d{1,5}(-\d{1,5})?(,\d{1,5}(-\d{1,5})?)*", re.ASCII)


def _indices(text: str) -> str:
    """Return an index set in canonical form, such as "0-3,8", without expanding it."""
    if len(text) > _INDICES_TEXT or not _INDICES.fullmatch(text):
        raise ValueError("numbers, and ranges of them, separated by commas")
    folded: list[list[int]] = []
    spans = sorted([int(number) for number in span.split("-")] for span in text.split(","))
    for first, last in ((span[0], span[-1]) for span in spans):
        if last < first or last > _INDEX_MOST:
            raise ValueError(f"ranges go up, to {_INDEX_MOST} at most")
        if folded and first <= folded[-1][1] + 1:
            folded[-1][1] = max(folded[-1][1], last)
        else:
            folded.append([first, last])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in folded)


#: Longest text of a node set that is read at all.
_NODES_TEXT = 32 * 1024

#: Longest text and most nodes of a set that is read on the loop's thread: that takes a millisecond.
_QUICK_TEXT = 1024
_QUICK_NODES = 1000


def _nodes(text: str, limit: int) -> str:
    """Return a node set in canonical form."""
    if len(text) > _NODES_TEXT:
        raise ValueError(
            f"it has {len(text)} characters, at most {_NODES_TEXT} are read; fold it, as in n[1-16]"
        )
    if "@" in text:
        raise ValueError(
            "groups are not resolved here, that could ask the site's programs; write out their nodes"
        )
    if trio.lowlevel.in_trio_run() and (len(text) > _QUICK_TEXT or nodeset.count(text) > _QUICK_NODES):
        raise Later
    return nodeset.parse(text, limit)


INDICES = Parsed("index set", 'an index set such as "0-3,8"', _indices)
RESOURCES = Arguments(Argument("cores", INDICES), Argument("gpus", INDICES), Argument("storage", INDICES))

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
VARIABLE_NAME = Text(
    "a variable's name: letters, digits and _, not beginning with a digit, at most 255",
    lambda text: len(text) <= 255 and _VARIABLE.fullmatch(text),
)
VARIABLE_VALUE = Text("text without NUL", lambda text: "\0" not in text)


def _not_json(value: object) -> float | None:
    """Return a number that is none (NaN) or infinite from anywhere inside a value, None if there is none."""
    if isinstance(value, float):
        return None if math.isfinite(value) else value
    inside = value if isinstance(value, list) else value.values() if isinstance(value, dict) else ()
    return next((odd for item in inside if (odd := _not_json(item)) is not None), None)


class Encoded:
    """A map of text keys to anything but infinite numbers and NaN, of a bounded size when encoded.

    Args:
        limit: returns the bound in bytes, as configured at the moment.
    """

    name = "map"

    def __init__(self, limit: Callable[[], int]) -> None:
        self._limit = limit

    @property
    def expected(self) -> str:
        """See `Kind`."""
        return f"a map of text keys, finite numbers only, at most {self._limit()} bytes when encoded"

    def check(self, value: object) -> dict[str, Any]:
        """See `Kind.check`."""
        if not isinstance(value, dict):
            raise Mismatch(value, self.expected)
        size = len(msgpack.packb(value))
        if size > self._limit():
            raise Mismatch(value, self.expected, found=f"takes {size} bytes")
        odd = _not_json(value)
        if odd is not None:  # scripts get the job as JSON, which has no such numbers
            raise Mismatch(value, self.expected, found=f"holds the number {odd}")
        return value


class Variables:
    """A map of environment variables, of a bounded size.

    Args:
        limit: returns the bound on the bytes of all names and values, as configured at the moment.
    """

    name = "map"

    def __init__(self, limit: Callable[[], int]) -> None:
        self._limit = limit
        self._map = MapOf(VARIABLE_NAME, VARIABLE_VALUE, 4096)

    @property
    def expected(self) -> str:
        """See `Kind`."""
        return f"{self._map.expected}, at most {self._limit()} bytes in all"

    def check(self, value: object) -> dict[str, str]:
        """See `Kind.check`."""
        checked = self._map.check(value)
        size = sum(len(name) + len(text.encode()) for name, text in checked.items())
        if size > self._limit():
            raise Mismatch(value, self.expected, found=f"takes {size} bytes")
        return checked


def require_together(kind: Kind, argument: str, value: object) -> None:
    """Refuse an argument that is right by itself, but too much with what the job has of its kind.

    Args:
        kind: the argument's kind.
        argument: its name.
        value: the two together.
    """
    try:
        kind.check(value)
    except Mismatch as mismatch:
        raise Refusal(
            "EINVAL",
            f"argument {argument}: with what the job has, it {mismatch.found}, expected {mismatch.expected}",
        ) from mismatch


class NonEmpty:
    """Any of a kind that is not empty.

    Args:
        kind: gives a text or a container.
        expected: what is wanted, in words.
    """

    def __init__(self, kind: Kind, expected: str) -> None:
        self._kind = kind
        self.name = kind.name
        self.expected = expected

    def check(self, value: object) -> Any:
        """See `Kind.check`."""
        checked = self._kind.check(value)
        if not checked:
            raise Mismatch(value, self.expected, found=f"is empty: {shown(value)}")
        return checked


class Kinds:
    """The kinds whose bounds the administrator sets.

    Args:
        config: returns the configuration in force.
    """

    def __init__(self, config: Callable[[], Config]) -> None:
        self.attributes = Encoded(lambda: config().limits.attributes)
        self.memo = NonEmpty(Encoded(lambda: config().limits.attributes), "a map with at least one key")
        self.variables = Variables(lambda: config().limits.environment)
        some = Parsed(
            "node set",
            'a node set such as "n[1-16]"',
            lambda text: _nodes(text, config().limits.nodes),
        )
        self.nodes = NonEmpty(some, 'a node set with at least one node, such as "n[1-16]"')
        part = Arguments(
            Argument("nodes", self.nodes, required=True),
            Argument("cores", INDICES),
            Argument("gpus", INDICES),
            Argument("storage", INDICES),
        )
        self.keep = Either(OneOf("all", "none"), self.nodes, part)
        self.hold = Arguments(
            Argument("phase", PHASE, required=True, doc="the phase to hold"),
            Argument("name", NAME, required=True, doc="the hold's name"),
            Argument("timeout", DURATION, doc="from its start to its deadline"),
            Argument("keep", self.keep, doc="what it keeps"),
            Argument("note", NOTE, doc="for people"),
        )
