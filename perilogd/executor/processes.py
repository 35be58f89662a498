"""Processes as the kernel shows them: who belongs to a run, who is still the same, how one ended.

All that is read from /proc or done with a pidfd is here. What it means for a run is not.

A pid alone names nothing: it may have been given to somebody else since. So whoever is to be signaled is
first opened as a pidfd, then compared, by its start time, with what was seen before, and then signaled
through the pidfd: if it is the same process at the comparison, the pidfd cannot be another one's.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import signal
import struct
import time
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Collection

#: Units of start times in /proc/PID/stat.
TICKS = os.sysconf("SC_CLK_TCK")

RUN_ID = b"PERILOG_RUN_ID="

#: prctl(2): orphans among our descendants become our children.
_PR_SET_CHILD_SUBREAPER = 36

#: ioctl(2) of a pidfd, since Linux 6.13: _IOWR(0xff, 11, struct pidfd_info of 64 bytes), and the bit in its
#: mask that asks for, and says that there is, an exit code: since Linux 6.15, once the process has been
#: reaped.
PIDFD_GET_INFO = 3 << 30 | 64 << 16 | 0xFF << 8 | 11
_PIDFD_INFO_EXIT = 1 << 3
_PIDFD_INFO = struct.Struct("=QQ11Ii")

#: Flag of pidfd_send_signal(2), since Linux 6.9: to the process group that it leads.
_PIDFD_SIGNAL_PROCESS_GROUP = 1 << 2

#: Flag in /proc/PID/stat (include/linux/sched.h).
_PF_EXITING = 4

#: Whoever forks faster than this many looks at /proc is not chased further.
_ROUNDS = 10


class Process(NamedTuple):
    """One line of /proc/PID/stat (proc_pid_stat(5)), as far as it matters.

    Args:
        pid: of the process.
        parent: pid.
        group: process group.
        session: session.
        start: start time in ticks of CLOCK_BOOTTIME.
        zombie: it has ended, and waits for its parent.
        dying: it is ending, or a signal that it cannot survive has been sent to it.
        exit_code: wait status of a zombie; 0 also if we may not know it.
    """

    pid: int
    parent: int
    group: int
    session: int
    start: int
    zombie: bool
    dying: bool
    exit_code: int


class Script(NamedTuple):
    """A run's own process, the leader of its process group and session.

    Args:
        run: the run's id.
        pid: its pid.
        start: its start time in ticks of CLOCK_BOOTTIME; None for a child of ours that is not reaped, whose
            pid needs no further proof.
    """

    run: str
    pid: int
    start: int | None


def boottime() -> float:
    """Return CLOCK_BOOTTIME in seconds: monotonic, and counting while the machine sleeps."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def become_subreaper() -> None:
    """Have what scripts leave behind become children of this process (prctl(2), PR_SET_CHILD_SUBREAPER).

    Raises:
        OSError: the kernel refused.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def look(pid: int) -> Process | None:
    """Return what the kernel says of a process, None if there is none with this pid."""
    line = _read(f"/proc/{pid}/stat")
    if line is None:
        return None
    field = line[line.rindex(b")") + 2 :].split()
    zombie = field[0] in {b"Z", b"X"}
    return Process(
        pid=pid,
        parent=int(field[1]),
        group=int(field[2]),
        session=int(field[3]),
        start=int(field[19]),
        zombie=zombie,
        # Whatever the fatal signal, the kernel turns it into a pending SIGKILL.
        dying=zombie or int(field[6]) & _PF_EXITING != 0 or int(field[28]) >> (signal.SIGKILL - 1) & 1 == 1,
        exit_code=int(field[49]),
    )


def run_of(pid: int) -> str | None:
    """Return the run id in a process's initial environment, None if there is none that we may see."""
    environment = _read(f"/proc/{pid}/environ") or b""
    for variable in environment.split(b"\0"):
        if variable.startswith(RUN_ID):
            return os.fsdecode(variable[len(RUN_ID) :])
    return None


class Table:
    """All processes but this one, at one moment."""

    def __init__(self) -> None:
        with os.scandir("/proc") as entries:
            pids = [int(entry.name) for entry in entries if entry.name.isdigit()]
        me = os.getpid()
        self.processes = {pid: found for pid in pids if pid != me and (found := look(pid)) is not None}

    @cached_property
    def marked(self) -> dict[str, list[Process]]:
        """Processes by the run id in their environment."""
        found: dict[str, list[Process]] = {}
        for process in self.processes.values():
            if (run := run_of(process.pid)) is not None:
                found.setdefault(run, []).append(process)
        return found

    @cached_property
    def _related(self) -> dict[int, list[Process]]:
        """For each pid the process itself, its children, and those in its group or session."""
        found: dict[int, list[Process]] = {}
        for process in self.processes.values():
            for pid in {process.pid, process.parent, process.group, process.session}:
                found.setdefault(pid, []).append(process)
        return found

    def family(self, script: Script) -> dict[int, Process]:
        """Return everything that a run has started and that still exists, by pid.

        That is the script and whoever carries its run's id in the environment; whoever is a child of, or in
        the process group or session of, one of these; and so on.
        """
        found = {process.pid: process for process in self.marked.get(script.run, ())}
        ahead = list(found)
        if script.start is None or (
            (leader := self.processes.get(script.pid)) is not None and leader.start == script.start
        ):
            ahead.append(script.pid)
        while ahead:
            for process in self._related.get(ahead.pop(), ()):
                if process.pid not in found:
                    found[process.pid] = process
                    ahead.append(process.pid)
        return found


