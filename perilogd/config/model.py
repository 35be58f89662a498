"""The configuration in force, as frozen data.

The types live here, and what can be told from them alone: an action's definition hash, the policy
that the lifecycle gets, the printable table. Reading, checking and defaults do not: see load.py
and schema.py. Both processes import this module, the executor as root, so it stays small.
"""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, cast

from perilogd.config.schema import ScriptPhase
from perilogd.lifecycle.policy import ActionPolicy, OwnerPolicy, Phase, Policy, ProviderPolicy, Seconds

if TYPE_CHECKING:
    from pathlib import Path

#: Keys whose values the options of a process can replace, or follow from such.
_FOLDERS = (
    ("broker", "socket"),
    ("broker", "state-dir"),
    ("broker", "run-dir"),
    ("journal", "path"),
    ("executor", "run-dir"),
)

#: What is configured for a phase: an entry for each of them.
Timeouts = Mapping[Phase, Seconds]


@dataclass(frozen=True, slots=True, order=True)
class Fault:
    """One thing that is wrong with a configuration.

    Args:
        file: the file (or folder, or option) that it stands in.
        place: table and key as a person would look for them, such as `[holds] timeout.prolog`;
            "" for the whole file.
        text: what was found there, and what was expected.
    """

    file: str
    place: str
    text: str

    def __str__(self) -> str:
        """Return the fault as one line."""
        return f"{self.file}: {self.line}"

    @property
    def line(self) -> str:
        """The fault without its file, as it stands below the file's name in a report."""
        return f"{self.place}: {self.text}" if self.place else self.text


class ConfigError(Exception):
    """A configuration is not taken, as a whole, because of its faults.

    Args:
        faults: all of them; never empty. The exception's text groups them by file.
    """

    def __init__(self, faults: list[Fault]) -> None:
        self.faults = faults
        lines = [f"{len(faults)} fault{'s' if len(faults) > 1 else ''} in the configuration:"]
        for file in dict.fromkeys(fault.file for fault in faults):
            lines += [file, *(f"  {fault.line}" for fault in faults if fault.file == file)]
        super().__init__("\n".join(lines))


@dataclass(frozen=True, slots=True)
class Broker:
    """`[broker]`: where the broker lives and who may do what.

    Args:
        socket: the Unix socket that clients connect to.
        state_dir: folder of the journal; survives a reboot.
        run_dir: folder of what does not.
        admins: uids of administrators, besides root and the broker's own.
        guests: what everybody else may do.
        guest_nodes: canonical node set that guests' jobs must stay within.
        lease_grace: seconds after READY in which a lease may be taken again.
        wait_event: what `attach` and `run` wait for by default.
    """

    socket: Path
    state_dir: Path
    run_dir: Path
    admins: tuple[int, ...]
    guests: Literal["submit", "read", "none"]
    guest_nodes: str
    lease_grace: float
    wait_event: str


@dataclass(frozen=True, slots=True)
class Limits:
    """`[limits]`: bounds on what clients can ask for.

    Args:
        frame: largest message to the broker, bytes.
        connections_per_user: at a time, for each uid that is no administrator.
        requests: unanswered at a time, a connection.
        watches: at a time, a connection.
        jobs: active at a time.
        holds_per_job: in all phases together.
        nodes: in one node set.
        attributes: bytes, encoded, a job.
        environment: bytes of names and values, a job.
        reruns: most that a job may ask for.
    """

    frame: int
    connections_per_user: int
    requests: int
    watches: int
    jobs: int
    holds_per_job: int
    nodes: int
    attributes: int
    environment: int
    reruns: int


@dataclass(frozen=True, slots=True)
class Holds:
    """`[holds]`: how long holds may last.

    Args:
        timeout: default deadline, a phase.
        maximum: longest time from a hold's start, extensions included, a phase.
        abandon_grace: seconds between an abandon and the end of what did not end by itself.
        restart_grace: seconds after READY before a deadline that passed while the broker was down acts.
        owner: caps of owners' holds.
    """

    timeout: Timeouts
    maximum: Timeouts
    abandon_grace: float
    restart_grace: float
    owner: OwnerPolicy


@dataclass(frozen=True, slots=True)
class Journal:
    """`[journal]`: where events are kept, and for how long.

    Args:
        path: the SQLite file.
        inactive_age_limit: seconds that an ended job's record is kept, None for ever.
        inactive_num_limit: most ended jobs that are kept.
    """

    path: Path
    inactive_age_limit: Seconds
    inactive_num_limit: int


