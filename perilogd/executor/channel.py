"""One connection from a broker: bytes in, bytes out, never blocking.

What the messages mean is the loop's.
"""

from __future__ import annotations

import socket
import struct
from typing import TYPE_CHECKING, Any

from perilogd.executor import wire

if TYPE_CHECKING:
    from collections.abc import Iterator

_CHUNK = 1 << 18

#: Bytes not taken by the broker beyond which nothing more is read from it.
_HIGH = 1 << 20


class Closed(Exception):  # noqa: N818 - it is no error
    """The other side has gone."""


class Channel:
    """A connection.

    Args:
        sock: a connected stream socket.
    """

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._decoder = wire.Decoder(wire.REQUEST_LIMIT)
        self._unsent = bytearray()
        self.journal: str | None = None  # of the broker that has said hello

    def fileno(self) -> int:
        """Return its descriptor."""
        return self._sock.fileno()

    def close(self) -> None:
        """Close it. What was not sent is not sent."""
        self._sock.close()

    @property
    def peer_uid(self) -> int:
        """The uid of who has connected, as the kernel says (SO_PEERCRED, unix(7))."""
        credentials = self._sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("=iII"))
        _, uid, _ = struct.unpack("=iII", credentials)
        return int(uid)

    @property
    def wants_to_write(self) -> bool:
        """Whether there is something that the other side has not taken."""
        return bool(self._unsent)

    @property
    def wants_to_read(self) -> bool:
        """Whether more may be asked: not while it leaves too many answers lying."""
        return len(self._unsent) < _HIGH

    def receive(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield the messages that have come.

        Raises:
            Closed: the other side has gone.
            WireError: what it says cannot be understood.
        """
        try:
            data = self._sock.recv(_CHUNK)
        except BlockingIOError:
            return
        except OSError:
            raise Closed from None
        if not data:
            raise Closed
        yield from self._decoder.feed(data)

    def send(self, data: bytes) -> None:
        """Send something, now or later.

        Raises:
            Closed: the other side has gone.
        """
        self._unsent += data
        self.flush()

    def flush(self) -> None:
        """Send as much as is taken.

        Raises:
            Closed: the other side has gone.
        """
        try:
            while self._unsent:
                del self._unsent[: self._sock.send(self._unsent)]
        except BlockingIOError:
            return
        except OSError:
            raise Closed from None
