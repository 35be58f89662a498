"""How one event changes a job: the same for an event that just happened and for one read from the journal.

`apply` is a function of the job, the event and the event's moment, and of nothing else. It decides
nothing: what should happen next is the business of `commands` and `settle`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from perilogd.lifecycle.job import STATUS, Exception_, Hold, Job, Origin, Outcome, Stage, Stamp, State
from perilogd.lifecycle.policy import Phase
from perilogd.lifecycle.table import ALLOWED, NEXT, PHASE_OF, PHASE_OF_EVENT


class IllegalEvent(Exception):  # noqa: N818 - RFC 21 speaks of events; this is one that may not be
    """An event that the rules do not allow where it stands: the log is damaged, or the program is wrong."""


def apply(job: Job, name: str, context: Mapping[str, Any], stamp: Stamp) -> None:
    """Fold one event into a job.

    Args:
        job: the job, changed in place.
        name: the event's name; unknown names change nothing (RFC 18: readers skip what they do not know).
        context: the event's context; unknown keys change nothing.
        stamp: when the event happened.

    Raises:
        IllegalEvent: if the table has no place for the event in the job's state.
    """
    handler = _HANDLERS.get(name)
    if handler is None:
        return
    handler(job, name, context, stamp)


def _move(job: Job, trigger: str, stamp: Stamp) -> None:
    target = NEXT.get((job.state, trigger))
    if target is None:
        raise IllegalEvent(f"job {job.id}: event {trigger!r} in state {job.state.value}")
    job.state = target
    job.entered = stamp


def _stay(job: Job, name: str) -> None:
    if job.state not in ALLOWED[name]:
        raise IllegalEvent(f"job {job.id}: event {name!r} in state {job.state.value}")


def _enter(job: Job, plan: Iterable[Mapping[str, Any]], stamp: Stamp) -> None:
    """Make due what the phase just entered waits for: the plan, and what was declared for it."""
    phase = PHASE_OF[job.state]
    for hold in job.holds.values():
        if hold.phase != phase:
            continue
        if hold.stage is Stage.DECLARED:
            hold.stage = Stage.DUE
        elif hold.stage is Stage.ACTIVE and hold.armed is None:
            hold.armed = stamp  # started ahead of its phase: its time counts from now
    for entry in plan:
        _make_due(job, phase, entry)
    if job.abandoned and phase == "completion":
        _abandon(job, stamp)


def _make_due(job: Job, phase: Phase, entry: Mapping[str, Any]) -> None:
    """Make one participant of a phase's plan due."""
    name, owner = entry["name"], entry["owner"]
    origin = Origin.ACTION if "definition" in entry else Origin.STANDING
    predecessors = tuple(entry.get("after", ()))
    before = job.holds.get((phase, name))
    if before is not None and before.owner == owner and not before.is_script and not job.bygone(before):
        # The provider came early, and may even be done: it is what the plan asks for.
        before.predecessors = predecessors
        before.drains = True
        return
    hold = Hold(phase, name, owner, origin, entry.get("timeout"), job.attempt)
    hold.stage = Stage.DUE
    hold.predecessors = predecessors
    hold.definition = entry.get("definition", "")
    hold.drains = origin is Origin.STANDING
    hold.traits = {key: entry[key] for key in ("undo", "order", "cancel") if key in entry}
    _place(job, hold)


def _declare(job: Job, entry: Mapping[str, Any]) -> None:
    """Make a hold of what the submitter declared, to be due in its phase."""
    hold = Hold(
        entry["phase"], entry["name"], entry["owner"], Origin.DECLARED, entry.get("timeout"), job.attempt
    )
    hold.keep = entry.get("keep", "all")
    hold.note = entry.get("note", "")
    hold.drains = entry.get("drain", False)
    _place(job, hold)


def _place(job: Job, hold: Hold) -> None:
    """Give a new hold its name, but not before an open one of that name has ended.

    Such a one is a script of the last attempt that is still ending; or somebody else's hold, taken before
    a reload gave its name to an action or a provider.
    """
    before = job.holds.get((hold.phase, hold.name))
    if before is not None and before.open:
        before.successor = hold
    else:
        job.holds[hold.phase, hold.name] = hold


def _lapse(job: Job, phases: tuple[Phase, ...], stamp: Stamp) -> None:
    """End what these phases have not begun: declared, due or next in line. The log has no start to answer."""
    for hold in job.holds.values():
        if hold.phase in phases:
            hold.successor = None
            if hold.stage in (Stage.DECLARED, Stage.DUE):
                _end(hold, Outcome.SKIPPED, STATUS[Outcome.SKIPPED], stamp)


