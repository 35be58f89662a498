"""P3 on real processes: `finish`, `clean` and the release of nodes wait for whoever still needs them."""

from __future__ import annotations

import os
import signal

from bed import Bed, until
from tracing import Trace


def test_finish_waits_for_completion_holds_and_scripts(bed: Bed) -> None:
    """With a completion script running or a hold held, over a restart too, the job is not finished."""
    trace = Trace(bed)
    bed.action("drain", completion=trace.gated("drain"))
    bed.start()
    job = bed.submit(holds=[{"phase": "completion", "name": "stage-out"}])
    bed.wait(job, "ready")
    bed.call("job.start", id=job)
    bed.call("job.exit", id=job, status=0)
    trace.wait("begin", "completion", "drain")
    bed.call("hold.finish", id=job, phase="completion", name="stage-out")
    assert "finish" not in bed.names(job)
    bed.kill9()
    bed.start()
    assert bed.job(job)["state"] == "COMPLETION"
    bed.call("hold.start", id=job, phase="completion", name="checksum")
    trace.open("drain")
    bed.wait(job, "completion-finish", description="drain")
    assert "finish" not in bed.names(job)
    bed.call("hold.finish", id=job, phase="completion", name="checksum")
    bed.wait(job, "clean")
    assert bed.event(job, "finish")["context"]["status"] == 0


def test_nodes_are_released_only_when_no_epilog_needs_them(bed: Bed) -> None:
    """While an epilog script runs or an epilog hold is held, the nodes stay with the job."""
    trace = Trace(bed)
    bed.action("a", epilog=trace.gated("epilog"))
    bed.start()
    job = bed.submit(nodes="n[1-3]")
    bed.wait(job, "ready")
    bed.call("job.start", id=job)
    bed.call("job.exit", id=job, status=0)
    trace.wait("begin", "epilog", "a")
    bed.call("hold.start", id=job, phase="epilog", name="unmount")
    trace.open("epilog")
    bed.wait(job, "epilog-finish", description="a")
    assert bed.call("node.list") == [{"nodes": "n[1-3]", "state": "allocated", "jobs": [job]}]
    assert bed.job(job)["held"] == "n[1-3]"
    bed.call("hold.finish", id=job, phase="epilog", name="unmount")
    bed.wait(job, "clean")
    assert bed.event(job, "release")["context"] == {"nodes": "n[1-3]", "final": True}
    assert bed.names(job)[-3:] == ["epilog-finish unmount", "release", "clean"]
    assert bed.call("node.list") == []


def test_a_stuck_script_counts_as_ended(bed: Bed) -> None:
    """A script that ignores SIGTERM ends as `stuck`: the job goes on, and its nodes are drained."""
    trace = Trace(bed)
    loop = "while :; do sleep 0.05; done"
    bed.action(
        "a",
        epilog=trace.script(loop, on_term=":"),
        timeout={"epilog": "100ms"},
        kill_timeout="100ms",
    )
    bed.start()
    job = bed.run_job()
    (stuck,) = bed.call("script.list")
    assert stuck["state"] == "stuck"
    assert trace.words(job) == ["begin epilog a", "term epilog a"]
    assert bed.event(job, "epilog-finish")["context"]["outcome"] == "stuck"
    assert list(bed.drained()) == ["n1"]
    os.kill(stuck["pid"], signal.SIGKILL)
    until(lambda: bed.call("script.list") == [])
