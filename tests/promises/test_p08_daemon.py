"""P8 on real processes: log, exception, drain reason, job.get, script.list and exit code agree."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path
from typing import NamedTuple

import pytest

from bed import Bed, until
from tracing import Trace


class End(NamedTuple):
    """A way for a script to end badly.

    Args:
        body: of the script.
        outcome: that it must get.
        status: that it must get.
        text: behind "prolog a " in note and drain reason; a regular expression.
        drains: whether the nodes are drained.
    """

    body: str
    outcome: str
    status: int
    text: str
    drains: bool = False


ENDS = {
    "exit code": End("exit 3", "failed", 3 << 8, "failed for job 1: exit code 3"),
    "signal": End("kill -9 $$", "failed", 9, "killed by signal 9 for job 1"),
    "timeout": End("exec sleep 60", "timeout", 15, "timed out for job 1"),
    "stuck": End(
        "trap '' TERM; while :; do sleep 0.05; done",
        "stuck",
        124 << 8,
        r"stuck for job 1: pid \d+ is still running",
        True,
    ),
    "not started": End("#!/nonexistent/interpreter", "failed", 127 << 8, "failed for job 1: exit code 127"),
}


def end_of(bed: Bed, phase: str, end: End) -> None:
    """Configure action a with a script that ends so."""
    bed.action("a", **{phase: end.body}, timeout={phase: "300ms"}, kill_timeout="200ms")
    bed.start()


@pytest.mark.parametrize("name", ENDS)
def test_a_prolog_that_ends_badly_is_told_alike_everywhere(bed: Bed, name: str) -> None:
    """Whatever a prolog came to: never status 0, one text everywhere, and a client that exits with 1."""
    end = ENDS[name]
    end_of(bed, "prolog", end)
    job = bed.submit()
    bed.wait(job, "clean")
    finish = bed.event(job, "prolog-finish")["context"]
    assert (finish["outcome"], finish["status"]) == (end.outcome, end.status)
    hold = bed.hold(job, "prolog", "a")
    assert (hold["outcome"], hold["status"]) == (end.outcome, end.status)
    run = next(run for run in bed.call("script.list", id=job) if run["state"] == "ended")
    assert (run["outcome"], run["status"]) == (end.outcome, end.status)
    exception = bed.event(job, "exception")["context"]
    assert (exception["type"], exception["severity"]) == ("prolog", 0)
    assert re.match(f"prolog a {end.text}", exception["note"])
    drained = bed.drained()
    if end.drains:
        assert exception["note"] == f"{drained['n1']} on n1"
    assert list(drained) == (["n1"] if end.drains else [])
    shown = bed.job(job)
    assert (shown["result"], shown["exit_code"], shown["status"]) == ("FAILED", 1, None)
    assert [told["note"] for told in shown["exceptions"]] == [exception["note"]]
    assert bed.command("attach", str(job)).returncode == 1


@pytest.mark.parametrize("name", ENDS)
def test_an_epilog_that_ends_badly_leaves_the_result(bed: Bed, name: str) -> None:
    """An epilog's bad end has severity 2 and is told; the job stays COMPLETED with exit code 0."""
    end = ENDS[name]
    end_of(bed, "epilog", end)
    job = bed.run_job()
    finish = bed.event(job, "epilog-finish")["context"]
    assert (finish["outcome"], finish["status"]) == (end.outcome, end.status)
    exception = bed.event(job, "exception")["context"]
    assert (exception["type"], exception["severity"]) == ("epilog", 2)
    assert re.match(f"epilog a {end.text}", exception["note"])
    assert list(bed.drained()) == (["n1"] if end.drains else [])
    shown = bed.job(job)
    assert (shown["result"], shown["exit_code"], shown["status"]) == ("COMPLETED", 0, 0)
    assert bed.command("attach", str(job)).returncode == 0


