"""How a script becomes a process, and why it may not.

Two ways: posix_spawn, for scripts that run as the executor's own user; and fork, for those that run as
somebody else, since posix_spawn cannot change users. In both it is the child that makes the output file, with
O_EXCL and as the last thing before its exec: so a run whose output file is not there was never begun, and
nothing can begin it twice.

posix_spawn comes back when the child has come to its exec. A script on a file system that hangs would hold up
everybody: scripts belong on a local one.
"""

from __future__ import annotations

import errno
import os
import pwd
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from perilogd.executor.wire import NOT_EXECUTABLE, NOT_FOUND

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_OUTPUT_FLAGS = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND

#: All that can be ignored or caught. Python ignores SIGPIPE, and whoever started us may have left others
#: ignored.
_SIGNALS = sorted(signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP})

#: Errors that say nothing about the script: the next attempt may succeed.
_TRANSIENT = {errno.EAGAIN, errno.ENOMEM, errno.ETXTBSY}

#: Most bytes of a failure that a child tells: what a pipe takes at once (PIPE_BUF).
_FAILURE_LIMIT = 4096

#: How far the kernel looks for the end of a "#!" line (BINPRM_BUF_SIZE).
_FIRST_LINE = 256


class SpawnError(Exception):
    """A script could not be started.

    Args:
        text: why, for people.
        status: the run's wait status: 127 or 126.
        transient: whether it is worth trying again.
    """

    def __init__(self, text: str, status: int = NOT_EXECUTABLE, *, transient: bool = False) -> None:
        super().__init__(text)
        self.status = status
        self.transient = transient


@dataclass(frozen=True, slots=True)
class User:
    """Whom a script runs as.

    Args:
        uid: of the user.
        gid: primary group.
        name: as the user database has it.
        home: home folder.
    """

    uid: int
    gid: int
    name: str
    home: str

    @classmethod
    def find(cls, who: int | str) -> User:
        """Look a user up, by uid or name. May take as long as the user database takes.

        Raises:
            SpawnError: there is none.
        """
        try:
            found = pwd.getpwuid(who) if isinstance(who, int) else pwd.getpwnam(who)
        except KeyError:
            raise SpawnError(f"no such user on this host: {who!r}") from None
        return cls(found.pw_uid, found.pw_gid, found.pw_name, found.pw_dir)


def spawn(command: tuple[str, ...], environment: Mapping[str, str], output: str) -> int:
    """Start a script as the executor's own user.

    Args:
        command: absolute path, and arguments.
        environment: all of it.
        output: path of the output file, which must not exist.

    Returns:
        The pid.

    Raises:
        SpawnError: it could not be started.
    """
    try:
        return os.posix_spawn(
            command[0],
            command,
            encode(environment),
            file_actions=(
                (os.POSIX_SPAWN_OPEN, 0, "/dev/null", os.O_RDONLY, 0),
                (os.POSIX_SPAWN_OPEN, 1, output, _OUTPUT_FLAGS, 0o600),
                (os.POSIX_SPAWN_DUP2, 1, 2),
            ),
            setsid=True,
            setsigmask=(),
            setsigdef=_SIGNALS,
        )
    except OSError as error:
        raise explain(error.errno or 0, command[0]) from None
    except ValueError as error:  # a NUL in an argument or in the environment
        raise SpawnError(f"cannot start {command[0]}: {error}") from None


def fork(
    who: int | str, command: tuple[str, ...], prepare: Callable[[User], Mapping[str, str]], output: str
) -> tuple[int, int]:
    """Start a script as another user. Needs root.

    Args:
        who: uid or name. It is looked up by the child, since that may take its time.
        command: absolute path, and arguments.
        prepare: called in the child, still as root, with the user; returns the whole environment.
        output: path of the output file, which must not exist.

    Returns:
        The pid, and the descriptor of a pipe for `outcome`.

    Raises:
        SpawnError: there could be no process.
    """
    try:
        reader, writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        raise explain(error.errno or 0, command[0]) from None
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
    try:
        pid = os.fork()
        if pid == 0:
            _be_the_child(who, command, prepare, output, writer)
    except OSError as error:
        os.close(reader)
        raise explain(error.errno or 0, command[0]) from None
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        os.close(writer)
    return pid, reader


