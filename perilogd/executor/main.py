"""The process `perilog-exec`: options, folder, lock, socket, signals, and its end or new beginning.

What it does all day is the loop's; what it finds when it starts is adopt's.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import os
import pwd
import resource
import signal
import socket
import sys
import time
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

from perilogd import __version__
from perilogd.config import Config, ConfigError, load
from perilogd.config.check import report
from perilogd.config.load import DEFAULT_FILE
from perilogd.config.trust import untrusted
from perilogd.executor import processes, wire
from perilogd.executor.adopt import Recovery
from perilogd.executor.definitions import Definitions
from perilogd.executor.launcher import Launcher
from perilogd.executor.loop import Loop, Signals, Watcher
from perilogd.executor.output import Outputs
from perilogd.executor.records import Folder, take_lock
from perilogd.executor.spawn import SpawnError, User
from perilogd.executor.supervisor import Supervisor

if TYPE_CHECKING:
    from collections.abc import Sequence

logger = logging.getLogger("perilog-exec")

#: Seconds for which the lock is tried: a child of the last executor may hold it until its exec.
_LOCK_PATIENCE = 2.0

#: Hands lock and listening socket over to the same process after its re-exec.
_HANDOVER = "PERILOG_EXEC_HANDOVER"

#: Descriptors that are needed besides one for each run that was adopted.
_DESCRIPTORS = 128


class UnusableError(Exception):
    """The executor cannot work like this. The text is for the administrator."""


class JSONFormatter(logging.Formatter):
    """One object a line."""

    def format(self, record: logging.LogRecord) -> str:
        """Return a record as JSON."""
        return json.dumps(
            {
                "timestamp": record.created,
                "level": record.levelname.lower(),
                "logger": "perilog-exec",
                "event": record.getMessage(),
            }
        )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the executor.

    Args:
        arguments: the command line without the program's name; default: the process's own.

    Returns:
        0 after a stop that was asked for, 1 if there is another executor, 2 for a configuration or folder
        that somebody has to mend. It comes back from nothing else.
    """
    options = _options(arguments)
    if options.check:
        good, text = report(options.config)
        print(text)
        return 0 if good else 2
    handler = logging.StreamHandler()
    handler.setFormatter(
        JSONFormatter()
        if options.log_format == "json"
        else logging.Formatter("perilog-exec: %(levelname)s: %(message)s")
    )
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    try:
        return _work(options)
    except UnusableError as error:
        logger.critical("%s", error)
        return 2


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="perilog-exec", description="Starts the scripts of perilogd, limits and reaps them."
    )
    parser.add_argument(
        "--config", type=Path, metavar="FILE", help="configuration file, the same as perilogd's"
    )
    parser.add_argument("--state-dir", type=Path, metavar="DIR", help="as perilogd's")
    parser.add_argument(
        "--run-dir", type=Path, metavar="DIR", help="as perilogd's; by default it works in DIR/exec"
    )
    parser.add_argument("--socket", type=Path, metavar="PATH", help="as perilogd's")
    parser.add_argument(
        "--broker-user", metavar="NAME", help="whom perilogd runs as, if not as the same user"
    )
    parser.add_argument("--log-format", choices=("text", "json"), default="text", help="of the log on stderr")
    parser.add_argument(
        "--check", action="store_true", help="check the configuration and its scripts, and exit"
    )
    parser.add_argument("--version", action="version", version=f"perilog-exec {__version__}")
    options = parser.parse_args(arguments)
    for name in ("config", "state_dir", "run_dir", "socket"):  # the working directory changes
        value = getattr(options, name)
        if value is not None:
            setattr(options, name, value.absolute())
    return options


def _work(options: argparse.Namespace) -> int:
    me = _me()
    broker_uid = _broker_uid(options.broker_user, me)

    def read() -> Config:
        return load(
            options.config,
            uid=me.uid,
            state_dir=options.state_dir,
            run_dir=options.run_dir,
            socket=options.socket,
        )

    config, faults = None, []
    try:
        config = read()
    except ConfigError as error:
        faults = [str(fault) for fault in error.faults]
        logger.error("no configuration is in force, only what was run before can be: %s", error)  # noqa: TRY400
    path = config.executor.run_dir if config else _run_dir_in_spite(options)
    lock = listener = None
    if handover := os.environ.pop(_HANDOVER, None):
        lock, listener = _inherit(handover)
        path = Path(f"/proc/self/fd/{lock}").readlink().parent  # whatever the configuration says now
    _check_folder(path, me)

    origin = Path.cwd()
    os.chdir("/")
    os.umask(0o022)
    _close_on_exec()
    if lock is None:
        lock = _lock(path)
    if lock is None:
        logger.critical("another perilog-exec works in %s, or its last child has not come to its exec", path)
        return 1
    try:
        boot_id = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        folder = Folder.open(path, boot_id, lock)
        listener = listener or _listen(path / wire.SOCKET, broker_uid, me)
    except OSError as error:
        raise UnusableError(f"cannot work in {path}: {error}") from None

    processes.become_subreaper()
    watcher = Watcher()
    signals = Signals(watcher)
    # Blocked since before a re-exec.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP, signal.SIGTERM, signal.SIGINT})
    signal.signal(signal.SIGIO, signal.SIG_IGN)  # somebody opened an output file while it was under a lease
    definitions = Definitions(path / "definitions", read)
    definitions.start(config, faults)
    found = Recovery(folder, boot_id).find()
    _allow_descriptors(len(found.runs) + _DESCRIPTORS)
    outputs = Outputs(folder, found.kept)
    launcher = Launcher(folder, definitions, boot_id, me, broker_uid)
    supervisor = Supervisor(folder, definitions, outputs, launcher, watcher.watch)
    supervisor.adopt(found.runs)
    loop = Loop(
        watcher,
        signals,
        listener,
        peers=frozenset({me.uid, broker_uid}),
        epoch=folder.epoch,
        supervisor=supervisor,
        definitions=definitions,
        outputs=outputs,
    )
    logger.info("pid %d works in %s; %d runs were left to it", os.getpid(), path, len(found.runs))
    loop.run()
    while not signals.stop:
        _exec_again(origin, lock, listener)
        signals.again = False
        loop.run()
    logger.info("stopped; scripts that are running go on, and the next perilog-exec finds them")
    return 0


