"""A broker of one's own in a folder: to try scripts out, and to test what talks to a broker.

Here lives what starts, kills and ends a private `perilogd` with its executor and scripts, and finds
every process of theirs. What the broker is asked to do does not belong here.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import select
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Self

if TYPE_CHECKING:
    from collections.abc import Iterator

#: sockaddr_un holds a path of at most this many bytes (unix(7)).
_SOCKET_PATH_LIMIT = 107
#: Seconds that a daemon has to end after SIGTERM before it is killed.
_TERM_GRACE = 10.0


class BrokerFailedError(Exception):
    """The private broker did not start, or its processes did not end."""


class OwnedProcess(NamedTuple):
    """A process that belongs to a private broker.

    Args:
        pid: its process id.
        daemon: True for broker and executor, False for scripts and what they have started.
        command: its command line, for people.
    """

    pid: int
    daemon: bool
    command: str


class PrivateBroker:
    """A `perilogd` with everything of its own below one folder.

    Use it as a context manager: at the end all of its processes are ended. The folder stays; who made
    it removes it.

    Args:
        folder: an existing folder with a short path (a Unix socket will lie in it).
        run_dir: where sockets and files of running scripts go, if not into the folder; best on a tmpfs.
        programs: folder of the programs perilogd and perilog-exec; default: beside this Python.

    Attributes:
        config: the configuration file, to be written before `start`.
        socket: where clients connect.
        log: what the broker wrote to stderr, over all its lives.
        process: the running broker, or None.
    """

    def __init__(self, folder: Path, *, run_dir: Path | None = None, programs: Path | None = None) -> None:
        self.folder = folder
        self.config = folder / "perilogd.toml"
        self.state_dir = folder / "state"
        self.run_dir = run_dir or folder / "run"
        self.socket = self.run_dir / "perilogd.sock"
        self.log = folder / "perilogd.log"
        self.process: subprocess.Popen[bytes] | None = None
        self._programs = programs or Path(sys.executable).parent
        if len(os.fsencode(self.socket)) > _SOCKET_PATH_LIMIT:
            raise BrokerFailedError(
                f"the socket's path {self.socket} is longer than {_SOCKET_PATH_LIMIT} bytes: "
                "choose a folder with a shorter path"
            )

    def __enter__(self) -> Self:
        """Return the broker itself, not yet started."""
        return self

    def __exit__(self, *_: object) -> None:
        """End all that is running."""
        self.close()

    def start(self, timeout: float = 60.0) -> None:
        """Start the broker and return once it is ready for clients.

        Args:
            timeout: longest time in seconds until it says READY=1 (sd_notify(3)).

        Raises:
            BrokerFailedError: it ended, or was not ready in time; the text ends with its log.
        """
        address = self.folder / "notify"
        address.unlink(missing_ok=True)
        command = [str(self._programs / "perilogd"), "--config", str(self.config)]
        command += ["--state-dir", str(self.state_dir), "--run-dir", str(self.run_dir)]
        command += ["--socket", str(self.socket)]
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify, self.log.open("ab") as log:
            notify.bind(str(address))
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd="/",
                env={**os.environ, "NOTIFY_SOCKET": str(address)},
                start_new_session=True,  # a ctrl-C is for us; we end the broker in order
            )
            self._await_ready(self.process, notify, time.monotonic() + timeout)

    def _await_ready(self, process: subprocess.Popen[bytes], notify: socket.socket, deadline: float) -> None:
        with _pidfd(process.pid) as ended:
            while True:
                left = max(0.0, deadline - time.monotonic())
                readable, _, _ = select.select([notify.fileno(), ended], [], [], left)
                if notify.fileno() in readable:
                    if b"READY=1" in notify.recv(4096).split(b"\n"):
                        return
                elif ended in readable:
                    raise BrokerFailedError(
                        f"perilogd ended with status {process.wait()} before it was ready:\n{self.log_tail()}"
                    )
                else:
                    raise BrokerFailedError(f"perilogd was not ready in time; its log:\n{self.log_tail()}")

    def log_tail(self, limit: int = 8192) -> str:
        """Return the end of the broker's log, at most `limit` bytes of it."""
        return self.log.read_bytes()[-limit:].decode(errors="replace")

    def kill(self) -> None:
        """Kill the broker with SIGKILL; executor and scripts go on."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """Stop the broker with SIGTERM; executor and scripts go on.

        Raises:
            BrokerFailedError: it did not end by itself, and was killed.
        """
        self._end(signal.SIGTERM)

    def restart(self) -> None:
        """Stop the broker and start it again on the same state."""
        self.stop()
        self.start()

    def _end(self, number: signal.Signals) -> None:
        process, self.process = self.process, None
        if process is None:
            return
        process.send_signal(number)
        try:
            process.wait(_TERM_GRACE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise BrokerFailedError(
                f"perilogd did not end within {_TERM_GRACE:g} s of {number.name}:\n{self.log_tail()}"
            ) from None

    def processes(self) -> list[OwnedProcess]:
        """Find every running process of this broker.

        Daemons are known by the folder on their command line, scripts (and all that they have started)
        by the variables that they were given.
        """
        return list(self._scan())

    def _scan(self) -> Iterator[OwnedProcess]:
        run_dir = os.fsencode(self.run_dir)
        address = b"PERILOG_SOCKET=" + os.fsencode(self.socket)
        for entry in os.scandir("/proc"):
            if not entry.name.isdigit():
                continue
            try:
                arguments = Path(entry.path, "cmdline").read_bytes().split(b"\0")
                variables = Path(entry.path, "environ").read_bytes().split(b"\0")
            except (FileNotFoundError, ProcessLookupError, PermissionError):
                continue  # it has ended meanwhile, or is another user's and so none of ours
            daemon = any(
                option == b"--run-dir" and (value == run_dir or value.startswith(run_dir + b"/"))
                for option, value in itertools.pairwise(arguments)
            )
            script = address in variables and any(v.startswith(b"PERILOG_RUN_ID=") for v in variables)
            if daemon or script:
                command = b" ".join(arguments).decode(errors="replace").strip()
                yield OwnedProcess(int(entry.name), daemon, command)

    def close(self, timeout: float = 30.0) -> None:
        """End the broker, its executor, and its scripts, and return when no process of theirs is left.

        Args:
            timeout: longest time in seconds.

        Raises:
            BrokerFailedError: something is still running; the text names it.
        """
        deadline = time.monotonic() + timeout
        try:
            self.stop()
        finally:
            # Daemons before scripts: a dead executor starts nothing more. Again until nothing is found,
            # since a script may have forked between the look and the signal.
            while found := self.processes():
                if time.monotonic() > deadline:
                    raise BrokerFailedError(f"still running after {timeout:g} s: {found}")
                daemons = [process for process in found if process.daemon]
                for process in daemons or found:
                    _terminate(process.pid, signal.SIGTERM if process.daemon else signal.SIGKILL)


def _terminate(pid: int, number: signal.Signals) -> None:
    """Signal a process, wait until it has ended, and kill it if it does not."""
    with contextlib.suppress(ProcessLookupError), _pidfd(pid) as ended:
        signal.pidfd_send_signal(ended, number)
        if not select.select([ended], [], [], _TERM_GRACE)[0]:
            signal.pidfd_send_signal(ended, signal.SIGKILL)


@contextlib.contextmanager
def _pidfd(pid: int) -> Iterator[int]:
    """Open a pidfd, readable once the process has ended (pidfd_open(2))."""
    descriptor = os.pidfd_open(pid)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
