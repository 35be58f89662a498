"""The executor's folder: what must outlive the process is written and read here, and nowhere else.

    <run-dir>/lock               held by flock; shared by a child until its exec
    <run-dir>/epoch              boot id and random id of this folder
    <run-dir>/exec.sock          where the broker connects
    <run-dir>/definitions/HASH   actions that were run, as JSON
    <run-dir>/runs/ID.run        what was asked for, then what has become of it
    <run-dir>/runs/ID.exit       the same file, renamed once the record is in it; that makes the record count
    <run-dir>/runs/ID.out        the script's output; made by the child itself, so that its presence tells
                                 whether the script can have been begun
    <run-dir>/runs/ID.job .message .environment    the files that the script is promised

A run's file is msgpack objects, one after another: the `run` request (unless it was canceled before it was
asked for), then entries `[word, map]`, each appended when it happens: begun, term, kill, exit (the record),
died. An entry that is cut short by its writer's end counts as not written.

Nothing is synced: the folder is meant for tmpfs, and promises nothing across a reboot.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
import stat
from pathlib import Path
from typing import Any, Self

import msgpack

#: The files that a script is promised.
_PROMISED = (".job", ".message", ".environment")

#: An entry's beginning, for a record that is encoded already.
_EXIT: bytes = msgpack.packb(("exit", None))[:-1]


class Folder:
    """The folder of one executor.

    Args:
        path: where it is.
        epoch: its random id.
        lock: file descriptor of the lock, held.
    """

    def __init__(self, path: Path, epoch: str, lock: int) -> None:
        self.path = path
        self.epoch = epoch
        self.lock = lock
        self._runs_path = f"{path}/runs/"
        self._runs = os.open(self._runs_path, os.O_RDONLY | os.O_DIRECTORY)

    @classmethod
    def open(cls, path: Path, boot_id: str, lock: int) -> Self:
        """Set the folder up where that is needed, and read it.

        Args:
            path: where it is; its parent exists.
            boot_id: the kernel's boot id; another one than last time makes a new epoch.
            lock: see `take_lock`.

        Raises:
            OSError: something in it cannot be read or written.
        """
        for name in ("runs", "definitions"):
            (path / name).mkdir(mode=0o711, exist_ok=True)
        kept = _read(path / "epoch").decode("ascii", "replace").split()
        if len(kept) != 2 or kept[0] != boot_id:
            kept = [boot_id, secrets.token_hex(8)]
            replace(path / "epoch", f"{kept[0]} {kept[1]}\n".encode())
        return cls(path, kept[1], lock)

    def script_path(self, run: str, kind: str) -> str:
        """Return the absolute path of a run's file, as a script is told it.

        Args:
            run: the run's id.
            kind: its extension, with the dot.
        """
        return f"{self._runs_path}{run}{kind}"

    # -- what has become of a run -------------------------------------------------------------------

    def write_request(self, run: str, request: dict[str, Any]) -> int:
        """Write down what is asked for, before it is begun.

        Returns:
            The descriptor of the run's file, for `note`; the caller closes it.

        Raises:
            OSError: it could not be written.
        """
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_NOFOLLOW
        fd = os.open(f"{run}.run", flags, 0o600, dir_fd=self._runs)
        try:
            _append(fd, msgpack.packb(request))
        except OSError:
            os.close(fd)
            raise
        return fd

    @staticmethod
    def note(fd: int, word: str, entry: dict[str, Any]) -> None:
        """Write down what has become of a run, whole or not at all.

        Raises:
            OSError: not at all.
        """
        _append(fd, msgpack.packb((word, entry)))

    def append(self, name: str, word: str, entry: dict[str, Any]) -> None:
        """Do what `note` does, to a file by its name in runs/."""
        fd = self.open_file(name, os.O_WRONLY | os.O_APPEND)
        try:
            self.note(fd, word, entry)
        finally:
            os.close(fd)

    def write_record(self, run: str, record: bytes) -> None:
        """Write a record and make it count, or neither.

        Raises:
            OSError: neither.
        """
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW
        fd = os.open(f"{run}.run", flags, 0o600, dir_fd=self._runs)
        try:
            _append(fd, _EXIT + record)
        finally:
            os.close(fd)
        self.rename(f"{run}.run", f"{run}.exit")

    def read_run(self, name: str) -> tuple[dict[str, Any] | None, dict[str, dict[str, Any]]]:
        """Read a run's file, and remove an entry at its end that is not whole, so that more can be appended.

        Args:
            name: its name in runs/.

        Returns:
            The request, None where there is none; and for each word its last entry.
        """
        data = self.read(name)
        unpacker = msgpack.Unpacker(max_buffer_size=0)
        unpacker.feed(data)
        objects: list[Any] = []
        whole = 0
        with contextlib.suppress(ValueError, msgpack.FormatError, msgpack.StackError):
            for found in unpacker:
                objects.append(found)
                whole = unpacker.tell()
        if whole < len(data):
            fd = self.open_file(name, os.O_WRONLY)
            os.ftruncate(fd, whole)
            os.close(fd)
        request = objects.pop(0) if objects and isinstance(objects[0], dict) else None
        return request, dict(objects)

    def forget(self, run: str, *, strays: bool) -> None:
        """Forget a run that has ended. Its output stays.

        Args:
            run: the run's id.
            strays: whether processes that it has left behind may still write to its other files;
                then these stay, too.
        """
        self.remove(f"{run}.exit")
        if not strays:
            for kind in _PROMISED:
                self.remove(f"{run}{kind}")

    def ids(self) -> dict[str, set[str]]:
        """Return for each run the extensions of its files."""
        found: dict[str, set[str]] = {}
        with os.scandir(self._runs) as entries:
            for entry in entries:
                run, dot, kind = entry.name.rpartition(".")
                found.setdefault(run, set()).add(dot + kind)
        return found

    def rename(self, old: str, new: str) -> None:
        """Rename a file in runs/."""
        os.rename(old, new, src_dir_fd=self._runs, dst_dir_fd=self._runs)

    # -- files in runs/, by name --------------------------------------------------------------------

    def write(self, name: str, data: bytes, mode: int, owner: tuple[int, int] | None = None) -> None:
        """Write a file anew.

        Args:
            name: its name in runs/.
            data: its content.
            mode: its permissions, where it is made.
            owner: uid and gid that it is given to.

        Raises:
            OSError: it could not be written.
        """
        fd = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, mode, dir_fd=self._runs)
        try:
            _append(fd, data)
            if owner:
                os.fchown(fd, *owner)
        finally:
            os.close(fd)

    def make(self, name: str, owner: tuple[int, int] | None = None) -> None:
        """Make an empty file, as cheaply as can be.

        Args:
            name: its name in runs/.
            owner: uid and gid that it is given to.

        Raises:
            OSError: it could not be made.
        """
        with contextlib.suppress(FileExistsError):  # made for an attempt to spawn that failed
            os.mknod(name, 0o600, dir_fd=self._runs)
        if owner:
            os.chown(name, *owner, dir_fd=self._runs, follow_symlinks=False)

    def read(self, name: str, limit: int = -1) -> bytes:
        """Return a file's content, empty where there is none.

        Args:
            name: its name in runs/.
            limit: most bytes; -1 for all.
        """
        try:
            fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=self._runs)
        except FileNotFoundError:
            return b""
        with os.fdopen(fd, "rb") as file:
            return file.read(limit)

    def size(self, name: str) -> int:
        """Return a file's size in bytes; 0 where there is none, or it is no regular file any more."""
        try:
            found = os.stat(name, dir_fd=self._runs, follow_symlinks=False)
        except FileNotFoundError:
            return 0
        return found.st_size if stat.S_ISREG(found.st_mode) else 0

    def space(self, name: str) -> int:
        """Return the bytes of space that a file takes, holes left out; 0 where there is none."""
        try:
            return os.stat(name, dir_fd=self._runs, follow_symlinks=False).st_blocks * 512
        except FileNotFoundError:
            return 0

    def changed(self, name: str) -> float:
        """Return when a file was written to last, wall time; it exists."""
        return os.stat(name, dir_fd=self._runs, follow_symlinks=False).st_mtime

    def remove(self, name: str) -> None:
        """Remove a file where there is one. What a script has put there instead of its file may stay."""
        try:  # noqa: SIM105 - six times a run
            os.unlink(name, dir_fd=self._runs)
        except (FileNotFoundError, IsADirectoryError):
            pass

    def open_file(self, name: str, flags: int) -> int:
        """Open a file in runs/ and return its descriptor.

        Raises:
            OSError: it could not be opened.
        """
        return os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=self._runs)


def take_lock(path: Path) -> int | None:
    """Take the lock of an executor's folder.

    It is dropped when the last holder is gone: this process, and a child that has not come to its exec. So
    whoever gets it knows that no other executor works here and that no spawn is half way.

    Args:
        path: the executor's folder.

    Returns:
        Its file descriptor, or None while somebody else has it.
    """
    fd = os.open(path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return None
    return fd


def _append(fd: int, data: bytes) -> None:
    """Write at the end of a file, whole or not at all."""
    written = os.write(fd, data)
    if written < len(data):
        os.ftruncate(fd, os.fstat(fd).st_size - written)
        raise OSError(errno.ENOSPC, f"only {written} of {len(data)} bytes could be written")


def replace(path: Path, data: bytes) -> None:
    """Write a file, whole or not at all."""
    new = path.with_name(path.name + ".new")
    new.write_bytes(data)
    new.rename(path)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""
