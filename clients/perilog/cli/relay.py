"""`perilog relay`: the far end of a socket named ssh:HOST. Bytes pass; nothing here looks at them."""

from __future__ import annotations

import contextlib
import os
import select
import socket as sockets
import sys
import threading
from typing import TYPE_CHECKING

from perilog.errors import unreachable
from perilog.wire import default_socket

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

_CHUNK = 1 << 16


def relay_command(parser: argparse.ArgumentParser) -> Callable[[argparse.Namespace], int]:
    """Build `perilog relay`."""
    parser.epilog = (
        "A client with PERILOG_SOCKET=ssh:HOST starts this on HOST: sshd authenticates, and the kernel\n"
        "tells the broker there who it is.\n"
        "example: ssh HOST perilog relay"
    )

    def run(arguments: argparse.Namespace) -> int:
        path = arguments.socket or default_socket()
        with sockets.socket(sockets.AF_UNIX) as broker:
            try:
                broker.connect(path)
            except OSError as error:
                raise unreachable(path, error.strerror or str(error)) from None
            # One direction a thread: neither can hold the other up, whoever stops reading.
            threading.Thread(target=_upstream, args=(broker,), daemon=True).start()
            with contextlib.suppress(ConnectionResetError):  # the broker went away: an end like any other
                while data := broker.recv(_CHUNK):
                    _write(data)
        sys.stdout.flush()
        os._exit(0)  # without waiting for the other thread: its read ends only when the client goes

    return run


def _upstream(broker: sockets.socket) -> None:
    """Pass on what comes from the client until its end.

    A client that has ended its input may still wait for replies. One that takes no output any more is
    gone, and then the connection must not stay: a lease may depend on it.
    """
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # the other thread sees that end
        while data := os.read(0, _CHUNK):
            broker.sendall(data)
        broker.shutdown(sockets.SHUT_WR)
        output = select.poll()
        output.register(1, 0)  # errors and hang-ups are always reported
        output.poll()
        os._exit(0)


def _write(data: bytes) -> None:
    while data:
        data = data[os.write(1, data) :]
