"""What may be run: the executor's own reading of the configuration, now and before.

The broker names an action's definition by its hash. It is looked for in the configuration in force, in the
candidate of a reload that is under way, and among the definitions that were in force before and may still be
owed; commands come from nowhere else.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import TYPE_CHECKING

from perilogd.config import Action, Config, ConfigError
from perilogd.executor.records import replace

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

logger = logging.getLogger(__name__)

#: In force while no configuration is.
_HARMLESS = ("DW_*",)
_OUTPUT_LIMIT = 1 << 20
_OUTPUT_TOTAL = 1 << 30


class Definitions:
    """The definitions that an executor knows.

    Args:
        folder: where those are kept that are or were in force.
        load: reads the configuration; raises `ConfigError`.
    """

    def __init__(self, folder: Path, load: Callable[[], Config]) -> None:
        self._folder = folder
        self._load = load
        self._stored: dict[str, Action] = {}
        self._current: Config | None = None
        self._candidate: Config | None = None
        self.faults: list[str] = []
        for file in folder.iterdir():
            self._restore(file)

    @property
    def config(self) -> str:
        """Hash of the configuration in force, "" if none is."""
        return self._current.hash if self._current else ""

    @property
    def harmless(self) -> tuple[str, ...]:
        """Patterns of the variables that every script may have under their own names."""
        return self._current.executor.environment if self._current else _HARMLESS

    @property
    def output_limit(self) -> int:
        """Bytes of output kept of one run."""
        return self._current.executor.output_limit if self._current else _OUTPUT_LIMIT

    @property
    def output_total(self) -> int:
        """Bytes of output kept of all runs."""
        return self._current.executor.output_total if self._current else _OUTPUT_TOTAL

    def start(self, config: Config | None, faults: list[str]) -> None:
        """Put the configuration in force that was read at the start, or say why there is none.

        All of its definitions are kept from now on: what a job has planned runs as planned, however late.
        """
        self._current = config
        self.faults = faults
        for action in config.actions if config is not None else ():
            try:
                self.store(action)
            except OSError as error:  # it is tried again when the action is run, which fails without
                logger.error("cannot keep the definition of action %s: %s", action.name, error)  # noqa: TRY400

    def prepare(self) -> tuple[str | None, list[str]]:
        """Read the configuration anew and hold it as candidate.

        Returns:
            Its hash, None if it cannot be taken; and its faults.
        """
        self._candidate = None
        try:
            self._candidate = self._load()
        except ConfigError as error:
            return None, [str(fault) for fault in error.faults]
        return self._candidate.hash, []

    def commit(self, config: str) -> bool:
        """Put the candidate in force.

        Args:
            config: its hash.

        Returns:
            Whether the configuration with this hash is in force now.
        """
        if self._candidate is not None and self._candidate.hash == config:
            self.start(self._candidate, [])
            self._candidate = None
        return self.config == config

    def find(self, definition: str) -> Action | None:
        """Return the action with this definition hash, None if it is not known."""
        for config in (self._current, self._candidate):
            if config is not None and (action := config.definition(definition)) is not None:
                return action
        return self._stored.get(definition)

    def store(self, action: Action) -> None:
        """Keep the definition of an action.

        Raises:
            OSError: it could not be written.
        """
        if action.definition not in self._stored:
            replace(self._folder / action.definition, json.dumps(action.to_stored()).encode())
            self._stored[action.definition] = action

    def keep(self, owed: Collection[str]) -> None:
        """Forget stored definitions that are neither owed nor in the configuration.

        Args:
            owed: hashes of those that jobs or known runs still need.
        """
        for definition in [*self._stored]:
            if definition not in owed and (
                self._current is None or self._current.definition(definition) is None
            ):
                del self._stored[definition]
                (self._folder / definition).unlink(missing_ok=True)

    def _restore(self, file: Path) -> None:
        try:
            action = Action.from_stored(json.loads(file.read_bytes()))
        except ValueError as error:
            logger.warning("%s is not a stored definition and is ignored: %s", file, error)
            return
        if action.definition == file.name:
            self._stored[file.name] = action
        elif file.suffix != ".new":
            logger.warning("%s holds another definition than its name says and is ignored", file)
