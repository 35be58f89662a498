"""The process `perilogd`: options, start, signals, end.

Everything is put together here and nowhere else; what the parts do is theirs to say.
"""

from __future__ import annotations

import argparse
import math
import os
import signal
import socket
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

import structlog
import trio

from perilogd import __version__
from perilogd.broker import systemd
from perilogd.broker.clock import boot_id
from perilogd.broker.core import Broker
from perilogd.broker.leases import Leases
from perilogd.broker.link import ExecutorLink
from perilogd.broker.restore import restore
from perilogd.broker.runs import Runs
from perilogd.config import Config, ConfigError, load
from perilogd.config.check import report
from perilogd.errors import Refusal
from perilogd.journal import Journal, JournalError, JournalFull, StateLock
from perilogd.log import configure
from perilogd.methods import authority
from perilogd.methods.admin import AdminMethods
from perilogd.methods.follow import FollowMethods, Waiters, purged_through, read_page
from perilogd.methods.holds import HoldMethods
from perilogd.methods.jobs import JobMethods
from perilogd.methods.kinds import Kinds
from perilogd.methods.lookup import Lookup, reading
from perilogd.methods.nodes import NodeMethods
from perilogd.methods.reading import ReadingMethods
from perilogd.methods.scripts import ScriptMethods
from perilogd.rpc.connection import Connection, Standing
from perilogd.rpc.method import USERS, table
from perilogd.rpc.server import Limits, Server, listen
from perilogd.rpc.watch import Watches

_log = structlog.get_logger()

#: Seconds between purges.
_PURGE_EVERY = 60.0


