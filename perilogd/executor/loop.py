"""The loop: who may connect, what is asked for, and the order of work in a turn.

A turn is: take note of what has ended; read what is asked; do what is due; tell the broker, once. All that
came in together goes out together, which is what makes many short scripts cheap. A cancel that came in with
its run is seen before the spawn.
"""

from __future__ import annotations

import logging
import os
import select
import signal
import socket
from typing import TYPE_CHECKING, Any

from perilogd import __version__
from perilogd.executor import wire
from perilogd.executor.channel import Channel, Closed
from perilogd.executor.wire import WireError

if TYPE_CHECKING:
    from collections.abc import Callable

    from perilogd.executor.definitions import Definitions
    from perilogd.executor.output import Outputs
    from perilogd.executor.supervisor import Supervisor

logger = logging.getLogger(__name__)

#: Connections at a time. One is the broker's; more are its successors that did not say hello yet.
_CONNECTIONS = 8

#: Runs known at a time, ended ones included; a broker asks for a small part of that.
_RUNS = 1 << 17

#: Longest sleep in seconds: epoll does not count the time that the machine sleeps, deadlines do.
_LONGEST = 60.0


class Watcher:
    """Functions to be called when descriptors are ready."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._calls: dict[int, Callable[[], None]] = {}

    def watch(self, fd: int, call: Callable[[], None] | None) -> None:
        """Call a function whenever a descriptor is readable; None, to be said before closing, ends that."""
        if call is None:
            del self._calls[fd]
            self._epoll.unregister(fd)
        else:
            self._calls[fd] = call
            self._epoll.register(fd, select.EPOLLIN)

    def change(self, fd: int, *, read: bool, write: bool) -> None:
        """Say what a watched descriptor is watched for."""
        self._epoll.modify(fd, (select.EPOLLIN if read else 0) | (select.EPOLLOUT if write else 0))

    def wait(self, timeout: float) -> list[int]:
        """Return the descriptors that are ready, after at most some seconds."""
        return [fd for fd, _ in self._epoll.poll(timeout)]

    def call(self, fd: int) -> None:
        """Call the function of a descriptor, unless it is not watched any more."""
        if (call := self._calls.get(fd)) is not None:
            call()


class Signals:
    """What this process was told by signals.

    Attributes:
        stop: SIGTERM or SIGINT came.
        again: SIGHUP came.
    """

    def __init__(self, watcher: Watcher) -> None:
        self.stop = False
        self.again = False
        reader, writer = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._reader = reader
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        watcher.watch(reader, self._drain)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_stop)
        signal.signal(signal.SIGHUP, self._on_again)
        signal.signal(signal.SIGCHLD, lambda _number, _frame: None)

    def _on_stop(self, _number: int, _frame: object) -> None:
        self.stop = True

    def _on_again(self, _number: int, _frame: object) -> None:
        self.again = True

    def _drain(self) -> None:
        os.read(self._reader, 1 << 16)


class Loop:
    """The executor at work.

    Args:
        watcher: for all descriptors.
        signals: of this process.
        listener: the listening socket.
        peers: uids that may connect.
        epoch: of the folder.
        supervisor: of the runs.
        definitions: what may be run.
        outputs: the output files.
    """

    def __init__(
        self,
        watcher: Watcher,
        signals: Signals,
        listener: socket.socket,
        *,
        peers: frozenset[int],
        epoch: str,
        supervisor: Supervisor,
        definitions: Definitions,
        outputs: Outputs,
    ) -> None:
        self._watcher = watcher
        self._signals = signals
        self._listener = listener
        self._peers = peers
        self._epoch = epoch
        self._supervisor = supervisor
        self._definitions = definitions
        self._outputs = outputs
        self._channels: set[Channel] = set()
        self._broker: Channel | None = None
        self._requests: dict[str, Callable[[Channel, dict[str, Any]], None]] = {
            "hello": self._hello,
            "cancel": lambda _, body: supervisor.cancel(body["id"], body["reason"]),
            "signal": lambda _, body: supervisor.signal(body["id"], body["signal"]),
            "ack": lambda _, body: supervisor.acknowledge(body["ids"]),
            "output": self._output,
            "prepare": self._prepare,
            "commit": self._commit,
            "keep": lambda _, body: supervisor.keep(body["definitions"]),
        }
        watcher.watch(listener.fileno(), self._accept)

    def run(self) -> None:
        """Work until a signal says otherwise; a re-exec waits until all is written down."""
        supervisor, signals, watcher = self._supervisor, self._signals, self._watcher
        timeout = 0.0
        while not (signals.stop or (signals.again and supervisor.settled)):
            ready = watcher.wait(timeout)
            supervisor.reap()
            for fd in ready:
                watcher.call(fd)
            supervisor.advance()
            self._report()
            timeout = min(_LONGEST, supervisor.timeout())

    def _report(self) -> None:
        reports = self._supervisor.take_reports()
        if self._broker is not None and self._broker.journal is not None:
            data = reports.encode(self._broker.journal)
            if data:
                self._send(self._broker, data)

    # -- connections --------------------------------------------------------------------------------

    def _accept(self) -> None:
        try:
            sock, _ = self._listener.accept()
        except OSError as error:  # it has gone again, or there are no descriptors left
            logger.warning("cannot accept a connection: %s", error)
            return
        channel = Channel(sock)
        uid = channel.peer_uid
        if uid not in self._peers or len(self._channels) >= _CONNECTIONS:
            logger.warning("a connection of uid %d was refused", uid)
            channel.close()
            return
        self._channels.add(channel)
        self._watcher.watch(channel.fileno(), lambda: self._serve(channel))

    def _serve(self, channel: Channel) -> None:
        try:
            channel.flush()
            for kind, body in channel.receive():
                self._request(channel, kind, body)
        except WireError as error:
            self._refuse(channel, str(error))
        except Closed:
            self._close(channel)
        else:
            self._watch(channel)

    def _request(self, channel: Channel, kind: str, body: dict[str, Any]) -> None:
        if channel.journal is None and kind != "hello":
            raise WireError(f"expected hello, got {kind}")
        if kind in {"run", "cancel"} and self._supervisor.crowd >= _RUNS:
            raise WireError(f"{kind}: {_RUNS} runs are known already; acknowledge those that have ended")
        if kind == "run":
            spec = wire.check_run(body)
            self._check_journal(channel, spec.id)
            self._supervisor.begin(spec)
            return
        checked = wire.check_request(kind, body)
        for run_id in checked.get("ids", ()):
            self._check_journal(channel, run_id)
        if "id" in checked:
            self._check_journal(channel, checked["id"])
        self._requests[kind](channel, checked)

    @staticmethod
    def _check_journal(channel: Channel, run_id: str) -> None:
        if run_id.partition(",")[0] != channel.journal:
            raise WireError(f"{run_id} is not a run of journal {channel.journal}")

    def _send(self, channel: Channel, data: bytes) -> None:
        try:
            channel.send(data)
        except Closed:
            self._close(channel)
        else:
            self._watch(channel)

    def _watch(self, channel: Channel) -> None:
        if channel in self._channels:
            self._watcher.change(channel.fileno(), read=channel.wants_to_read, write=channel.wants_to_write)

    def _refuse(self, channel: Channel, why: str) -> None:
        logger.warning("a connection of the broker was closed: %s", why)
        self._send(channel, wire.encode("error", {"text": why}))
        self._close(channel)

    def _close(self, channel: Channel) -> None:
        if channel not in self._channels:
            return
        self._channels.remove(channel)
        if self._broker is channel:
            self._broker = None
        self._watcher.watch(channel.fileno(), None)
        channel.close()

    # -- requests -----------------------------------------------------------------------------------

    def _hello(self, channel: Channel, body: dict[str, Any]) -> None:
        if self._broker is not None and self._broker is not channel:
            self._refuse(self._broker, "another broker has said hello")
        self._broker = channel
        channel.journal = body["journal"]
        self._supervisor.take_reports()  # all of them are in what follows
        self._send(
            channel,
            wire.encode(
                "hello",
                {
                    "protocol": wire.PROTOCOL,
                    "version": __version__,
                    "epoch": self._epoch,
                    "pid": os.getpid(),
                    "uid": os.geteuid(),
                    "config": self._definitions.config,
                    "faults": self._definitions.faults,
                    "runs": self._supervisor.listed(body["journal"]),
                },
            ),
        )

    def _output(self, channel: Channel, body: dict[str, Any]) -> None:
        excerpt = self._outputs.excerpt(body["id"], min(body["limit"], self._definitions.output_limit))
        answer = {
            "tag": body["tag"],
            "found": excerpt is not None,
            "size": excerpt.size if excerpt else 0,
            "head": excerpt.head if excerpt else b"",
            "tail": excerpt.tail if excerpt else b"",
        }
        self._send(channel, wire.encode("output", answer))

    def _prepare(self, channel: Channel, body: dict[str, Any]) -> None:
        config, faults = self._definitions.prepare()
        self._send(channel, wire.encode("prepare", {"tag": body["tag"], "config": config, "faults": faults}))

    def _commit(self, channel: Channel, body: dict[str, Any]) -> None:
        del channel
        if not self._definitions.commit(body["config"]):
            raise WireError(f"commit: configuration {body['config'][:12]} was not prepared; prepare it again")
