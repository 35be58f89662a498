"""A parent for executors under test, run as a program of its own.

It is what init is to a daemon: orphans become its children, and it reaps them, or (as a container's first
process often does not) leaves them as zombies. It can take single abilities of the kernel from the executors
that it starts, by a seccomp filter, so that older kernels can be tested on a newer one.

    guardian.py {reaps|zombies} [no-pidfd-info] [no-fallocate] [no-sigkill] [no-group-signal] -- COMMAND…

For each line on its stdin it starts COMMAND and writes the pid. At the end of its stdin it ends.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import signal
import struct
import sys

_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_NO_NEW_PRIVS = 38
_PR_SET_SECCOMP = 22
_SECCOMP_MODE_FILTER = 2
_PIDFD_GET_INFO = 0xC040FF0B

#: System call numbers: ioctl, fallocate, kill, pidfd_send_signal.
_NUMBERS = {"x86_64": (16, 285, 62, 424), "aarch64": (29, 47, 129, 424)}

#: Classic BPF (seccomp(2), struct sock_filter): load a word of struct seccomp_data, jump if equal, return.
_LOAD, _JUMP_IF_EQUAL, _RETURN = 0x20, 0x15, 0x06
_ERRNO, _ALLOW = 0x00050000, 0x7FFF0000
_CALL, _SECOND_ARGUMENT, _FOURTH_ARGUMENT = 0, 24, 40


def _deny(
    call: int, error: int, argument: int = _CALL, value: int | None = None
) -> list[tuple[int, int, int, int]]:
    """Return a filter that answers a system call, with some argument, with an errno (0: as if done)."""
    return [
        (_LOAD, 0, 0, _CALL),
        (_JUMP_IF_EQUAL, 0, 3, call),
        (_LOAD, 0, 0, argument),
        (_JUMP_IF_EQUAL, 0, 1, call if value is None else value),
        (_RETURN, 0, 0, _ERRNO | error),
    ]


def _restrict(words: list[str]) -> None:
    ioctl, fallocate, kill, pidfd_send_signal = _NUMBERS[platform.machine()]
    rules = {
        "no-pidfd-info": _deny(ioctl, errno.ENOTTY, _SECOND_ARGUMENT, _PIDFD_GET_INFO),
        "no-fallocate": _deny(fallocate, errno.EOPNOTSUPP),
        "no-sigkill": _deny(kill, 0, _SECOND_ARGUMENT, signal.SIGKILL)
        + _deny(pidfd_send_signal, 0, _SECOND_ARGUMENT, signal.SIGKILL),
        "no-group-signal": _deny(pidfd_send_signal, errno.EINVAL, _FOURTH_ARGUMENT, 1 << 2),
    }
    program = [line for word in words for line in rules[word]] + [(_RETURN, 0, 0, _ALLOW)]
    code = b"".join(struct.pack("=HBBI", *line) for line in program)
    buffer = ctypes.create_string_buffer(code, len(code))
    filter_program = struct.pack("@HP", len(program), ctypes.addressof(buffer))
    libc = ctypes.CDLL(None, use_errno=True)
    for arguments in (
        (_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0),
        (_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, filter_program, 0, 0),
    ):
        if libc.prctl(*arguments) != 0:
            raise OSError(ctypes.get_errno(), f"prctl{arguments}")


def main() -> None:
    """See the module."""
    reaping, *words = sys.argv[1 : sys.argv.index("--")]
    command = sys.argv[sys.argv.index("--") + 1 :]
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    if reaping == "reaps":
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel reaps for us, at once
    for _ in sys.stdin:
        pid = os.fork()
        if pid == 0:
            if words:
                _restrict(words)
            os.execv(command[0], command)  # noqa: S606 - no shell is wanted
        print(pid, flush=True)


main()
