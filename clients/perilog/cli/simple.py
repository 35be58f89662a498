"""The verbs of `perilog.verbs` with all that people want: help, error messages, JSON, ssh: sockets."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from perilog.cli.text import print_json
from perilog.client import connect
from perilog.verbs import VERBS, Argument

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


class Put(argparse.Action):
    """Hands a value to an `Argument` of the table, which puts it into the request's parameters."""

    def __init__(self, *, argument: Argument, **settings: Any) -> None:
        super().__init__(**settings)
        self._argument = argument

    def __call__(
        self,
        _parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        _option: str | None = None,
    ) -> None:
        """Take the value or values that argparse has found."""
        given = [values] if isinstance(values, str) else (values or [""])
        for value in given:
            try:
                value.encode()
                self._argument.put(namespace.params, value)
            except UnicodeEncodeError:
                raise argparse.ArgumentError(self, "only text in UTF-8 can be sent") from None
            except ValueError as error:
                raise argparse.ArgumentError(self, str(error)) from None


def add_options(parser: argparse.ArgumentParser, options: dict[str, Argument]) -> None:
    """Add options of the table to a parser; their values gather in the namespace's `params`."""
    parser.set_defaults(params={})
    for name, argument in options.items():
        kind: dict[str, Any] = {"metavar": argument.metavar} if argument.metavar else {"nargs": 0}
        about = argument.about + (" (may be repeated)" if argument.many else "")
        parser.add_argument(
            name,
            action=Put,
            argument=argument,
            default=argparse.SUPPRESS,
            help=about.replace("%", "%%"),
            **kind,
        )


def verb_command(parser: argparse.ArgumentParser) -> Callable[[argparse.Namespace], int]:
    """Build the command for the verb that the parser is named after."""
    entry = VERBS[parser.prog.rpartition(" ")[2]]
    parser.epilog = f"example: {entry.example}"
    add_options(parser, entry.options)
    for word in entry.words:
        parser.add_argument(
            word.metavar.lower(),
            action=Put,
            argument=word,
            default=argparse.SUPPRESS,
            metavar=word.metavar,
            nargs="+" if word.many else "?" if word.optional else None,
            help=word.about,
        )

    def run(arguments: argparse.Namespace) -> int:
        if missing := entry.missing(arguments.params):
            parser.error(f"{missing} must be given")
        with connect(arguments.socket) as client:
            result = entry.perform(lambda method, params: client.call(method, **params), arguments.params)
        if arguments.json:
            print_json(result)
        elif entry.prints:
            print(result[entry.prints])
        return 0

    return run
