"""Sets of nodes as text: what comes from outside is read here, within bounds.

`parse` alone resolves groups and accepts whatever a person may write; the other functions expect what
it returned. ClusterShell is imported when it is needed: the configuration, which is also read as root,
mostly names no nodes.
"""

# ruff: noqa: PLC0415

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ClusterShell.NodeSet import NodeSet

#: Most nodes of a set, where nobody has configured another number.
MOST_NODES = 100_000

#: Most groups in one text: each can cost a run of the site's own group program.
_MOST_GROUPS = 100

#: Most operands, once all that differ in one number only are one. For nodes with several numbers in their
#: names (r1i0n[0-35],r1i2n[0-7] are two operands), and with operators other than the comma, ClusterShell's
#: time grows with the square of their number: 30 ms for a hundred, minutes for some thousands.
_MOST_OPERANDS = 5000
_MOST_COSTLY = 100

_LONGEST_NAME = 255

_RANGES = re.compile(r"\[([^\]]*)\]")
_RANGE = re.compile(r"([0-9]{1,15})(?:-([0-9]{1,15})(?:/([0-9]{1,15}))?)?")
# Group names end up in commands that a shell runs (groups.conf(5)), node names in those of launchers: nothing
# that a shell understands may be in them, and no '-' at their beginning.
_GROUP = re.compile(r"@(?:[A-Za-z0-9_][A-Za-z0-9_.-]*:)?(?:\*|[A-Za-z0-9_](?:[A-Za-z0-9_.-]|\[[0-9,/-]+\])*)")
_NAMES = re.compile(r"(?:[A-Za-z0-9_]|\[[0-9,/-]+\])(?:[A-Za-z0-9_.-]|\[[0-9,/-]+\])*")
_ONE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,254}")
_NUMBER = re.compile(r"\[([^\]]*)\]|([0-9]+)")
_OPERATORS = ",!&^"


def parse(text: str, limit: int = MOST_NODES) -> str:
    """Return a node set in its canonical form: folded, groups replaced by their nodes.

    The cost is bounded before anything is expanded. A text with groups reads files and can run the
    site's group programs, which may take their time.

    Args:
        text: node names, ranges (`n[1-16/2]`), groups (`@rack1`), joined by the operators , ! & ^.
        limit: most nodes of all operands together, at least 1.

    Returns:
        ClusterShell's text for the set; never an empty one.

    Raises:
        ValueError: it is no node set, an empty one, or beyond a bound; the text says which.
    """
    if _ONE_NAME.fullmatch(text):
        return text
    terms, operators = _split(text)
    names = [term for term in terms if not term.startswith("@")]
    groups = [term for term in terms if term.startswith("@")]
    size = sum(map(_size, names))
    if size > limit:
        raise ValueError(f"{size} nodes, which is more than the limit of {limit}")
    if sum(map(_size, groups)) > _MOST_GROUPS:
        raise ValueError(f"more than {_MOST_GROUPS} groups")
    if operators.strip(","):
        costly = len(terms)
    else:
        names = _merged(names)
        text = ",".join(names + groups)
        costly = sum(len(_NUMBER.findall(name)) > 1 for name in names)
    if len(names) > _MOST_OPERANDS or costly > _MOST_COSTLY:
        raise ValueError(
            f"{len(names)} operands that do not fold, which is more than the limit of {_MOST_OPERANDS} "
            f"({_MOST_COSTLY} where names have several numbers, or with the operators ! & ^)"
        )
    for group in groups:
        if not _resolved(group):
            raise ValueError(f"group {group} is not known here, or has no nodes")
    nodes = _resolved(text)
    if not nodes:
        raise ValueError("no node is left in this set")
    if len(nodes) > limit:
        raise ValueError(f"{len(nodes)} nodes, which is more than the limit of {limit}")
    return str(nodes)


def count(nodes: str) -> int:
    """Return the number of nodes in a set, without expanding it.

    Args:
        nodes: a canonical text, or "" for no nodes.
    """
    return sum(map(_size, _split(nodes)[0])) if nodes else 0


def _split(text: str) -> tuple[list[str], str]:
    """Return the operands of a text, and the operators between them."""
    if not text:
        raise ValueError("an empty node set")
    terms: list[str] = []
    operators = ""
    place = 0
    while True:
        term = _GROUP.match(text, place) or _NAMES.match(text, place)
        if term is None or len(_RANGES.sub("", term[0])) > _LONGEST_NAME:
            raise ValueError(f"not a node set at {text[place : place + 40]!r}")
        terms.append(term[0])
        place = term.end()
        if place == len(text):
            return terms, operators
        if text[place] not in _OPERATORS:
            raise ValueError(f"not a node set at {text[place : place + 40]!r}")
        operators += text[place]
        place += 1


def _size(term: str) -> int:
    """Return the number of names that an operand stands for."""
    return math.prod(map(_length, _RANGES.findall(term)))


def _length(ranges: str) -> int:
    """Return the number of numbers in what stands between brackets."""
    total = 0
    for text in ranges.split(","):
        limits = _RANGE.fullmatch(text)
        if limits is None:
            raise ValueError(f"not a range of numbers: {text[:40]!r}")
        first, last, step = int(limits[1]), int(limits[2] or limits[1]), int(limits[3] or 1)
        if last < first or step == 0:
            raise ValueError(f"not a range of numbers: {text!r}")
        total += (last - first) // step + 1
    return total


def _merged(names: list[str]) -> list[str]:
    """Merge operands that differ in one number only, so that a long list of names becomes a short text.

    ClusterShell would do so too, but in more than linear time.
    """
    others: list[str] = []
    rows: dict[tuple[str, ...], None] = {}  # text, ranges, text, ranges, …, text
    for name in names:
        row = tuple(_NUMBER.sub(r"[\1\2]", name).replace("]", "[").split("["))
        if "" in row[2:-1:2]:
            others.append(name)  # a range beside a digit: n[1-3]0
        else:
            rows[row] = None
    for place in range(max(map(len, rows), default=0) - 2, 0, -2):
        merged: dict[tuple[str, ...], list[str]] = {}
        for row in rows:
            if len(row) > place:
                merged.setdefault(row[:place] + row[place + 1 :], []).append(row[place])
            else:
                merged[row] = []
        rows = {
            (*rest[:place], ",".join(ranges), *rest[place:]) if ranges else rest: None
            for rest, ranges in merged.items()
        }
    return others + [
        "".join(f"[{part}]" if place % 2 else part for place, part in enumerate(row)) for row in rows
    ]


def _resolved(text: str) -> NodeSet:
    """Return ClusterShell's set for a text whose form has been checked."""
    from ClusterShell.NodeSet import NodeSet, NodeSetException
    from ClusterShell.NodeUtils import GroupResolverError, GroupSourceError

    if "@" not in text:
        return _plain(text)
    try:
        return NodeSet(text)
    except (NodeSetException, GroupResolverError, GroupSourceError) as error:
        raise ValueError(f"{text:.100} cannot be resolved here: {error}") from error


def _plain(text: str) -> NodeSet:
    """Return ClusterShell's set for a text without groups."""
    from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet, NodeSetException

    try:
        return NodeSet(text, resolver=RESOLVER_NOGROUP)
    except NodeSetException as error:
        raise ValueError(f"{error}") from error
