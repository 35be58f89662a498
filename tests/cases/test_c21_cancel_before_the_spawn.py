"""C21: the cancel arrived before the script was spawned and was lost (flux-core #6711)."""

from __future__ import annotations

import pytest

from bed import Bed
from tracing import Trace


def test_c21_a_prolog_that_waits_for_a_place_is_never_spawned(bed: Bed) -> None:
    """With the queue full, a cancel ends the waiting prolog at once, unspawned; its epilog runs."""
    trace = Trace(bed)
    bed.table("[executor]", concurrency=1)
    bed.action("a", prolog=trace.gated("$PERILOG_JOB_ID"), epilog=trace.script())
    bed.start()
    first = bed.submit(nodes="n1")
    trace.wait("begin", "prolog", "a", first)
    dead = bed.submit(nodes="n2")
    bed.call("job.cancel", id=dead)
    bed.wait(dead, "clean")
    finish = bed.event(dead, "prolog-finish")["context"]
    assert (finish["outcome"], finish["status"]) == ("canceled", 15)
    assert trace.words(dead) == ["begin epilog a", "end epilog a"]
    trace.open(first)
    bed.wait(first, "ready")
    assert bed.drained() == {}


@pytest.mark.parametrize("restart", [False, True])
def test_c21_a_cancel_right_behind_the_submit_is_not_lost(bed: Bed, restart: bool) -> None:
    """Submit and cancel in one breath, over kill -9 too: spawned or not, the prolog never goes on."""
    trace = Trace(bed)
    bed.action("a", prolog=trace.gated("never"), epilog=trace.script())
    bed.start()
    for job in range(1, 9):
        with bed.connect() as client:
            replies = [client.begin("job.submit", nodes="n1"), client.begin("job.cancel", id=job)]
            for reply in replies:
                reply.result()
            if restart and job % 4 == 0:
                bed.kill9()
                bed.start()
        bed.wait(job, "clean")
        assert bed.event(job, "prolog-finish")["context"]["outcome"] == "canceled"
        assert trace.words(job)[-2:] == ["begin epilog a", "end epilog a"]
    assert bed.drained() == {}
