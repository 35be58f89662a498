"""C1: canceled while the prolog runs (flux-core #6055)."""

from __future__ import annotations

import os

from bed import Bed
from tracing import Trace

ME = os.geteuid()


def test_c01_what_the_prolog_stopped_is_started_again_before_the_provider_unmounts(bed: Bed) -> None:
    """Cancel: both epilogs begin, TERM comes once, the daemon is restarted, then the provider can finish."""
    trace = Trace(bed)
    daemon = bed.folder / "mount-daemon"
    daemon.touch()
    bed.table("[[provider]]", name="cray-pals", users=[ME], holds=["prolog:cray-pals-port-distributor"])
    bed.table("[[provider]]", name="dws", users=[ME], holds=["prolog:dws-setup", "epilog:dws-epilog"])
    bed.action(
        "job-manager",
        prolog=trace.gated("never").replace("mark begin", f"mark begin; rm {daemon}"),
        epilog=trace.script(f"touch {daemon}"),
    )
    bed.start()
    nodes = "n[1-16]"
    job = bed.submit(nodes=nodes)
    bed.call("hold.finish", id=job, phase="prolog", name="cray-pals-port-distributor")
    variables = {"DW_JOB_scratch": "/mnt/x"}
    bed.call("hold.finish", id=job, phase="prolog", name="dws-setup", environment=variables)
    trace.wait("begin", "prolog", "job-manager")
    assert bed.job(job)["state"] == "PROLOG"
    for _ in range(4):
        bed.call("job.cancel", id=job, note="ctrl-C")
    bed.wait(job, "epilog-finish", description="job-manager")
    assert daemon.exists()
    assert bed.job(job)["state"] == "EPILOG"
    assert bed.job(job)["held"] == nodes
    assert "epilog hold dws-epilog" in bed.job(job)["waiting_for"]
    bed.call("hold.finish", id=job, phase="epilog", name="dws-epilog")
    bed.wait(job, "clean")

    names = bed.names(job)
    assert names[:9] == [
        "submit",
        "depend",
        "alloc",
        "prolog-start job-manager",
        "prolog-start cray-pals-port-distributor",
        "prolog-start dws-setup",
        "prolog-finish cray-pals-port-distributor",
        "environment dws-setup",
        "prolog-finish dws-setup",
    ]
    assert names[9:12] == ["exception", "epilog-start job-manager", "epilog-start dws-epilog"]
    assert sorted(names[12:]) == sorted(
        [
            *["exception"] * 3,
            "prolog-finish job-manager",
            "epilog-finish job-manager",
            "epilog-finish dws-epilog",
            "release",
            "clean",
        ]
    )
    assert names.index("prolog-finish job-manager") < names.index("epilog-finish job-manager")
    assert names[-3:] == ["epilog-finish dws-epilog", "release", "clean"]
    assert bed.event(job, "prolog-finish", description="job-manager")["context"]["status"] != 0
    assert bed.event(job, "epilog-finish", description="job-manager")["context"]["status"] == 0
    assert bed.event(job, "release")["context"] == {"nodes": nodes, "final": True}
    kinds = {event["context"]["type"] for event in bed.events(job) if event["name"] == "exception"}
    assert kinds == {"cancel"}
    assert trace.words(job) == [
        "begin prolog job-manager",
        "term prolog job-manager",
        "end prolog job-manager",
        "begin epilog job-manager",
        "end epilog job-manager",
    ]
    assert bed.job(job)["result"] == "CANCELED"
    assert bed.drained() == {}
