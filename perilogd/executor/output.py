"""What scripts write: bounded while they write it, excerpted when they are done, kept for a while.

Scripts write to files, not to a pipe that somebody must drain, so an endless writer is never blocked and
outlives the executor. Of a file that grows beyond its bound the middle is punched out (fallocate(2)), so that
head and tail stay and the size goes on telling how much was written. Where that is not supported, the file is
cut to its head.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from perilogd.executor.wire import REQUEST_LIMIT, VARIABLES_LIMIT

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

    from perilogd.executor.records import Folder

#: Seconds between two looks at the files of running scripts, and the same where one writes fast.
INTERVAL = 0.25
FAST_INTERVAL = 0.05

#: Every how many looks the files are looked at that scripts' left-overs may still write to, and how many.
_SELDOM = 8
_SLICE = 256

#: The other files of a script, which are its user's to fill, with bounds beyond any use of theirs.
_OTHERS = {
    ".job": REQUEST_LIMIT,
    ".message": 2 * VARIABLES_LIMIT,
    ".environment": 2 * VARIABLES_LIMIT,
}

#: fallocate(2)
_KEEP_SIZE = 1
_PUNCH_HOLE = 2
_libc = ctypes.CDLL(None, use_errno=True)
_libc.fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_longlong, ctypes.c_longlong)

_PAGE = os.sysconf("SC_PAGE_SIZE")
_CUT = b"\n[... cut here ...]\n"


class Excerpt(NamedTuple):
    """The beginning and the end of an output.

    Args:
        size: bytes written in all.
        head: the beginning.
        tail: the end, empty if head is everything.
    """

    size: int
    head: bytes
    tail: bytes

    def text(self) -> bytes:
        """Return it as one text, which says how much is left out."""
        left_out = self.size - len(self.head) - len(self.tail)
        gap = b"\n[... %d bytes left out ...]\n" % left_out if left_out else b""
        return self.head + gap + self.tail


class Outputs:
    """The output files of an executor's runs.

    Args:
        folder: the executor's folder.
        kept: runs that are known no more, but whose output is still here, oldest first.
    """

    def __init__(self, folder: Folder, kept: Iterable[str]) -> None:
        self._folder = folder
        self._looks = 0
        self._kept: dict[str, int] = {}  # oldest first, with the space that each takes
        self._taken = 0  # the sum of that
        self._open: dict[str, None] = {}  # names of files that left-overs of scripts may write to, in turn
        for run in kept:
            self._keep(run, strays=True)

    @property
    def watched(self) -> bool:
        """Whether there are files of ended runs that somebody may still write to."""
        return bool(self._open)

    def excerpt(self, run: str, limit: int) -> Excerpt | None:
        """Return the beginning and the end of a run's output.

        Args:
            run: the run's id.
            limit: most bytes in all; not more than the bound of one output, beyond which there are holes.

        Returns:
            The excerpt, None if there is no output file.
        """
        with contextlib.suppress(FileNotFoundError), self._opened(f"{run}.out", os.O_RDONLY) as fd:
            size = os.fstat(fd).st_size
            if size <= limit:
                return Excerpt(size, os.pread(fd, size, 0), b"")
            half = limit // 2
            # What is zero at the inner edges was punched out.
            head = os.pread(fd, limit - half, 0).rstrip(b"\0")
            return Excerpt(size, head, os.pread(fd, half, size - half).lstrip(b"\0"))
        return None

    def retain(self, run: str, *, strays: bool, total: int) -> None:
        """Keep the output of a run that is known no more, if there is any.

        Args:
            run: the run's id.
            strays: whether processes that the run has left behind may still write to its files, which are all
                kept then, since without their names they would grow unseen.
            total: see `look`.
        """
        self._keep(run, strays=strays)
        self._evict(total)

    def look(self, live: Collection[str], *, limit: int, total: int) -> float:
        """Bound all files.

        Args:
            live: runs whose scripts may be writing.
            limit: bytes of space for the output of one run.
            total: bytes of space for all outputs together; the oldest are removed.

        Returns:
            Seconds until it should be called again.
        """
        limit = min(limit, total // max(1, len(live)))
        fast = False
        taken = 0
        for run in live:
            space = self._space(run)
            if space > limit:
                fast = fast or space > 2 * limit
                space = self._trim(run, limit)
            taken += space
            for kind, bound in _OTHERS.items():
                if self._folder.size(run + kind) > bound:
                    self._truncate(run + kind, bound // 2 + 1)
        self._looks += 1
        if self._looks % _SELDOM == 0:
            self._look_at_open(limit)
        self._evict(total - taken)
        return FAST_INTERVAL if fast else INTERVAL

    def trim(self, run: str, limit: int) -> int:
        """Bound one file, whose script has ended, and return the space that it takes."""
        space = self._space(run)
        return self._trim(run, limit) if space > limit else space

    def _look_at_open(self, limit: int) -> None:
        for name in [*islice(self._open, _SLICE)]:
            del self._open[name]
            if self._written_to(name):
                self._open[name] = None
            run, _, kind = name.rpartition(".")
            if kind == "out":
                self._note(run, self.trim(run, limit))
                if name not in self._open and self._kept[run] == 0:
                    self._drop(run)
            elif name not in self._open:
                self._folder.remove(name)
            elif self._folder.space(name) > _OTHERS[f".{kind}"]:
                self._truncate(name, 0)

    def _keep(self, run: str, *, strays: bool) -> None:
        self._note(run, self._space(run))
        if strays:
            self._open |= dict.fromkeys(run + kind for kind in (".out", *_OTHERS))
        elif self._kept[run] == 0:
            self._drop(run)

    def _note(self, run: str, space: int) -> None:
        self._taken += space - self._kept.get(run, 0)
        self._kept[run] = space

    def _evict(self, total: int) -> None:
        for run in self._oldest(total):
            if f"{run}.out" in self._open:
                self._truncate(f"{run}.out", 0)
                self._note(run, 0)
            else:
                self._drop(run)

    def _oldest(self, total: int) -> list[str]:
        """Return the runs whose outputs have to go, so that what is kept takes no more than that."""
        found, taken = [], self._taken
        for run, space in self._kept.items():
            if taken <= total:
                break
            found.append(run)
            taken -= space
        return found

    def _drop(self, run: str) -> None:
        self._taken -= self._kept.pop(run)
        self._folder.remove(f"{run}.out")

    def _space(self, run: str) -> int:
        """Return the bytes of space that an output takes: never mind how much was written."""
        return self._folder.space(f"{run}.out")

    def _trim(self, run: str, limit: int) -> int:
        """Punch the middle out of an output and return the space that it takes then."""
        name = f"{run}.out"
        with contextlib.suppress(FileNotFoundError), self._opened(name, os.O_RDWR | os.O_APPEND) as fd:
            head = limit // 2 // _PAGE * _PAGE
            tail = max(0, limit - head - _PAGE)  # its first page is only zeroed, not freed
            hole = os.fstat(fd).st_size - head - tail
            if hole > 0 and _libc.fallocate(fd, _PUNCH_HOLE | _KEEP_SIZE, head, hole) != 0:
                os.ftruncate(fd, head)
                os.write(fd, _CUT)
        return self._space(run)

    def _truncate(self, name: str, size: int) -> None:
        with contextlib.suppress(FileNotFoundError), self._opened(name, os.O_WRONLY) as fd:
            os.ftruncate(fd, size)

    def _written_to(self, name: str) -> bool:
        """Tell whether somebody has a file open for writing: then it gets no write lease (fcntl(2))."""
        with contextlib.suppress(FileNotFoundError), self._opened(name, os.O_RDONLY) as fd:
            try:
                fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_WRLCK)
            except BlockingIOError:
                return True
            except OSError:  # EACCES, EINVAL: no leases here, so nobody can tell
                return False
            fcntl.fcntl(fd, fcntl.F_SETLEASE, fcntl.F_UNLCK)
        return False

    @contextlib.contextmanager
    def _opened(self, name: str, flags: int) -> Iterator[int]:
        fd = self._folder.open_file(name, flags)
        try:
            yield fd
        finally:
            os.close(fd)