@dataclass(frozen=True, slots=True)
class Executor:
    """`[executor]`: how scripts are run.

    Args:
        run_dir: the executor's own folder, on tmpfs.
        concurrency: most scripts running at a time, a phase.
        output_limit: bytes of output kept of one run.
        output_total: bytes of output kept of all runs.
        environment: shell patterns of variables that scripts get under their own names.
        start: whether the broker starts an executor where none answers.
        absent_timeout: seconds without an executor after which waiting runs end as not started.
    """

    run_dir: Path
    concurrency: int
    output_limit: int
    output_total: int
    environment: tuple[str, ...]
    start: Literal["auto", "systemd"]
    absent_timeout: float


@dataclass(frozen=True, slots=True)
class Nodes:
    """`[nodes]`: how nodes are reached, drained and released.

    Args:
        launcher: "ssh", "local", or a command with %h for the host.
        fanout: most nodes worked on at a time, a run.
        connect_timeout: seconds.
        drain_command: program and arguments; empty for none.
        undrain_command: the same.
        release_after: seconds for which freed nodes are collected; 0 for none, None until the last one.
    """

    launcher: str | tuple[str, ...]
    fanout: int
    connect_timeout: float
    drain_command: tuple[str, ...]
    undrain_command: tuple[str, ...]
    release_after: Seconds


@dataclass(frozen=True, slots=True)
class Housekeeping:
    """`[housekeeping]`: what is run on a node after a job has left it.

    Args:
        command: program and arguments; empty for none.
        timeout: seconds, None for no limit.
        kill_timeout: seconds between SIGTERM and giving up.
    """

    command: tuple[str, ...]
    timeout: Seconds
    kill_timeout: float


@dataclass(frozen=True, slots=True)
class Action:
    """One `[[action]]`, or one set of drop-in scripts of the same name.

    `definition` is computed: the hash of `to_stored()`, which names the action's definition between
    broker and executor, and across reloads and restarts.

    Args:
        name: unique among actions and providers.
        commands: program and arguments, for each phase in which the action has a script.
        timeout: seconds, None for no limit, for the same phases.
        per_node: whether it runs once on each node of the job.
        user: whom its scripts run as; None: the executor's own user, but the job's in completion.
        after: names of actions and providers that come before it (in the epilog: after it).
        match: see `perilogd.lifecycle.policy.matches`.
        kill_timeout: seconds between the delivery of SIGTERM and `on_stuck`.
        cancel_on_exception: whether a fatal exception ends its prolog.
        on_stuck: what to do with a script that ignores SIGTERM.
        tolerate_nodes: on how many nodes its prolog may fail or be lost.
    """

    name: str
    commands: Mapping[ScriptPhase, tuple[str, ...]]
    timeout: Mapping[ScriptPhase, Seconds]
    per_node: bool = False
    user: str | None = None
    after: tuple[str, ...] = ()
    match: Mapping[str, str | bool] = field(default_factory=dict)
    kill_timeout: float = 60.0
    cancel_on_exception: bool = True
    on_stuck: Literal["drain", "kill"] = "drain"
    tolerate_nodes: int = 0
    definition: str = field(init=False)

    def __post_init__(self) -> None:
        """Name the definition."""
        object.__setattr__(self, "definition", digest(self.to_stored()))

    def to_stored(self) -> dict[str, Any]:
        """Return what the executor needs to run this action later, as JSON values.

        Returns:
            A map that `from_stored` takes. What only the broker needs (order, match, tolerance) is
            not in it, so that changing it makes no new definition.
        """
        return {
            "name": self.name,
            "commands": {phase: list(command) for phase, command in self.commands.items()},
            "timeout": dict(self.timeout),
            "per-node": self.per_node,
            "user": self.user,
            "kill-timeout": self.kill_timeout,
            "on-stuck": self.on_stuck,
        }

    @classmethod
    def from_stored(cls, stored: Mapping[str, Any]) -> Action:
        """Return the action that `to_stored` was called on, as far as the executor needs it.

        Args:
            stored: what `to_stored` returned, possibly through JSON.

        Raises:
            ValueError: something is missing or of another shape. A caller who knows the hash under
                which it was stored compares it with `definition` as well.
        """
        try:
            return cls(
                name=str(stored["name"]),
                commands={phase: tuple(command) for phase, command in stored["commands"].items()},
                timeout=dict(stored["timeout"]),
                per_node=bool(stored["per-node"]),
                user=stored["user"],
                kill_timeout=float(stored["kill-timeout"]),
                on_stuck=stored["on-stuck"],
            )
        except (AttributeError, KeyError, TypeError) as error:
            raise ValueError(f"not a stored action: {error!r}") from error

    def policy(self) -> ActionPolicy:
        """Return what the lifecycle knows of this action."""
        return ActionPolicy(
            name=self.name,
            phases=frozenset(self.commands),
            definition=self.definition,
            after=self.after,
            match=self.match,
            timeout=cast("Mapping[str, Seconds]", self.timeout),
            cancel_on_exception=self.cancel_on_exception,
            per_node=self.per_node,
            tolerate_nodes=self.tolerate_nodes,
        )


