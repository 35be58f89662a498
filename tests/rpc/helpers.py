"""A server on a real socket with a few methods, and a client that shows every frame it gets.

What a test proves does not belong here.
"""

from __future__ import annotations

import os
import socket
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import msgpack
import trio

from perilogd.rpc.connection import Connection, Standing
from perilogd.rpc.method import EVERYONE, USERS, Call, Method
from perilogd.rpc.params import JOB_ID, NAME, Argument, Arguments, Integer, ListOf, text_up_to
from perilogd.rpc.server import Limits, Server, listen

#: Longest time in seconds that a test waits for something. Only a fault lasts that long.
PATIENCE = 30.0

#: A sound request.
PING = msgpack.packb([0, 7, "ping", []])
PONG = [1, 7, None, "pong"]


class Gate:
    """The broker's gate: open until `shut`, then replies wait for `open`."""

    def __init__(self) -> None:
        self.waiting: deque[Callable[[], None]] = deque()
        self.is_shut = False
        self.waited = trio.Event()  # set as soon as something waits

    def __call__(self, send: Callable[[], None]) -> None:
        """Send, now or later."""
        if self.is_shut:
            self.waiting.append(send)
            self.waited.set()
        else:
            send()

    def shut(self) -> None:
        """Let nothing through."""
        self.is_shut = True

    def open(self, server: Server) -> None:
        """Let everything through that waits, in order, as the broker does after a commit."""
        self.is_shut = False
        while self.waiting:
            self.waiting.popleft()()
        server.flush()


class Served:
    """A server under test.

    Attributes:
        uid_standing: what every client is.
        seen: requests that the handler of `note` got, in order.
        begun: set when a handler of `hang` has begun.
        cancelled: set when one was cancelled.
        closed: gets each connection that ended.
    """

    def __init__(self, path: Path, *methods: Method, **limits: int) -> None:
        self.path = path
        self.uid_standing = Standing("admin", frozenset({"dws"}))
        self.seen: list[Any] = []
        self.begun = trio.Event()
        self.cancelled = trio.Event()
        self.gate = Gate()
        self.hellos: list[Connection] = []
        self._closing, self.closed = trio.open_memory_channel[Connection](1000)
        own = (
            Method("ping", lambda _: "pong", roles=EVERYONE, doc="Answer.", result="pong"),
            Method(
                "note",
                self._note,
                (
                    Argument("id", JOB_ID, required=True, into="job"),
                    Argument("from", Integer(0, 9)),
                    Argument("name", NAME),
                    Argument("holds", ListOf(Arguments(Argument("phase", NAME, required=True)), 3)),
                ),
                roles=USERS,
                doc="Note the request.",
                result="its arguments",
            ),
            Method(
                "fill",
                lambda _, size, **_padding: "x" * size,
                (
                    Argument("size", Integer(0, 1 << 24), required=True),
                    Argument("padding", text_up_to(1 << 20)),
                ),
                roles=USERS,
                doc="Return so many bytes.",
                result="text",
            ),
            Method(
                "take",
                lambda _, text: len(text),
                (Argument("text", text_up_to(1 << 24), required=True),),
                roles=USERS,
                doc="Take text.",
                result="its length",
            ),
            Method("hang", self._hang, roles=USERS, doc="Wait for ever.", result="nothing"),
        )
        self.server = Server(
            {method.name: method for method in (*own, *methods)},
            version="1.2",
            standing=lambda _: self.uid_standing,
            gate=self.gate,
            on_hello=self.hellos.append,
            on_close=self._closing.send_nowait,
            limits=Limits(**limits),
        )

    def _note(self, call: Call, **arguments: Any) -> Any:
        self.seen.append(arguments)
        return {"uid": call.uid, **arguments}

    async def _hang(self, _: Call) -> None:
        self.begun.set()
        try:
            await trio.sleep_forever()
        finally:
            self.cancelled.set()

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve until cancelled."""
        with listen(self.path) as listener:
            task_status.started()
            await self.server.serve(listener)

    def client(self) -> Client:
        """Return a new client, connected."""
        return Client(self.path)

    async def ended(self) -> Connection:
        """Wait for a connection to end, and return it."""
        with trio.fail_after(PATIENCE):
            return await self.closed.receive()


class Client:
    """A client.

    Attributes:
        notifications: those that came in while something else was waited for.
    """

    def __init__(self, path: Path) -> None:
        self.sock = trio.socket.from_stdlib_socket(connected(path))
        self.notifications: deque[list[Any]] = deque()
        self._unpacker = msgpack.Unpacker(max_buffer_size=1 << 26)
        self._msgid = 0

    async def send(self, data: bytes) -> None:
        """Send bytes as they are."""
        with trio.fail_after(PATIENCE):
            while data:
                data = data[await self.sock.send(data) :]

    async def message(self) -> list[Any] | None:
        """Return the next message, None at the end of the stream."""
        with trio.fail_after(PATIENCE):
            while True:
                for message in self._unpacker:
                    assert isinstance(message, list)
                    return message
                data = await self.sock.recv(1 << 16)
                if not data:
                    return None
                self._unpacker.feed(data)

    async def rest(self) -> list[list[Any]]:
        """Return all messages up to the end of the stream."""
        messages = []
        while (message := await self.message()) is not None:
            messages.append(message)
        return messages

    async def call(self, method: str, **arguments: Any) -> tuple[Any, Any]:
        """Make a request and return its error and result; notifications that come before are kept."""
        self._msgid += 1
        await self.send(msgpack.packb([0, self._msgid, method, [arguments]]))
        while True:
            message = await self.message()
            assert message is not None, "the connection ended before the reply"
            if message[0] == 1 and message[1] == self._msgid:
                return message[2], message[3]
            self.notifications.append(message)

    async def ok(self, method: str, **arguments: Any) -> Any:
        """Make a request that is not refused, and return its result."""
        error, result = await self.call(method, **arguments)
        assert error is None, error
        return result

    async def notification(self) -> tuple[str, Mapping[str, Any]]:
        """Return the next notification: its method and arguments."""
        message = self.notifications.popleft() if self.notifications else await self.message()
        assert message is not None, "the connection ended"
        kind, method, (arguments,) = message
        assert kind == 2, message
        return method, arguments

    def close(self) -> None:
        """Close the connection."""
        self.sock.close()


def connected(path: Path) -> socket.socket:
    """Return a connected, non-blocking socket."""
    sock = socket.socket(socket.AF_UNIX)
    sock.connect(os.fspath(path))
    sock.setblocking(False)
    return sock


#: What the fixtures give: start a server with further methods, and limits by name; connect a client to one.
Serve = Callable[..., Awaitable[Served]]
Connect = Callable[[Served], Client]