class Daemon:
    """One broker with its parts.

    Args:
        config: the configuration to begin with.
        journal: an open journal.
        options: the command line, to read the configuration anew and to start an executor with.
    """

    def __init__(self, config: Config, journal: Journal, options: argparse.Namespace) -> None:
        self._options = options
        self._stopping = trio.Event()
        self._reloading = trio.Lock()
        self.broker = Broker(config, journal, socket.gethostname())
        self.link = ExecutorLink(self.broker, _executor_command(options))
        self.runs = Runs(self.broker, self.link)
        self.broker.scripts = self.link.runs = self.runs
        self.leases = Leases(self.broker)
        self.waiters = Waiters()
        self.lookup = Lookup(self.broker)
        kinds = Kinds(lambda: self.broker.config)
        self.watches = Watches(
            read=partial(reading, read_page, journal),
            purged_through=partial(purged_through, journal),
            published=journal.next_seq - 1,
            limit=config.limits.watches,
        )
        admin = AdminMethods(self.broker, self.runs, self.link, self, self._counts)
        parts = (
            JobMethods(self.broker, self.lookup, kinds, self.leases),
            ReadingMethods(self.broker, self.lookup, kinds, self.runs),
            FollowMethods(self.broker, self.lookup, self.watches, self.waiters),
            HoldMethods(self.broker, self.lookup, kinds, self.watches),
            ScriptMethods(self.broker, self.lookup, kinds, self.runs, self.link),
            NodeMethods(self.broker, self.lookup, kinds, self.runs),
            admin,
        )
        self._standing = authority.standing(config, os.geteuid())
        self.server = Server(
            table(*(method for part in parts for method in part.methods())),
            version=__version__,
            standing=self._stand,
            gate=self.broker.writer.after,
            on_hello=self.leases.bind,
            on_close=self._closed,
            limits=_limits(config),
        )
        admin.table = self.server.methods
        self.broker.listeners = [self.watches.publish, self.waiters.publish]
        self.broker.flush = self.server.flush

    def _stand(self, uid: int) -> Standing:
        return self._standing(uid)

    def _counts(self) -> tuple[int, int]:
        connections = self.server.connections.values()
        return len(connections), sum(len(connection.watches) for connection in connections)

    def _closed(self, connection: Connection) -> None:
        self.watches.forget(connection)
        self.leases.closed(connection)

    # -- control

    def stop(self) -> None:
        """End the broker; scripts go on."""
        self._stopping.set()

    async def reload(self) -> None:
        """Put the configuration in the files in force, whole or not at all.

        Raises:
            Refusal: EINVAL with every fault; EAGAIN if the executor does not answer, or reads something else.
        """
        try:
            await self._reload()
        except Refusal as refusal:
            _log.warning("reload refused", why=refusal.text)
            raise

    async def _reload(self) -> None:
        async with self._reloading:
            try:
                config = await trio.to_thread.run_sync(_load, self._options)
            except ConfigError as error:
                raise Refusal("EINVAL", f"the configuration stays as it was: {error}") from error
            fixed = _fixed(self.broker.config), _fixed(config)
            if fixed[0] != fixed[1]:
                raise Refusal(
                    "EINVAL",
                    "the configuration stays as it was: socket, state-dir, run-dir and [journal] path"
                    " change only with a restart",
                )
            if not await self.link.agree(config):
                raise Refusal(
                    "EAGAIN", "the configuration stays as it was: perilog-exec reads another one, see the log"
                )
            self.broker.config = config
            self._standing = authority.standing(config, os.geteuid())
            self.server.limits = _limits(config)
            self.server.renew()
            self._narrow_watches()
            self.watches.limit = config.limits.watches
            _log.info("configuration reloaded", hash=config.hash)

    def _narrow_watches(self) -> None:
        """Have watches tell no more than their clients may see now."""
        for connection in self.server.connections.values():
            if connection.standing.role not in USERS:
                self.watches.forget(connection)
            elif connection.standing.role not in authority.SEE_ALL:
                self.watches.confine(connection)

    # -- life

    async def run(self, listener: socket.socket) -> None:
        """Serve until told to stop.

        Args:
            listener: the listening socket.

        Raises:
            JournalError: a commit failed; the broker must be started again.
        """
        broker = self.broker
        async with trio.open_nursery() as nursery:
            broker.ready_at = broker.clock.boottime()
            nursery.start_soon(broker.writer.run)
            nursery.start_soon(broker.timers.run)
            nursery.start_soon(self.link.run)
            nursery.start_soon(self._judge_ended_targets)
            nursery.start_soon(self._purge)
            nursery.start_soon(self._hear_signals, nursery)
            nursery.start_soon(systemd.watchdog)
            nursery.start_soon(self.server.serve, listener)
            self.leases.restored()
            broker.catch_up()
            systemd.notify("READY=1")
            _log.info("ready", socket=str(broker.config.broker.socket), jobs=len(broker.jobs))
            await self._stopping.wait()
            systemd.notify("STOPPING=1")
            nursery.cancel_scope.cancel()
        # Only here: a broker that fails must not write what it was in the middle of.
        await broker.writer.drain()

    async def _hear_signals(self, nursery: trio.Nursery) -> None:
        with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT, signal.SIGHUP) as signals:
            async for number in signals:
                if number == signal.SIGHUP:
                    nursery.start_soon(self._try_to_reload)  # a stop must not wait for it
                else:
                    _log.info("stopping; scripts go on", signal=signal.Signals(number).name)
                    self.stop()

    async def _try_to_reload(self) -> None:
        with suppress(Refusal):  # it is in the log
            await self.reload()

    async def _judge_ended_targets(self) -> None:
        """Look up jobs that have ended and that live ones depend on."""
        broker = self.broker
        while True:
            await broker.ended_targets_wake.wait()
            broker.ended_targets_wake = trio.Event()
            while broker.ended_targets:
                target_id, entry = broker.ended_targets.pop()
                try:
                    target = await self.lookup.ended(target_id)
                except Refusal as refusal:  # its log is damaged: what it came to cannot be known any more
                    _log.error("a dependency cannot be judged", job=entry[0], why=refusal.text)
                    target = None
                broker.judge_ended(target_id, target, entry)

    async def _purge(self) -> None:
        while True:
            try:
                await trio.to_thread.run_sync(self._purge_once, abandon_on_cancel=True)
            except JournalFull as error:
                _log.warning("nothing could be purged; it is tried again", error=str(error))
            await trio.sleep(_PURGE_EVERY)

    def _purge_once(self) -> None:
        limits = self.broker.config.journal
        age = limits.inactive_age_limit
        oldest = -math.inf if age is None else time.time() - age
        self.broker.journal.purge(older_than_wall=oldest, keep_newest=limits.inactive_num_limit)
        self.broker.oldest = self.broker.journal.oldest()


