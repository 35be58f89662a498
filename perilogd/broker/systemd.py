"""What systemd expects of a service: sd_notify(3), sd_listen_fds(3), sd_watchdog_enabled(3).

Without systemd each of these does nothing.
"""

from __future__ import annotations

import os
import socket

import structlog
import trio

_log = structlog.get_logger()

_FIRST_FD = 3  # SD_LISTEN_FDS_START


def notify(state: str) -> None:
    """Tell the service manager something, such as READY=1; nobody there is no error."""
    address = os.environ.get("NOTIFY_SOCKET")
    if not address:
        return
    if address.startswith("@"):
        address = "\0" + address[1:]
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
        try:
            sock.connect(address)
            sock.sendall(state.encode())
        except OSError as error:  # whoever wanted to know has gone: no reason not to go on
            _log.warning("the service manager cannot be told", state=state, error=error.strerror)


def listener() -> socket.socket | None:
    """Return the listening socket that the service manager has made for us, None if it has not."""
    if os.environ.get("LISTEN_PID") != str(os.getpid()) or os.environ.get("LISTEN_FDS") != "1":
        return None
    os.set_inheritable(_FIRST_FD, False)
    return socket.socket(fileno=_FIRST_FD)


async def watchdog() -> None:
    """Tell the service manager that the loop turns, twice as often as it wants to hear it."""
    microseconds = os.environ.get("WATCHDOG_USEC", "")
    if not microseconds.isdecimal():
        return
    while True:
        notify("WATCHDOG=1")
        await trio.sleep(int(microseconds) / 2_000_000)
