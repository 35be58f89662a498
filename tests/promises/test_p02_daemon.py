"""P2 on real processes: no job starts while something holds its prolog, nor after a fatal exception."""

from __future__ import annotations

from bed import Bed
from tracing import Trace


def test_a_job_starts_only_when_script_and_hold_have_ended(bed: Bed) -> None:
    """While a prolog script runs or a client holds the prolog, over a restart too, start is refused."""
    trace = Trace(bed)
    bed.action("a", prolog=trace.gated("prolog"))
    bed.start()
    job = bed.submit()
    bed.call("hold.start", id=job, phase="prolog", name="mount")
    trace.wait("begin", "prolog", "a")
    assert bed.refusal("job.start", id=job).startswith("ESTATE: ")
    trace.open("prolog")
    bed.wait(job, "prolog-finish", description="a")
    assert "PROLOG" in bed.refusal("job.start", id=job)
    bed.kill9()
    bed.start()
    assert "PROLOG" in bed.refusal("job.start", id=job)
    assert "start" not in bed.names(job)
    assert "ready" not in bed.names(job)
    bed.call("hold.finish", id=job, phase="prolog", name="mount")
    bed.wait(job, "ready")
    assert bed.call("job.start", id=job) == {"attempt": 1}


def test_a_job_never_starts_after_a_fatal_exception(bed: Bed) -> None:
    """A fatal exception between ready and start wins: start is refused, also after a restart."""
    trace = Trace(bed)
    bed.action("a", prolog=trace.script(), epilog=trace.gated("epilog"))
    bed.start()
    job = bed.submit()
    bed.wait(job, "ready")
    bed.call("job.raise", id=job, type="licence", severity=0)
    assert "licence" in bed.refusal("job.start", id=job)
    bed.kill9()
    bed.start()
    assert bed.refusal("job.start", id=job).startswith("ESTATE: ")
    trace.open("epilog")
    bed.wait(job, "clean")
    assert bed.refusal("job.start", id=job).startswith("ESTATE: ")
    assert "start" not in bed.names(job)
    assert bed.job(job)["result"] == "FAILED"


def test_a_prolog_that_fails_makes_no_job_ready(bed: Bed) -> None:
    """A failed prolog ends the job without `ready`, `start` or `finish`; its neighbour is waited for."""
    trace = Trace(bed)
    bed.action("bad", prolog=trace.script("exit 1"))
    bed.action("good", prolog=trace.gated("good"), cancel_on_exception=False)
    bed.start()
    job = bed.submit()
    bed.wait(job, "prolog-finish", description="bad")
    assert bed.job(job)["state"] == "EPILOG"
    assert "prolog script good" in bed.job(job)["waiting_for"]
    trace.open("good")
    bed.wait(job, "clean")
    assert not {"ready", "start", "finish"} & set(bed.names(job))
    assert bed.event(job, "prolog-finish", description="good")["context"]["outcome"] == "ok"
