"""A stand-in for the broker, for what a real one does not do on demand: refuse, break off, come back.

It speaks the real protocol over a real socket, and lets one kind of job pass through its life. What
perilogd itself does is tested against perilogd.
"""

from __future__ import annotations

import contextlib
import itertools
import socket
import struct
import threading
import time
from collections import Counter
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import msgpack

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

#: Longest time in seconds that a test waits for something. Only a fault lasts that long.
PATIENCE = 30.0


class Refused(Exception):  # noqa: N818 - it names an answer
    """The broker's error reply: `[kind, "CODE: text"]`."""


class Then(NamedTuple):
    """A result, and what happens once it is on its way."""

    result: Any
    then: Callable[[], None]


class Connection:
    """One client's connection, as the broker sees it."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        credentials = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
        self.pid, self.uid, self.gid = struct.unpack("3i", credentials)
        self._lock = threading.Lock()

    def send(self, *messages: object) -> None:
        """Send messages; a client that has gone is no fault."""
        with self._lock, contextlib.suppress(OSError):
            self.sock.sendall(b"".join(map(msgpack.packb, messages)))

    def cut(self) -> None:
        """Break the connection, as a death does."""
        with contextlib.suppress(OSError):
            self.sock.shutdown(socket.SHUT_RDWR)


class FakeBroker:
    """Answers requests as it is told to, on a socket.

    Args:
        path: the socket's path.

    Attributes:
        answers: method → its result, an exception to refuse with, or a function of connection and arguments.
        requests: what has arrived, as pairs of method and arguments.
        before: called with each request before it is answered; returns False to leave it unanswered.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.answers: dict[str, Any] = {}
        self.requests: list[tuple[str, dict[str, Any]]] = []
        self.connections: list[Connection] = []
        self.before: Callable[[Connection, str, dict[str, Any]], bool] = lambda *_: True
        self._changed = threading.Condition()
        self._dealt_with: Counter[str] = Counter()
        self._listener: socket.socket | None = None
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> Self:
        """Start."""
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop, and wait for all that was begun."""
        self.stop()
        for thread in self._threads:
            thread.join(PATIENCE)

    def start(self) -> None:
        """Listen."""
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(self.path))
        self._listener.listen(64)
        self._thread(self._accept, self._listener)

    def stop(self) -> None:
        """Die: the socket goes, every connection breaks."""
        listener, self._listener = self._listener, None
        if listener is not None:
            self.path.unlink()
            listener.shutdown(socket.SHUT_RDWR)
            listener.close()
        for connection in self.connections:
            connection.cut()
        self.connections.clear()

    def named(self, method: str) -> list[dict[str, Any]]:
        """Return the arguments of all requests for one method so far."""
        return [arguments for name, arguments in list(self.requests) if name == method]

    def until(self, method: str, count: int = 1) -> list[dict[str, Any]]:
        """Wait until so many requests for a method have been dealt with; return the arguments of all."""
        with self._changed:
            assert self._changed.wait_for(lambda: self._dealt_with[method] >= count, PATIENCE), (
                f"{method} was not asked for {count} times, but: {self.requests}"
            )
        return self.named(method)

    def notify(self, method: str, **params: Any) -> None:
        """Send a notification to all clients."""
        for connection in list(self.connections):
            connection.send([2, method, [params]])

    def _thread(self, target: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=target, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self, listener: socket.socket) -> None:
        with contextlib.suppress(OSError):  # stop() ends it
            while True:
                sock, _ = listener.accept()
                connection = Connection(sock)
                self.connections.append(connection)
                self._thread(self._serve, connection)

    def _serve(self, connection: Connection) -> None:
        unpacker = msgpack.Unpacker()
        with connection.sock, contextlib.suppress(ConnectionResetError):
            while data := connection.sock.recv(65536):
                unpacker.feed(data)
                for _, msgid, method, params in unpacker:
                    arguments = params[0] if params else {}
                    go_on = self.before(connection, method, arguments)
                    self.requests.append((method, arguments))
                    if go_on:
                        self._answer(connection, msgid, method, arguments)
                    with self._changed:
                        self._dealt_with[method] += 1
                        self._changed.notify_all()

    def _answer(self, connection: Connection, msgid: int, method: str, arguments: dict[str, Any]) -> None:
        answer = self.answers.get(method, Refused(f"EINVAL: no such method: {method}"))
        try:
            result = answer(connection, **arguments) if callable(answer) else answer
            if isinstance(result, Exception):
                raise result
        except Refused as refused:
            connection.send([1, msgid, [1, str(refused)], None])
        else:
            value, then = result if isinstance(result, Then) else (result, None)
            connection.send([1, msgid, None, value])
            if then is not None:
                then()


class FakeLife(FakeBroker):
    """A broker with one job at a time, 17, that goes from submit to clean.

    Attributes:
        ready: whether jobs become ready by themselves.
        finishing: whether jobs go on from exit to clean by themselves.
        log: the job's events.
        environment: variables for the application.
    """

    JOB = 17

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.ready = True
        self.finishing = True
        self.log: list[dict[str, Any]] = []
        self.environment: dict[str, str] = {}
        self.submitted: dict[str, Any] = {}
        self._watches: list[tuple[Connection, int]] = []
        self._ids = itertools.count(1)
        self._lock = threading.RLock()
        self.answers = {
            "job.submit": self._submit,
            "job.watch": self._watch,
            "job.get": lambda *_, **__: self.job(),
            "job.start": self._start,
            "job.exit": self._exit,
            "job.cancel": lambda _, **given: self.cancel(given.get("note", "")),
            "broker.ping": {"version": "0"},
            "watch.cancel": {},
        }

    def names(self) -> list[str]:
        """Return the names of the events so far."""
        return [event["name"] for event in self.log]

    def event(self, name: str) -> dict[str, Any]:
        """Return the context of the only event of a name."""
        (found,) = (event["context"] for event in self.log if event["name"] == name)
        return dict(found)

    def post(self, name: str, /, **context: Any) -> None:
        """Append an event and tell the watchers."""
        with self._lock:
            event = {"seq": len(self.log) + 1, "timestamp": time.time(), "name": name, "context": context}
            self.log.append(event)
            for connection, watch in self._watches:
                connection.send([2, "event", [{"watch": watch, "job": self.JOB, **event}]])

    def job(self) -> dict[str, Any]:
        """Return the job's map."""
        state = "RUN" if "ready" in self.names() else "PROLOG"
        status = next((event["context"]["status"] for event in self.log if event["name"] == "finish"), None)
        fatal = any(e["name"] == "exception" and e["context"]["severity"] == 0 for e in self.log)
        if "clean" in self.names():
            state = "INACTIVE"
        code = None
        if status is not None or "clean" in self.names():
            number = status or 0
            code = number >> 8 or (128 + number if number else 0) or int(fatal)
        return {
            "id": self.JOB,
            "key": self.submitted.get("key"),
            "name": self.submitted.get("name"),
            "userid": 0,
            "state": state,
            "nodes": self.submitted.get("nodes", ""),
            "environment": self.environment,
            "attempt": 1,
            "result": ("CANCELED" if fatal else "FAILED" if code else "COMPLETED")
            if code is not None
            else None,
            "exit_code": code,
            "waiting_for": "prolog script scratch: for 3 s" if state == "PROLOG" else "",
        }

    def cancel(self, note: str) -> dict[str, Any]:
        """Raise the exception `cancel`; a job whose application has not started ends."""
        with self._lock:
            self.post("exception", type="cancel", severity=0, note=note)
            if "start" not in self.names():
                self.post("clean")
        return {}

    def finish(self, status: int) -> None:
        """Let the job go from its exit to its end."""
        self.post("finish", status=status)
        self.post("clean")

    def _submit(self, _: Connection, **given: Any) -> dict[str, Any]:
        with self._lock:
            if self.log:
                return {"id": self.JOB, "created": False}
            self.submitted = given
            self.post("submit", userid=0, **given)
            self.post("depend")
            self.post("alloc", nodes=given.get("nodes", ""))
            if self.ready:
                self.post("ready")
            return {"id": self.JOB, "created": True}

    def _watch(self, connection: Connection, **given: Any) -> Then:
        if given.get("id") != self.JOB:
            raise Refused(f"ENOENT: no such job: {given.get('id')}")
        with self._lock:
            watch = next(self._ids)

        def begin() -> None:
            with self._lock:
                for event in self.log[max(0, given.get("from", 1) - 1) :]:
                    connection.send([2, "event", [{"watch": watch, "job": self.JOB, **event}]])
                self._watches.append((connection, watch))

        return Then({"watch": watch, "oldest": 1}, begin)

    def _start(self, _: Connection, **given: Any) -> dict[str, Any]:
        with self._lock:
            if any(event["name"] == "exception" for event in self.log) or "exit" in self.names():
                raise Refused("ESTATE: job 17 is in state EPILOG, it can start only in RUN")
            if "start" not in self.names():
                self.post("start", attempt=given["attempt"], lease=given["lease"])
            return {"attempt": 1}

    def _exit(self, _: Connection, **given: Any) -> dict[str, Any]:
        with self._lock:
            if "exit" in self.names():
                if self.event("exit")["status"] != given["status"]:
                    raise Refused("ESTATE: attempt 1 of job 17 has ended with another status")
                return {"attempt": 1}
            self.post("exit", status=given["status"], attempt=given["attempt"])
            if self.finishing:
                self.finish(given["status"])
            return {"attempt": 1}
