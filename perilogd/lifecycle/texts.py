"""The sentences that people grep for: exception notes and drain reasons.

Their forms are fixed by the protocol. The same text is the exception's note and the drain reason; the
note adds the nodes where they are known, and what the script had to say to the user.
"""

from __future__ import annotations

import os

from perilogd.lifecycle.job import Outcome


def how_it_ended(status: int) -> str:
    """Say a wait status in words: "exit code 3" or "killed by signal 9"."""
    if os.WIFSIGNALED(status):
        return f"killed by signal {os.WTERMSIG(status)}"
    return f"exit code {os.waitstatus_to_exitcode(status)}"


def script(phase: str, action: str, job: int, outcome: str, status: int, pid: int | None = None) -> str:
    """Say how a script (or a hold that ended with a status) went wrong.

    Args:
        phase: prolog, completion, epilog or depend.
        action: the action's or hold's name.
        job: the job's id.
        outcome: one of `Outcome`, not ok.
        status: a wait(2) status.
        pid: of a stuck script.
    """
    what = f"{phase} {action}"
    if outcome == Outcome.TIMEOUT:
        return f"{what} timed out for job {job}"
    if outcome == Outcome.STUCK:
        return f"{what} stuck for job {job}: pid {pid} is still running"
    if outcome == Outcome.LOST:
        return f"{what} lost for job {job}: its end cannot be known"
    if outcome == Outcome.CANCELED and status == 0:
        return f"{what} was canceled for job {job}"
    if os.WIFSIGNALED(status):
        return f"{what} {how_it_ended(status)} for job {job}"
    return f"{what} failed for job {job}: {how_it_ended(status)}"


def hold_timeout(phase: str, name: str, job: int) -> str:
    """Say that a hold passed its deadline."""
    return f"hold {phase}/{name} timed out for job {job}"


def hold_canceled(phase: str, name: str, job: int, userid: int) -> str:
    """Say that an administrator ended a hold that its holder had not finished."""
    return f"hold {phase}/{name} canceled for job {job} by uid {userid}"
