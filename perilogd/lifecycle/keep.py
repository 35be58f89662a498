"""What a hold keeps: nodes, and parts of nodes, that may only become fewer.

Sets of nodes are ClusterShell texts in canonical form, with groups already resolved: resolving a group
asks files and programs, which has no place in the life of a job.
"""

from __future__ import annotations

from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet
from ClusterShell.RangeSet import RangeSet

from perilogd.errors import Refusal
from perilogd.lifecycle.job import Keep

PARTS = ("cores", "gpus", "storage")


def _set(nodes: str) -> NodeSet:
    return NodeSet(nodes, resolver=RESOLVER_NOGROUP)


def intersection(one: str, other: str) -> str:
    """Return the nodes that are in both sets."""
    return one if one == other else str(_set(one) & _set(other))


def difference(one: str, other: str) -> str:
    """Return the nodes of the first set that are not in the second."""
    return str(_set(one) - _set(other))


def named_nodes(keep: Keep) -> str:
    """Return the nodes that are written out in what a hold keeps; "" where it says all or none."""
    return "" if keep in ("all", "none") else keep["nodes"] if isinstance(keep, dict) else keep


def kept_nodes(keep: Keep, held: str) -> str:
    """Return the nodes that a hold keeps, of those that the job still holds."""
    if keep == "all":
        return held
    if keep == "none":
        return ""
    return intersection(named_nodes(keep), held)


def narrow(old: Keep, new: Keep, held: str) -> Keep:
    """Return what a hold keeps after its holder asked for less.

    Args:
        old: what it keeps.
        new: what it shall keep.
        held: the nodes that the job still holds; others are ignored.

    Returns:
        The new value in canonical form.

    Raises:
        Refusal: EINVAL if it would keep more than before.
    """
    if new in ("none", old):
        return new
    if new == "all" and not held:
        raise Refusal("EINVAL", f"keep: can only shrink, from {old!r}, not to 'all'")
    after = _named(new, held)
    before = after if old == "all" and not held else _named(old, held)
    extra = difference(after, before)
    if extra:
        raise Refusal(
            "EINVAL",
            f"keep: can only shrink, but {extra:.100} is not among the nodes that it keeps"
            f" ({before or 'none':.100})",
        )
    parts = _narrow_parts(_parts(old), _parts(new))
    if not after:
        return "none"
    return {"nodes": after, **parts} if parts else after


def _named(keep: Keep, held: str) -> str:
    """Return the nodes that are meant; before the job has nodes, whatever is written counts."""
    return kept_nodes(keep, held) if held else named_nodes(keep)


def _parts(keep: Keep) -> dict[str, str]:
    return {part: keep[part] for part in PARTS if part in keep} if isinstance(keep, dict) else {}


def _narrow_parts(old: dict[str, str], new: dict[str, str]) -> dict[str, str]:
    """Return the parts of each node to keep; whole nodes asked of a hold on parts mean the same parts."""
    for part, wanted in new.items():
        if old and (part not in old or not RangeSet(wanted) <= RangeSet(old[part])):
            raise Refusal(
                "EINVAL", f"keep: {part} can only shrink, from {old.get(part, 'none')!r}, not to {wanted!r}"
            )
    return new or old
