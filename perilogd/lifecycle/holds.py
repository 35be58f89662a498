"""What a holder may ask for: start, update and finish a hold; and how scripts and deadlines end one.

Same manners as in `commands`: refuse before the first step, then cannot fail. Who may ask is not
decided here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from perilogd.errors import Refusal
from perilogd.lifecycle import texts
from perilogd.lifecycle.commands import raise_
from perilogd.lifecycle.effects import Want, want
from perilogd.lifecycle.job import (
    STATUS,
    Drain,
    Event,
    Hold,
    Job,
    Keep,
    Origin,
    Outcome,
    Stage,
    Stamp,
    Step,
)
from perilogd.lifecycle.keep import kept_nodes, narrow
from perilogd.lifecycle.policy import Phase, Policy, Seconds, matches
from perilogd.lifecycle.settle import begin_turns, finish_event, start_event
from perilogd.lifecycle.table import START, ahead, passed


class Ending(NamedTuple):
    """How a script ended, as the executor tells it.

    Args:
        outcome: one of `Outcome`.
        status: wait(2) status.
        pid: the process, where there was one.
        message: one line for the user, from `$PERILOG_MESSAGE`.
        environment: variables for later scripts and the application.
        detail: why it could not be started, or what it left behind; for administrators.
    """

    outcome: str
    status: int
    pid: int | None = None
    message: str = ""
    environment: Mapping[str, str] = {}
    detail: str = ""


def find(job: Job, phase: Phase, name: str) -> Hold | None:
    """Return the hold of this name, None if there was never one in this attempt."""
    hold = job.holds.get((phase, name))
    return None if hold is None or job.bygone(hold) else hold


def require(job: Job, phase: Phase, name: str, policy: Policy | None = None) -> Hold:
    """Return the newest hold of this name, be it of an earlier attempt: what it came to can still be asked.

    Args:
        job: the job.
        phase: the phase that it holds.
        name: the hold's name.
        policy: the configuration, to tell what will be held from what never was.

    Raises:
        Refusal: ENOENT if it was never held, ESTATE if a provider is going to hold it in a phase to come.
    """
    hold = job.holds.get((phase, name))
    if hold is not None:
        return hold
    if policy is not None and ahead(job.state, phase):
        for provider in policy.providers:
            if (phase, name) in provider.holds and matches(provider.match, job.attributes):
                raise Refusal(
                    "ESTATE",
                    f"the turn of {phase} hold {name!r} of job {job.id} has not come;"
                    f" provider {provider.name} takes it then; the job is in state {job.state.value}",
                )
    raise Refusal("ENOENT", f"job {job.id} has never had a hold {phase}/{name}")


def start(
    job: Job,
    policy: Policy,
    phase: Phase,
    name: str,
    *,
    owner: int | str,
    timeout: Seconds,
    keep: Keep,
    note: str,
    drain: bool,
) -> Iterator[Step]:
    """Take a hold; a name that is or was held already changes nothing.

    Args:
        job: the job.
        policy: the configuration.
        phase: the phase to hold.
        name: the hold's name.
        owner: a uid, or `provider:NAME`.
        timeout: seconds, already capped; None for no deadline.
        keep: what it keeps.
        note: for people.
        drain: whether nodes that it still keeps at its deadline are to be drained.

    Raises:
        Refusal: ESTATE if the phase has passed or been abandoned, EAGAIN if the job has too many holds.
    """
    if find(job, phase, name) is not None:
        return
    if passed(job.state, phase):
        raise Refusal(
            "ESTATE", f"the {phase} phase of job {job.id} has passed; the job is in state {job.state.value}"
        )
    if phase == "completion" and job.abandoned:
        raise Refusal("ESTATE", f"job {job.id} was abandoned, its completion can be held no longer")
    if len(job.holds) >= policy.holds_per_job:
        raise Refusal(
            "EAGAIN", f"job {job.id} has {len(job.holds)} holds, as many as [limits] holds-per-job allows"
        )
    context: dict[str, Any] = {"description": name, "owner": owner}
    if timeout is not None:
        context["timeout"] = timeout
    if keep != "all":
        context["keep"] = keep
    if note:
        context["note"] = note
    if drain:
        context["drain"] = True
    yield Event(START[phase], context)


class Unchanged:
    """Stands for an argument of `update` that was not given (None means: no deadline)."""


def update(
    job: Job,
    policy: Policy,
    hold: Hold,
    now: Stamp,
    userid: int,
    *,
    timeout: Seconds | type[Unchanged] = Unchanged,
    keep: Keep | type[Unchanged] = Unchanged,
    capped: bool = True,
    by_owner: bool = False,
) -> Iterator[Step]:
    """Move a hold's deadline or shrink what it keeps.

    Args:
        job: the job.
        policy: the configuration.
        hold: the hold.
        now: this moment.
        userid: who asks.
        timeout: seconds from now.
        keep: what it shall keep from now on.
        capped: whether `[holds] maximum` binds, counted from the hold's start, but not from before its phase.
        by_owner: whether `[holds] owner.timeout` binds in the same way.

    Raises:
        Refusal: ESTATE if it has ended or its time was cut by an abandon, EPERM for a script's hold, EINVAL
            if `keep` would grow.
    """
    if hold.stage is Stage.ENDED:
        raise Refusal("ESTATE", f"{hold.phase} hold {hold.name!r} of job {job.id} has ended ({hold.outcome})")
    if isinstance(timeout, type) and isinstance(keep, type):
        return  # progress and notes are not journaled, and a script may report them too
    if hold.is_script:
        raise Refusal(
            "EPERM",
            f"{hold.phase} {hold.name!r} of job {job.id} is a script; its time is the configuration's",
        )
    context: dict[str, Any] = {"phase": hold.phase, "description": hold.name, "userid": userid}
    if not isinstance(timeout, type):
        if hold.ending == Outcome.CANCELED:
            raise Refusal(
                "ESTATE",
                f"job {job.id} was abandoned: the deadline of {hold.phase} hold {hold.name!r} stays",
            )
        bounds = (
            policy.maximum.get(hold.phase) if capped else None,
            policy.owner.timeout if by_owner else None,
        )
        longest = min((bound for bound in bounds if bound is not None), default=None)
        if longest is not None:
            left = longest - _elapsed(job, hold, now)
            timeout = max(0.0, left if timeout is None else min(timeout, left))
        context["timeout"] = timeout
    if not isinstance(keep, type):
        context["keep"] = narrow(hold.keep, keep, job.held or job.wanted)
    yield Event("hold-update", context)


def _elapsed(job: Job, hold: Hold, now: Stamp) -> float:
    """Return the seconds since a hold's start, or since its phase was entered if that was later."""
    if hold.armed is None or hold.since is None or job.entered is None:
        return 0.0
    return min(hold.since.until(now), job.entered.until(now))


