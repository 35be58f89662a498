"""Actions and providers: scripts found and trusted, names unique, order possible.

What one table says is read in load.py; what several tables, drop-in folders and the file system say
together is judged here.
"""

from __future__ import annotations

import fnmatch
import graphlib
import os
import pwd
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from perilogd.config import schema
from perilogd.config.model import Fault
from perilogd.config.trust import untrusted, who
from perilogd.config.values import NAME_EXPECTED, closest, is_name, shown

#: Names in a drop-in folder that are nobody's scripts: what editors and package managers leave.
LEFTOVERS = ("*~", ".*", "*.dpkg-*", "*.rpmsave", "*.rpmnew", "*.rpmorig", "*.swp")


@dataclass(frozen=True)
class Entry:
    """One `[[action]]` or `[[provider]]`, or one set of drop-in files of the same name.

    Args:
        file: where it is written.
        place: how faults name it there; "" for drop-in files.
        table: what keys it can have.
        written: what was written and is right, by key.
    """

    file: str
    place: str
    table: schema.Table
    written: Mapping[str, Any]

    @cached_property
    def values(self) -> dict[str, Any]:
        """What was written, in our types."""
        return self.table.read(self.written)

    @property
    def drop_in(self) -> bool:
        """Whether it comes from drop-in folders: each of its scripts is then a file of its own."""
        return not self.place

    @property
    def name(self) -> str | None:
        """Its name, if it has a right one."""
        name: str | None = self.values.get("name")
        return name

    def fault(self, key: str, text: str) -> Fault:
        """Return a fault in one of its keys."""
        return Fault(self.file, "" if self.drop_in else f"{self.place} {key}", text)


def drop_ins(folder: Path) -> tuple[list[Entry], list[Path], list[Fault]]:
    """Return the actions of the folders `prolog.d`, `completion.d` and `epilog.d`.

    Files of the same name form an action, each after the one before it in lexical order. LEFTOVERS are
    passed over.

    Args:
        folder: where the three lie, if they exist.

    Returns:
        The actions in lexical order, the folders that are there, and what is wrong with them.
    """
    faults: list[Fault] = []
    folders: list[Path] = []
    commands: dict[str, dict[str, list[str]]] = {}
    for phase in schema.SCRIPT_PHASES:
        place = folder / f"{phase}.d"
        try:
            names = sorted(path.name for path in place.iterdir())
        except FileNotFoundError:
            continue
        except OSError as error:
            faults.append(
                Fault(str(place), "", f"cannot be read: {error.strerror}; expected a folder of scripts")
            )
            continue
        folders.append(place)
        for name in names:
            if any(fnmatch.fnmatchcase(name, pattern) for pattern in LEFTOVERS):
                continue
            if is_name(name):
                commands.setdefault(name, {})[phase] = [str(place / name)]
            else:
                faults.append(Fault(str(place), "", f"found {shown(name)}; expected {NAME_EXPECTED}"))
    entries: list[Entry] = []
    for name in sorted(commands):
        file = next(iter(commands[name].values()))[0]
        after = [entries[-1].written["name"]] if entries else []
        entries.append(Entry(file, "", schema.ACTION, {"name": name, "after": after, **commands[name]}))
    return entries, folders, faults


def script_faults(entry: Entry, uid: int, owners: tuple[int, ...]) -> list[Fault]:
    """Return what is wrong with an action's programs, and with the user that they are to be run as.

    Args:
        entry: the action.
        uid: the uid whose executor will run them.
        owners: uids that it believes.
    """
    faults: list[Fault] = []
    for phase in (phase for phase in schema.SCRIPT_PHASES if phase in entry.values):
        program = Path(entry.values[phase][0])
        for path, text in _program_faults(program, uid, owners):
            if entry.drop_in:
                faults.append(Fault(str(path), "", text))
            else:
                faults.append(entry.fault(phase, f"found {shown(str(program))}, but {path} {text}"))
    user = entry.values.get("user")
    if user is not None and uid not in (0, pwd.getpwnam(user).pw_uid):
        faults.append(
            entry.fault(
                "user",
                f"found {shown(user)}, but the executor is {who(uid)}, and running scripts as another user "
                "needs root; expected no user, or perilog-exec run by root",
            )
        )
    return faults


def _program_faults(program: Path, uid: int, owners: tuple[int, ...]) -> list[tuple[Path, str]]:
    try:
        status = program.stat()
    except OSError as error:
        return [(program, f"cannot be examined: {error.strerror}; expected an executable file")]
    if not stat.S_ISREG(status.st_mode):
        return [(program, "is no regular file; expected an executable file")]
    faults = untrusted(program, owners)
    # access(2) knows more than the mode (noexec mounts, for one), but only about this process's own uid.
    if not (os.access(program, os.X_OK) if uid == os.geteuid() else status.st_mode & 0o111):
        faults.append((program, f"is not executable; expected mode 0755 (chmod 755 {program})"))
    return faults


def name_faults(actions: Iterable[Entry], providers: Iterable[Entry]) -> list[Fault]:
    """Return the names that are used twice.

    Actions and providers share one space of names. The names of a provider's holds are its own: no
    action and no other provider may have them.
    """
    faults: list[Fault] = []
    taken: dict[str, tuple[str, Entry]] = {}
    for what, entry in [*(("action", e) for e in actions), *(("provider", e) for e in providers)]:
        if entry.name is None:
            continue
        if entry.name in taken:
            other, where = taken[entry.name]
            faults.append(entry.fault("name", _taken(entry.name, other, where)))
        else:
            taken[entry.name] = what, entry
    for entry in providers:
        held: set[tuple[str, str]] = set()
        for phase, name in entry.values.get("holds", ()):
            hold = name or entry.name
            if hold is None:
                continue
            owner = taken.setdefault(hold, ("provider's hold", entry))
            if owner[1] is not entry and hold != entry.name:
                faults.append(entry.fault("holds", _taken(hold, *owner)))
            elif (phase, hold) in held:
                faults.append(
                    entry.fault("holds", f"found {shown(f'{phase}:{hold}')} twice; expected each hold once")
                )
            held.add((phase, hold))
    return faults


def _taken(name: str, what: str, where: Entry) -> str:
    place = f"{where.file}: {where.place}" if where.place else where.file
    return f"found {shown(name)}, which is the name of the {what} in {place}; expected a name of its own"


def order_faults(entries: Iterable[Entry]) -> list[Fault]:
    """Return the names in `after` that nobody has, and each circle of those that wait for each other."""
    known = {entry.name: entry for entry in entries if entry.name is not None}
    faults: list[Fault] = []
    graph: dict[str, list[str]] = {}
    for name, entry in known.items():
        after = entry.values.get("after", ())
        graph[name] = [other for other in after if other in known]
        faults.extend(
            entry.fault(
                "after",
                f"found {shown(other)}; expected the name of an action or provider{closest(other, known)}",
            )
            for other in after
            if other not in known
        )
    while True:
        try:
            graphlib.TopologicalSorter(graph).prepare()
        except graphlib.CycleError as error:
            # Each is a predecessor of the next, the first and the last are the same.
            circle: list[str] = error.args[1][:0:-1]
            start = circle.index(min(circle))
            circle = [*circle[start:], *circle[:start]]
            faults.append(
                known[circle[0]].fault(
                    "after",
                    f"found a circle: {' after '.join([*circle, circle[0]])}; expected none",
                )
            )
            graph[circle[0]].remove(circle[1 % len(circle)])
        else:
            return faults
