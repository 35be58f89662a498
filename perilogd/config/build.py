"""A checked configuration, as it is written → the typed one.

Here are the defaults that follow from other keys. What can be wrong has been found before: see
load.py and actions.py.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from perilogd.config import durations, schema
from perilogd.config.actions import Entry
from perilogd.config.model import (
    Action,
    Broker,
    Config,
    Executor,
    Holds,
    Housekeeping,
    Journal,
    Limits,
    Nodes,
    OnDisconnect,
    Provider,
)
from perilogd.config.schema import ScriptPhase
from perilogd.lifecycle.policy import PHASES, OwnerPolicy


def build(
    file: Path, sections: Mapping[str, dict[str, Any]], actions: Iterable[Entry], providers: Iterable[Entry]
) -> Config:
    """Return the configuration that has been read without a fault.

    Args:
        file: the configuration file.
        sections: what is written, or else the default, by section and key.
        actions: in configuration order.
        providers: in configuration order.
    """
    table: dict[str, Any] = copy.deepcopy(dict(sections))
    broker, holds = table["broker"], table["holds"]
    broker.setdefault("socket", f"{broker['run-dir']}/{schema.BROKER_SOCKET}")
    broker.setdefault("guest-nodes", os.uname().nodename)
    table["executor"].setdefault("run-dir", f"{broker['run-dir']}/{schema.EXECUTOR_FOLDER}")
    table["journal"].setdefault("path", f"{broker['state-dir']}/{schema.JOURNAL_FILE}")
    holds["maximum"] = {
        phase: holds["maximum"].get(phase, _longer(timeout, schema.MAXIMUM))
        for phase, timeout in holds["timeout"].items()
    }
    table["action"] = [_complete(entry, holds["timeout"]) for entry in actions]
    table["provider"] = [_complete(entry, holds["timeout"]) for entry in providers]

    values = {name: _attributes(section.read(table[name])) for name, section in schema.SECTIONS.items()}
    values["holds"]["owner"] = OwnerPolicy(**values["holds"]["owner"])
    return Config(
        file=file,
        broker=Broker(**values["broker"]),
        limits=Limits(**values["limits"]),
        holds=Holds(**values["holds"]),
        journal=Journal(**values["journal"]),
        executor=Executor(**values["executor"]),
        nodes=Nodes(**values["nodes"]),
        housekeeping=Housekeeping(**values["housekeeping"]),
        actions=tuple(map(_action, table["action"])),
        providers=tuple(map(_provider, table["provider"])),
        table=table,
    )


def _longer(one: str, other: str) -> str:
    seconds, bound = durations.parse(one), durations.parse(other)
    return one if seconds is None or (bound is not None and seconds > bound) else other


def _complete(entry: Entry, timeouts: Mapping[str, str]) -> dict[str, Any]:
    """Return what is written for an entry, with the defaults filled in."""
    table = entry.table.defaults()
    schema.merge(table, copy.deepcopy(dict(entry.written)))
    phases = (
        PHASES
        if entry.table is schema.PROVIDER
        else [phase for phase in schema.SCRIPT_PHASES if phase in table]
    )
    table["timeout"] = {phase: table["timeout"].get(phase, timeouts[phase]) for phase in phases}
    return table


def _action(table: Mapping[str, Any]) -> Action:
    values = schema.ACTION.read(table)
    commands: dict[ScriptPhase, tuple[str, ...]] = {
        phase: values.pop(phase) for phase in schema.SCRIPT_PHASES if phase in values
    }
    return Action(commands=commands, **_attributes(values))


def _provider(table: Mapping[str, Any]) -> Provider:
    values = schema.PROVIDER.read(table)
    values["holds"] = tuple((phase, name or values["name"]) for phase, name in values["holds"])
    values["on-disconnect"] = OnDisconnect(**values["on-disconnect"])
    return Provider(**_attributes(values))


def _attributes(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return values by the names that their keys have as attributes."""
    return {key.replace("-", "_"): value for key, value in values.items()}
