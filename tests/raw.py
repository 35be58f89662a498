"""A client that says exactly what it is told to say: plain sockets and msgpack, no library of ours.

Here lives what tests of trust and of bad input share: connections of other users, bytes as they are,
replies as they come. What a test proves does not belong here.
"""

from __future__ import annotations

import os
import socket
import subprocess
from typing import TYPE_CHECKING, Any, Self

import msgpack

from bed import PATIENCE

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

#: Connects to argv[1] and hands the connection to whoever has the other end of the socket at fd argv[2].
_CONNECT = """
import socket, sys
client = socket.socket(socket.AF_UNIX)
client.connect(sys.argv[1])
socket.send_fds(socket.socket(fileno=int(sys.argv[2])), [b"x"], [client.fileno()])
"""

#: Uids that no test needs to exist in the user database. `NOBODY` does exist on every Linux.
NOBODY = 65534
ALICE, BOB, CAROL = 61001, 61002, 61003

#: Whether this process can start others as whom it likes.
IS_ROOT = os.geteuid() == 0


class Raw:
    """One connection.

    Args:
        sock: a connected socket; closed with the client.
    """

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.notifications: list[Any] = []
        self._unpacker = msgpack.Unpacker(max_buffer_size=1 << 30)
        self._msgid = 0
        sock.settimeout(PATIENCE)

    @classmethod
    def at(cls, path: Path) -> Self:
        """Connect as ourselves."""
        sock = socket.socket(socket.AF_UNIX)
        sock.connect(str(path))
        return cls(sock)

    @classmethod
    def of(cls, uid: int, path: Path, python: Path) -> Self:
        """Return the connection that a process of another user has made (needs root, unless it is our own).

        Args:
            uid: whose process.
            path: the socket to connect to.
            python: an interpreter that this user may run.
        """
        ours, theirs = socket.socketpair()
        with ours, theirs:
            command = [str(python), "-I", "-S", "-c", _CONNECT, str(path), str(theirs.fileno())]
            run_as(uid, command, pass_fds=[theirs.fileno()])
            ours.settimeout(PATIENCE)
            _, (fd,), _, _ = socket.recv_fds(ours, 1, 1)
        return cls(socket.socket(fileno=fd))

    def __enter__(self) -> Self:
        """Return the client itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the connection."""
        self.sock.close()

    def send(self, data: bytes) -> None:
        """Send bytes as they are."""
        self.sock.sendall(data)

    def request(self, method: object, *params: object) -> int:
        """Send a request with these params, whatever they are, and return its msgid."""
        self._msgid += 1
        self.send(msgpack.packb([0, self._msgid, method, params]))
        return self._msgid

    def message(self) -> Any:
        """Return the next message, None if the broker has ended the connection."""
        while True:
            for message in self._unpacker:
                return message
            data = self.sock.recv(1 << 18)
            if not data:
                return None
            self._unpacker.feed(data)

    def reply(self, msgid: int) -> tuple[Any, Any]:
        """Return error and result of a request; notifications that come first are put aside."""
        while True:
            message = self.message()
            assert message is not None, "the broker has ended the connection"
            if message[0] == 2:
                self.notifications.append(message)
                continue
            assert message[:2] == [1, msgid], message
            return message[2], message[3]

    def call(self, method: str, arguments: Mapping[str, object] | None = None) -> tuple[Any, Any]:
        """Make a call and return its error and its result."""
        return self.reply(self.request(method, arguments or {}))

    def ok(self, method: str, **arguments: object) -> Any:
        """Make a call that must succeed and return its result."""
        error, result = self.call(method, arguments)
        assert error is None, f"{method}: {error}"
        return result

    def refused(self, method: str, /, **arguments: object) -> str:
        """Make a call that must be refused as the request's own fault, and return the text."""
        (kind, text), result = self.call(method, arguments)
        assert (kind, result) == (1, None)
        return str(text)

    def rest(self) -> list[Any]:
        """Return every message that comes before the broker ends the connection."""
        messages = []
        while (message := self.message()) is not None:
            messages.append(message)
        return messages


def run_as(uid: int, command: Sequence[str], **more: Any) -> subprocess.CompletedProcess[str]:
    """Run a command as another user, and return what it said once it has ended well."""
    if uid != os.geteuid():
        more.update(user=uid, group=uid, extra_groups=[])
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=PATIENCE, check=False, cwd="/", **more
    )
    assert done.returncode == 0, f"{command} as uid {uid}: {done.stdout}{done.stderr}"
    return done
