"""Who has gone for good among the clients that have stopped sending.

Only that lives here. A socket at end of file is always readable, so waiting for it to be readable
tells nothing more; but an epoll(7) that asks for no event still reports EPOLLHUP, and Linux sets
that once both directions of a Unix stream socket are shut down (net/unix/af_unix.c, unix_poll).
"""

from __future__ import annotations

import select
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import trio


class Hangups:
    """Calls back when the peer of a half-closed socket closes it.

    One for all connections, so that a half-closed one costs no file descriptor: there may be none left.
    """

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._callbacks: dict[int, Callable[[], None]] = {}

    @contextmanager
    def watched(self, sock: socket.socket, callback: Callable[[], None]) -> Iterator[None]:
        """Within the block, call `callback` once, as soon as the peer has gone."""
        fileno = sock.fileno()
        self._callbacks[fileno] = callback
        self._epoll.register(fileno, 0)
        try:
            yield
        finally:
            self._forget(fileno)

    def _forget(self, fileno: int) -> None:
        # Closing would not do: a child being spawned may hold a copy, and the number may be used anew.
        # When it is the server that ends, the epoll may be closed already.
        if self._callbacks.pop(fileno, None) is not None and not self._epoll.closed:
            self._epoll.unregister(fileno)

    async def run(self) -> None:
        """Watch until cancelled."""
        with self._epoll:
            while True:
                await trio.lowlevel.wait_readable(self._epoll)
                for fileno, _ in self._epoll.poll(0):
                    callback = self._callbacks[fileno]
                    self._forget(fileno)
                    callback()
