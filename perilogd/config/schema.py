"""Every table and key of a configuration, with its kind and its default.

This is the description that reading, defaults, the table for people and the tests of the example
file are made from: a key is added here, as a field in model.py, and in etc/perilogd.toml.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from perilogd.config import values
from perilogd.config.values import Kind, WrongValueError
from perilogd.lifecycle.policy import PHASES

#: Paths of the sockets that are made below the folders [broker] run-dir and [executor] run-dir.
BROKER_SOCKET = "perilogd.sock"
EXECUTOR_FOLDER = "exec"
EXECUTOR_SOCKET = "exec.sock"
JOURNAL_FILE = "journal.sqlite"

#: The phases in which an action can have a script.
ScriptPhase = Literal["prolog", "completion", "epilog"]
SCRIPT_PHASES: tuple[ScriptPhase, ...] = ("prolog", "completion", "epilog")

#: `[holds] maximum` of a phase, where it is not written: this, or the timeout if that is longer.
MAXIMUM = "30d"

#: What `attach` and `run` can wait for: the result, or an event that every job can come to.
_WAIT_EVENTS = ("result", "depend", "alloc", "ready", "start", "exit", "finish", "clean")


@dataclass(frozen=True, slots=True)
class Key:
    """A key of a table.

    Args:
        kind: what it takes; a nested table has keys of its own.
        default: its value where it is not written, as it would be written; None: there is none, or it
            follows from other keys.
        supported: False: this version knows the key, but no other value than the default.
    """

    kind: Kind | Table
    default: Any = None
    supported: bool = True


@dataclass(frozen=True, slots=True)
class Table:
    """A table: the keys that it has.

    Args:
        keys: by name.
        each: one value of this kind can be written in place of the table, and is meant for every key.
    """

    keys: Mapping[str, Key]
    each: Kind | None = None

    @property
    def expected(self) -> str:
        """What was expected, told to whoever wrote something else."""
        table = f"a table of {', '.join(self.keys)}"
        return f"{self.each.expected}, or {table}" if self.each else table

    def read(self, value: object) -> dict[str, Any]:
        """Return our values for a table that has been checked, by key as it is written."""
        return {name: self.keys[name].kind.read(item) for name, item in self.spread(value).items()}

    def spread(self, value: object) -> dict[str, Any]:
        """Return what is written as a table, also where one value stands for all keys.

        Raises:
            WrongValueError: neither is written there.
        """
        if isinstance(value, dict):
            return value
        if self.each is None:
            raise WrongValueError
        self.each.read(value)
        return dict.fromkeys(self.keys, value)

    def defaults(self) -> dict[str, Any]:
        """Return all keys that have defaults of their own, as they would be written, nested ones as well."""
        return {
            name: key.kind.defaults() if isinstance(key.kind, Table) else copy.deepcopy(key.default)
            for name, key in self.keys.items()
            if isinstance(key.kind, Table) or key.default is not None
        }


def merge(values: dict[str, Any], newer: Mapping[str, Any]) -> None:
    """Replace values by newer ones, those of nested tables one by one."""
    for key, value in newer.items():
        if isinstance(value, dict) and key in values:
            merge(values[key], value)
        else:
            values[key] = value


def _timeouts(phases: Sequence[str], defaults: Mapping[str, str]) -> Key:
    return Key(Table({phase: Key(values.DURATION, defaults.get(phase)) for phase in phases}, values.DURATION))


#: The tables of which there is one each.
SECTIONS: Mapping[str, Table] = {
    "broker": Table(
        {
            "socket": Key(values.SOCKET),  # default: below run-dir
            "state-dir": Key(values.PATH, "/var/lib/perilogd"),
            "run-dir": Key(values.socket_folder(f"{EXECUTOR_FOLDER}/{EXECUTOR_SOCKET}"), "/run/perilogd"),
            "admins": Key(values.USERS, ["root"]),
            "guests": Key(values.choice("submit", "read", "none"), "submit"),
            "guest-nodes": Key(values.NODE_SET),  # default: this host
            "lease-grace": Key(values.FINITE, "30s"),
            "wait-event": Key(values.choice(*_WAIT_EVENTS), "result"),
        }
    ),
    "limits": Table(
        {
            "frame": Key(values.SIZE, "1MiB"),
            "connections-per-user": Key(values.integer(1), 64),
            "requests": Key(values.integer(1), 1024),
            "watches": Key(values.integer(1), 64),
            "jobs": Key(values.integer(1), 1_000_000),
            "holds-per-job": Key(values.integer(1), 1000),
            "nodes": Key(values.integer(1), 100_000),
            "attributes": Key(values.SIZE, "64KiB"),
            "environment": Key(values.SIZE, "64KiB"),
            "reruns": Key(values.integer(0), 100),
        }
    ),
    "holds": Table(
        {
            "timeout": _timeouts(
                PHASES, {"depend": "infinity", "prolog": "30m", "completion": "24h", "epilog": "1h"}
            ),
            "maximum": _timeouts(PHASES, {}),  # default: see MAXIMUM
            "abandon-grace": Key(values.FINITE, "60s"),
            "restart-grace": Key(values.FINITE, "10s"),
            "owner": Key(
                Table(
                    {
                        "timeout": Key(values.DURATION, "24h"),
                        "holds": Key(values.integer(0), 16),
                        "nodes": Key(values.integer(0), 100_000),
                    }
                )
            ),
        }
    ),
    "journal": Table(
        {
            "path": Key(values.PATH),  # default: below state-dir
            "inactive-age-limit": Key(values.DURATION, "7d"),
            "inactive-num-limit": Key(values.integer(1), 100_000),
        }
    ),
    "executor": Table(
        {
            "run-dir": Key(values.socket_folder(EXECUTOR_SOCKET)),  # default: below the broker's run-dir
            "concurrency": Key(values.integer(1), 256),
            "output-limit": Key(values.SIZE, "1MiB"),
            "output-total": Key(values.SIZE, "1GiB"),
            "environment": Key(values.PATTERNS, ["DW_*"]),
            "start": Key(values.choice("auto", "systemd"), "auto"),
            "absent-timeout": Key(values.FINITE, "10m"),
        }
    ),
    "nodes": Table(
        {
            "launcher": Key(values.LAUNCHER, "ssh"),
            "fanout": Key(values.integer(1), 64),
            "connect-timeout": Key(values.FINITE, "10s"),
            "drain-command": Key(values.OPTIONAL_COMMAND, [], supported=False),
            "undrain-command": Key(values.OPTIONAL_COMMAND, [], supported=False),
            "release-after": Key(values.DELAY, "0", supported=False),
        }
    ),
    "housekeeping": Table(
        {
            "command": Key(values.OPTIONAL_COMMAND, [], supported=False),
            "timeout": Key(values.DURATION, "1h"),
            "kill-timeout": Key(values.FINITE, "60s"),
        }
    ),
}

#: The keys of each `[[action]]`. What has no default here: `timeout` is that of `[holds]`, a phase
#: without a command has no script, and `user` is the executor's own (completion: the job's).
ACTION = Table(
    {
        "name": Key(values.NAME),
        "prolog": Key(values.COMMAND),
        "completion": Key(values.COMMAND),
        "epilog": Key(values.COMMAND),
        "per-node": Key(values.BOOLEAN, False, supported=False),
        "user": Key(values.USER),
        "after": Key(values.NAMES, []),
        "match": Key(values.MATCH, {}),
        "timeout": _timeouts(SCRIPT_PHASES, {}),
        "kill-timeout": Key(values.FINITE, "60s"),
        "cancel-on-exception": Key(values.BOOLEAN, True),
        "on-stuck": Key(values.choice("drain", "kill"), "drain"),
        "tolerate-nodes": Key(values.integer(0), 0, supported=False),
    }
)

#: The keys of each `[[provider]]`; its `timeout` is that of `[holds]` where it is not written.
PROVIDER = Table(
    {
        "name": Key(values.NAME),
        "users": Key(values.USERS, []),
        "match": Key(values.MATCH, {}),
        "holds": Key(values.HOLDS, []),
        "after": Key(values.NAMES, []),
        "timeout": _timeouts(PHASES, {}),
        "on-disconnect": Key(
            Table({"grace": Key(values.FINITE, "5m"), "then": Key(values.choice("keep", "fail"), "keep")})
        ),
    }
)