def _limits(config: Config) -> Limits:
    limits = config.limits
    return Limits(limits.frame, limits.connections_per_user, limits.requests)


def _fixed(config: Config) -> tuple[Path, ...]:
    broker = config.broker
    return (broker.socket, broker.state_dir, broker.run_dir, config.journal.path, config.executor.run_dir)


def _load(options: argparse.Namespace) -> Config:
    return load(options.config, state_dir=options.state_dir, run_dir=options.run_dir, socket=options.socket)


def _executor_command(options: argparse.Namespace) -> list[str]:
    """Return what starts an executor that reads the same configuration and serves the same run-dir."""
    beside = Path(sys.executable).with_name("perilog-exec")
    command = [str(beside)] if beside.exists() else [sys.executable, "-m", "perilogd.executor.main"]
    for name in ("config", "state_dir", "run_dir", "socket", "log_format"):
        value = getattr(options, name)
        if value is not None:
            command += ["--" + name.replace("_", "-"), str(value)]
    return command


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="perilogd", description="Broker for the edges of batch jobs; runs in the foreground."
    )
    parser.add_argument("--config", type=Path, metavar="FILE", help="configuration file")
    parser.add_argument("--state-dir", type=Path, metavar="DIR", help="folder of the journal")
    parser.add_argument("--run-dir", type=Path, metavar="DIR", help="folder of what a reboot may take")
    parser.add_argument("--socket", type=Path, metavar="PATH", help="where clients connect")
    parser.add_argument("--log-format", choices=("text", "json"), default="text", help="of the log on stderr")
    parser.add_argument(
        "--check", action="store_true", help="check the configuration and its scripts, and exit"
    )
    parser.add_argument("--version", action="version", version=f"perilogd {__version__}")
    options = parser.parse_args(arguments)
    for name in ("config", "state_dir", "run_dir", "socket"):
        value = getattr(options, name)
        if value is not None:
            setattr(options, name, value.absolute())
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the broker.

    Args:
        arguments: the command line without the program's name; default: the process's own.

    Returns:
        0 after a stop that was asked for, 1 after a failure that a restart can mend, 2 for a configuration or
        folder that somebody has to mend.
    """
    options = _options(arguments)
    if options.check:
        good, text = report(options.config)
        print(text)
        return 0 if good else 2
    configure(options.log_format)
    try:
        config = _load(options)
    except ConfigError as error:
        print(f"perilogd: {error}", file=sys.stderr)
        return 2
    try:
        for folder in (config.broker.state_dir, config.broker.run_dir):
            folder.mkdir(parents=True, exist_ok=True)
        with StateLock(config.broker.state_dir):
            return _serve(config, options)
    except (JournalError, OSError) as error:
        print(f"perilogd: {error}", file=sys.stderr)
        return 2


def _serve(config: Config, options: argparse.Namespace) -> int:
    journal = Journal.open(config.journal.path, boot_id=boot_id())
    failed = False
    try:
        trio.run(partial(_run, config, journal, options))
    except* JournalError as group:
        failed = True
        for error in _leaves(group):
            _log.critical("the journal failed; restart the broker", error=str(error))
    finally:
        journal.close()
    return 1 if failed else 0


def _leaves(error: BaseException) -> Iterator[BaseException]:
    """Yield the exceptions in a group of groups."""
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from _leaves(inner)
    else:
        yield error


async def _run(config: Config, journal: Journal, options: argparse.Namespace) -> None:
    daemon = Daemon(config, journal, options)
    restore(daemon.broker)
    listener = systemd.listener() or listen(config.broker.socket)
    with listener:
        await daemon.run(listener)


if __name__ == "__main__":
    sys.exit(main())
