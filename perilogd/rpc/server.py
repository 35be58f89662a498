"""The server: accepts clients, and says who they are to the broker.

Listening, accepting, counting connections and `hello` live here. What happens on one connection
does not, nor any method that means something to a job.
"""

from __future__ import annotations

import errno
import itertools
import os
import socket
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from weakref import WeakValueDictionary

import structlog
import trio

from perilogd.errors import Refusal
from perilogd.rpc import framing
from perilogd.rpc.connection import Connection, Standing
from perilogd.rpc.credentials import peer
from perilogd.rpc.hangup import Hangups
from perilogd.rpc.method import EVERYONE, Call, Method
from perilogd.rpc.params import NAME, Argument, printable_up_to

log = structlog.get_logger(__name__)

#: Version of the protocol that `hello` reports.
PROTOCOL = 1

#: Connections that the kernel keeps until they are accepted: a wave of hooks must not be turned away.
_BACKLOG = 1024

#: Connections accepted before others get their turn.
_ACCEPT_BATCH = 64

#: Worker threads for the requests of all clients together: they must not crowd out the loop.
_WORKERS = 2

#: accept(2) fails so when the machine, or this process, is short of something that may come back.
_SHORTAGE = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})
#: accept(2) fails so when the one connection that it was about has gone.
_GONE = frozenset({errno.ECONNABORTED, errno.EINTR, errno.EPROTO, errno.EPERM})
#: Seconds to wait for it to come back.
_SHORTAGE_PAUSE = 0.1

#: Bytes read of what a client says that is turned away.
_FIRST_REQUEST = 4096

#: How long, in seconds, and for how many at a time, we wait for the first request of a client that is one
#: too many, so that it can be told why.
_TURN_AWAY_TIME = 1.0
_TURN_AWAY_NUMBER = 64


@dataclass(frozen=True, slots=True)
class Limits:
    """Bounds on what clients may take up.

    Args:
        frame: largest frame in bytes.
        connections: most connections of one uid; administrators may have more.
        requests: most requests of one connection that wait for an answer.
    """

    frame: int = framing.FRAME_LIMIT
    connections: int = 256
    requests: int = 1000


