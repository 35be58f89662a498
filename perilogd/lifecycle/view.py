"""How a job is shown: its map for clients, its result and exit code, and what it waits for in one sentence.

Reading only; the present moment is an argument.
"""

from __future__ import annotations

import os
from typing import Any

from perilogd.lifecycle.effects import Want, want
from perilogd.lifecycle.job import Hold, Job, Origin, Stage, Stamp, State
from perilogd.lifecycle.table import ahead


def exit_code(job: Job) -> int | None:
    """Return the one exit code that every client shows, None while the result can still change it.

    It is the code, or 128 + signal, of `finish.status`; if that is 0 or absent and the result is not
    COMPLETED, 1.
    """
    if job.finish_status is None and job.state not in (State.EPILOG, State.INACTIVE):
        return None
    code = shell_code(job.finish_status or 0)
    return 1 if code == 0 and job.result != "COMPLETED" else code


def shell_code(status: int) -> int:
    """Return a wait(2) status as a shell shows it."""
    code = os.waitstatus_to_exitcode(status)
    return 128 - code if code < 0 else code


def hold_map(hold: Hold, now: Stamp) -> dict[str, Any]:
    """Return a hold as clients see it; times are wall time in seconds since the epoch."""
    shown: dict[str, Any] = {
        "phase": hold.phase,
        "name": hold.name,
        "owner": hold.owner,
        "stage": hold.stage.value,
        "attempt": hold.attempt,
        "since": hold.since.wall if hold.since is not None else None,
        "deadline": deadline(hold, now),
        "timeout": hold.timeout,
        "keep": hold.keep,
        "progress": hold.progress,
        "note": hold.note,
    }
    if hold.stage is Stage.ENDED:
        shown["status"] = hold.status
        shown["outcome"] = hold.outcome
        shown["ended"] = hold.ended.wall if hold.ended is not None else None
    return shown


def deadline(hold: Hold, now: Stamp) -> float | None:
    """Return a hold's deadline in wall time, as the clock runs now; None if none counts."""
    left = hold.remaining(now)
    return None if left is None else now.wall + left


def facts(job: Job) -> dict[str, Any]:
    """Return what is told of a job wherever it is shown, the file `$PERILOG_JOB` included."""
    return {
        "id": job.id,
        "key": job.key,
        "name": job.name,
        "userid": job.userid,
        "state": job.state.value,
        "nodes": job.nodes,
        "alloc": job.alloc,
        "resources": job.resources,
        "attributes": job.attributes,
        "attempt": job.attempt,
        "exit_status": job.exit_status,
        "status": job.finish_status,
        "result": job.result,
        "environment": {**job.environment, **job.owner_environment},
        "memo": job.memo,
    }


def job_map(job: Job, now: Stamp) -> dict[str, Any]:
    """Return a job as clients see it. Scripts are added by the broker, which knows the runs."""
    return {
        **facts(job),
        "held": job.held,
        "holds": [hold_map(hold, now) for hold in job.holds.values()],
        "exceptions": [
            {
                "type": item.type,
                "severity": item.severity,
                "note": item.note,
                "userid": item.userid,
                "abandon": item.abandon,
                "timestamp": item.wall,
            }
            for item in job.exceptions
        ],
        "max_reruns": job.max_reruns,
        "exit_code": exit_code(job),
        "submitted": job.submitted.wall if job.submitted is not None else None,
        "since": job.entered.wall if job.entered is not None else None,
        "waiting_for": waiting_for(job, now),
    }


def waiting_for(job: Job, now: Stamp) -> str:
    """Say in one sentence what the job waits for, whoever has to do it."""
    if job.state is State.INACTIVE:
        return ""
    if job.state is State.SCHED:
        return "nodes from the workload manager"
    if job.state is State.RUN:
        if not job.started:
            return "the workload manager to start the application"
        stop = f", told to stop ({job.fatal})" if job.fatal is not None else ""
        return f"the application to end{stop}"
    waited = [hold for hold in job.active_holds() if not ahead(job.state, hold.phase)]
    told = [_one(hold, now) for hold in waited if not hold.is_script or want(job, hold) is not Want.WAIT]
    return "; ".join(told if len(told) <= 3 else [*told[:3], f"and {len(told) - 3} more"])


def _one(hold: Hold, now: Stamp) -> str:
    if hold.origin is Origin.DEPENDENCY:
        return f"dependency {hold.name}"
    kind = "script" if hold.is_script else "hold"
    said: list[str] = []
    if hold.note:
        said.append(hold.note)
    if hold.progress is not None:
        said.append(f"{hold.progress:g} %")
    if hold.since is not None:
        said.append(f"for {span(hold.since.until(now))}")
    left = hold.remaining(now)
    if left is not None and not hold.is_script:
        said.append(f"deadline in {span(left)}" if left >= 0 else "deadline passed")
    return f"{hold.phase} {kind} {hold.name}: {', '.join(said)}"


def span(seconds: float) -> str:
    """Write a length of time for people: its two largest units."""
    whole = max(0, int(seconds))
    units = ((86400, "d"), (3600, "h"), (60, "min"), (1, "s"))
    parts: list[str] = []
    for size, unit in units:
        count, whole = divmod(whole, size)
        if count:
            parts.append(f"{count} {unit}")
        if len(parts) == 2 or (parts and not count):
            break
    return " ".join(parts) or "0 s"