def outcome(reader: int) -> SpawnError | None:
    """Return what became of a `fork`: None if the script was begun. Call it when the pipe is readable.

    Args:
        reader: the pipe's descriptor, which is closed.
    """
    try:
        data = os.read(reader, _FAILURE_LIMIT)
    finally:
        os.close(reader)
    if not data:
        return None
    status, transient, text = data.decode(errors="replace").split(" ", 2)
    return SpawnError(text, int(status), transient=transient == "True")


def encode(environment: Mapping[str, str]) -> dict[bytes, bytes]:
    """Return an environment as UTF-8, whatever locale this process was started with."""
    return {name.encode(): value.encode() for name, value in environment.items()}


def _be_the_child(
    who: int | str,
    command: tuple[str, ...],
    prepare: Callable[[User], Mapping[str, str]],
    output: str,
    writer: int,
) -> None:
    """Become the script. Never returns: what goes wrong is written into the pipe, which an exec closes."""
    failure = SpawnError("the child that was to become the script came to an unexpected end")
    try:
        for number in _SIGNALS:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        os.setsid()
        user = User.find(who)
        environment = encode(prepare(user))
        os.dup2(os.open("/dev/null", os.O_RDONLY), 0)
        os.initgroups(user.name, user.gid)
        out = os.open(output, _OUTPUT_FLAGS, 0o600)
        os.fchown(out, user.uid, user.gid)  # so that it can be opened as /dev/stdout
        os.dup2(out, 1)
        os.dup2(out, 2)
        os.setresgid(user.gid, user.gid, user.gid)
        os.setresuid(user.uid, user.uid, user.uid)
        os.execve(command[0], command, environment)  # noqa: S606 - no shell is wanted
    except OSError as error:
        failure = explain(error.errno or 0, command[0])
    except SpawnError as error:
        failure = error
    except ValueError as error:
        failure = SpawnError(f"cannot start {command[0]}: {error}")
    finally:
        try:
            text = f"{failure.status} {failure.transient} {failure}"
            os.write(writer, text.encode(errors="backslashreplace")[:_FAILURE_LIMIT])
        finally:
            os._exit(127)


def explain(number: int, script: str) -> SpawnError:
    """Return why a script could not be started, from the error that starting it ended with (execve(2)).

    Args:
        number: the errno.
        script: its path.
    """
    why = os.strerror(number)
    if number == errno.ENOENT:
        if not Path(script).exists():
            return SpawnError(f"cannot start {script}: there is no such file", NOT_FOUND)
        interpreter = _interpreter(script)
        named = f"its interpreter {interpreter}" if interpreter else "its interpreter (or loader)"
        return SpawnError(f"cannot start {script}: {named} is missing", NOT_FOUND)
    if number == errno.EACCES:
        interpreter = _interpreter(script)
        if interpreter and os.access(script, os.X_OK):
            return SpawnError(f"cannot start {script}: its interpreter {interpreter} may not be executed")
        return SpawnError(
            f"cannot start {script}: it may not be executed; expected mode +x, folders that "
            "its user may pass, and a file system that is not mounted noexec"
        )
    if number == errno.ENOEXEC:
        return SpawnError(f"cannot start {script}: it is no program, and has no '#!' line")
    return SpawnError(f"cannot start {script}: {why}", transient=number in _TRANSIENT)


def _interpreter(script: str) -> str | None:
    """Return the interpreter that a script's first line names, None where there is no such line."""
    try:
        with Path(script).open("rb") as file:
            line = file.read(_FIRST_LINE).split(b"\n", 1)[0]
    except OSError:
        return None
    words = line[2:].split()
    return words[0].decode("utf-8", "backslashreplace") if line.startswith(b"#!") and words else None
