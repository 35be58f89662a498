"""One client's connection: what comes in is dispatched, what goes out is sent.

Reading, replying and the bounds of one connection live here. Accepting connections and counting
them do not, nor does any method.

How a connection ends, and what is still done for it then:

======================  ==============================================================================
it ends by              then
======================  ==============================================================================
the peer's close(2)     nothing: waiting requests are cancelled
shutdown(SHUT_WR)       what was asked is answered, watches go on; then closed, or when the peer closes
a malformed frame       replies that only wait for the journal are sent, EPROTO last; then closed
the broker's end        nothing, and `on_close` is not called: the client may come back to the next one
======================  ==============================================================================
"""

from __future__ import annotations

import socket
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from types import CoroutineType
from typing import TYPE_CHECKING, Any, TypeVar

import structlog
import trio

from perilogd.errors import Refusal
from perilogd.rpc.framing import MSGID_MAX, Decoder, FrameError, is_integer, is_msgid, response
from perilogd.rpc.method import Call, Method, Role
from perilogd.rpc.params import bare

if TYPE_CHECKING:
    from perilogd.rpc.credentials import Credentials
    from perilogd.rpc.server import Server
    from perilogd.rpc.watch import Watch

log = structlog.get_logger(__name__)

T = TypeVar("T")

#: Bytes read at a time. It bounds how long one client keeps the loop: some two hundred small requests.
_CHUNK = 4 * 1024

#: Seconds for which a connection's requests are worked on before others get their turn.
_TURN = 0.002

#: Above so many bytes that the client has not taken, its requests are not read and its watches fall
#: behind; they go on below the lower mark.
HIGH_MARK = 256 * 1024
LOW_MARK = 64 * 1024

#: What a request looks like, for error texts.
_REQUEST = "[0, msgid, method, params]"

#: Seconds that a client which broke the protocol has to take its last replies, and again to go.
_PARTING = 1.0


@dataclass(frozen=True, slots=True)
class Standing:
    """What a uid is to the broker.

    Args:
        role: see `Role`.
        providers: names of the providers that it may speak for.
    """

    role: Role
    providers: frozenset[str] = field(default_factory=frozenset)


