"""What the administrator has configured, as the life of a job sees it.

Plain frozen data lives here: which actions and providers exist, which jobs they care about, in
what order they take part and how long they may take. Commands, users, files and launchers do not:
the lifecycle never learns what a script is, only that it has a name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

Phase = Literal["depend", "prolog", "completion", "epilog"]

PHASES: tuple[Phase, ...] = ("depend", "prolog", "completion", "epilog")

#: Seconds, or None for "infinity".
Seconds = float | None

_DEFAULT_TIMEOUT: Mapping[str, Seconds] = MappingProxyType(
    {"depend": None, "prolog": 1800.0, "completion": 86400.0, "epilog": 3600.0}
)
_NO_MAXIMUM: Mapping[str, Seconds] = MappingProxyType(dict.fromkeys(PHASES))


def matches(match: Mapping[str, str | bool], attributes: Mapping[str, object]) -> bool:
    """Tell whether a job with these attributes is meant by a `match` table.

    Args:
        match: key to `True` (present and not false), or to a text that the attribute must equal.
        attributes: the job's attributes as submitted.

    Returns:
        True exactly if every key holds; an empty table matches every job.
    """
    for key, wanted in match.items():
        if key not in attributes:
            return False
        value = attributes[key]
        if wanted is True:
            if value is False:
                return False
        elif text(value) != text(wanted):
            return False
    return True


def text(value: object) -> str:
    """Return an attribute's value as `match` compares it: booleans as TOML and JSON write them."""
    if value is True:
        return "true"
    if value is False:
        return "false"
    return str(value)


@dataclass(frozen=True, slots=True)
class ActionPolicy:
    """One `[[action]]`, or one pair of drop-in files.

    Args:
        name: the action's name, unique among actions and providers.
        phases: the phases in which it has a script: some of prolog, completion, epilog.
        definition: hash of everything the executor needs to run it; names the definition between processes.
        after: names of actions and providers that come before it (in the epilog: after it).
        match: see `matches`.
        timeout: seconds a phase, None for no limit.
        cancel_on_exception: whether a fatal exception ends its prolog.
        per_node: whether it runs once on each node of the job.
        tolerate_nodes: on how many nodes its prolog may fail or be lost.
    """

    name: str
    phases: frozenset[Phase]
    definition: str
    after: tuple[str, ...] = ()
    match: Mapping[str, str | bool] = field(default_factory=dict)
    timeout: Mapping[str, Seconds] = field(default_factory=dict)
    cancel_on_exception: bool = True
    per_node: bool = False
    tolerate_nodes: int = 0


@dataclass(frozen=True, slots=True)
class ProviderPolicy:
    """One `[[provider]]`: a service, and the holds that the broker takes in its name.

    Args:
        name: the provider's name.
        holds: pairs of phase and hold name.
        after: as in `ActionPolicy`.
        match: as in `ActionPolicy`.
        timeout: seconds a phase, None for no limit.
    """

    name: str
    holds: tuple[tuple[Phase, str], ...] = ()
    after: tuple[str, ...] = ()
    match: Mapping[str, str | bool] = field(default_factory=dict)
    timeout: Mapping[str, Seconds] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class OwnerPolicy:
    """What a job's owner may keep with completion holds of his own.

    Args:
        timeout: longest time of one hold in seconds, None for no limit.
        holds: most holds of his at a time in one job.
        nodes: most nodes that one of his holds may keep, None for no limit.
    """

    timeout: Seconds = None
    holds: int = 16
    nodes: int | None = None


@dataclass(frozen=True, slots=True)
class Policy:
    """All of the configuration that a job's life depends on.

    Args:
        actions: in configuration order; that order breaks ties.
        providers: in configuration order.
        timeout: default seconds of a hold, a phase.
        maximum: longest that a hold may last from its start, extensions included, a phase.
        abandon_grace: seconds between an abandon and the end of what did not end by itself.
        owner: caps of owners' holds.
        holds_per_job: most holds (of all phases) that one job may have.
    """

    actions: tuple[ActionPolicy, ...] = ()
    providers: tuple[ProviderPolicy, ...] = ()
    timeout: Mapping[str, Seconds] = field(default_factory=lambda: _DEFAULT_TIMEOUT)
    maximum: Mapping[str, Seconds] = field(default_factory=lambda: _NO_MAXIMUM)
    abandon_grace: float = 60.0
    owner: OwnerPolicy = OwnerPolicy()
    holds_per_job: int = 1000

    @property
    def participants(self) -> frozenset[str]:
        """The names of all actions and providers."""
        return frozenset(a.name for a in self.actions) | frozenset(p.name for p in self.providers)

    def reserved(self, name: str) -> bool:
        """Tell whether a hold of this name belongs to an action or a provider."""
        return name in self.participants or any(
            name == hold for provider in self.providers for _, hold in provider.holds
        )