def open_again(process: Process) -> int | None:
    """Return a pidfd of exactly this process, None if it is gone.

    Raises:
        OSError: there are no descriptors left.
    """
    try:
        pidfd = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return None
    now = look(process.pid)
    if now is None or now.start != process.start:
        os.close(pidfd)
        return None
    return pidfd


def send(process: Process, number: int, flags: int = 0) -> bool:
    """Send a signal to exactly this process.

    Args:
        process: as it was seen.
        number: the signal.
        flags: of pidfd_send_signal(2).

    Returns:
        Whether it was there to get it, and the kernel knows the flags.
    """
    pidfd = open_again(process)
    if pidfd is None:
        return False
    try:
        signal.pidfd_send_signal(pidfd, number, None, flags)
    except (ProcessLookupError, PermissionError):  # EPERM: a set-user-id program, another user's now
        return False
    except OSError as error:
        if error.errno == errno.EINVAL and flags:
            return False
        raise
    finally:
        os.close(pidfd)
    return True


def deliver(scripts: Collection[Script], number: int) -> None:
    """Send a signal to everything that some runs have started, once to each process.

    A process group whose leader is there gets it in one call, which no fork can slip through; others one by
    one. What is started after that is left alone, since a script may start things because of the signal, in
    order to clean up; but for SIGKILL, after which only what slipped through can be new.

    Args:
        scripts: one for each run.
        number: the signal.
    """
    reached: set[tuple[int, int]] = set()
    for _ in range(_ROUNDS if number == signal.SIGKILL else 1):
        table = Table()
        before = len(reached)
        for script in scripts:
            family = [process for process in table.family(script).values() if not process.dying]
            leaders = [process for process in family if process.pid == process.group]
            groups = {leader.pid for leader in leaders if _send_group(leader, script, number)}
            for process in family:
                if (process.pid, process.start) not in reached:
                    reached.add((process.pid, process.start))
                    if process.group not in groups:
                        send(process, number)
        if len(reached) == before:
            return


def _send_group(leader: Process, script: Script, number: int) -> bool:
    """Signal a leader's whole group, if that can be done without any chance of signaling another one."""
    if send(leader, number, _PIDFD_SIGNAL_PROCESS_GROUP):
        return True
    if (
        script.start is None and leader.pid == script.pid
    ):  # a child of ours that we did not reap keeps its number
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(leader.pid, number)
            return True
    return False


def exit_status(process: Process, pidfd: int) -> int | None:
    """Return the wait status of a process that has ended and is not our child, None if nobody can tell.

    Args:
        process: as it was seen when it lived.
        pidfd: which says that it has ended.
    """
    status = _exit_info(pidfd)
    if status is None:  # it is not reaped yet, or the kernel is older
        now = look(process.pid)
        if now is not None and now.start == process.start and now.zombie and _may_inspect(process.pid):
            status = now.exit_code
    return _exit_info(pidfd) if status is None else status


def _exit_info(pidfd: int) -> int | None:
    info = bytearray(_PIDFD_INFO.pack(_PIDFD_INFO_EXIT, 0, *([0] * 12)))
    try:
        fcntl.ioctl(pidfd, PIDFD_GET_INFO, info)
    except OSError:  # an older kernel: ENOTTY, EINVAL, or ESRCH for a process that is reaped
        return None
    mask, *_, exit_code = _PIDFD_INFO.unpack(info)
    return int(exit_code) if mask & _PIDFD_INFO_EXIT else None


def _may_inspect(pid: int) -> bool:
    """Tell whether the kernel shows us a zombie's exit code: where it does not, /proc/PID/stat has 0 for it.

    The right (ptrace(2), PTRACE_MODE_READ_FSCREDS) is the same that is needed to follow its links, of which a
    zombie has none left: ENOENT if we may, EACCES if we may not.
    """
    try:
        Path(f"/proc/{pid}/cwd").readlink()
    except PermissionError:
        return False
    except OSError:
        return True
    return True


class Children:
    """The children of this (single-threaded) process, reaped or not, ours or left to us."""

    def __init__(self) -> None:
        pid = os.getpid()
        self._fd = -1
        with contextlib.suppress(FileNotFoundError):  # a kernel without CONFIG_PROC_CHILDREN
            self._fd = os.open(f"/proc/{pid}/task/{pid}/children", os.O_RDONLY)

    def pids(self) -> set[int]:
        """Return the pids of all children that are not reaped, none where the kernel cannot tell."""
        if self._fd < 0:
            return set()
        os.lseek(self._fd, 0, os.SEEK_SET)
        data = b""
        while more := os.read(self._fd, 1 << 16):
            data += more
        return set(map(int, data.split()))


def _read(path: str) -> bytes | None:
    """Return the content of a file of /proc, None if the process is gone or none of our business."""
    try:
        fd = os.open(path, os.O_RDONLY)
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None
    try:
        data = b""
        while more := os.read(fd, 1 << 16):
            data += more
    except (ProcessLookupError, PermissionError):
        return None
    else:
        return data
    finally:
        os.close(fd)
