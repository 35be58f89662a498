"""What the world owes a job's state: which scripts should run, which should stop, which deadlines count.

Everything here is derived from the job alone and can be asked at any time, so that start-up after a crash is
replay followed by the same questions. Doing it is the broker's business.
"""

from __future__ import annotations

from enum import Enum

from perilogd.lifecycle.job import Hold, Job, Stage, State
from perilogd.lifecycle.policy import Phase


class Want(Enum):
    """What should become of a script whose hold is active."""

    WAIT = "wait"  # not yet: something must end first
    RUN = "run"
    CANCEL = "cancel"


def want(job: Job, hold: Hold) -> Want:
    """Tell what should become of an active script.

    An epilog script begins only when every prolog script of the job has ended. Prologs are cancelled by a
    fatal exception, unless the action says otherwise; completions by an abandon, or because the application
    runs again.
    """
    if hold.phase == "prolog":
        return Want.CANCEL if job.fatal is not None and hold.traits.get("cancel", True) else Want.RUN
    if hold.phase == "completion":
        return Want.CANCEL if job.abandoned or hold.attempt < job.attempt else Want.RUN
    return Want.WAIT if running(job, "prolog") else Want.RUN


def running(job: Job, phase: Phase) -> bool:
    """Tell whether a script of a phase is active (in the run queue, or running)."""
    return any(
        hold.phase == phase and hold.is_script and hold.stage is Stage.ACTIVE for hold in job.holds.values()
    )


#: PERILOG_REASON where it is not the exception's type.
_REASONS = {"prolog": "prolog-failed", "hold": "timeout"}


def reason(job: Job) -> str:
    """Return PERILOG_REASON, why an epilog or a cancel came.

    Returns:
        finish, prolog-failed, timeout (of a hold), or the type of the exception that decided the job's
        result: cancel, timelimit, node, exec, dependency, or one that is not reserved.
    """
    if job.fatal is None:
        return "finish"
    return _REASONS.get(job.fatal, job.fatal)


def needs_restart_note(job: Job) -> bool:
    """Tell whether `broker-restart` is posted to this job: it has a running script, or a lease."""
    if job.state is State.INACTIVE:
        return False
    return (job.lease and job.started and job.state is State.RUN) or any(
        hold.is_script and hold.stage is Stage.ACTIVE for hold in job.holds.values()
    )


def expires(hold: Hold) -> bool:
    """Tell whether the broker keeps this hold's deadline; a script's is the executor's."""
    return (
        not hold.is_script
        and hold.stage is Stage.ACTIVE
        and hold.timeout is not None
        and hold.armed is not None
    )
