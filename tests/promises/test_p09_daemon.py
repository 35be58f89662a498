"""P9 on a real broker: the state after a restart is the state before it, and jobs go on by themselves."""

from __future__ import annotations

import os
from typing import Any

import pytest

from bed import Bed
from tracing import Trace

ME = os.geteuid()


def settled(bed: Bed, job: int) -> dict[str, Any]:
    """Return the job as it is shown, without what may change: progress, and words that hold the time."""
    shown = bed.job(job)
    shown["holds"] = [
        {**hold, "progress": None, "deadline": hold["deadline"] and pytest.approx(hold["deadline"], abs=0.05)}
        for hold in shown["holds"]
    ]
    shown["scripts"] = [run["pid"] for run in shown["scripts"]]
    shown["waiting_for"] = shown["waiting_for"].partition(":")[0]
    return shown


def test_every_job_is_shown_alike_before_and_after_kill_9(bed: Bed) -> None:
    """Jobs in every state, with holds of every kind, are shown as before, but for progress."""
    trace = Trace(bed)
    bed.table("[[provider]]", name="dws", users=[ME], match={"dws": True}, holds=["prolog", "epilog:undo"])
    for phase in ("prolog", "completion", "epilog"):
        attribute = {f"script-{phase}": True}
        bed.action(f"a-{phase}", **{phase: trace.gated("never")}, match=attribute, timeout={phase: "1h"})
    bed.start()
    first = bed.run_job(nodes="n[1-4]", status=256, name="ended")
    bed.submit(dependencies=[f"afterclean:{first}"], holds=[{"phase": "depend", "name": "approval"}])
    bed.call("job.submit", key="in-sched", attributes={"a": [1, None, {"b": b"\xff"}]})
    bed.submit(attributes={"dws": 1, "script-prolog": True})
    for phase in ("completion", "epilog"):
        job = bed.submit(attributes={f"script-{phase}": True}, max_reruns=2, nodes="n[1-9]")
        bed.wait(job, "ready")
        bed.call("hold.start", id=job, phase="completion", name="own", keep={"nodes": "n[1-3]", "cores": "0"})
        bed.call("hold.update", id=job, phase="completion", name="own", progress=50, timeout="1h", keep="n2")
        bed.call("job.start", id=job)
        bed.call("job.memo", id=job, memo={"rank": 1})
        bed.call("job.exit", id=job, status=9)
        if phase == "epilog":
            bed.call("job.rerun", id=job)
            bed.call("job.start", id=job)
            bed.call("hold.finish", id=job, phase="completion", name="own", environment={"X": "y"}, status=1)
            bed.call("job.cancel", id=job, note="enough")
            bed.call("job.exit", id=job, status=0)
        trace.wait("begin", phase, f"a-{phase}")
    running = bed.submit()
    bed.wait(running, "ready")
    bed.call("job.start", id=running, lease=True)
    ready = bed.submit(holds=[{"phase": "epilog", "name": "declared", "timeout": "5m"}])
    bed.wait(ready, "ready")
    trace.wait("begin", "prolog", "a-prolog")
    bed.executor_answers()
    before = {job["id"]: settled(bed, job["id"]) for job in bed.call("job.list")}
    assert len(before) == 8
    bed.kill9()
    bed.start()
    bed.executor_answers()
    after = {job["id"]: settled(bed, job["id"]) for job in bed.call("job.list")}
    assert after == before
    drained = bed.call("node.list")
    bed.stop()
    bed.start()
    assert bed.call("node.list") == drained


@pytest.mark.parametrize("state", ["DEPEND", "PROLOG", "RUN", "COMPLETION", "EPILOG"])
def test_a_job_goes_on_by_itself_after_a_restart(bed: Bed, state: str) -> None:
    """From every state that kill -9 finds it in, a job comes to its end once others do their part."""
    bed.action("a", prolog="exit 0", completion="exit 0", epilog="exit 0")
    bed.start()
    hold = {"phase": "epilog" if state == "RUN" else state.lower(), "name": "step"}
    job = bed.submit(holds=[hold])
    if state in ("RUN", "COMPLETION", "EPILOG"):
        bed.wait(job, "ready")
        bed.call("job.start", id=job)
    if state in ("COMPLETION", "EPILOG"):
        bed.call("job.exit", id=job, status=0)
        bed.wait(job, f"{state.lower()}-finish", description="a")
    assert bed.job(job)["state"] == state
    bed.kill9()
    bed.start()
    bed.call("hold.finish", id=job, **hold)
    if state in ("DEPEND", "PROLOG"):
        bed.wait(job, "ready")
        bed.call("job.start", id=job)
    if state not in ("COMPLETION", "EPILOG"):
        bed.call("job.exit", id=job, status=0)
    bed.wait(job, "clean")
    assert bed.job(job)["result"] == "COMPLETED"
    names = bed.names(job)
    assert [names.count(f"{phase}-finish a") for phase in ("prolog", "completion", "epilog")] == [1, 1, 1]
