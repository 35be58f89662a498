"""Commands about the broker itself: check, ping, stats, config, methods, reload, shutdown, demo."""

from __future__ import annotations

import importlib
import json
import os
import shutil
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from perilog.cli import text
from perilog.cli.jobs import brief
from perilog.client import connect

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator

    from perilog.client import Client

    Run = Callable[[argparse.Namespace], int]

#: States in which something of a job runs, or may; the others wait in the journal as well as in the broker.
_BUSY = ("PROLOG", "RUN", "COMPLETION", "EPILOG")


def check_command(parser: argparse.ArgumentParser) -> Run:
    """Build `perilog check`."""
    parser.epilog = "All faults are told at once.\nexample: perilog check /etc/perilogd/perilogd.toml"
    parser.add_argument("file", metavar="FILE", nargs="?", help="the configuration; default: the system's")

    def run(arguments: argparse.Namespace) -> int:
        # The daemon itself looks, so that what it says here is what it would say when started.
        beside = [Path(sys.argv[0]).parent / "perilogd", Path(sys.executable).parent / "perilogd"]
        daemon = next((str(path) for path in beside if os.access(path, os.X_OK)), shutil.which("perilogd"))
        if daemon is None:
            text.say(
                f"perilogd is installed neither beside this command ({beside[0].parent}) nor on the PATH"
            )
            return 1
        command = [daemon, *(["--config", arguments.file] if arguments.file else []), "--check"]
        return os.execv(daemon, command)  # noqa: S606

    return run


def ping_command(parser: argparse.ArgumentParser) -> Run:
    """Build `perilog ping`."""
    parser.epilog = "example: perilog ping"

    def run(arguments: argparse.Namespace) -> int:
        begin = time.monotonic()
        with connect(arguments.socket) as client:
            client.call("broker.ping")
            hello = client.call("hello", client="perilog ping")
        if arguments.json:
            text.print_json(hello)
        else:
            took = (time.monotonic() - begin) * 1000
            version, role = hello.get("version"), hello.get("role")
            print(f"perilogd {version} at {client.socket} answers ({took:.1f} ms); your role is {role}")
        return 0

    return run


def stats_command(parser: argparse.ArgumentParser) -> Run:
    """Build `perilog stats`."""
    return _printing(
        parser, "broker.stats", lambda stats: (f"{name} {value}" for name, value in _flat(stats))
    )


def _flat(value: dict[str, Any], before: str = "") -> Iterator[tuple[str, object]]:
    for name, item in value.items():
        if isinstance(item, dict):
            yield from _flat(item, f"{before}{name}.")
        else:
            yield f"{before}{name}", text.compact(item) if isinstance(item, list) else item


def config_command(parser: argparse.ArgumentParser) -> Run:
    """Build `perilog config`."""
    return _printing(parser, "broker.config", _toml)


def _toml(config: dict[str, Any]) -> Iterator[str]:
    """Write the configuration as the file has it; all defaults are filled in."""
    for name, table in config.items():
        for entry in table if isinstance(table, list) else [table]:
            yield f"[[{name}]]" if isinstance(table, list) else f"[{name}]"
            yield from (f"{key} = {_toml_value(value)}" for key, value in entry.items() if value is not None)
            yield ""


def _toml_value(value: object) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {_toml_value(item)}" for key, item in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(map(_toml_value, value)) + "]"
    return json.dumps(text.plain(value), ensure_ascii=False)


def methods_command(parser: argparse.ArgumentParser) -> Run:
    """Build `perilog methods`."""
    return _printing(parser, "broker.methods", _methods)


def _methods(methods: list[dict[str, Any]]) -> Iterator[str]:
    for method in methods:
        yield f"{method['name']}  ({', '.join(method.get('roles', ()))})  {method.get('doc', '')}"
        for argument in method.get("arguments", ()):
            optional = "" if argument.get("required") else "?"
            yield f"    {argument['name']}{optional}: {argument.get('type')}  {argument.get('doc', '')}"


def _printing(parser: argparse.ArgumentParser, method: str, lines: Callable[[Any], Iterator[str]]) -> Run:
    """Build a command that prints what a method without arguments returns."""
    parser.epilog = f"example: {parser.prog}"

    def run(arguments: argparse.Namespace) -> int:
        with connect(arguments.socket) as client:
            result = client.call(method)
        if arguments.json:
            text.print_json(result)
        else:
            for line in lines(result):
                print(text.safe(line).rstrip())
        return 0

    return run


def reload_command(parser: argparse.ArgumentParser) -> Run:
    """Build `perilog reload`."""
    parser.epilog = (
        "With a fault in the new configuration the old one stays in force, whole.\nexample: perilog reload"
    )

    def run(arguments: argparse.Namespace) -> int:
        with connect(arguments.socket) as client:
            result = client.call("broker.reload")
        if arguments.json:
            text.print_json(result)
        return 0

    return run


def shutdown_command(parser: argparse.ArgumentParser) -> Run:
    """Build `perilog shutdown`."""
    parser.epilog = (
        "Without --drain the broker stops at once; scripts go on, and the next broker takes them over.\n"
        "With --drain: no new jobs from now on; ctrl-C gives that up, and new jobs are taken again.\n"
        "example: perilog shutdown --drain"
    )
    parser.add_argument("--drain", action="store_true", help="take no new jobs, and wait until nothing runs")

    def run(arguments: argparse.Namespace) -> int:
        with connect(arguments.socket) as client:
            if arguments.drain:
                client.call("broker.drain", on=True)
                try:
                    _wait_until_idle(client)
                except KeyboardInterrupt:
                    client.call("broker.drain", on=False)
                    text.say("given up: the broker goes on, and takes new jobs again")
                    raise
            client.call("broker.shutdown")
        return 0

    return run


def _wait_until_idle(client: Client) -> None:
    """Wait until no job has anything running, telling which ones are left whenever that changes."""
    shown: set[int] = set()
    watch = client.watch(names=["clean"])  # before the first look, so that no end is missed
    while jobs := [job for state in _BUSY for job in client.pages("job.list", "id", state=state)]:
        left = {job["id"] for job in jobs}
        if shown != left:
            shown = left
            print(f"jobs that are left: {len(left)}\n{brief(jobs)}", flush=True)
        watch.next(10.0)
        watch.take()


def demo_command(parser: argparse.ArgumentParser) -> Run:
    """Build `perilog demo`."""
    parser.epilog = "Needs no root, and leaves nothing behind.\nexample: perilog demo"

    def run(_arguments: argparse.Namespace) -> int:
        status: int = importlib.import_module("perilog.cli.demo").main()
        return status

    return run