def _me() -> User:
    uid = os.geteuid()
    try:
        return User.find(uid)
    except SpawnError:  # as in a container with a uid of its own
        return User(uid, os.getegid(), str(uid), "/")


def _broker_uid(name: str | None, me: User) -> int:
    if name is None:
        return me.uid
    try:
        uid = pwd.getpwnam(name).pw_uid
    except KeyError:
        raise UnusableError(f"--broker-user: no such user: {name}") from None
    if me.uid not in {uid, 0}:
        raise UnusableError(
            f"--broker-user {name}: only root can let another user in; this runs as {me.name}"
        )
    return uid


def _run_dir_in_spite(options: argparse.Namespace) -> Path:
    """Return the folder that a faulty configuration names: scripts in it wait to be found again."""
    file = options.config or DEFAULT_FILE
    path = (options.run_dir or Path("/run/perilogd")) / "exec"
    with contextlib.suppress(OSError):
        drop_ins = Path(f"{file}.d")
        for part in [file, *(sorted(drop_ins.glob("*.toml")) if drop_ins.is_dir() else ())]:
            with contextlib.suppress(ValueError, OSError):
                table = tomllib.loads(part.read_text(encoding="utf-8"))
                match table:
                    case {"executor": {"run-dir": str() as named}} if named.startswith("/"):
                        path = Path(named)
    return path


def _check_folder(path: Path, me: User) -> None:
    """Make the folder where that is needed; refuse it if others could write in it, or replace it."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            path.mkdir(mode=0o711)
    except OSError as error:
        raise UnusableError(f"cannot make {path}: {error}") from None
    wrong = [f"{place} {what}" for place, what in untrusted(path, {0, me.uid})]
    owner = path.stat().st_uid
    if not wrong and owner != me.uid:
        wrong = [f"it belongs to uid {owner}; expected {me.uid}"]
    if wrong:
        raise UnusableError(
            f"{path} cannot be the executor's folder: {'; '.join(wrong)}. "
            "Mend that, or name another folder in [executor] run-dir"
        )


def _close_on_exec() -> None:
    """Keep descriptors that we were started with, beyond the standard ones, from the scripts."""
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208 - a list, since reading it opens one
        with contextlib.suppress(OSError):
            if int(name) > 2:
                os.set_inheritable(int(name), False)


def _lock(path: Path) -> int | None:
    until = time.monotonic() + _LOCK_PATIENCE
    while (lock := take_lock(path)) is None and time.monotonic() < until:
        time.sleep(0.02)
    return lock


def _inherit(handover: str) -> tuple[int, socket.socket]:
    lock, number = map(int, handover.split(","))
    listener = socket.socket(fileno=number)
    listener.setblocking(False)
    return lock, listener


def _listen(path: Path, broker_uid: int, me: User) -> socket.socket:
    """Listen where the broker looks for us. The lock is held, so a socket that is there is nobody's."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    path.unlink(missing_ok=True)
    mask = os.umask(0o177)
    try:
        listener.bind(str(path))
    finally:
        os.umask(mask)
    if broker_uid != me.uid:
        os.chown(path, broker_uid, -1)
    listener.listen()
    listener.setblocking(False)
    return listener


def _allow_descriptors(number: int) -> None:
    """Raise our limit where an unusual number of runs has to be adopted; scripts started later inherit it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < number:
        limit = number if hard == resource.RLIM_INFINITY else min(number, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, hard))


def _exec_again(origin: Path, lock: int, listener: socket.socket) -> None:
    """Become what is installed now, same pid, same children. Comes back only if that is impossible."""
    passed = (lock, listener.fileno())
    # Without handlers, a signal would end us in between.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP, signal.SIGTERM, signal.SIGINT})
    try:
        with contextlib.suppress(OSError):  # the folder that a relative path was meant from may be gone
            os.chdir(origin)
        for fd in passed:
            os.set_inheritable(fd, True)
        os.environ[_HANDOVER] = f"{passed[0]},{passed[1]}"
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])  # noqa: S606 - no shell is wanted
    except OSError as error:
        logger.error("cannot execute %s again, going on as before: %s", sys.executable, error)  # noqa: TRY400
    del os.environ[_HANDOVER]
    for fd in passed:
        os.set_inheritable(fd, False)
    os.chdir("/")
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP, signal.SIGTERM, signal.SIGINT})


if __name__ == "__main__":
    sys.exit(main())