def _end(hold: Hold, outcome: str, status: int, stamp: Stamp) -> None:
    hold.stage = Stage.ENDED
    hold.outcome = outcome
    hold.status = status
    hold.ended = stamp
    hold.progress = None


def _abandon(job: Job, stamp: Stamp) -> None:
    """End completion work: what has not begun lapses, what has gets `abandon-grace` to end by itself."""
    _lapse(job, ("completion",), stamp)
    for hold in job.active_holds():
        if hold.phase == "completion" and not hold.is_script and hold.ending != Outcome.CANCELED:
            hold.ending = Outcome.CANCELED
            left = hold.remaining(stamp)
            if left is None or left > job.abandon_grace:
                hold.armed = stamp
                hold.timeout = job.abandon_grace


def _submit(job: Job, name: str, context: Mapping[str, Any], stamp: Stamp) -> None:
    _move(job, name, stamp)
    job.submitted = stamp
    job.userid = context["userid"]
    job.submitter = context.get("submitter", job.userid)
    job.key = context.get("key")
    job.name = context.get("name", "")
    job.wanted = context.get("nodes", "")
    job.resources = context.get("resources")
    job.attributes = context.get("attributes", {})
    job.max_reruns = context.get("max_reruns", 0)
    job.declared = tuple(context.get("holds", ()))
    for entry in job.declared:
        _declare(job, entry)
    for text in context.get("dependencies", ()):
        owner = "job:" + text.partition(":")[2]
        job.holds["depend", text] = Hold("depend", text, owner, Origin.DEPENDENCY, None, 1)
    _enter(job, context.get("plan", ()), stamp)


def _depend(job: Job, name: str, context: Mapping[str, Any], stamp: Stamp) -> None:
    del context
    _move(job, name, stamp)


def _alloc(job: Job, name: str, context: Mapping[str, Any], stamp: Stamp) -> None:
    _move(job, name, stamp)
    job.alloc = job.nodes = job.held = context["nodes"]
    job.resources = context.get("resources", job.resources)
    _enter(job, context.get("plan", ()), stamp)


def _ready(job: Job, name: str, context: Mapping[str, Any], stamp: Stamp) -> None:
    del context
    _move(job, name, stamp)


def _start(job: Job, name: str, context: Mapping[str, Any], stamp: Stamp) -> None:
    del stamp
    _stay(job, name)
    if job.started or job.fatal is not None:
        raise IllegalEvent(f"job {job.id}: a second start, or one after a fatal exception")
    job.started = job.ever_started = True
    job.lease = bool(context.get("lease", False))


def _exit(job: Job, name: str, context: Mapping[str, Any], stamp: Stamp) -> None:
    if not job.started:
        raise IllegalEvent(f"job {job.id}: exit without start")
    _move(job, name, stamp)
    job.exits[context["attempt"]] = context["status"]
    job.lease = False
    _enter(job, context.get("plan", ()), stamp)


def _rerun(job: Job, name: str, context: Mapping[str, Any], stamp: Stamp) -> None:
    _move(job, name, stamp)
    job.attempt = context["attempt"]
    job.nodes = context["nodes"]
    job.started = False
    job.completion_status = 0
    # What has not begun lapses: it is declared anew, or planned by the next exit.
    _lapse(job, ("completion",), stamp)
    for hold in job.active_holds():
        if hold.phase == "completion" and hold.origin is Origin.CLIENT:
            hold.armed = None
            hold.attempt = job.attempt
    for entry in job.declared:
        if entry["phase"] == "completion":
            _declare(job, entry)


def _finish(job: Job, name: str, context: Mapping[str, Any], stamp: Stamp) -> None:
    _move(job, name, stamp)
    job.finish_status = context["status"]
    if job.result is None:
        job.result = "COMPLETED" if job.finish_status == 0 else "FAILED"
    _enter(job, context.get("plan", ()), stamp)


def _clean(job: Job, name: str, context: Mapping[str, Any], stamp: Stamp) -> None:
    del context
    _move(job, name, stamp)


_RESULT_OF = {"cancel": "CANCELED", "timelimit": "TIMEOUT"}


def _exception(job: Job, name: str, context: Mapping[str, Any], stamp: Stamp) -> None:
    _stay(job, name)
    kind: str = context["type"]
    severity: int = context["severity"]
    abandon = bool(context.get("abandon", False))
    job.exceptions.append(
        Exception_(kind, severity, context.get("note", ""), context.get("userid"), abandon, stamp.wall)
    )
    if severity == 0 and job.result is None:
        job.fatal = kind
        job.result = _RESULT_OF.get(kind, "FAILED")
    if abandon and job.state is not State.EPILOG:
        job.abandoned = True
        job.abandon_grace = context.get("grace", 0.0)
    trigger = fatal_trigger(job) if severity == 0 else None
    if trigger is not None:
        _move(job, trigger, stamp)
        if job.state is State.EPILOG:
            _lapse(job, ("depend", "prolog", "completion"), stamp)
        _enter(job, context.get("plan", ()), stamp)
    elif abandon and job.state is State.COMPLETION:
        _abandon(job, stamp)


