"""`perilog attach`: follow a job that somebody else runs."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from perilog.cli import text
from perilog.cli.follow import Follower, LeftError, Signals
from perilog.client import connect

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from perilog.client import Event


class Onlooker(Follower):
    """A follower that prints the job's events as they come."""

    def happened(self, event: Event) -> None:
        """Print the event as Flux RFC 18 has it."""
        super().happened(event)
        exported = {key: getattr(event, key) for key in text.RFC18}
        print(text.compact(exported, ascii_only=True), flush=True)

    def quiet(self) -> bool:
        """Tell that there is no room for anything but events."""
        return True


def attach_command(parser: argparse.ArgumentParser) -> Callable[[argparse.Namespace], int]:
    """Build `perilog attach`."""
    parser.epilog = (
        "Exits with the job's exit code. ctrl-C twice within two seconds cancels the job; ctrl-\\ ends\n"
        "only this command.\nexample: perilog attach 17 --wait-event clean"
    )
    parser.add_argument("job", metavar="JOB", help="a job's id or key")
    parser.add_argument(
        "--wait-event",
        metavar="E",
        help="until this event; result: until the result is final (the usual default)",
    )

    def run(arguments: argparse.Namespace) -> int:
        kind = Onlooker if arguments.json else Follower
        with connect(arguments.socket) as client:
            job = client.find(arguments.job)
            with Signals() as signals:
                follower = kind(
                    client, signals, wait_event=arguments.wait_event, stream=sys.stdout, delay=0.2
                )
                try:
                    follower.follow(job)
                    return follower.code() or 0
                except LeftError as left:
                    follower.display.clear()
                    return 128 + left.number

    return run
