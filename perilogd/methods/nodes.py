"""The methods `node.*`: which nodes are in use or out of service; drain and undrain."""

from __future__ import annotations

from itertools import islice
from typing import Any

from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet

from perilogd.broker.core import Broker
from perilogd.broker.runs import Runs
from perilogd.errors import Refusal
from perilogd.journal import DrainRow
from perilogd.lifecycle.keep import intersection
from perilogd.methods import authority
from perilogd.methods.kinds import Kinds
from perilogd.methods.lookup import Lookup
from perilogd.rpc.method import ADMIN, USERS, Call, Method
from perilogd.rpc.params import LIMIT, Argument, Boolean, Text

_REASON = Text(
    "1 to 1024 printable characters", lambda text: 0 < len(text.encode()) <= 1024 and text.isprintable()
)


class NodeMethods:
    """Builds the table's entries.

    Args:
        broker: has the jobs and the drain table.
        lookup: finds jobs.
        kinds: argument kinds with the configured bounds.
        runs: knows where a stuck script lives.
    """

    def __init__(self, broker: Broker, lookup: Lookup, kinds: Kinds, runs: Runs) -> None:
        self._broker = broker
        self._lookup = lookup
        self._kinds = kinds
        self._runs = runs

    def methods(self) -> list[Method]:
        """Return the entries."""
        nodes = Argument("nodes", self._kinds.nodes, required=True, doc="the nodes")
        force = Argument("force", Boolean(), doc="do it all the same")
        return [
            Method(
                "node.list",
                self.list_,
                [
                    Argument("nodes", self._kinds.nodes, doc="only these"),
                    Argument("limit", LIMIT, doc="at most so many rows"),
                ],
                roles=USERS,
                doc="List nodes that jobs hold or that are drained, equal ones folded together.",
                result="an array of {nodes, state, reason?, since?, by?, jobs}",
            ),
            Method(
                "node.drain",
                self.drain,
                [nodes, Argument("reason", _REASON, doc="why"), force],
                roles=ADMIN,
                doc="Take nodes out of service; a drained node keeps its first reason unless forced.",
                result="{}",
            ),
            Method(
                "node.undrain",
                self.undrain,
                [nodes, force],
                roles=ADMIN,
                doc="Put nodes back into service; refused while a stuck script may live there, or forced.",
                result="{}",
            ),
        ]

    async def list_(self, call: Call, nodes: str | None = None, limit: int = 1000) -> list[dict[str, Any]]:
        """List nodes; in a thread, since the sets of all jobs together are large."""
        if nodes is not None:
            authority.require_few(call, self._broker.config, "nodes", nodes)
        held = [(job.id, job.held) for job in self._broker.jobs.values() if job.held]
        rows = list(self._broker.drains.rows.values())
        return await call.connection.slowly(_listed, held, rows, nodes, limit)

    def drain(
        self, call: Call, nodes: str, reason: str = "drained by hand", force: bool = False
    ) -> dict[str, Any]:
        """Drain nodes."""
        self._broker.require_room()
        wall = self._broker.clock.now().wall
        rows = self._broker.drains.add(nodes, reason, wall, f"uid {call.uid}", None, force=force)
        self._broker.writer.batch.drains += rows
        self._broker.writer.wake()
        return {}

    async def undrain(self, call: Call, nodes: str, force: bool = False) -> dict[str, Any]:
        """Undrain nodes."""
        if not force:
            await self._require_unstuck(call, nodes)
        self._broker.require_room()
        self._broker.writer.batch.drains += self._broker.drains.remove(nodes)
        self._broker.writer.wake()
        return {}

    async def _require_unstuck(self, call: Call, nodes: str) -> None:
        """Refuse nodes on which a stuck script still lives; or may: a new broker has to be told."""
        if not self._runs.stock_taken and self._broker.drains.on_account_of_jobs(nodes):
            raise Refusal(
                "EAGAIN",
                f"{nodes}: perilog-exec has not yet told which scripts are stuck; ask again once it answers,"
                " or use force",
            )
        for entry in list(self._runs.stuck.values()):
            job = await self._lookup.any_or_none(call, entry["id"])
            both = intersection(job.alloc, nodes) if job is not None else ""
            if both:
                raise Refusal(
                    "ESTATE",
                    f"{both}: {entry['phase']} {entry['action']} of job {entry['id']} is stuck there"
                    f" (pid {entry['pid']}); end it first (`perilog scripts kill`), or use force",
                )


def _listed(
    held: list[tuple[int, str]], rows: list[DrainRow], nodes: str | None, limit: int
) -> list[dict[str, Any]]:
    """Return the rows of `node.list` (takes its time).

    Args:
        held: jobs with the nodes that they hold.
        rows: the drain table.
        nodes: only these.
        limit: at most so many rows.
    """
    drained = _folded(rows)
    out = _set("")
    for part, _ in drained:
        out |= part
    listed: list[tuple[NodeSet, dict[str, Any]]] = []
    used = _set("")
    for part, jobs in _users(held):
        used |= part
        if part & out:
            listed += [(part & why, {**_why(row), "jobs": jobs}) for why, row in drained]
        listed.append((part - out, {"state": "allocated", "jobs": jobs}))
    listed += [(part - used, {**_why(row), "jobs": []}) for part, row in drained]
    only = _set(nodes) if nodes is not None else None
    shown = ((part if only is None else part & only, row) for part, row in listed)
    return [{"nodes": str(part), **row} for part, row in islice((pair for pair in shown if pair[0]), limit)]


def _set(nodes: str) -> NodeSet:
    return NodeSet(nodes or None, resolver=RESOLVER_NOGROUP)


def _why(row: DrainRow) -> dict[str, Any]:
    return {"state": "drained", "reason": row.reason, "since": row.wall, "by": row.by}


def _folded(rows: list[DrainRow]) -> list[tuple[NodeSet, DrainRow]]:
    """Return node sets with equal reason, time and author, each with one of its rows."""
    groups: dict[tuple[str, float, str], list[DrainRow]] = {}
    for row in rows:
        groups.setdefault((row.reason, row.wall, row.by), []).append(row)
    return [
        (NodeSet.fromlist([row.node for row in group], resolver=RESOLVER_NOGROUP), group[0])
        for group in groups.values()
    ]


def _users(held: list[tuple[int, str]]) -> list[tuple[NodeSet, list[int]]]:
    """Return disjoint node sets with the jobs that hold them."""
    by_text: dict[str, list[int]] = {}
    for job, nodes in held:
        by_text.setdefault(nodes, []).append(job)
    parts = [(_set(nodes), jobs) for nodes, jobs in by_text.items()]
    seen, shared = _set(""), _set("")
    for part, _ in parts:
        shared |= part & seen
        seen |= part
    if not shared:
        return parts
    by_node: dict[str, list[int]] = {}
    for part, jobs in parts:
        for node in part & shared:
            by_node.setdefault(node, []).extend(jobs)
    by_jobs: dict[tuple[int, ...], list[str]] = {}
    for node, jobs in by_node.items():
        by_jobs.setdefault(tuple(sorted(jobs)), []).append(node)
    alone = [(part - shared, jobs) for part, jobs in parts]
    together = [
        (NodeSet.fromlist(names, resolver=RESOLVER_NOGROUP), list(jobs)) for jobs, names in by_jobs.items()
    ]
    return [*alone, *together]
