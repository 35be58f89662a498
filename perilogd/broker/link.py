"""The way to perilog-exec: connect, start one where none answers, carry messages both ways.

What the messages mean is `runs`' business; their form is `perilogd.executor.wire`'s.
"""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any

import structlog
import trio

from perilogd.broker.core import Broker
from perilogd.broker.runs import Runs
from perilogd.config import Config
from perilogd.errors import Refusal
from perilogd.executor import wire

_log = structlog.get_logger()

#: Seconds between attempts to reach an executor.
_RETRY = 0.05
_RETRY_MOST = 1.0

#: Seconds that an executor gets to answer a question, and between questions whether it is still there.
_PATIENCE = 30.0


class ExecutorLink:
    """The connection to the executor, made anew whenever it breaks.

    Args:
        broker: for its configuration and clock.
        command: starts an executor, for `start = "auto"`; its options show which run-dir it serves.
    """

    def __init__(self, broker: Broker, command: Sequence[str]) -> None:
        self._broker = broker
        self._command = list(command)
        self.runs: Runs
        self.up = False  # it answers, and has told what it knows of our runs
        self._connected = False
        self.info: dict[str, Any] = {}  # what it said of itself
        self._out = bytearray()
        self._wake = trio.Event()
        self._answers: dict[object, tuple[trio.Event, list[Mapping[str, Any]]]] = {}
        self._tags = count(1)
        self._started: subprocess.Popen[bytes] | None = None

    # -- sending

    def send(self, kind: str, body: Mapping[str, Any]) -> None:
        """Send a message; lost if the executor is away (what matters is asked for again when it is back)."""
        if self._connected:
            self._put(kind, body)

    def _put(self, kind: str, body: Mapping[str, Any]) -> None:
        self._out += wire.encode(kind, body)
        self._wake.set()

    async def ask(self, kind: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """Send a question and wait for its answer.

        Raises:
            Refusal: EAGAIN if the executor is away or goes away, ETIMEDOUT if it does not answer.
        """
        if not self.up:
            raise self._away()
        return await self._question(kind, body)

    def _away(self) -> Refusal:
        return Refusal("EAGAIN", f"perilog-exec does not answer at {self.path}; see its log")

    async def _question(self, kind: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
        tag: object = "hello" if kind == "hello" else next(self._tags)
        answered, box = self._answers[tag] = (trio.Event(), [])
        self._put(kind, {**body, "tag": tag})
        try:
            with trio.move_on_after(self._patience) as scope:
                await answered.wait()
        finally:
            self._answers.pop(tag, None)
        if scope.cancelled_caught:
            raise Refusal("ETIMEDOUT", f"perilog-exec did not answer {kind!r} within {self._patience:g} s")
        if not box:
            raise Refusal("EAGAIN", "perilog-exec went away before it answered")
        return box[0]

    # -- connecting

    @property
    def _patience(self) -> float:
        return min(_PATIENCE, self._broker.config.executor.absent_timeout)

    @property
    def path(self) -> Path:
        """The executor's socket."""
        return self._broker.config.executor.run_dir / wire.SOCKET

    async def run(self) -> None:
        """Keep a connection to the executor, for ever."""
        self._expect()
        wait = _RETRY
        while True:
            try:
                stream = await trio.open_unix_socket(self.path)
            except OSError:
                try:
                    self._start_one()
                except OSError as error:  # nothing to be done about it here: it is tried again, and reported
                    _log.error("cannot start perilog-exec", command=self._command[0], error=str(error))
                await trio.sleep(wait)
                wait = min(wait * 2, _RETRY_MOST)
                continue
            wait = _RETRY
            async with stream:
                await self._serve(stream)
            await trio.sleep(_RETRY)

    def _start_one(self) -> None:
        """Start an executor in a session of its own, unless one of ours is still on its way."""
        if self._broker.config.executor.start != "auto":
            return
        if self._started is not None and self._started.poll() is None:
            return
        if self._started is not None:
            _log.warning("perilog-exec has ended; starting another", status=self._started.returncode)
        run_dir = self._broker.config.broker.run_dir
        run_dir.mkdir(parents=True, exist_ok=True)
        with (run_dir / "perilog-exec.log").open("ab") as log:
            self._started = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                close_fds=True,
            )

    def _expect(self) -> None:
        """Give up on waiting runs if no executor answers for `absent-timeout`, again and again."""
        seconds = self._broker.config.executor.absent_timeout

        def give_up() -> None:
            _log.error("perilog-exec does not answer", socket=str(self.path), seconds=seconds)
            self.runs.absent(seconds)
            self._expect()

        self._broker.timers.set("executor-absent", self._broker.clock.boottime() + seconds, give_up)

    async def _serve(self, stream: trio.SocketStream) -> None:
        """Use a connection until it ends."""
        self._out.clear()
        decoder = wire.Decoder(wire.REPLY_LIMIT)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._write, stream)
                nursery.start_soon(self._converse)
                async for chunk in stream:
                    for kind, body in decoder.feed(bytes(chunk)):
                        self._take(kind, body)
                nursery.cancel_scope.cancel()
        except* (trio.BrokenResourceError, trio.ClosedResourceError, wire.WireError, Refusal) as error:
            _log.warning("connection to perilog-exec broke", error=str(error.exceptions[0]))
        finally:
            if self.up:
                _log.warning("perilog-exec has gone")
                self._expect()
            self.up = self._connected = False
            self.runs.link_lost()
            for answered, _ in self._answers.values():
                answered.set()

    async def _write(self, stream: trio.SocketStream) -> None:
        while True:
            await self._wake.wait()
            self._wake = trio.Event()
            data, self._out = self._out, bytearray()
            await stream.send_all(data)

    async def _converse(self) -> None:
        """Introduce ourselves, take stock of runs, agree on the configuration, and see that it stays there.

        Raises:
            Refusal: it does not answer, though the connection lives: it hangs, and is as good as absent.
        """
        journal = self._broker.journal.journal_id
        self._connected = True  # from here on, so that the hello is the first to be sent
        hello = await self._question("hello", {"protocol": wire.PROTOCOL, "journal": journal})
        self.info = {key: hello.get(key) for key in ("version", "pid", "uid", "epoch")}
        if hello.get("config") != self._broker.config.hash:
            await self._agree(self._broker.config)
        self.up = True
        self._broker.timers.clear("executor-absent")
        _log.info("perilog-exec answers", **self.info)
        self.runs.pump()
        nobody = wire.run_id(journal, 0, "prolog", 1, "nobody")  # of no job: the cheapest question
        while True:
            await trio.sleep(self._patience)
            await self._question("output", {"id": nobody, "limit": 0})

    async def _agree(self, config: Config) -> bool:
        """Have the executor read its configuration anew; tells whether it is this one."""
        answer = await self._question("prepare", {})
        if answer.get("config") == config.hash:
            self._put("commit", {"config": config.hash})
            self._put("keep", {"definitions": sorted(self.runs.owed_definitions())})
            return True
        _log.error(
            "perilog-exec reads another configuration than the broker; what only the broker knows cannot run",
            broker=config.hash,
            executor=answer.get("config"),
            faults=answer.get("faults"),
        )
        return False

    async def agree(self, config: Config) -> bool:
        """Bring a new configuration to the executor; tells whether it reads the same and has it in force.

        Args:
            config: what is to be in force; the broker's own is not changed.

        Raises:
            Refusal: EAGAIN if it is away.
        """
        if not self.up:
            raise self._away()
        return await self._agree(config)

    # -- receiving

    def _take(self, kind: str, body: Mapping[str, Any]) -> None:
        if kind == "exits":
            self.runs.ended(body["records"])
        elif kind == "started":
            for name, pid, since, deadline in body["runs"]:
                self.runs.started(name, pid, since, deadline)
        elif kind == "died":
            self.runs.died(body["id"], body["status"])
        elif kind == "error":
            _log.error("perilog-exec refused a message", text=body.get("text"))
        else:
            if kind == "hello":  # at once: what the executor says next is newer than this
                self.runs.greeted(body["epoch"], body["runs"])
            waiting = self._answers.get(body.get("tag", kind))
            if waiting is not None:
                waiting[1].append(body)
                waiting[0].set()