class Server:
    """Speaks MessagePack-RPC with any number of clients.

    Everything runs on the trio thread. Handlers, `gate` and the callbacks must not block.

    Args:
        methods: the table of methods; `hello` is added to it.
        version: the broker's version, for `hello`.
        standing: says what a uid is.
        gate: takes a function that sends a reply, and runs it once the newest appended event is committed:
            at once if none is pending, and in order. Whoever runs them later calls `flush` after them.
        on_hello: called after a client has said hello, when it may have been bound to a provider.
        on_close: called after a connection has ended while the broker goes on.
        limits: may be replaced at any time; a new frame limit counts for new connections.

    Attributes:
        methods: the whole table.
        connections: the connections by id.
        unsent: connections that have something to send; kept by them.
        workers: bounds the threads that work on requests.
        hangups: tells half-closed connections that the client has gone.
    """

    def __init__(
        self,
        methods: Mapping[str, Method],
        *,
        version: str,
        standing: Callable[[int], Standing],
        gate: Callable[[Callable[[], None]], None],
        on_hello: Callable[[Connection], None],
        on_close: Callable[[Connection], None],
        limits: Limits,
    ) -> None:
        self.methods = {**methods, "hello": self._hello_method()}
        self.standing = standing
        self.gate = gate
        self.limits = limits
        self.connections: dict[int, Connection] = {}
        self.unsent: list[Connection] = []
        self.hangups = Hangups()
        self._version = version
        self._on_hello = on_hello
        self._on_close = on_close
        self._ids = itertools.count(1)
        self._by_uid: Counter[int] = Counter()
        self._users = WeakValueDictionary[int, trio.Lock]()  # those whose clients are served one by one now
        self._turns = WeakValueDictionary[int, trio.Lock]()
        self.workers = trio.CapacityLimiter(_WORKERS)
        self._turned_away = 0

    def user(self, uid: int) -> trio.Lock:
        """Return what lets the clients of one user through one by one."""
        return self._users.setdefault(uid, trio.Lock())

    async def turn(self, connection: Connection) -> None:
        """Wait for a connection's next turn: everybody else comes first, but a user's clients one by one.

        So all the connections of a user who sends without end delay the others no more than one does. Those
        of administrators do not wait for each other: many of them at once are the hooks of a wave of jobs.
        """
        if connection.standing.role == "admin":
            await trio.lowlevel.checkpoint()
            return
        async with self._turns.setdefault(connection.credentials.uid, trio.Lock()):
            await trio.lowlevel.checkpoint()

    def flush(self) -> None:
        """Send what has been queued for clients. Never waits."""
        unsent, self.unsent = self.unsent, []
        for connection in unsent:
            connection.flush()

    def renew(self) -> None:
        """Ask again what each client is, after the configuration has changed."""
        for connection in self.connections.values():
            connection.standing = self.standing(connection.credentials.uid)

    async def serve(self, listener: socket.socket) -> None:
        """Serve clients until cancelled.

        Args:
            listener: a listening Unix stream socket. It stays open, and the caller's.
        """
        listener.setblocking(False)
        short = False
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.hangups.run)
            while True:
                await trio.lowlevel.wait_readable(listener)
                try:
                    for _ in range(_ACCEPT_BATCH):
                        self._welcome(listener.accept()[0], nursery)
                        short = False
                except BlockingIOError:
                    continue
                except OSError as error:
                    if error.errno in _GONE:
                        continue
                    if error.errno not in _SHORTAGE:
                        raise
                    if not short:
                        short = True
                        log.warning(
                            "cannot accept connections: new clients wait, the others are served",
                            error=os.strerror(error.errno),
                            connections=len(self.connections),
                        )
                    await trio.sleep(_SHORTAGE_PAUSE)

    def _welcome(self, sock: socket.socket, nursery: trio.Nursery) -> None:
        sock.setblocking(False)
        credentials = peer(sock)
        uid = credentials.uid
        limit = self.limits.connections
        if self._by_uid[uid] < limit or self.standing(uid).role == "admin":
            connection = Connection(self, sock, next(self._ids), credentials)
            self._by_uid[uid] += 1
            self.connections[connection.id] = connection
            nursery.start_soon(self._serve_one, connection)
        elif self._turned_away < _TURN_AWAY_NUMBER:
            self._turned_away += 1
            refusal = Refusal("EAGAIN", f"uid {uid} has {limit} connections ([limits] connections-per-user)")
            nursery.start_soon(self._turn_away, sock, refusal)
        else:
            sock.close()

    async def _serve_one(self, connection: Connection) -> None:
        try:
            await connection.serve()
        finally:
            del self.connections[connection.id]
            self._by_uid[connection.credentials.uid] -= 1
        # Not in the `finally`: when it is the broker that ends, its clients have not gone.
        self._on_close(connection)

    async def _turn_away(self, sock: socket.socket, refusal: Refusal) -> None:
        try:
            with sock, trio.move_on_after(_TURN_AWAY_TIME):
                await trio.lowlevel.wait_readable(sock)
                # A courtesy to one client more than there may be: if it has gone, or its first request is not
                # there or not sound, then it is not told.
                with suppress(OSError, framing.FrameError):
                    for message in framing.Decoder().feed(sock.recv(_FIRST_REQUEST)):
                        match message:
                            case [0, int(msgid), _, _] if framing.is_msgid(msgid):
                                sock.send(framing.response(msgid, refusal.pair, None))
                        break
        finally:
            self._turned_away -= 1

    def _hello_method(self) -> Method:
        return Method(
            "hello",
            self._hello,
            (
                Argument("client", printable_up_to(255), required=True, doc="what the client calls itself"),
                Argument("provider", NAME, doc="the provider that this connection speaks for"),
            ),
            roles=EVERYONE,
            doc="Say who is calling; not required, but binds the connection to a provider.",
            result="{protocol, version, uid, role, id}",
        )

    def _hello(self, call: Call, client: str, provider: str | None = None) -> dict[str, object]:
        connection = call.connection
        if provider is not None and provider not in call.providers:
            raise Refusal(
                "EPERM", f"uid {call.uid} may not speak for provider {provider} ([[provider]] users)"
            )
        if provider is not None and connection.provider not in (None, provider):
            raise Refusal("EINVAL", f"argument provider: this connection speaks for {connection.provider}")
        connection.client = client
        connection.provider = provider or connection.provider
        self._on_hello(connection)
        return {
            "protocol": PROTOCOL,
            "version": self._version,
            "uid": call.uid,
            "role": call.role,
            "id": connection.id,
        }


def listen(path: Path) -> socket.socket:
    """Return a listening Unix stream socket that everybody may connect to: roles decide what he may do then.

    A socket file that nobody listens on any more is replaced. Call it with the state folder locked.

    Args:
        path: the socket's file; its folder exists.

    Raises:
        FileExistsError: something else is there, or another process listens on it.
        OSError: the file cannot be made.
    """
    if path.is_socket():
        with socket.socket(socket.AF_UNIX) as probe:
            probe.setblocking(False)
            try:
                probe.connect(os.fspath(path))
            except ConnectionRefusedError:
                path.unlink()
            except BlockingIOError:
                pass  # somebody listens, and is busy
    listener = socket.socket(socket.AF_UNIX)
    try:
        listener.bind(os.fspath(path))
        path.chmod(0o666)  # before listen(2): until then connect(2) is refused whatever the mode
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise FileExistsError(
                f"cannot listen on {path}: another process listens there, or it is no socket;"
                " use another path (--socket)"
            ) from error
        raise
    return listener
