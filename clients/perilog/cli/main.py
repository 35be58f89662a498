"""The list of all commands, and how one of them is started.

What a command does lives in the module that the list names; here is only what all of them share:
the options before the command's name, help, and how an error becomes text and exit status.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import os
import signal
import site
import sys
from typing import TYPE_CHECKING, NoReturn

from perilog.errors import Error
from perilog.verbs import VERBS

if TYPE_CHECKING:
    from collections.abc import Callable

    #: What a command's module gives for it: adds arguments to a parser, returns what runs the command.
    Command = Callable[[argparse.ArgumentParser], Callable[[argparse.Namespace], int]]

#: Groups of commands: name → (module, one line for help). A verb's module and line follow from `VERBS`.
GROUPS: dict[str, dict[str, tuple[str, str] | None]] = {
    "jobs": {
        "submit": None,
        "run": ("run", "submit a job, run a command as its application, wait for the result"),
        "attach": ("attach", "follow a job until its result is final"),
        "list": ("jobs", "list jobs and what they wait for"),
        "show": ("jobs", "show all about one job"),
        "eventlog": ("jobs", "print a job's log"),
        "events": ("jobs", "follow the events of all jobs"),
        "wait": None,
        "cancel": None,
        "rerun": None,
        "memo": None,
    },
    "holds": {
        "hold": None,
        "progress": None,
        "update": None,
        "release": None,
        "holds": ("jobs", "list what holds jobs"),
    },
    "workload managers": {"alloc": None, "start": None, "exit": None, "raise": None},
    "administration": {
        "scripts": ("scripts", "list running and recent scripts, or kill one"),
        "output": ("scripts", "print what scripts of a job wrote"),
        "drain": ("nodes", "take nodes out of service, or list those that are"),
        "undrain": ("nodes", "put nodes back into service"),
        "check": ("broker", "check a configuration and its scripts as the daemon would"),
        "ping": ("broker", "ask whether the broker answers"),
        "stats": ("broker", "print the broker's figures"),
        "config": ("broker", "print the configuration in force"),
        "methods": ("broker", "list what can be asked of the broker"),
        "reload": ("broker", "make the broker read its configuration anew"),
        "shutdown": ("broker", "stop the broker; scripts go on"),
        "relay": ("relay", "pass bytes between standard input and output and the broker, for ssh"),
        "demo": ("broker", "show three jobs from submit to clean, on a private broker"),
    },
}

COMMANDS = {name: entry for group in GROUPS.values() for name, entry in group.items()}


def main(words: list[str]) -> int:
    """Run one command line.

    Args:
        words: the arguments, without the command's own name.

    Returns:
        The exit status: 0 ok, 1 failed, 2 usage, 3 cannot reach the broker, 4 permission, 5 not found,
        124 timed out; `run` and `attach` give the job's own exit code.
    """
    if importlib.util.find_spec("msgpack") is None:
        site.main()  # it is not installed beside this package: look wherever this Python has packages
    try:
        return _dispatch(words)
    except Error as error:
        print(f"perilog: {error}".encode(errors="backslashreplace").decode(), file=sys.stderr)
        return error.status
    except KeyboardInterrupt:
        _die_of(signal.SIGINT)
    except BrokenPipeError:  # as in `perilog list | head`: nobody reads any more
        _die_of(signal.SIGPIPE)


def _dispatch(words: list[str]) -> int:
    top = argparse.ArgumentParser(
        prog="perilog",
        usage="perilog [-s SOCKET] COMMAND …",
        description="Talk to perilogd, the broker for the edges of a batch job.",
        epilog=_overview(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    _add_common(top)
    top.add_argument("--version", action="store_true", help="print the version and exit")
    at = 0
    while words[at : at + 1] and words[at].startswith("-"):
        at += 2 if words[at] in ("-s", "--socket") else 1
    common, name, rest = top.parse_args(words[:at]), words[at : at + 1], words[at + 1 :]
    if common.version:
        from importlib.metadata import version  # noqa: PLC0415 - slow, and rarely asked for

        print(f"perilog {version('perilogd')}")
        return 0
    if not name:
        top.print_help(sys.stderr)
        return 2
    (command,) = name
    if command not in COMMANDS:
        top.error(f"no such command: {command!r}; `perilog --help` lists them")
    entry = COMMANDS[command]
    module, about = entry or ("simple", VERBS[command].about)
    parser = argparse.ArgumentParser(
        prog=f"perilog {command}",
        description=about[0].upper() + about[1:] + ".",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    _add_common(parser, socket=common.socket, json=common.json)
    builder = command if entry else "verb"
    build: Command = getattr(importlib.import_module(f"perilog.cli.{module}"), f"{builder}_command")
    run = build(parser)
    status = run(parser.parse_args(rest))
    sys.stdout.flush()  # here, where a reader that has gone is still told apart
    return status


def _add_common(parser: argparse.ArgumentParser, socket: str | None = None, *, json: bool = False) -> None:
    parser.add_argument(
        "-s",
        "--socket",
        default=socket,
        help="the broker's socket, or ssh:HOST; default: $PERILOG_SOCKET, else /run/perilogd/perilogd.sock",
    )
    parser.add_argument("--json", action="store_true", default=json, help="print data as JSON")


def _overview() -> str:
    lines = []
    for group, commands in GROUPS.items():
        lines.append(f"{group}:")
        for name, entry in commands.items():
            lines.append(f"  {name:10} {entry[1] if entry else VERBS[name].about}")
        lines.append("")
    lines.append("JOB is a job's id or key. `perilog COMMAND --help` tells more and gives an example.")
    lines.append("Exit status: 0 ok, 1 failed, 2 usage, 3 cannot reach the broker, 4 permission,")
    lines.append("5 not found, 124 timed out; `run` and `attach`: the job's own exit code.")
    return "\n".join(lines)


def _die_of(number: signal.Signals) -> NoReturn:
    """End as a program without handlers does, so that a calling shell sees the signal."""
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
    os._exit(128 + number)  # where the signal is blocked
