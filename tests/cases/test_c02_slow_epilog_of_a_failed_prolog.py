"""C2: the prolog fails by itself, and the epilog is slow."""

from __future__ import annotations

from bed import Bed
from tracing import Trace


def test_c02_no_later_prolog_begins_while_the_slow_epilog_cleans_the_node(bed: Bed) -> None:
    """The failed job is clean after its epilog's end; what waits for that begins later by the clock."""
    trace = Trace(bed)
    bed.action("a", match={"fails": True}, prolog=trace.script("exit 3"), epilog=trace.gated("slow"))
    bed.action("b", match={"fails": False}, prolog=trace.script(), epilog=trace.script())
    bed.start()
    job = bed.submit(attributes={"fails": True})
    trace.wait("begin", "epilog", "a")
    later = bed.submit(attributes={"fails": False}, dependencies=[f"afterclean:{job}"])
    assert bed.job(job)["held"] == "n1"
    assert bed.job(later)["state"] == "DEPEND"
    trace.open("slow")
    bed.wait(later, "ready")
    assert bed.names(job)[4:] == [
        "exception",
        "epilog-start a",
        "prolog-finish a",
        "epilog-finish a",
        "release",
        "clean",
    ]
    exception = bed.event(job, "exception")["context"]
    assert (exception["type"], exception["severity"]) == ("prolog", 0)
    assert exception["note"] == f"prolog a failed for job {job}: exit code 3"
    assert bed.event(job, "prolog-finish")["context"]["status"] == 768
    (end,) = trace.marks("end", "epilog", job=job)
    (begin,) = trace.marks("begin", "prolog", job=later)
    assert begin.clock >= end.clock
    words = [(mark.word, mark.phase, mark.job) for mark in trace.marks()]
    assert words.index(("end", "epilog", job)) < words.index(("begin", "prolog", later))
    assert bed.drained() == {}
