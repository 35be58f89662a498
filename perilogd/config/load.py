"""Files → configuration, or all of their faults at once.

`load` is a pure function of the files and its arguments: what is no longer written has its default
again. Nothing is kept between calls, and nothing is half in force.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from perilogd.config import actions, schema
from perilogd.config.actions import Entry
from perilogd.config.build import build
from perilogd.config.model import Config, ConfigError, Fault
from perilogd.config.schema import Table
from perilogd.config.trust import untrusted
from perilogd.config.values import WrongValueError, closest, key_shown, shown

#: Where the configuration is, if nobody names another file. It need not exist: all has defaults.
DEFAULT_FILE = Path("/etc/perilogd/perilogd.toml")

_ARRAYS = {"action": schema.ACTION, "provider": schema.PROVIDER}


def load(
    path: Path | None = None,
    *,
    uid: int | None = None,
    state_dir: Path | None = None,
    run_dir: Path | None = None,
    socket: Path | None = None,
) -> Config:
    """Read and check a configuration: the file, `FILE.d/*.toml` in order, and the drop-in folders.

    A later file adds actions and providers, and replaces single values of the other tables.

    Args:
        path: the configuration file; None: `DEFAULT_FILE`, if it exists.
        uid: the uid whose executor will run the scripts. None: root's if `[executor] start` is
            "systemd", else that of this process.
        state_dir: an option that goes before `[broker] state-dir`.
        run_dir: the same for `[broker] run-dir`.
        socket: the same for `[broker] socket`.

    Returns:
        The whole configuration, complete with defaults.

    Raises:
        ConfigError: something is wrong with it; all faults are listed.
    """
    file = (path or DEFAULT_FILE).absolute()
    sheet = _Sheet()
    sheet.add_file(file, optional=path is None)
    sheet.add_folder(Path(f"{file}.d"))
    for name, option in {"state-dir": state_dir, "run-dir": run_dir, "socket": socket}.items():
        if option is not None:
            sheet.add_option(name, option)
    sheet.add_drop_ins(file.parent)

    if uid is None:
        uid = 0 if sheet.sections["executor"]["start"] == "systemd" else os.geteuid()
    sheet.check(uid)
    if sheet.faults:
        # An untrusted folder is found with each of its files.
        raise ConfigError(list(dict.fromkeys(sheet.faults)))
    return build(file, sheet.sections, sheet.actions, sheet.providers)


class _Sheet:
    """What has been read so far, and what is wrong with it."""

    def __init__(self) -> None:
        self.sections = {name: table.defaults() for name, table in schema.SECTIONS.items()}
        self.actions: list[Entry] = []
        self.providers: list[Entry] = []
        self.faults: list[Fault] = []
        #: Files and folders that were read, and have to be trusted.
        self.sources: list[Path] = []

    def add_file(self, file: Path, *, optional: bool = False) -> None:
        """Read one file and put it over what was there."""
        try:
            content = file.read_bytes()
        except OSError as error:
            if optional and isinstance(error, FileNotFoundError):
                return
            self._fault(file, "", f"cannot be read: {error.strerror}; expected a configuration file")
            return
        self.sources.append(file)
        try:
            document = tomllib.loads(content.decode())
        except UnicodeDecodeError as error:
            self._fault(file, "", f"found the byte {error.object[error.start]:#04x}; expected UTF-8")
            return
        except tomllib.TOMLDecodeError as error:
            self._fault(file, "", f"is not TOML: {error}")
            return
        for name, value in document.items():
            if name in schema.SECTIONS:
                self._add_section(file, name, value)
            elif name in _ARRAYS:
                self._add_array(file, name, value)
            else:
                known = [*schema.SECTIONS, *_ARRAYS]
                self._fault(
                    file,
                    key_shown(name),
                    f"unknown table, found {shown(value)}; "
                    f"expected one of {', '.join(known)}{closest(name, known)}",
                )

    def add_folder(self, folder: Path) -> None:
        """Read the files `*.toml` of a folder, if there is one, in lexical order."""
        try:
            files = sorted(folder.iterdir())
        except FileNotFoundError:
            return
        except OSError as error:
            self._fault(folder, "", f"cannot be read: {error.strerror}; expected a folder of *.toml files")
            return
        self.sources.append(folder)
        for file in files:
            if file.name.endswith(".toml") and not file.name.startswith("."):
                self.add_file(file)

    def add_drop_ins(self, folder: Path) -> None:
        """Add the actions of the folders `prolog.d`, `completion.d` and `epilog.d` in a folder."""
        entries, folders, faults = actions.drop_ins(folder)
        self.actions += entries
        self.sources += folders
        self.faults += faults

    def add_option(self, name: str, value: Path) -> None:
        """Put a value from the command line over `[broker] NAME`."""
        written = {name: str(value.absolute())}
        right = self._right(Path("command line"), "--", schema.SECTIONS["broker"], written)
        self.sections["broker"].update(right)

    def check(self, uid: int) -> None:
        """Add the faults that only files, users and all tables together show.

        Args:
            uid: the uid whose executor will run the scripts.
        """
        owners = (0,) if uid == 0 else (0, uid)
        for source in self.sources:
            for path, text in untrusted(source, owners):
                self._fault(path, "", text)
        for entry in self.actions:
            self.faults += actions.script_faults(entry, uid, owners)
        self.faults += actions.name_faults(self.actions, self.providers)
        self.faults += actions.order_faults([*self.actions, *self.providers])

    def _fault(self, file: Path, place: str, text: str) -> None:
        self.faults.append(Fault(str(file), place, text))

    def _add_section(self, file: Path, name: str, value: object) -> None:
        if isinstance(value, dict):
            schema.merge(self.sections[name], self._right(file, f"[{name}] ", schema.SECTIONS[name], value))
        else:
            self._fault(file, name, f"found {shown(value)}; expected a table: [{name}]")

    def _add_array(self, file: Path, name: str, value: object) -> None:
        if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
            self._fault(file, name, f"found {shown(value)}; expected tables in double brackets: [[{name}]]")
            return
        for number, item in enumerate(value, 1):
            title = shown(item["name"]) if isinstance(item.get("name"), str) else f"number {number}"
            written = self._right(file, f"[[{name}]] {title} ", _ARRAYS[name], item)
            entry = Entry(str(file), f"[[{name}]] {title}", _ARRAYS[name], written)
            if "name" not in item:
                self.faults.append(
                    entry.fault("name", f"not there; expected {schema.ACTION.keys['name'].kind.expected}")
                )
            if name == "provider":
                self.providers.append(entry)
                continue
            self.actions.append(entry)
            if not any(phase in item for phase in schema.SCRIPT_PHASES):
                self._fault(
                    file,
                    entry.place,
                    f"no script; expected at least one of {', '.join(schema.SCRIPT_PHASES)}",
                )

    def _right(self, file: Path, place: str, table: Table, written: Mapping[str, Any]) -> dict[str, Any]:
        """Return what is right of a written table; the rest becomes faults.

        Args:
            file: where it is written.
            place: what stands before a key's name in a fault.
            table: what is expected.
            written: what was found.
        """
        right: dict[str, Any] = {}
        for name, value in written.items():
            key = table.keys.get(name)
            where = f"{place}{key_shown(name)}"
            if key is None:
                self._fault(
                    file,
                    where,
                    f"unknown key, found {shown(value)}; "
                    f"expected one of {', '.join(table.keys)}{closest(name, table.keys)}",
                )
            elif isinstance(key.kind, Table) and isinstance(value, dict):
                right[name] = self._right(file, f"{where}.", key.kind, value)
            else:
                try:
                    read = key.kind.read(value)
                except WrongValueError as error:
                    found, expected = error.found or shown(value), error.expected or key.kind.expected
                    self._fault(file, where, f"found {found}; expected {expected}")
                    continue
                if key.supported or read == key.kind.read(key.default):
                    right[name] = key.kind.spread(value) if isinstance(key.kind, Table) else value
                else:
                    self._fault(
                        file,
                        where,
                        f"found {shown(value)}, which is not supported by this version; "
                        f"expected {shown(key.default)}",
                    )
        return right
