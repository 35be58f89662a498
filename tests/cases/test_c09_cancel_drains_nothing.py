"""C9: ctrl-C during a prolog drained the nodes (flux-core #5734); cancel in the epilog did too (#5319)."""

from __future__ import annotations

import pytest

from bed import Bed
from tracing import Trace


@pytest.mark.parametrize("code", [0, 1, 143])
def test_c09_a_canceled_prolog_that_ends_in_time_drains_nothing(bed: Bed, code: int) -> None:
    """Whatever a cancelled prolog exits with is its status; nothing is drained, nothing more is raised."""
    trace = Trace(bed)
    bed.action("a", prolog=trace.gated("never", on_term=f"exit {code}"), epilog=trace.script())
    bed.start()
    job = bed.submit(nodes="n[1-4]")
    trace.wait("begin", "prolog", "a")
    bed.call("job.cancel", id=job)
    bed.wait(job, "clean")
    finish = bed.event(job, "prolog-finish")["context"]
    assert (finish["outcome"], finish["status"]) == ("canceled", code << 8)
    assert bed.drained() == {}
    assert [told["type"] for told in bed.job(job)["exceptions"]] == ["cancel"]
    assert bed.job(job)["result"] == "CANCELED"
    assert trace.words(job).count("term prolog a") == 1


def test_c09_an_epilog_is_never_signaled_by_a_cancel(bed: Bed) -> None:
    """Cancels during the epilog, with abandon too, leave it alone: it gets no signal and ends by itself."""
    trace = Trace(bed)
    bed.action("a", epilog=trace.gated("epilog"))
    bed.start()
    job = bed.submit()
    bed.wait(job, "ready")
    bed.call("job.start", id=job)
    bed.call("job.exit", id=job, status=256)
    trace.wait("begin", "epilog", "a")
    bed.call("job.cancel", id=job)
    bed.call("job.cancel", id=job, abandon=True)
    trace.open("epilog")
    bed.wait(job, "clean")
    assert trace.words(job) == ["begin epilog a", "end epilog a"]
    assert bed.event(job, "epilog-finish")["context"] == {"description": "a", "status": 0, "outcome": "ok"}
    assert bed.drained() == {}
