"""Which files root may believe: those that nobody else could have written or put there.

The rule and its walk along a path live here; which files it is applied to is said in load.py and
actions.py.
"""

from __future__ import annotations

import os
import pwd
import stat
from collections.abc import Collection
from pathlib import Path

#: As many symbolic links as the kernel follows in one path (path_resolution(7)).
_MOST_LINKS = 40


def untrusted(path: str | os.PathLike[str], owners: Collection[int]) -> list[tuple[Path, str]]:
    """Return why a file must not be believed.

    The file, each folder above it, each symbolic link on the way and each folder above what that
    points to must belong to one of `owners`, and may be written by its owner alone. A sticky folder
    of root's, such as /tmp, counts as not writable by others: in it, nobody can replace what belongs
    to one of `owners`.

    Args:
        path: the file or folder, absolute.
        owners: the uids that are believed.

    Returns:
        For each thing that is wrong, its path and the rest of the sentence, outermost folder first;
        nothing for a file that can be believed, and for one that is not there that this is so.
    """
    faults: dict[tuple[Path, str], None] = {}  # an ordered set: a folder can be passed twice
    here = Path("/")
    # Nothing is normalized: ".." behind a link is the folder above what the link points to.
    ahead = list(reversed(os.fspath(path).split("/")))
    links = 0
    while ahead:
        name = ahead.pop()
        if name == "..":
            here = here.parent
            continue
        place = here / name
        try:
            status = place.lstat()
        except OSError as error:
            faults[place, f"cannot be examined: {error.strerror}"] = None
            break
        if status.st_uid not in owners:
            faults[place, f"belongs to {who(status.st_uid)}; expected {' or '.join(map(who, owners))}"] = None
        if stat.S_ISLNK(status.st_mode):
            links += 1
            if links > _MOST_LINKS:
                faults[place, f"is one of more than {_MOST_LINKS} symbolic links; expected a file"] = None
                break
            target = str(place.readlink())
            ahead.extend(reversed(target.split("/")))
            here = Path("/") if target.startswith("/") else here
            continue
        writers = _writers(status)
        if writers:
            mode = f"{stat.S_IMODE(status.st_mode):04o}"
            faults[
                place,
                f"can be written by {writers} (mode {mode}); expected only by its owner (chmod go-w {place})",
            ] = None
        here = place
    return list(faults)


def who(uid: int) -> str:
    """Return a uid as a person would like to read it: with the user's name, where it has one."""
    try:
        name = pwd.getpwuid(uid).pw_name
    except KeyError:
        return f"uid {uid}"
    return name if uid == 0 else f"uid {uid} ({name})"


def _writers(status: os.stat_result) -> str:
    """Return who besides its owner can write a file or folder; "" for nobody."""
    if stat.S_ISDIR(status.st_mode) and status.st_mode & stat.S_ISVTX and status.st_uid == 0:
        return ""
    classes = (("its group", stat.S_IWGRP), ("others", stat.S_IWOTH))
    return " and ".join(name for name, bit in classes if status.st_mode & bit)