def finish(
    job: Job,
    policy: Policy,
    hold: Hold,
    userid: int,
    *,
    status: int | None,
    note: str = "",
    environment: Mapping[str, str] | None = None,
    by_owner: bool = False,
    force: bool = False,
) -> Iterator[Step]:
    """Give a hold up; finishing it twice changes nothing.

    Args:
        job: the job.
        policy: the configuration.
        hold: the hold.
        userid: who asks.
        status: wait status; None: 0, or canceled when forced.
        note: for people.
        environment: variables for later scripts and the application.
        by_owner: the variables come from the job's owner, and reach only what runs as him.
        force: an administrator does it in the holder's stead.

    Raises:
        Refusal: EPERM for a script's hold, ESTATE for a standing hold whose turn has not come.
    """
    if hold.is_script:
        raise Refusal(
            "EPERM",
            f"{hold.phase} {hold.name!r} of job {job.id} is a script; kill the script instead"
            f" (perilog scripts kill {job.id} {hold.phase} {hold.name})",
        )
    if hold.stage is Stage.ENDED:
        return
    if hold.stage is not Stage.ACTIVE:
        early = hold.origin is Origin.DECLARED and hold.stage is Stage.DECLARED
        if not early and not force:
            raise Refusal(
                "ESTATE",
                f"the turn of {hold.phase} hold {hold.name!r} of job {job.id} has not come;"
                f" the job is in state {job.state.value}",
            )
        yield start_event(hold)
    outcome = Outcome.OK if not status else Outcome.FAILED
    if status is None and force:
        outcome = Outcome.CANCELED
    extra: dict[str, Any] = {"userid": userid}
    if force:
        extra["forced"] = userid
    if note:
        extra["note"] = note
    final = STATUS[outcome] if status is None else status
    if final != 0:
        if outcome == Outcome.CANCELED:
            reason = texts.hold_canceled(hold.phase, hold.name, job.id, userid)
        else:
            reason = texts.script(hold.phase, hold.name, job.id, outcome, final)
        yield from _blame(job, policy, hold, f"{reason}: {note}" if note else reason)
    yield from _environment(hold, environment, by_owner=by_owner)
    yield finish_event(hold, outcome, final, **extra)


