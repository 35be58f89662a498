"""Checks a job's eventlog against the promises, knowing nothing of the program that wrote it.

The checker is told what the world did (a script was begun, a holder said that it is done) and reads the
events that came of it. It has its own idea of what a job waits for, made from the log and from the
configuration of the moment: of `perilogd.lifecycle` it may use `policy`, the input, and nothing else.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping
from typing import Any, NamedTuple

from perilogd.lifecycle.policy import Policy, matches

#: The promises that the pure core shows by its events alone.
PROMISES = frozenset({"P1", "P2", "P3", "P4", "P8"})

Key = tuple[str, str]  # phase, name

_STARTS = {
    "dependency-add": "depend",
    "prolog-start": "prolog",
    "completion-start": "completion",
    "epilog-start": "epilog",
}
_FINISHES = {
    "dependency-remove": "depend",
    "prolog-finish": "prolog",
    "completion-finish": "completion",
    "epilog-finish": "epilog",
}
_STATUS = {"ok": 0, "timeout": 31744, "stuck": 31744, "lost": 65280, "skipped": 65280}


class Violation(AssertionError):  # noqa: N818 - a finding, not a malfunction
    """A promise was broken."""


class Due(NamedTuple):
    """What a phase waits for and has not begun."""

    phase: str
    name: str
    owner: int | str


class Word(NamedTuple):
    """What the world has just said of the end of a hold or a script."""

    outcome: str
    status: int
    script: bool
    excused: bool  # a script that had to be cancelled, or whose failure no longer matters


def exit_code(status: int | None, result: str | None) -> int:
    """Return the exit code that every client must show for an ended job."""
    code = 0 if status is None else 128 + (status & 127) if status & 127 else status >> 8
    return 1 if code == 0 and result != "COMPLETED" else code


class Checker:
    """Follows one job's log.

    Args:
        promises: which promises to watch over, as "P1"; others are not looked at.
        counts: how often each has been put to the test; shared between copies.
    """

    __slots__ = (
        "abandoned",
        "alloc",
        "attempt",
        "attributes",
        "begun",
        "clients",
        "counts",
        "declared",
        "drains",
        "due",
        "earlier",
        "ended",
        "exit_status",
        "failure",
        "fatal",
        "finish_status",
        "notes",
        "open",
        "owed",
        "promises",
        "released",
        "result",
        "running",
        "stale",
        "started",
        "state",
        "told",
        "turn",
        "undoable",
        "unstoppable",
    )

    def __init__(self, promises: Iterable[str] = PROMISES, counts: Counter[str] | None = None) -> None:
        self.promises = frozenset(promises)
        self.counts: Counter[str] = Counter() if counts is None else counts
        self.state = "NEW"
        self.attributes: Mapping[str, Any] = {}
        self.declared: frozenset[Due] = frozenset()
        self.alloc = ""
        self.released = False
        self.attempt = 1
        self.started = False
        self.abandoned = False
        self.fatal = False  # before the result was decided otherwise
        self.result: str | None = None
        self.exit_status: int | None = None
        self.finish_status: int | None = None
        self.failure = 0  # first bad status of a completion hold of this attempt
        self.open: dict[Key, int | str] = {}  # begun in the log → owner
        self.ended: dict[Key, int | str] = {}  # finished in the log → owner
        self.clients: frozenset[Key] = frozenset()  # those of `open` that nobody planned
        self.stale: frozenset[Key] = frozenset()  # those of `open` that an earlier attempt planned
        self.due: frozenset[Due] = frozenset()
        self.earlier: frozenset[tuple[str, str]] = frozenset()  # name → names that end before it begins
        self.undoable: frozenset[str] = frozenset()  # actions that had an epilog when the prolog was planned
        self.unstoppable: frozenset[str] = frozenset()  # … whose prolog an exception does not end
        self.owed: frozenset[str] = frozenset()  # actions whose epilog has to be run, and has not ended
        self.running: frozenset[Key] = frozenset()  # scripts in the world
        self.begun: frozenset[Key] = frozenset()  # … ever; not completions, which may be run again
        self.step()

    def copy(self) -> Checker:
        """Return an independent copy."""
        twin = Checker.__new__(Checker)
        for slot in self.__slots__:
            setattr(twin, slot, getattr(self, slot))
        twin.open, twin.ended = dict(self.open), dict(self.ended)
        return twin

    def key(self) -> Hashable:
        """Return what the future can depend on: checkers with equal keys will judge alike."""
        return (
            self.state,
            self.alloc,
            self.released,
            self.attempt,
            self.started,
            self.abandoned,
            self.fatal,
            self.result == "COMPLETED",
            self.exit_status == 0,
            self.failure == 0,
            frozenset(self.open.items()),
            frozenset(self.ended.items()),
            self.clients,
            self.stale,
            self.due,
            self.owed,
            self.running,
            self.begun,
        )

    def must(self, promise: str, holds: object, text: str) -> None:
        """Raise a violation of a promise that is watched over, unless it holds."""
        if promise in self.promises:
            self.counts[promise] += 1
            if not holds:
                raise Violation(f"{promise}: {text}")

    # -- what the world does

    def step(self) -> None:
        """Begin a step: one command and all that follows from it."""
        self.told: dict[Key, Word] = {}
        self.turn = False  # the job took a turn that makes holds pointless
        self.notes: list[str] = []  # of exceptions
        self.drains: list[str] = []

    def tell(self, phase: str, name: str, outcome: str, status: int, *, script: bool) -> None:
        """Note how a hold or a script is about to be reported to end."""
        excused = self.wanted(phase, name) == "cancel" or (phase == "prolog" and self.fatal)
        self.told = {**self.told, (phase, name): Word(outcome, status, script, excused)}

    def begin(self, phase: str, name: str) -> None:
        """Note that the world begins a script."""
        run = (phase, name)
        self.must("P1", self._is_script(run), f"{run} is run before the log says so")
        self.must("P1", run not in self.running, f"{run} is run twice at once")
        self.must("P1", run not in self.begun, f"{run} is begun a second time")
        if phase == "epilog":
            live = [key for key in (*self.running, *self.open) if key[0] == "prolog" and self._is_script(key)]
            self.must("P1", not live, f"{run} begins while {live} has not ended")
            self.must("P1", not self.released, f"{run} begins after its nodes were released")
        if phase == "prolog":
            self.must("P2", not self.started, f"{run} begins after the application")
        self.running |= {run}
        if phase != "completion":
            self.begun |= {run}

    def wanted(self, phase: str, name: str) -> str:
        """Return what must become of a script that the log has begun: wait, run or cancel."""
        if phase == "prolog":
            return "cancel" if self.fatal and name not in self.unstoppable else "run"
        if phase == "completion":
            return "cancel" if self.abandoned or (phase, name) in self.stale else "run"
        prologs = [key for key in self.open if key[0] == "prolog" and self._is_script(key)]
        return "wait" if prologs else "run"

    def drain(self, nodes: str, reason: str) -> None:
        """Note that nodes are to be taken out of service."""
        self.must("P8", nodes, "an empty set is drained")
        self.drains = [*self.drains, reason]

    def done(self) -> None:
        """End a step: see that it said the same everywhere."""
        words = self.told.values()
        unclear = [word for word in words if word.outcome in ("stuck", "lost")]
        overdue = [word for word in words if word.outcome == "timeout" and not word.script]
        for reason in self.drains:
            self.must("P8", unclear or overdue, f"drained without need: {reason}")
            silent = [word for word in unclear if not self.notes]  # a prolog of a job that is ending anyway
            self.must(
                "P8",
                silent or any(note.startswith(reason) for note in self.notes),
                f"the exceptions {self.notes} and the drain reason differ: {reason}",
            )
        for word in words:
            if word.script and word.outcome == "canceled":
                self.must("P8", bool(self.notes) != word.excused, f"wrongly blamed, or not: {self.notes}")

    def _is_script(self, key: Key) -> bool:
        return str(self.open.get(key, "")).startswith("action:")

    def _held(self, *phases: str) -> list[Hashable]:
        """Return what these phases still wait for."""
        return [
            *(key for key in self.open if key[0] in phases),
            *(due for due in self.due if due.phase in phases),
            *(key for key in self.running if key[0] in phases),
        ]

    # -- what the log says

    def event(self, name: str, context: Mapping[str, Any], policy: Policy) -> None:
        """Read one event.

        Args:
            name: the event's name.
            context: its context.
            policy: the configuration in force when it was posted.

        Raises:
            Violation: a promise is broken.
        """
        self.must("P3", self.state != "INACTIVE", f"{name} after clean")
        if name in _STARTS:
            self._hold_starts(_STARTS[name], context["description"], context["owner"])
        elif name in _FINISHES:
            self._hold_ends(_FINISHES[name], context)
        elif name not in ("environment", "hold-update", "memo", "broker-restart"):
            getattr(self, f"_{name}")(context, policy)

    def _submit(self, context: Mapping[str, Any], policy: Policy) -> None:
        self.state = "DEPEND"
        self.attributes = context.get("attributes", {})
        self.declared = frozenset(
            Due(entry["phase"], entry["name"], entry["owner"]) for entry in context.get("holds", ())
        ) | frozenset(
            Due("depend", text, f"job:{text.partition(':')[2]}") for text in context.get("dependencies", ())
        )
        self._enter("depend", policy)

    def _depend(self, _: Mapping[str, Any], __: Policy) -> None:
        self.must("P2", not self._held("depend"), f"depend with {self._held('depend')}")
        self.state = "SCHED"

    def _alloc(self, context: Mapping[str, Any], policy: Policy) -> None:
        self.state = "PROLOG"
        self.alloc = context["nodes"]
        self._enter("prolog", policy)

    def _ready(self, _: Mapping[str, Any], __: Policy) -> None:
        self.must("P2", not self._held("prolog"), f"ready with {self._held('prolog')}")
        self.must("P2", not self.fatal, "ready after a fatal exception")
        self.state = "RUN"

    def _start(self, context: Mapping[str, Any], _: Policy) -> None:
        self.must("P2", not self._held("depend", "prolog"), f"start with {self._held('depend', 'prolog')}")
        self.must("P2", not self.fatal, "start after a fatal exception")
        self.must("P2", self.state == "RUN" and not self.started, "start out of place")
        self.must("P2", context["attempt"] == self.attempt, "start of another attempt")
        self.started = True

    def _exit(self, context: Mapping[str, Any], policy: Policy) -> None:
        self.must("P8", self.started and self.state == "RUN", "exit of what was not running")
        self.state = "COMPLETION"
        self.exit_status = context["status"]
        self._enter("completion", policy)

    def _rerun(self, context: Mapping[str, Any], _: Policy) -> None:
        self.must("P2", not self.fatal, "rerun after a fatal exception")
        self.must("P3", self._held("completion"), "rerun while nothing holds completion")
        self.state = "RUN"
        self.started = False
        self.attempt = context["attempt"]
        self.failure = 0
        self.turn = True
        self.due = frozenset()
        self.stale = frozenset(key for key in self.open if key[0] == "completion") - self.clients
        self.ended = {key: owner for key, owner in self.ended.items() if key[0] != "completion"}

    def _finish(self, context: Mapping[str, Any], policy: Policy) -> None:
        self.must("P3", not self._held("completion"), f"finish with {self._held('completion')}")
        self.must("P8", context["status"] == (self.exit_status or self.failure), "finish with a wrong status")
        self.state = "EPILOG"
        self.finish_status = context["status"]
        if self.result is None:
            self.result = "FAILED" if context["status"] else "COMPLETED"
        self._enter("epilog", policy)

    def _exception(self, context: Mapping[str, Any], policy: Policy) -> None:
        self.notes = [*self.notes, context["note"]]
        self.must("P8", context["type"] != "prolog" or not self.fatal, "a prolog is blamed after the end")
        if context.get("abandon") and self.state != "EPILOG":
            self.abandoned = True
            self.due = frozenset(due for due in self.due if due.phase != "completion")
        if context["severity"] != 0:
            return
        if self.result is None:
            self.result = {"cancel": "CANCELED", "timelimit": "TIMEOUT"}.get(context["type"], "FAILED")
        if self.finish_status is None:
            self.fatal = True
        if self.state == "RUN" and not self.started and self.attempt > 1:
            self.state = "COMPLETION"
            self._enter("completion", policy)
        elif self.state in ("DEPEND", "SCHED", "PROLOG") or (self.state == "RUN" and not self.started):
            self.state = "EPILOG"
            self.turn = True
            self.due = frozenset()
            self._enter("epilog", policy)

    def _release(self, context: Mapping[str, Any], _: Policy) -> None:
        self.must("P3", self.alloc and not self.released, "release of what is not held")
        self.must("P3", context["final"] and context["nodes"] == self.alloc, "the parts are not the whole")
        self._must_be_free("release")
        self.released = True

    def _clean(self, _: Mapping[str, Any], __: Policy) -> None:
        self._must_be_free("clean")
        self.must("P3", self.released == bool(self.alloc), "clean before the nodes are released")
        self.state = "INACTIVE"

    def _must_be_free(self, event: str) -> None:
        rest = self._held("depend", "prolog", "completion", "epilog")
        self.must("P3", not rest, f"{event} with {rest}")
        self.must("P1", not self.owed, f"{event} while the epilog of {sorted(self.owed)} is owed")

    # -- holds

    def _hold_starts(self, phase: str, name: str, owner: int | str) -> None:
        key, due = (phase, name), Due(phase, name, owner)
        self.must("P4", key not in self.open, f"{key} begins twice")
        planned = due in self.due
        if planned:
            self.due -= {due}
            forced = key in self.told  # begins only in order to end at once
            before = [earlier for later, earlier in self.earlier if later == name and not forced]
            left = {held[:2] for held in (*self.open, *self.due)}
            early = [earlier for earlier in before if (phase, earlier) in left]
            self.must("P1", not early, f"{key} begins before {early} has ended")
        else:
            self.must("P1", not str(owner).startswith("action:"), f"the script {key} begins undue")
            self.must("P4", key not in self.ended, f"the name {key} is used twice")
            self.clients |= {key}
        self.open[key] = owner

    def _hold_ends(self, phase: str, context: Mapping[str, Any]) -> None:
        key, status, outcome = (phase, context["description"]), context["status"], context["outcome"]
        self.must("P4", key in self.open, f"{key} ends without having begun")
        script = self._is_script(key)
        word = self.told.get(key)
        if word is None:
            self.must("P4", self.turn and not script, f"{key} is ended by nobody")
            pointless = "skipped" if phase == "completion" and self.state == "EPILOG" else "canceled"
            self.must("P8", outcome == pointless, f"{key} ended as {outcome} instead of {pointless}")
        else:
            self.must("P8", word[:2] == (outcome, status), f"{key}: {word} became {outcome}, {status}")
        self.must("P8", outcome != "ok" or status == 0, f"{key}: status {status} with {outcome}")
        self.must("P8", status != 0 or outcome in ("ok", "canceled"), f"{key}: status 0 with {outcome}")
        self.must("P8", _STATUS.get(outcome, status) == status, f"{key}: status {status} for {outcome}")
        if script and key not in self.running:
            self.must("P8", status != 0, f"{key} never ran and has status 0")
        if phase in ("depend", "prolog") and outcome != "ok":
            self.must("P2", self.fatal, f"{key} ended with status {status} and the job goes on")
        if phase == "prolog" and self.owed:
            counted = [begun for begun in self.open if begun[0] == "epilog"]
            self.must("P1", counted, f"{key} ends and nothing in the log keeps the nodes")
        if phase == "epilog" and script:
            self.owed -= {key[1]}
        owner = self.open.pop(key)
        if key not in self.stale:
            self.ended[key] = owner
            if phase == "completion":
                self.failure = self.failure or status
        self.clients -= {key}
        self.stale -= {key}
        self.running -= {key}

    def _enter(self, phase: str, policy: Policy) -> None:
        """Work out what a phase has to wait for, and in what order."""
        actions = [a for a in policy.actions if matches(a.match, self.attributes)]
        providers = [p for p in policy.providers if matches(p.match, self.attributes)]
        after = {p.name: p.after for p in providers} | {a.name: a.after for a in actions}
        holds: dict[str, list[Due]] = {}  # participant → what it takes
        if phase == "epilog":
            undone = frozenset(
                name
                for (where, name), owner in (*self.open.items(), *self.ended.items())
                if where == "prolog" and str(owner).startswith("action:")
            )
            after |= {a.name: a.after for a in policy.actions if a.name in undone}
            now = {a.name for a in policy.actions if "epilog" in a.phases}
            always = {a.name for a in actions if a.phases & {"prolog", "epilog"} == {"epilog"}}
            self.owed = undone & (self.undoable | now) | (always if self.alloc else frozenset())
            names = sorted(self.owed)
        elif phase == "completion" and self.abandoned:
            names, providers = [], []
        else:
            names = [a.name for a in actions if phase in a.phases]
        if phase == "prolog":
            self.undoable = frozenset(a.name for a in actions if "epilog" in a.phases)
            self.unstoppable = frozenset(a.name for a in actions if not a.cancel_on_exception)
        for name in names:
            holds[name] = [Due(phase, name, f"action:{name}")]
        owners = {*self.open.values(), *self.ended.values()}
        for provider in providers:
            owner = f"provider:{provider.name}"
            if phase == "epilog" and not self.alloc and owner not in owners:
                continue
            mine = [name for where, name in provider.holds if where == phase]
            holds.setdefault(provider.name, []).extend(Due(phase, name, owner) for name in mine)
        planned = {due for group in holds.values() for due in group}
        if phase != "completion" or not self.abandoned:
            planned |= {due for due in self.declared if due.phase == phase}
        self.due = frozenset(due for due in planned if not self._taken(due))
        self.earlier = frozenset(
            (later.name, earlier.name) if phase != "epilog" else (earlier.name, later.name)
            for name in holds
            for before in _closure(name, after)
            for later in holds[name]
            for earlier in holds.get(before, ())
        )

    def _taken(self, due: Due) -> bool:
        """Tell whether a holder came early, and may even be done."""
        key = (due.phase, due.name)
        if str(due.owner).startswith("action:"):
            return False
        return self.open.get(key) == due.owner or self.ended.get(key) == due.owner


def _closure(name: str, after: Mapping[str, tuple[str, ...]]) -> set[str]:
    """Return all that a participant comes after, directly or by way of others that match the job."""
    found: set[str] = set()
    todo = list(after.get(name, ()))
    while todo:
        candidate = todo.pop()
        if candidate not in found and candidate in after:
            found.add(candidate)
            todo += after[candidate]
    return found