@pytest.mark.parametrize("name", ENDS)
def test_a_completion_script_that_ends_badly_makes_the_job_fail(bed: Bed, name: str) -> None:
    """A completion script's status is `finish.status`, the job's exit code, and the client's."""
    end = ENDS[name]
    end_of(bed, "completion", end)
    job = bed.run_job()
    finish = bed.event(job, "completion-finish")["context"]
    assert (finish["outcome"], finish["status"]) == (end.outcome, end.status)
    assert bed.event(job, "finish")["context"]["status"] == end.status
    exception = bed.event(job, "exception")["context"]
    assert (exception["type"], exception["severity"]) == ("completion", 2)
    shown = bed.job(job)
    code = os.waitstatus_to_exitcode(end.status)
    expected = code if code > 0 else 128 - code
    assert (shown["result"], shown["exit_code"], shown["status"]) == ("FAILED", expected, end.status)
    assert bed.command("attach", str(job)).returncode == expected


@pytest.mark.parametrize(
    ("status", "result", "code"), [(0, "COMPLETED", 0), (7 << 8, "FAILED", 7), (9, "FAILED", 137)]
)
def test_an_applications_status_is_told_alike_everywhere(
    bed: Bed, status: int, result: str, code: int
) -> None:
    """The application's wait status is in exit and finish; job.get and the client show it as a shell does."""
    bed.start()
    job = bed.run_job(status=status)
    assert bed.event(job, "exit")["context"]["status"] == status
    assert bed.event(job, "finish")["context"]["status"] == status
    shown = bed.job(job)
    assert (shown["result"], shown["exit_code"], shown["exit_status"]) == (result, code, status)
    assert bed.command("attach", str(job)).returncode == code


def test_a_lost_prolog_is_never_taken_for_a_success(bed: Bed) -> None:
    """A prolog whose end nobody saw is `lost` everywhere, its nodes are drained, and no job starts."""
    trace = Trace(bed)
    bed.action("a", prolog=trace.gated("never"), epilog=trace.script())
    bed.start()
    job = bed.submit()
    trace.wait("begin", "prolog", "a")
    (run,) = bed.call("script.list")
    bed.kill9()
    bed.kill9_executor()
    os.kill(run["pid"], signal.SIGKILL)
    until(lambda: not Path(f"/proc/{run['pid']}").exists())  # a zombie would still tell its status
    bed.start()
    bed.wait(job, "clean")
    finish = bed.event(job, "prolog-finish")["context"]
    assert (finish["outcome"], finish["status"]) == ("lost", 255 << 8)
    reason = f"prolog a lost for job {job}: its end cannot be known"
    assert bed.drained() == {"n1": reason}
    assert bed.event(job, "exception")["context"]["note"].startswith(f"{reason} on n1")
    assert "ready" not in bed.names(job)
    shown = bed.job(job)
    assert (shown["result"], shown["exit_code"]) == ("FAILED", 1)
    assert bed.hold(job, "epilog", "a")["outcome"] == "ok"
    assert bed.command("attach", str(job)).returncode == 1


def test_holds_that_never_came_to_be_are_skipped_not_done(bed: Bed) -> None:
    """Completion work of a job that never ran ends as `skipped`, 255; prolog holds end as `canceled`."""
    bed.start()
    job = bed.submit(
        holds=[{"phase": "prolog", "name": "setup"}, {"phase": "completion", "name": "declared"}]
    )
    bed.call("hold.start", id=job, phase="completion", name="started")
    bed.call("job.cancel", id=job)
    bed.wait(job, "clean")
    ended = {hold["name"]: (hold["outcome"], hold["status"]) for hold in bed.job(job)["holds"]}
    skipped = ("skipped", 255 << 8)
    assert ended == {"setup": ("canceled", 15), "declared": skipped, "started": skipped}
    assert bed.event(job, "completion-finish")["context"]["outcome"] == "skipped"
    assert bed.job(job)["result"] == "CANCELED"
