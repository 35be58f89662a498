"""C10: canceled after a successful run, during the epilog."""

from __future__ import annotations

import json

from bed import Bed
from tracing import Trace


def test_c10_a_late_cancel_leaves_the_result_everywhere(bed: Bed) -> None:
    """COMPLETED and exit code 0 in job.get, job.list, show and attach, always; the cancel is listed."""
    trace = Trace(bed)
    bed.action("a", epilog=trace.gated("epilog"))
    bed.start()
    job = bed.submit()
    bed.wait(job, "ready")
    bed.call("job.start", id=job)
    bed.call("job.exit", id=job, status=0)
    trace.wait("begin", "epilog", "a")
    bed.call("job.cancel", id=job, note="too late")

    def check() -> None:
        (listed,) = bed.call("job.list")
        for shown in (
            bed.job(job),
            listed,
            json.loads(bed.command("--json", "show", str(job)).stdout),
        ):
            assert (shown["result"], shown["exit_code"], shown["status"]) == ("COMPLETED", 0, 0)
            assert [told["note"] for told in shown["exceptions"]] == ["too late"]
        assert bed.command("attach", str(job)).returncode == 0

    check()
    bed.kill9()
    bed.start()
    check()
    trace.open("epilog")
    bed.wait(job, "clean")
    check()
    assert "COMPLETED" in bed.command("list", "--all").stdout