class Connection:
    """A client.

    Made by `Server` only.

    Attributes:
        id: number of this connection, unique while the broker lives.
        credentials: who is at the other end.
        standing: what that uid is; the server renews it when the configuration changes.
        client: what the client calls itself, after `hello`.
        provider: the provider that the connection is bound to, after `hello`.
        watches: its watches by id; kept by `Watches`.
        buffered: bytes on their way to the client that the kernel has not taken.
        closed: whether it has ended; what is sent from then on is dropped.
    """

    __slots__ = (
        "_blocked",
        "_deferred",
        "_gated",
        "_gated_bytes",
        "_nursery",
        "_outgoing",
        "_piece",
        "_server",
        "_sock",
        "_waiting",
        "buffered",
        "client",
        "closed",
        "credentials",
        "id",
        "provider",
        "standing",
        "watches",
    )

    def __init__(self, server: Server, sock: socket.socket, ident: int, credentials: Credentials) -> None:
        self._server = server
        self._sock = sock
        self.id = ident
        self.credentials = credentials
        self.standing = server.standing(credentials.uid)
        self.client: str | None = None
        self.provider: str | None = None
        self.watches: dict[int, Watch] = {}
        self.buffered = 0
        self.closed = False
        self._outgoing: list[bytes | memoryview] = []
        self._blocked = False  # the kernel would take no more: `_drain` sends the rest
        self._gated = 0  # replies that wait for the journal
        self._gated_bytes = 0
        self._deferred = 0  # requests whose coroutine runs
        self._waiting = trio.lowlevel.ParkingLot()  # for this connection to get on, or to get quiet
        self._piece = trio.Lock()  # see `slowly`
        self._nursery: trio.Nursery | None = None

    # What the rest of the broker uses.

    def send(self, *frames: bytes) -> None:
        """Queue frames for the client. They go out with the server's next `flush`."""
        if self.closed:
            return
        if not self._outgoing:
            self._server.unsent.append(self)
        for frame in frames:
            self._outgoing.append(frame)
            self.buffered += len(frame)

    def flush(self) -> None:
        """Hand to the kernel what it takes at once, and leave the rest to a task. Never waits."""
        if self._blocked or not self._outgoing:
            return
        self._push()
        if self._outgoing:
            self._blocked = True
            self.start(self._drain)

    def start(self, function: Callable[..., Awaitable[object]], *args: object) -> None:
        """Run an async function beside the requests of this connection; it is cancelled with it."""
        if self._nursery is not None and not self.closed:
            self._nursery.start_soon(function, *args)

    async def room(self, mark: int = LOW_MARK) -> None:
        """Wait until no more than `mark` bytes are on their way to the client."""
        while self.buffered + self._gated_bytes > mark:
            await self._waiting.park()

    async def slowly(self, do: Callable[..., T], *args: object) -> T:
        """Do for the client what takes its time, in a worker thread.

        However much one client asks for, he gets it in pieces: one at a time, and no faster than he takes
        them; and of one user's clients, one at a time. So everybody else's turn comes after one piece.

        Args:
            do: the function; it may block.
            args: its arguments.
        """
        async with self._piece:
            await self.room()
            async with self._server.user(self.credentials.uid):
                return await trio.to_thread.run_sync(partial(do, *args), limiter=self._server.workers)

    def moved(self) -> None:
        """Wake whoever waits for this connection to get on, or to get quiet."""
        if self._waiting:
            self._waiting.unpark_all()

    def end(self) -> None:
        """End it at once: nothing more is read, sent or waited for."""
        self.closed = True
        self._outgoing.clear()
        if self._nursery is not None:
            self._nursery.cancel_scope.cancel()

    # Its life.

    async def serve(self) -> None:
        """Serve the client until it goes, or has to."""
        with self._sock:
            broken = False
            async with trio.open_nursery() as self._nursery:
                try:
                    if await self._read():
                        with self._server.hangups.watched(self._sock, self.end):
                            await self._answered()
                except FrameError as error:
                    broken = True
                    await self._complain(error)
                finally:
                    self.end()
            if broken:
                await self._linger()

    async def _read(self) -> bool:
        """Dispatch what comes in until nothing more will.

        Returns:
            Whether the client may still be there to read what it asked for.

        Raises:
            FrameError: what came in is no message.
        """
        decoder = Decoder(self._server.limits.frame)
        fd = self._sock.fileno()
        while True:
            await trio.lowlevel.wait_readable(fd)
            try:
                data = self._sock.recv(_CHUNK)
            except BlockingIOError:
                continue
            except OSError:  # ECONNRESET: it went without reading what we sent
                return False
            if not data:
                return True
            # It ends this turn; an administrator's begins at once, see `Server.turn`.
            until = time.perf_counter() + _TURN if self.standing.role == "admin" else 0.0
            for message in decoder.feed(data):
                if time.perf_counter() >= until:
                    self._server.flush()
                    await self._server.turn(self)
                    until = time.perf_counter() + _TURN
                self._dispatch(message)
                if self.closed:
                    return False
                if self._full():
                    self._server.flush()
                    while self._full():
                        await self._waiting.park()
            self._server.flush()

    def _full(self) -> bool:
        """Tell whether so much waits for the client or the journal that the next request must wait too."""
        return self.buffered + self._gated_bytes > HIGH_MARK or self._gated >= self._server.limits.requests

    async def _answered(self) -> None:
        """Wait until nothing is left to tell a client that has stopped asking."""
        while self._deferred or self._gated or self.buffered or self.watches:
            await self._waiting.park()

    async def _complain(self, error: FrameError) -> None:
        """Say what was wrong, after all replies that only wait for the journal."""
        log.info("protocol error", connection=self.id, uid=self.credentials.uid, error=error.text)
        if error.msgid is not None:
            self._reply(Call(self, "", error.msgid), Refusal("EPROTO", error.text).pair, None)
        self._server.flush()
        while self._gated:
            await self._waiting.park()
        self._server.flush()
        self.closed = True  # nothing comes after the EPROTO
        with trio.move_on_after(_PARTING):
            await self.room(0)

    async def _linger(self) -> None:
        """Let the client read what was wrong with what it may still be sending.

        Closing with unread bytes in the socket would reset it, and the client would be told of a broken pipe.
        """
        with trio.move_on_after(_PARTING), suppress(OSError):  # it may have gone already
            self._sock.shutdown(socket.SHUT_WR)
            while True:
                await trio.lowlevel.wait_readable(self._sock)
                if not self._sock.recv(_CHUNK):
                    return

    # Sending.

    def _push(self) -> None:
        """Hand all that is queued to the kernel; what it does not take is queued again, as one piece."""
        data = self._outgoing[0] if len(self._outgoing) == 1 else b"".join(self._outgoing)
        try:
            sent = self._sock.send(data)
        except BlockingIOError:
            sent = 0
        except OSError:  # EPIPE: nobody is there to read it
            self.end()
            return
        self.buffered -= sent
        self._outgoing = [] if sent == len(data) else [memoryview(data)[sent:]]
        self.moved()

    async def _drain(self) -> None:
        while self._outgoing:
            await trio.lowlevel.wait_writable(self._sock)
            self._push()
        self._blocked = False

    # Requests.

    def _dispatch(self, message: object) -> None:
        """Do what a message asks for.

        Raises:
            FrameError: it is not a message that a client may send.
        """
        if type(message) is not list or not message or not is_integer(message[0]):
            raise FrameError(None, "a message is an array that begins with its type, 0 or 2")
        kind = message[0]
        if kind == 0:
            msgid = message[1] if len(message) > 1 and is_msgid(message[1]) else None
            if msgid is None:
                raise FrameError(None, f"a request is {_REQUEST}, its msgid an integer up to {MSGID_MAX}")
            if len(message) != 4:
                raise FrameError(msgid, f"a request is {_REQUEST}, found {len(message)} elements")
            name, params = _name(message[2]), message[3]
            if name is None or type(params) is not list:
                raise FrameError(msgid, "a request's method is text and its params are an array")
            method = self._server.methods.get(name)
            if method is None:
                refusal = Refusal("EINVAL", f"no such method: {bare(name)}; broker.methods lists them")
                self._reply(Call(self, name, msgid), refusal.pair, None)
            else:
                self._run(method, Call(self, name, msgid), params)
        elif kind == 2:
            if len(message) != 3 or (name := _name(message[1])) is None:
                raise FrameError(None, "a notification is [2, method, params]")
            method = self._server.methods.get(name)
            if method is None:
                return  # PROTOCOL, "Wire": ignored, whatever its params
            if type(message[2]) is not list:
                raise FrameError(None, f"the params of the notification {name} are no array")
            self._run(method, Call(self, name, None), message[2])
        else:
            raise FrameError(None, f"a client sends requests (type 0) and notifications (type 2), not {kind}")

    def _run(self, method: Method, call: Call, params: list[Any]) -> None:
        try:
            result = method.invoke(call, params)
        except Refusal as refusal:
            self._reply(call, refusal.pair, None)
            return
        if not isinstance(result, CoroutineType):
            self._reply(call, None, result)
            return
        limit = self._server.limits.requests
        if self._deferred >= limit:
            result.close()
            too_many = Refusal("EAGAIN", f"{limit} requests of this client wait already ([limits] requests)")
            self._reply(call, too_many.pair, None)
            return
        self._deferred += 1
        self.start(self._finish, call, result)

    async def _finish(self, call: Call, coroutine: CoroutineType[Any, Any, object]) -> None:
        try:
            result = await coroutine
        except Refusal as refusal:
            self._reply(call, refusal.pair, None)
        else:
            self._reply(call, None, result)
        finally:
            self._deferred -= 1
        self._server.flush()
        self.moved()

    def _reply(self, call: Call, error: tuple[int, str] | None, result: object) -> None:
        """Answer once the newest event that the answer may have seen is on disk."""
        then = call.then if error is None else None
        if call.msgid is None:
            if then is not None:
                then()
            return
        data = response(call.msgid, error, result)
        self._gated += 1
        self._gated_bytes += len(data)
        if error is not None and error[1].startswith("ENOSPC:"):
            self._answer(data, then)  # it says that the disk is full, and must not wait for room on it
        else:
            self._server.gate(partial(self._answer, data, then))

    def _answer(self, data: bytes, then: Callable[[], None] | None) -> None:
        self._gated -= 1
        self._gated_bytes -= len(data)
        self.send(data)
        if then is not None and not self.closed:
            then()
        self.moved()


def _name(value: object) -> str | None:
    """Return a method's name, which comes as text or, from old clients, as bin."""
    if type(value) is bytes:
        return value.decode(errors="backslashreplace")
    return value if type(value) is str else None