def expire(job: Job, policy: Policy, hold: Hold) -> Iterator[Step]:
    """End an active hold whose deadline has passed.

    An abandoned hold ends as canceled; any other raises `hold`, and drains the nodes that it still keeps.
    """
    if hold.ending == Outcome.CANCELED:
        yield finish_event(hold, Outcome.CANCELED)
        return
    note = texts.hold_timeout(hold.phase, hold.name, job.id)
    kept = kept_nodes(hold.keep, job.held)
    if hold.drains and kept:
        yield Drain(kept, note)
    yield from raise_(
        job, policy, "hold", 2 if hold.phase == "epilog" else 0, f"{note} on {kept}" if kept else note
    )
    yield from begin_turns(job)
    yield finish_event(hold, Outcome.TIMEOUT)


def script_ended(job: Job, policy: Policy, hold: Hold, ending: Ending) -> Iterator[Step]:
    """End the hold of a script that has ended, in whatever way.

    A script that runs once for the whole job speaks for all of its nodes: that it failed tells nothing about
    any one of them; that it is stuck or lost leaves all of them in an unknown state, and they are drained.
    """
    extra: dict[str, Any] = {}
    if ending.detail:
        extra["note"] = ending.detail
    if ending.message:
        extra["message"] = ending.message
    if ending.outcome != Outcome.OK:
        reason = texts.script(hold.phase, hold.name, job.id, ending.outcome, ending.status, ending.pid)
        if ending.outcome in (Outcome.STUCK, Outcome.LOST):
            nodes = job.held
            if nodes:
                yield Drain(nodes, reason)
                reason += f" on {nodes}"
        told = "; ".join(text for text in (ending.message, ending.detail) if text)
        if told:
            reason += f": {told}"
        # One that ended in time because the job told it to is not to blame; one that a person killed is.
        if ending.outcome != Outcome.CANCELED or want(job, hold) is not Want.CANCEL:
            yield from _blame(job, policy, hold, reason)
    yield from _environment(hold, ending.environment, by_owner=hold.phase == "completion")
    yield finish_event(hold, ending.outcome, ending.status, **extra)


def _environment(hold: Hold, variables: Mapping[str, str] | None, *, by_owner: bool) -> Iterator[Step]:
    """Yield the event of a finish that brings variables; it comes just before the finish itself."""
    if variables:
        context: dict[str, Any] = {"description": hold.name, "variables": dict(variables)}
        if by_owner:
            context["by_owner"] = True
        yield Event("environment", context)


def _blame(job: Job, policy: Policy, hold: Hold, note: str) -> Iterator[Step]:
    """Raise the exception of a hold that ends badly; what follows begins before the hold's own finish."""
    phase = hold.phase
    if phase in ("depend", "prolog"):
        if not job.ending:
            kind = "prolog" if phase == "prolog" else "dependency"
            yield from raise_(job, policy, kind, 0, note)
            yield from begin_turns(job)
    elif phase == "epilog":
        yield from raise_(job, policy, "epilog", 2, note)
    elif hold.is_script:
        yield from raise_(job, policy, "completion", 2, note)
