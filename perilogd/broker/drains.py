"""Nodes out of service: why, since when, by whom.

The table in memory, a mirror of the journal's. Changes are returned as rows for the batch that is being
collected; writing them is the caller's business.
"""

from __future__ import annotations

from collections.abc import Iterable

from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet

from perilogd.journal import DrainRow


class Drains:
    """The drain table.

    Args:
        rows: what the journal remembers.
        hostname: the management node, which is never drained by the broker itself.
    """

    def __init__(self, rows: Iterable[DrainRow], hostname: str) -> None:
        self.rows: dict[str, DrainRow] = {row.node: row for row in rows}
        self._hostname = hostname

    def add(
        self, nodes: str, reason: str, wall: float, by: str, job: int | None, *, force: bool = False
    ) -> list[DrainRow]:
        """Drain nodes; one that is drained already keeps its first reason, unless forced.

        Args:
            nodes: a node set.
            reason: why.
            wall: now, in seconds since the epoch.
            by: a uid as text, or "perilogd".
            job: on whose account, if any.
            force: replace reasons; and drain the management node too.

        Returns:
            The rows to write.
        """
        rows: list[DrainRow] = []
        for node in NodeSet(nodes, resolver=RESOLVER_NOGROUP):
            if node in self.rows and not force:
                continue
            if job is not None and node == self._hostname:
                continue
            row = DrainRow(node, reason, wall, by, job)
            self.rows[node] = row
            rows.append(row)
        return rows

    def on_account_of_jobs(self, nodes: str) -> bool:
        """Tell whether the broker itself has drained one of these nodes, for a job's sake."""
        rows = (self.rows.get(node) for node in NodeSet(nodes, resolver=RESOLVER_NOGROUP))
        return any(row is not None and row.job is not None for row in rows)

    def remove(self, nodes: str) -> list[str]:
        """Put nodes back into service; returns the names to write, those that were drained."""
        names = [str(node) for node in NodeSet(nodes, resolver=RESOLVER_NOGROUP) if node in self.rows]
        for name in names:
            del self.rows[name]
        return names