def fatal_trigger(job: Job) -> str | None:
    """Return what a fatal exception does to a job in its present state: a trigger of the table, or None."""
    if job.state in (State.DEPEND, State.SCHED, State.PROLOG):
        return "fatal"
    if job.state is State.RUN and not job.started:
        return "fatal, between attempts" if job.ever_started else "fatal, never started"
    return None


def _hold_start(job: Job, name: str, context: Mapping[str, Any], stamp: Stamp) -> None:
    _stay(job, name)
    phase = PHASE_OF_EVENT[name]
    description = context["description"]
    hold = job.holds.get((phase, description))
    if hold is None or job.bygone(hold):
        hold = Hold(phase, description, context["owner"], Origin.CLIENT, context.get("timeout"), job.attempt)
        hold.note = context.get("note", "")
        hold.drains = context.get("drain", False)
        job.holds[phase, description] = hold
    elif hold.stage not in (Stage.DECLARED, Stage.DUE):
        raise IllegalEvent(f"job {job.id}: {phase} hold {description!r} begins twice")
    hold.keep = context.get("keep", hold.keep)
    hold.stage = Stage.ACTIVE
    hold.since = stamp
    hold.armed = stamp if PHASE_OF.get(job.state) == phase else None


def _hold_finish(job: Job, name: str, context: Mapping[str, Any], stamp: Stamp) -> None:
    _stay(job, name)
    phase = PHASE_OF_EVENT[name]
    hold = job.holds.get((phase, context["description"]))
    if hold is None or hold.stage is not Stage.ACTIVE:
        raise IllegalEvent(f"job {job.id}: {phase} hold {context['description']!r} ends without having begun")
    _end(hold, context["outcome"], context["status"], stamp)
    hold.note = context.get("note", hold.note)
    hold.message = context.get("message", "")
    hold.forced = context.get("forced")
    if phase == "completion" and hold.attempt == job.attempt and not job.completion_status:
        job.completion_status = context["status"]
    if hold.successor is not None:
        job.holds[phase, hold.name] = hold.successor


def _hold_update(job: Job, name: str, context: Mapping[str, Any], stamp: Stamp) -> None:
    _stay(job, name)
    hold = job.holds.get((context["phase"], context["description"]))
    if hold is None or hold.stage is Stage.ENDED:
        raise IllegalEvent(f"job {job.id}: update of a hold that is not there: {context['description']!r}")
    if "timeout" in context:
        hold.timeout = context["timeout"]
        if hold.armed is not None:
            hold.armed = stamp
    if "keep" in context:
        hold.keep = context["keep"]


def _environment(job: Job, name: str, context: Mapping[str, Any], stamp: Stamp) -> None:
    del stamp
    _stay(job, name)
    target = job.owner_environment if context.get("by_owner", False) else job.environment
    target.update(context["variables"])


def _release(job: Job, name: str, context: Mapping[str, Any], stamp: Stamp) -> None:
    del stamp
    _stay(job, name)
    if context["final"]:
        job.held = ""


def _memo(job: Job, name: str, context: Mapping[str, Any], stamp: Stamp) -> None:
    del stamp
    _stay(job, name)
    job.memo.update(context)


def _note_only(job: Job, name: str, context: Mapping[str, Any], stamp: Stamp) -> None:
    """Check the place of an event that changes nothing that anybody asks about."""
    del context, stamp
    _stay(job, name)


_HANDLERS: dict[str, Callable[[Job, str, Mapping[str, Any], Stamp], None]] = {
    "submit": _submit,
    "depend": _depend,
    "alloc": _alloc,
    "ready": _ready,
    "start": _start,
    "exit": _exit,
    "rerun": _rerun,
    "finish": _finish,
    "clean": _clean,
    "exception": _exception,
    "environment": _environment,
    "release": _release,
    "memo": _memo,
    "node-lost": _note_only,
    "broker-restart": _note_only,
    "hold-update": _hold_update,
    **dict.fromkeys(("dependency-add", "prolog-start", "completion-start", "epilog-start"), _hold_start),
    **dict.fromkeys(
        ("dependency-remove", "prolog-finish", "completion-finish", "epilog-finish"), _hold_finish
    ),
}
