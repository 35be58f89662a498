"""Who is at the other end of a Unix socket, as the kernel says.

Only the reading of peer credentials lives here. What a uid may do does not.
"""

from __future__ import annotations

import socket
import struct
from typing import NamedTuple

#: `struct ucred` of unix(7): pid, uid, gid.
_UCRED = struct.Struct("=iII")


class Credentials(NamedTuple):
    """The peer at the time of its connect(2); the pid may have been reused since."""

    pid: int
    uid: int
    gid: int


def peer(sock: socket.socket) -> Credentials:
    """Return the credentials of a connected Unix socket's peer (SO_PEERCRED, unix(7)).

    Raises:
        OSError: the socket is not a connected Unix socket.
    """
    return Credentials(*_UCRED.unpack(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)))
