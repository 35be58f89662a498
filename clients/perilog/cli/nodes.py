"""Commands about nodes: drain and undrain."""

from __future__ import annotations

from typing import TYPE_CHECKING

from perilog.cli import text
from perilog.client import connect

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    Run = Callable[[argparse.Namespace], int]


def drain_command(parser: argparse.ArgumentParser) -> Run:
    """Build `perilog drain`."""
    parser.epilog = "example: perilog drain n[1-4] fan broken"
    parser.add_argument(
        "nodes", metavar="NODES", nargs="?", help="a node set; without it: list drained nodes"
    )
    parser.add_argument("reason", metavar="REASON", nargs="*", help="why, for people; a first reason stays")
    parser.add_argument("--force", action="store_true", help="replace the reason of nodes already drained")

    def run(arguments: argparse.Namespace) -> int:
        with connect(arguments.socket) as client:
            if arguments.nodes is None:
                rows = [row for row in client.call("node.list") if row.get("reason")]
                if arguments.json:
                    text.print_json(rows)
                elif rows:
                    shown = [
                        (row["nodes"], text.clock(row.get("since")), row.get("by"), row["reason"])
                        for row in rows
                    ]
                    print(text.table(("NODES", "SINCE", "BY", "REASON"), shown))
                return 0
            reason = " ".join(arguments.reason) or None
            result = client.call(
                "node.drain", nodes=arguments.nodes, reason=reason, force=arguments.force or None
            )
        if arguments.json:
            text.print_json(result)
        return 0

    return run


def undrain_command(parser: argparse.ArgumentParser) -> Run:
    """Build `perilog undrain`."""
    parser.epilog = "example: perilog undrain n[1-4]"
    parser.add_argument("nodes", metavar="NODES", help="a node set")
    parser.add_argument("--force", action="store_true", help="even where a stuck script of ours still lives")

    def run(arguments: argparse.Namespace) -> int:
        with connect(arguments.socket) as client:
            result = client.call("node.undrain", nodes=arguments.nodes, force=arguments.force or None)
        if arguments.json:
            text.print_json(result)
        return 0

    return run
