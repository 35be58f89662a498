"""The application of `perilog run`: a child process at the caller's own terminal.

Starting, signalling and reaping it lives here, and whose turn it is at the terminal. The broker is
not spoken to.

The application has a process group of its own. That group is in the background until the
application wants the terminal (it reads from it, or changes its modes: the kernel stops it with
SIGTTIN or SIGTTOU), and then has it for good. So ctrl-C asks `perilog run` as long as the application
takes no input, and belongs to the application once it does, as for an editor or a shell.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

_PR_SET_PDEATHSIG = 1  # prctl(2)
_LIBC = ctypes.CDLL(None)


class Child:
    """The running application.

    Args:
        command: program and arguments, looked up on the PATH of `environment`.
        environment: all of its environment.
        grace: seconds between SIGTERM and SIGKILL in `stop`; None: it is never killed.

    Raises:
        OSError: it could not be started.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], grace: float | None) -> None:
        self._grace = grace
        self._told = False
        self._kill_at: float | None = None
        self._terminal = _terminal()
        self._has_terminal = False
        try:
            self._process = subprocess.Popen(
                command,
                env=environment,
                process_group=0,
                close_fds=False,  # what the caller handed to us was meant for the application
                preexec_fn=_die_with_parent,  # noqa: PLW1509 - there is one thread
            )
        except OSError:
            self._close()
            raise

    def poll(self) -> int | None:
        """Look what has become of it, and let it have the terminal where it asks for that.

        Returns:
            Its wait status if it has ended, else None.
        """
        while True:
            pid, status = os.waitpid(self._process.pid, os.WNOHANG | os.WUNTRACED)
            if pid == 0:
                return None
            if not os.WIFSTOPPED(status):
                self._ended(status)
                return status
            wants = os.WSTOPSIG(status) in (signal.SIGTTIN, signal.SIGTTOU)
            if wants and self._give_terminal():
                self.signal(signal.SIGCONT)
            else:
                self.suspend()

    def signal(self, number: int) -> None:
        """Send a signal to all of its process group."""
        with contextlib.suppress(ProcessLookupError):  # it has just ended; poll will tell
            os.killpg(self._process.pid, number)

    def suspend(self) -> None:
        """Be stopped together with it (ctrl-Z), and go on together."""
        had = self._has_terminal
        self._take_terminal()
        self.signal(signal.SIGTSTP)
        stop_here()
        if had:
            self._give_terminal()
        self.signal(signal.SIGCONT)

    def stop(self) -> None:
        """Ask it to end (SIGTERM), and see to it that it does: `tick` kills it after the grace."""
        if not self._told:
            self._told = True
            if self._grace is not None:
                self._kill_at = time.monotonic() + self._grace
            self.signal(signal.SIGTERM)
            self.signal(signal.SIGCONT)

    def end(self) -> None:
        """Stop it, and wait for its end without taking anything else in."""
        self.stop()
        ended = os.pidfd_open(self._process.pid)
        select.select([ended], [], [], self._grace)
        os.close(ended)
        self.signal(signal.SIGKILL)
        _, status = os.waitpid(self._process.pid, 0)
        self._ended(status)

    def tick(self) -> float | None:
        """Do what time has come for.

        Returns:
            Seconds until `tick` has to be called again, None if there is no need.
        """
        if self._kill_at is None:
            return None
        left = self._kill_at - time.monotonic()
        if left > 0:
            return left
        self.signal(signal.SIGKILL)
        return None

    def _give_terminal(self) -> bool:
        """Make its group the terminal's foreground group, if the terminal is ours to give."""
        if self._terminal is None or os.tcgetpgrp(self._terminal) != os.getpgrp():
            return False
        os.tcsetpgrp(self._terminal, self._process.pid)
        self._has_terminal = True
        return True

    def _take_terminal(self) -> None:
        if self._terminal is not None and self._has_terminal:
            with _blocked(signal.SIGTTOU):  # we are in the background, and may do this all the same
                os.tcsetpgrp(self._terminal, os.getpgrp())
            self._has_terminal = False

    def _ended(self, status: int) -> None:
        self._process.returncode = os.waitstatus_to_exitcode(status)
        self._take_terminal()
        self._close()

    def _close(self) -> None:
        if self._terminal is not None:
            os.close(self._terminal)
            self._terminal = None


def stop_here() -> None:
    """Let this process group be stopped as ctrl-Z does; returns when it is continued."""
    before = signal.signal(signal.SIGTSTP, signal.SIG_DFL)
    os.kill(
        0, signal.SIGTSTP
    )  # not for a group without a shell to continue it: the kernel knows (setpgid(2))
    signal.signal(signal.SIGTSTP, before)


def _terminal() -> int | None:
    """Open the controlling terminal, if there is one."""
    try:
        return os.open("/dev/tty", os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return None


def _die_with_parent() -> None:
    """In the child: have the kernel send SIGTERM when `perilog run` dies, whose lease ends with it."""
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


@contextlib.contextmanager
def _blocked(number: signal.Signals) -> Iterator[None]:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {number})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
