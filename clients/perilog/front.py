"""The command's front: one request, with next to nothing loaded.

Scripts and hooks start `perilog` several times a job, hundreds at a time, so what they call must
cost about what Python itself costs: no argparse, no json, no socket, no os, no typing. Whatever is
not plain (help, faults in the arguments, --json, ssh: sockets, all other commands) is left to
`perilog.cli`, whole. Anything a person looks at does not belong here.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # not known to typeshed; signal itself loads enum
import _socket
import posix
import sys

from perilog.errors import Error, Unreachable, lost, refusal, unreachable
from perilog.verbs import VERBS
from perilog.wire import default_socket, pack, unpack

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

    from perilog.verbs import Params, Verb


def main() -> NoReturn:
    """Run the command line in sys.argv and end the process."""
    request = scan(sys.argv[1:])
    if request is None:
        from perilog.cli.main import main as full  # noqa: PLC0415 - see above

        sys.exit(full(sys.argv[1:]))
    if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:
        _signal.signal(_signal.SIGINT, _signal.SIG_DFL)  # ctrl-C: die of it, as any small command does
    # Nothing is left to clean up, and taking Python down in order costs as much as a request.
    posix._exit(perform(*request))  # noqa: SLF001 - public as os._exit


def scan(words: list[str]) -> tuple[str, Verb, Params] | None:
    """Read a command line.

    Args:
        words: the arguments, without the command's own name.

    Returns:
        The socket, the verb and its parameters; None for everything that the full command is for.
    """
    socket = default_socket()
    if len(words) > 2 and words[0] == "-s":
        socket = words[1]
        words = words[2:]
    verb = VERBS.get(words[0]) if words else None
    if verb is None or socket.startswith("ssh:"):
        return None
    params: Params = {}
    places = list(verb.words)
    rest = iter(words[1:])
    try:
        for word in rest:
            if word[:1] != "-":
                word.encode()  # only UTF-8 can be sent; the UnicodeEncodeError is a ValueError
                places[0].put(params, word)
                if not places[0].many:
                    del places[0]
                continue
            name, equals, value = word.partition("=")
            option = verb.options[name]
            if option.metavar and not equals:
                value = next(rest)
                if value[:1] == "-":
                    return None
            elif equals and not option.metavar:
                return None
            value.encode()
            option.put(params, value)
    except (ValueError, KeyError, IndexError, StopIteration, Error):
        return None
    if verb.missing(params) or any(not (place.optional or place.many) for place in places):
        return None
    return socket, verb, params


def perform(socket: str, verb: Verb, params: Params) -> int:
    """Make a verb's request, print what is to be printed, and return the exit status."""
    try:
        result = verb.perform(_connect(socket), params)
        if verb.prints:
            posix.write(1, f"{result[verb.prints]}\n".encode())
    except Error as error:
        posix.write(2, f"perilog: {error}\n".encode(errors="backslashreplace"))
        return error.status
    except OSError as error:
        posix.write(2, f"perilog: cannot write to standard output: {error.strerror}\n".encode())
        return 1
    return 0


def _connect(socket: str) -> Any:
    """Connect, and return the function that makes one call after the other."""
    connection = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
    try:
        connection.connect(socket)
    except OSError as error:
        raise unreachable(socket, error.strerror or str(error)) from None

    def call(method: str, params: Params) -> Any:
        try:
            return _call(connection, method, params)
        except (OSError, EOFError):
            raise lost(socket) from None
        except (ValueError, TypeError) as error:
            raise Unreachable(
                f"what answers at {socket} does not speak perilogd's protocol: {error}"
            ) from None

    return call


def _call(connection: _socket.socket, method: str, params: Params) -> Any:
    try:  # noqa: SIM105 - contextlib costs too much
        connection.sendall(pack([0, 0, method, [params]]))
    except BrokenPipeError:
        pass  # a broker that refuses the connection says why before it closes: read that
    data = b""
    while True:
        part = connection.recv(65536)
        if not part:
            raise EOFError
        data += part
        try:
            (_kind, _msgid, error, result), _end = unpack(data)
        except IndexError:
            continue
        if error is not None:
            raise refusal(error)
        return result