@dataclass(frozen=True, slots=True)
class OnDisconnect:
    """What becomes of a provider's holds when its connection ends.

    Args:
        grace: seconds in which it may come back.
        then: "keep" the holds until their deadlines, or "fail" them.
    """

    grace: float
    then: Literal["keep", "fail"]


@dataclass(frozen=True, slots=True)
class Provider:
    """One `[[provider]]`: a service, and the holds that the broker takes in its name.

    Args:
        name: unique among actions and providers.
        users: uids that may act for it.
        match: the jobs that it cares about.
        holds: pairs of phase and hold name.
        after: names of actions and providers that come before it (in the epilog: after it).
        timeout: seconds a phase, None for no limit.
        on_disconnect: see `OnDisconnect`.
    """

    name: str
    users: tuple[int, ...]
    match: Mapping[str, str | bool]
    holds: tuple[tuple[Phase, str], ...]
    after: tuple[str, ...]
    timeout: Timeouts
    on_disconnect: OnDisconnect

    def policy(self) -> ProviderPolicy:
        """Return what the lifecycle knows of this provider."""
        return ProviderPolicy(
            name=self.name,
            holds=self.holds,
            after=self.after,
            match=self.match,
            timeout=cast("Mapping[str, Seconds]", self.timeout),
        )


@dataclass(frozen=True)
class Config:
    """A whole configuration, checked and complete.

    Args:
        file: the configuration file that was meant, whether or not it exists.
        broker: `[broker]`.
        limits: `[limits]`.
        holds: `[holds]`.
        journal: `[journal]`.
        executor: `[executor]`.
        nodes: `[nodes]`.
        housekeeping: `[housekeeping]`.
        actions: those of the files in their order, then those of the drop-in folders in lexical order.
        providers: in the order of the files.
        table: see `as_table`.
    """

    file: Path
    broker: Broker
    limits: Limits
    holds: Holds
    journal: Journal
    executor: Executor
    nodes: Nodes
    housekeeping: Housekeeping
    actions: tuple[Action, ...]
    providers: tuple[Provider, ...]
    table: dict[str, Any] = field(repr=False)

    @cached_property
    def policy(self) -> Policy:
        """What the lifecycle gets of all this."""
        return Policy(
            actions=tuple(action.policy() for action in self.actions),
            providers=tuple(provider.policy() for provider in self.providers),
            timeout=cast("Mapping[str, Seconds]", self.holds.timeout),
            maximum=cast("Mapping[str, Seconds]", self.holds.maximum),
            abandon_grace=self.holds.abandon_grace,
            owner=self.holds.owner,
            holds_per_job=self.limits.holds_per_job,
        )

    @cached_property
    def _definitions(self) -> dict[str, Action]:
        return {action.definition: action for action in self.actions}

    @cached_property
    def hash(self) -> str:
        """Names this configuration between broker and executor.

        Folders are left out: each process may be given its own as an option.
        """
        table = self.as_table()
        for section, key in _FOLDERS:
            del table[section][key]
        return digest(table)

    def as_table(self) -> dict[str, Any]:
        """Return the configuration as it could be written in one file, defaults filled in.

        Returns:
            A copy, of what TOML knows: section → key → value; "action" and "provider" hold arrays of
            tables. Without a value are only an action's scripts that it does not have, and its `user`.
        """
        return copy.deepcopy(self.table)

    def definition(self, name: str) -> Action | None:
        """Return the action with this definition hash, or None where it is not in this configuration."""
        return self._definitions.get(name)


def digest(value: object) -> str:
    """Return the SHA-256 of a JSON value in its canonical form, as 64 hexadecimal digits."""
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()
