"""Commands about the scripts of jobs: scripts, output."""

from __future__ import annotations

import signal
import sys
from typing import TYPE_CHECKING, Any

from perilog.cli import text
from perilog.cli.jobs import SCRIPT_HEADINGS, script_row
from perilog.client import connect

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from perilog.client import Client

    Run = Callable[[argparse.Namespace], int]


def scripts_command(parser: argparse.ArgumentParser) -> Run:
    """Build `perilog scripts`."""
    parser.epilog = (
        "list shows what runs, waits for its turn or is stuck.\n"
        "example: perilog scripts kill 17 epilog scratch --signal KILL"
    )
    parser.add_argument(
        "do", metavar="list|kill", choices=("list", "kill"), nargs="?", default="list", help="default: list"
    )
    parser.add_argument(
        "job", metavar="JOB", nargs="?", help="list: all runs of this job, those that ended too"
    )
    parser.add_argument("phase", metavar="PHASE", nargs="?", help="kill: prolog, completion or epilog")
    parser.add_argument("action", metavar="ACTION", nargs="?", help="kill: the action's name")
    parser.add_argument("--signal", metavar="S", type=_signal, help="kill: a name or a number; default: TERM")
    parser.add_argument("--nodes", metavar="NODES", help="kill: only on these nodes")

    def run(arguments: argparse.Namespace) -> int:
        if arguments.do == "kill" and arguments.action is None:
            parser.error("kill needs JOB, PHASE and ACTION")
        if arguments.do == "list" and arguments.phase is not None:
            parser.error("list takes a JOB only")
        with connect(arguments.socket) as client:
            if arguments.do == "kill":
                result = client.call(
                    "script.kill",
                    id=client.find(arguments.job),
                    phase=arguments.phase,
                    action=arguments.action,
                    signal=arguments.signal,
                    nodes=arguments.nodes,
                )
                if arguments.json:
                    text.print_json(result)
                return 0
            job = None if arguments.job is None else client.find(arguments.job)
            scripts = client.call("script.list", id=job)
        if arguments.json:
            text.print_json(scripts)
        elif scripts:
            rows = ((script["id"], *script_row(script)) for script in scripts)
            print(text.table(("JOB", *SCRIPT_HEADINGS), rows))
        return 0

    return run


def _signal(name: str) -> int:
    if name.isdigit():
        return int(name)
    try:
        return signal.Signals["SIG" + name.upper().removeprefix("SIG")].value
    except KeyError:
        raise ValueError(name) from None


def output_command(parser: argparse.ArgumentParser) -> Run:
    """Build `perilog output`."""
    parser.epilog = "example: perilog output 17 epilog scratch"
    parser.add_argument("job", metavar="JOB", help="a job's id or key")
    parser.add_argument(
        "phase", metavar="PHASE", nargs="?", help="prolog, completion or epilog; default: all"
    )
    parser.add_argument("action", metavar="ACTION", nargs="?", help="the action's name")
    parser.add_argument("--node", metavar="NODE", help="on this node")

    def run(arguments: argparse.Namespace) -> int:
        if arguments.phase is not None and arguments.action is None:
            parser.error("PHASE goes with ACTION")
        with connect(arguments.socket) as client:
            job = client.find(arguments.job)
            if arguments.phase is not None:
                found = [_output(client, job, arguments.phase, arguments.action, arguments.node)]
            else:
                found = _outputs(client, job, arguments.node)
        if arguments.json:
            text.print_json(found)
            return 0
        if not any(output["size"] for output in found):
            print("perilog: nothing was written, or kept: output of what went well is not", file=sys.stderr)
        for output in found:
            if arguments.phase is None:
                print(f"==> {output['phase']} {output['action']} <==", flush=True)
            sys.stdout.flush()
            sys.stdout.buffer.write(output["head"])
            missing = output["size"] - len(output["head"]) - len(output["tail"])
            if missing > 0:
                sys.stdout.buffer.write(f"\n[... {missing} bytes were not kept ...]\n".encode())
            sys.stdout.buffer.write(output["tail"])
        return 0

    return run


def _output(client: Client, job: int, phase: str, action: str, node: str | None) -> dict[str, Any]:
    result = client.call("script.output", id=job, phase=phase, action=action, node=node)
    return {"phase": phase, "action": action, **result}


def _outputs(client: Client, job: int, node: str | None) -> list[dict[str, Any]]:
    """Return what is kept of all scripts of a job, but for those that left nothing."""
    runs = client.call("script.list", id=job)
    found = []
    for phase, action in dict.fromkeys((run["phase"], run["action"]) for run in runs):
        output = _output(client, job, phase, action, node)
        if output["size"]:
            found.append(output)
    return found
