"""What a workload manager and a job's people may ask for: submit, alloc, start, exit, rerun, raise, memo.

Each command is a generator of steps. It refuses, if it must, before its first step; after that it
cannot fail, and each event that it yields must have been applied before it is resumed. Run `settle`
after it. Holds have their commands in `holds`. Who may ask is not decided here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from perilogd.errors import Refusal
from perilogd.lifecycle.apply import fatal_trigger
from perilogd.lifecycle.job import STATUS, Event, Job, Outcome, Stage, State, Step
from perilogd.lifecycle.order import plan
from perilogd.lifecycle.policy import Phase, Policy
from perilogd.lifecycle.settle import alloc_event, finish_event, with_plan

#: Exception types that only the broker and administrators may raise.
RESERVED_TYPES = frozenset(
    {"cancel", "timelimit", "prolog", "completion", "epilog", "hold", "dependency", "node", "exec"}
)

#: Words of PERILOG_REASON that are no exception types: an owner who raised one as a type could make an epilog
#: believe in an end that was not.
REASON_WORDS = frozenset({"finish", "prolog-failed", "timeout"})


def submit(job: Job, policy: Policy, context: Mapping[str, Any]) -> Iterator[Step]:
    """Bring a job to life.

    Args:
        job: a new job.
        policy: the configuration.
        context: `userid`, `submitter`, and as given: key, name, nodes, resources, attributes, holds (each
            with phase, name, owner, and timeout, keep, note, drain where they apply; no two alike, none
            named like a dependency), dependencies, max_reruns.

    Yields:
        The `submit` event.
    """
    full = dict(context)
    probe = Job(job.id)  # the plan of DEPEND depends on the attributes alone
    probe.attributes = full.get("attributes", {})
    yield Event("submit", with_plan(full, plan(probe, "depend", policy)))


def alloc(job: Job, policy: Policy, nodes: str, resources: dict[str, str] | None) -> Iterator[Step]:
    """Give a job its nodes; again with the same nodes changes nothing.

    Raises:
        Refusal: ESTATE if the job has other nodes, or is not in SCHED.
    """
    if job.alloc == nodes:
        return
    if job.alloc:
        raise Refusal(
            "ESTATE", f"job {job.id} already has other nodes ({job.alloc}); it is in state {job.state.value}"
        )
    if job.state is not State.SCHED:
        raise Refusal("ESTATE", f"job {job.id} is in state {job.state.value}, nodes are given in SCHED")
    yield alloc_event(job, policy, nodes, resources)


def check_attempt(job: Job, attempt: int | None) -> int:
    """Return the attempt that is meant; None means the current one.

    Raises:
        Refusal: ESTATE if the job has not come to that attempt.
    """
    if attempt is None:
        return job.attempt
    if attempt > job.attempt:
        raise Refusal(
            "ESTATE",
            f"job {job.id} is at attempt {job.attempt}, not yet at {attempt} (state {job.state.value})",
        )
    return attempt


def start(job: Job, attempt: int | None, *, lease: bool) -> Iterator[Step]:
    """Say that the application has started; again for the same attempt changes nothing.

    Raises:
        Refusal: ESTATE if the job is not in RUN, or the attempt is over.
    """
    number = check_attempt(job, attempt)
    if number == job.attempt and job.state is State.RUN:
        if job.started:
            return
        yield Event("start", {"attempt": number, **({"lease": True} if lease else {})})
        return
    if number in job.exits:
        raise Refusal(
            "ESTATE", f"attempt {number} of job {job.id} has ended; the job is in state {job.state.value}"
        )
    why = f" (fatal exception: {job.fatal})" if job.fatal else ""
    raise Refusal("ESTATE", f"job {job.id} is in state {job.state.value}{why}, it can start only in RUN")


def exit_(job: Job, policy: Policy, status: int, attempt: int | None, outcome: str | None) -> Iterator[Step]:
    """Say that the application has ended; the same attempt and status again change nothing.

    Raises:
        Refusal: ESTATE if it has not started, or has ended with another status.
    """
    number = check_attempt(job, attempt)
    if number in job.exits:
        if job.exits[number] == status:
            return
        raise Refusal(
            "ESTATE",
            f"attempt {number} of job {job.id} has ended with status {job.exits[number]}, not {status};"
            f" the job is in state {job.state.value}",
        )
    if job.state is not State.RUN or not job.started or number != job.attempt:
        raise Refusal(
            "ESTATE",
            f"attempt {number} of job {job.id} has not started; the job is in state {job.state.value}",
        )
    context: dict[str, Any] = {"status": status, "attempt": number}
    if outcome is not None:
        context["outcome"] = outcome
    yield Event("exit", with_plan(context, plan(job, "completion", policy)))


def lose(job: Job, policy: Policy, note: str) -> Iterator[Step]:
    """End a running application whose lease ended: nobody will tell how it exited."""
    if job.state is not State.RUN or not job.started:
        return
    yield from raise_(job, policy, "exec", 0, note)
    yield from exit_(job, policy, STATUS[Outcome.LOST], None, "lost")


def rerun(job: Job, userid: int, attempt: int | None) -> Iterator[Step]:
    """Let the application be started again in the same allocation.

    Args:
        job: the job.
        userid: who asks.
        attempt: the attempt that is to come; None: the next one. Naming the present one, when it came by a
            rerun and has not ended, repeats an earlier request and changes nothing.

    Raises:
        Refusal: ESTATE after a fatal exception, without a node, outside COMPLETION, or beyond `max_reruns`.
    """
    if attempt is not None and attempt == job.attempt and attempt > 1 and attempt not in job.exits:
        return
    if attempt is not None and attempt != job.attempt + 1:
        raise Refusal(
            "ESTATE",
            f"job {job.id} is at attempt {job.attempt}; the next is {job.attempt + 1}, not {attempt}",
        )
    if job.state is not State.COMPLETION:
        raise Refusal(
            "ESTATE",
            f"job {job.id} is in state {job.state.value}; it can run again only while a completion hold"
            " keeps it in COMPLETION",
        )
    if job.fatal is not None:
        raise Refusal("ESTATE", f"job {job.id} has a fatal exception ({job.fatal}), it cannot run again")
    if not job.nodes:
        raise Refusal("ESTATE", f"job {job.id} has no node left to run on")
    if job.attempt > job.max_reruns:
        raise Refusal("ESTATE", f"job {job.id} has used all of its reruns (max_reruns {job.max_reruns})")
    yield Event("rerun", {"attempt": job.attempt + 1, "userid": userid, "nodes": job.nodes})


def raise_(
    job: Job,
    policy: Policy,
    kind: str,
    severity: int,
    note: str,
    *,
    userid: int | None = None,
    abandon: bool = False,
) -> Iterator[Step]:
    """Raise an exception (RFC 21). Severity 0 is fatal: the table in `table` says what it does.

    Raises:
        Refusal: ESTATE if the job is INACTIVE; EINVAL for a time limit that abandons.
    """
    if job.state is State.INACTIVE:
        raise Refusal("ESTATE", f"job {job.id} is INACTIVE, nothing can be raised on it any more")
    if abandon and severity != 0:
        raise Refusal("EINVAL", f"abandon: goes with severity 0, not {severity}")
    if abandon and kind == "timelimit":
        raise Refusal(
            "EINVAL", "abandon: a time limit never abandons completion work; cancel with abandon to do that"
        )
    context: dict[str, Any] = {"type": kind, "severity": severity, "note": note}
    if userid is not None:
        context["userid"] = userid
    if abandon:
        context["abandon"] = True
        context["grace"] = policy.abandon_grace
    trigger = fatal_trigger(job) if severity == 0 else None
    if trigger is not None:
        phase: Phase = "completion" if trigger == "fatal, between attempts" else "epilog"
        with_plan(context, plan(job, phase, policy))
    yield Event("exception", context)


def memo(job: Job, values: Mapping[str, Any]) -> Iterator[Step]:
    """Write keys and values that others may read into the log.

    Raises:
        Refusal: ESTATE if the job is INACTIVE.
    """
    if job.state is State.INACTIVE:
        raise Refusal("ESTATE", f"job {job.id} is INACTIVE, its log is closed")
    yield Event("memo", dict(values))


def dependency_verdict(target: Job, kind: str) -> bool | None:
    """Tell whether a dependency on a job is met (True), can no longer be met (False), or neither yet (None).

    Args:
        target: the job that is depended on.
        kind: after, afterany, afterok, afternotok or afterclean.
    """
    clean = target.state is State.INACTIVE
    if kind == "after":
        if target.ever_started:
            return True
        return False if target.ending else None
    if kind == "afterclean":
        return True if clean else None
    # The job's last word is `finish`, or the fatal exception of a job that will have none.
    if target.finish_status is None and target.state not in (State.EPILOG, State.INACTIVE):
        return None
    good = target.result == "COMPLETED"
    return {"afterany": True, "afterok": good, "afternotok": not good}[kind]


def dependency_end(job: Job, text: str, policy: Policy, *, met: bool, why: str) -> Iterator[Step]:
    """End a dependency that still counts: met, or never to be met, which ends the job.

    Args:
        job: the dependent.
        text: the dependency as written, `afterok:17`.
        policy: the configuration.
        met: the verdict.
        why: for people, when not met.
    """
    hold = job.holds.get(("depend", text))
    if hold is None or hold.stage is not Stage.ACTIVE:
        return
    if met:
        yield finish_event(hold, Outcome.OK)
    else:  # the dependency is canceled with all else that held the job back
        note = f"dependency {text} of job {job.id} can never be met: {why}"
        yield from raise_(job, policy, "dependency", 0, note)
