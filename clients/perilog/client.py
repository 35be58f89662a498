"""The synchronous client library: one connection to the broker, calls and watches over it.

    with perilog.connect() as broker:
        job = broker.submit(nodes="n1")
        for event in broker.watch(job):
            print(event.name, event.context)

What any Python program may use lives here. Printing, argument parsing and exit statuses do not, nor
does anything that needs trio or perilogd itself.
"""

from __future__ import annotations

import contextlib
import select
import socket as sockets
import subprocess
import time
from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, Self

import msgpack

from perilog.errors import Error, TimedOut, Unreachable, lost, refusal, unreachable
from perilog.verbs import job as read_job
from perilog.wire import default_socket

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class Event(NamedTuple):
    """One entry of a job's log, or something that a watch has to tell.

    Args:
        job: the job's id; 0 for `gap`.
        seq: the broker-wide sequence number; None for `progress`, which is not kept.
        timestamp: seconds since the epoch.
        name: the event's name. A watch also yields `progress` (where asked for) and `gap`, whose
            context's `from` and `to` say which sequence numbers were purged before they could be read.
        context: the event's keys and values.
    """

    job: int
    seq: int | None
    timestamp: float
    name: str
    context: dict[str, Any]


def connect(
    socket: str | None = None,
    *,
    timeout: float | None = None,
    patience: float = 0.0,
    provider: str | None = None,
) -> Client:
    """Connect to the broker; see `Client` for the arguments."""
    return Client(socket, timeout=timeout, patience=patience, provider=provider)


