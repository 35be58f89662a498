"""C3: the action's prolog is done, another prolog hold is pending, the job is canceled."""

from __future__ import annotations

from bed import Bed
from tracing import Trace


def test_c03_the_epilog_of_a_finished_prolog_runs(bed: Bed) -> None:
    """The finished prolog's epilog runs, told that its prolog ended with 0; the pending hold is canceled."""
    trace = Trace(bed)
    bed.action(
        "a",
        prolog=trace.script(),
        epilog=trace.script('echo "$PERILOG_REASON $PERILOG_PROLOG_STATUS" > "$PERILOG_MESSAGE"'),
    )
    bed.start()
    job = bed.submit(holds=[{"phase": "prolog", "name": "network"}])
    bed.wait(job, "prolog-finish", description="a")
    bed.call("job.cancel", id=job)
    bed.wait(job, "clean")
    assert trace.words(job) == ["begin prolog a", "end prolog a", "begin epilog a", "end epilog a"]
    assert bed.event(job, "prolog-finish", description="network")["context"]["outcome"] == "canceled"
    epilog = bed.event(job, "epilog-finish")["context"]
    assert (epilog["status"], epilog["message"]) == (0, "cancel 0")
    assert bed.job(job)["result"] == "CANCELED"