class Client:
    """One connection to the broker.

    Not for use by several threads at a time: give each its own.

    Args:
        socket: path of the broker's socket, or `ssh:HOST` for the broker of another host, reached
            through `ssh HOST perilog relay`; default: `$PERILOG_SOCKET`, else the system's broker.
        timeout: seconds that `call` waits for a reply; None: as long as the connection lives.
        patience: seconds to go on trying while the broker cannot be reached, when connecting, in
            `reconnect`, and when a watch's connection breaks.
        provider: name of the configured provider that this connection speaks for.

    Raises:
        Unreachable: the broker does not answer on the socket.
        Error: the broker refuses the connection or the provider's name.
    """

    def __init__(
        self,
        socket: str | None = None,
        *,
        timeout: float | None = None,
        patience: float = 0.0,
        provider: str | None = None,
    ) -> None:
        self.socket = socket or default_socket()
        self.timeout = timeout
        self.patience = patience
        self._provider = provider
        self._replies: dict[int, Reply] = {}
        self.watches: list[Watch] = []  # those that have not ended
        self._msgid = 0
        self._socket: sockets.socket | None = None
        self._ssh: subprocess.Popen[bytes] | None = None
        self._decoder = msgpack.Unpacker()
        self.reconnect()

    def __enter__(self) -> Self:
        """Return the client itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the connection."""
        self.close()

    def call(self, method: str, /, **arguments: Any) -> Any:
        """Call a method of the broker and return its result.

        Args:
            method: a name such as `job.get`.
            arguments: the method's named arguments; those that are None are left out.

        Raises:
            Error: the broker refused; `code` says how.
            TimedOut: no reply came within the client's `timeout`.
            Unreachable: the connection broke. The request may or may not have been carried out.
        """
        return self.begin(method, **arguments).result(self.timeout)

    def begin(self, method: str, /, **arguments: Any) -> Reply:
        """Send a request without waiting for its reply, so that many can be on their way at once.

        Args and raises as in `call`, but for the broker's refusal, which the reply's `result` raises.
        """
        return self.request(method, arguments)

    def request(
        self, method: str, arguments: dict[str, Any], then: Callable[[Reply], None] | None = None
    ) -> Reply:
        """Send a request, as `begin` does.

        Args:
            method: a name such as `job.get`.
            arguments: the method's named arguments; those that are None are left out.
            then: called with the reply as soon as it is there. It must not make requests.
        """
        given = {name: value for name, value in arguments.items() if value is not None}
        self._msgid += 1
        frame = msgpack.packb([0, self._msgid, method, [given]])
        reply = self._replies[self._msgid] = Reply(self, method, then)
        self._send(frame)
        return reply

    def submit(self, **arguments: Any) -> int:
        """Submit a job (`job.submit`) and return its id."""
        return int(self.call("job.submit", **arguments)["id"])

    def wait(self, job: int, event: str, timeout: float | None = None) -> dict[str, Any]:
        """Wait until a job's log has an event, and return that.

        Args:
            job: the job's id.
            event: the event's name.
            timeout: seconds to wait; None: until it comes, or can no longer come.

        Raises:
            TimedOut: it did not come within `timeout` seconds.
            Error: ESTATE, if it can no longer come.
        """
        event_map: dict[str, Any] = self.begin("job.wait", id=job, event=event, timeout=timeout).result()
        return event_map

    def watch(
        self,
        job: int | None = None,
        *,
        start: int | None = None,
        names: list[str] | None = None,
        progress: bool = False,
    ) -> Watch:
        """Follow the log of one job, or of all jobs that this user may see.

        Args:
            job: the job's id; None for all jobs.
            start: the first sequence number that is wanted; default: the job's beginning, or, without
                `job`, now.
            names: only events with these names.
            progress: also tell the progress of holds.
        """
        return Watch(self, job, start, names, progress=progress)

    def find(self, name: str) -> int:
        """Return the id of the job that a person calls `name`: an id, a key, or `key:` and a key."""
        job = read_job(name)
        return job if isinstance(job, int) else int(self.call("job.get", key=job)["id"])

    def pages(self, method: str, key: str, /, **arguments: Any) -> Iterator[dict[str, Any]]:
        """Yield all entries of a listing method, page by page.

        Args:
            method: a method that is paged, such as `job.list`.
            key: the entries' key that pages are counted by: `seq` continues with `from`, all others
                with `after`.
            arguments: the method's other arguments.
        """
        while page := self.call(method, **arguments):  # a page may be short though more follow
            yield from page
            last = page[-1][key]
            arguments |= {"from": last + 1} if key == "seq" else {"after": last}

    def fileno(self) -> int:
        """Return the connection's descriptor, for a program's own select or poll."""
        return self._connection().fileno()

    def receive(self, timeout: float | None = 0.0) -> bool:
        """Take in what has arrived; replies and watches then have it.

        Args:
            timeout: seconds to wait for something; None: for ever.

        Returns:
            Whether anything arrived.

        Raises:
            Unreachable: the connection ended.
        """
        return bool(self._poll(select.POLLIN, timeout)) and self._read()

    def reconnect(self, patience: float | None = None) -> None:
        """Connect again, and let watches go on where they were.

        Args:
            patience: seconds to go on trying; default: the client's own.

        Raises:
            Unreachable: it did not work.
        """
        end = time.monotonic() + (self.patience if patience is None else patience)
        pause = 0.05
        while True:
            self._drop(lost(self.socket))
            try:
                self._open()
                for watch in self.watches:
                    if not watch.ended:  # else its last events only wait to be taken
                        watch.resume()
            except Unreachable:
                left = end - time.monotonic()
                if left <= 0:
                    raise
                time.sleep(min(pause, left))
                pause = min(2 * pause, 1.0)
            else:
                return

    def close(self) -> None:
        """Close the connection. What it was bound to (a lease, a provider) ends with it."""
        self.watches.clear()
        self._drop(Unreachable(f"the connection to the broker at {self.socket} was closed"))

    def _open(self) -> None:
        if self.socket.startswith("ssh:"):
            self._socket, self._ssh = _through_ssh(self.socket.removeprefix("ssh:"))
        else:
            self._socket = sockets.socket(sockets.AF_UNIX)
            try:
                self._socket.connect(self.socket)
            except OSError as error:
                reason = unreachable(self.socket, error.strerror or str(error))
                self._drop(reason)
                raise reason from None
        self._socket.setblocking(False)
        self._decoder = msgpack.Unpacker()
        if self._provider is not None:
            try:
                self.call("hello", client="perilog", provider=self._provider)
            except Error:
                self._drop(lost(self.socket))
                raise

    def _drop(self, reason: Unreachable) -> None:
        """Forget the connection; every reply that was still expected fails."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        if self._ssh is not None:
            # It has lost both of its ends, so it goes by itself unless its own network hangs.
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._ssh.wait(1.0)
            self._ssh.kill()
            self._ssh.wait()
            self._ssh = None
        replies, self._replies = self._replies, {}
        for reply in replies.values():
            reply.settle(reason, None)

    def _connection(self) -> sockets.socket:
        if self._socket is None:
            raise Unreachable(f"the connection to the broker at {self.socket} is closed")
        return self._socket

    def _poll(self, events: int, timeout: float | None) -> int:
        poll = select.poll()
        poll.register(self._connection(), events)
        ready = poll.poll(None if timeout is None else max(0.0, timeout) * 1000)
        return ready[0][1] if ready else 0

    def _send(self, data: bytes) -> None:
        """Send a request, taking in what arrives meanwhile.

        The broker stops reading from a client that does not read what it was sent, so writing
        without reading could wait for ever.
        """
        rest = memoryview(data)
        while rest:
            try:
                rest = rest[self._connection().send(rest) :]
            except BlockingIOError:
                if self._poll(select.POLLIN | select.POLLOUT, None) & select.POLLIN:
                    self._read()
            except (BrokenPipeError, ConnectionResetError):
                self._read()  # a broker that refuses the connection says why before it closes

    def _read(self) -> bool:
        try:
            data = self._connection().recv(1 << 18)
        except BlockingIOError:
            return False
        except ConnectionResetError:
            data = b""
        if not data:
            self._fail(lost(self.socket))
        try:
            self._decoder.feed(data)
            for message in self._decoder:
                self._dispatch(message)
        except (ValueError, TypeError, KeyError) as error:
            self._fail(
                Unreachable(f"what answers at {self.socket} does not speak perilogd's protocol: {error!r}")
            )
        return True

    def _fail(self, reason: Unreachable) -> NoReturn:
        self._drop(reason)
        raise reason

    def _dispatch(self, message: list[Any]) -> None:
        if message[0] == 1:
            _, msgid, error, result = message
            reply = self._replies.pop(msgid, None)
            if reply is not None:  # else it comes from before a reconnect, or nobody waits any more
                reply.settle(None if error is None else refusal(error), result)
        else:
            _, name, (params,) = message
            for watch in self.watches:
                if watch.id == params["watch"]:
                    watch.arrived(name, params)


class Reply:
    """The reply to one request, once it has come.

    Args:
        client: the connection on which it comes.
        method: the method that was called.
        then: see `Client.request`.
    """

    __slots__ = ("_client", "_error", "_method", "_result", "_then", "done")

    def __init__(self, client: Client, method: str, then: Callable[[Reply], None] | None = None) -> None:
        self._client = client
        self._method = method
        self._then = then
        self._error: Error | None = None
        self._result: Any = None
        self.done = False

    def settle(self, error: Error | None, result: Any) -> None:
        """Take the outcome (the client calls this)."""
        self.done = True
        self._error = error
        self._result = result
        if self._then is not None:
            self._then(self)

    def result(self, timeout: float | None = None) -> Any:
        """Wait for the reply and return its result.

        Args:
            timeout: seconds to wait; None: as long as the connection lives.

        Raises:
            Error: the broker refused.
            TimedOut: no reply came in time; one that comes later is ignored.
            Unreachable: the connection broke first.
        """
        end = None if timeout is None else time.monotonic() + timeout
        while not self.done:
            left = None if end is None else end - time.monotonic()
            if left is not None and left <= 0:
                raise TimedOut(f"the broker did not reply to {self._method} within {timeout:g} s")
            try:
                self._client.receive(left)
            except Unreachable:
                if not self.done:  # else it is this reply's own error, and raised below
                    raise
        if self._error is not None:
            raise self._error
        return self._result


class Watch:
    """The events of one job, or of all, in order; made by `Client.watch`.

    Iterating waits for the next event, and ends after a watched job's last one (`clean`). If the
    connection breaks, the client's `patience` decides whether iterating raises Unreachable or goes on
    over a new connection. Either way nothing is missed or seen twice: after `Client.reconnect` a
    watch goes on behind the last event that arrived.
    """

    def __init__(
        self, client: Client, job: int | None, start: int | None, names: list[str] | None, *, progress: bool
    ) -> None:
        self._client = client
        self._job = job
        self._start = start
        self._names = names
        self._progress = progress
        self._events: deque[Event] = deque()
        self._fault: Error | None = None
        self.id: int | None = None
        self.ended = False
        client.watches.append(self)
        try:
            self.resume()
        except Unreachable:
            client.watches.remove(self)
            raise

    def __iter__(self) -> Iterator[Event]:
        """Yield event after event."""
        while (event := self.next()) is not None:
            yield event

    def next(self, timeout: float | None = None) -> Event | None:
        """Wait for the next event and return it.

        Args:
            timeout: seconds to wait; None: for ever.

        Returns:
            The event; None if none came in time, or none can come any more (`ended`).
        """
        end = None if timeout is None else time.monotonic() + timeout
        while not self._events:
            left = None if end is None else end - time.monotonic()
            if self._over() or (left is not None and left <= 0):
                return None
            try:
                self._client.receive(left)
            except Unreachable:
                if not self._client.patience:
                    raise
                self._client.reconnect()
        return self._events.popleft()

    def take(self) -> list[Event]:
        """Return what has arrived and was not taken yet, without waiting."""
        events = list(self._events)
        self._events.clear()
        if not events:
            self._over()
        return events

    def cancel(self) -> None:
        """Ask the broker for no more of this watch's events; what has arrived can still be taken."""
        self.ended = True
        if self in self._client.watches:
            self._client.watches.remove(self)
        watch, self.id = self.id, None
        if watch is not None:
            with contextlib.suppress(Unreachable):  # it has ended with its connection
                self._client.begin("watch.cancel", watch=watch)

    def resume(self) -> None:
        """Subscribe, on a new connection too (the client calls this)."""
        self.id = None
        arguments = {
            "id": self._job,
            "from": self._start,
            "names": self._names,
            "progress": self._progress or None,
        }
        self._client.request("job.watch", arguments, self._subscribed)

    def arrived(self, kind: str, params: dict[str, Any]) -> None:
        """Take one notification (the client calls this)."""
        if kind == "event":
            event = Event(*(params[field] for field in Event._fields))
            self.ended = self._job is not None and event.name == "clean"
        elif kind == "gap":
            event = Event(0, params["to"], time.time(), kind, {"from": params["from"], "to": params["to"]})
        elif kind == "progress":
            told = {name: value for name, value in params.items() if name not in ("watch", "job")}
            event = Event(params["job"], None, time.time(), kind, told)
        else:
            return  # of a later version of the protocol
        self._events.append(event)
        if event.seq is not None:
            self._start = event.seq + 1

    def _subscribed(self, reply: Reply) -> None:
        try:
            result = reply.result()
            self.id = result["watch"]
            if self._start is None:  # "now" stays the moment of the first subscription, come what may
                self._start = result.get("from")
        except Unreachable:
            pass  # the next reconnect subscribes again
        except Error as error:
            self._fault = error

    def _over(self) -> bool:
        """Tell whether no event can come any more; raise what the broker said against the watch."""
        if self._fault is not None:
            raise self._fault
        if self.ended:
            self.cancel()  # a connection may have so many watches only
        return self.ended


def _through_ssh(host: str) -> tuple[sockets.socket, subprocess.Popen[bytes]]:
    """Start `ssh HOST perilog relay` and return the socket that leads through it.

    It gets a session of its own: a ctrl-C meant for the command must not cut its connection. So it
    cannot ask for a password either (BatchMode), and says on stderr what it lacks.
    """
    ours, theirs = sockets.socketpair()
    with theirs:
        try:
            command = ["ssh", "-T", "-o", "BatchMode=yes", "--", host, "perilog", "relay"]
            return ours, subprocess.Popen(
                command, stdin=theirs.fileno(), stdout=theirs.fileno(), start_new_session=True
            )
        except OSError as error:
            ours.close()
            raise unreachable(f"ssh:{host}", f"ssh cannot be started: {error.strerror}") from None
