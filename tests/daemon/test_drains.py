"""The drain table: reasons that stay, nodes that may not go back yet, and what node.list shows."""

from __future__ import annotations

import os
import signal
import socket

import pytest

from bed import Bed, until
from tracing import Trace


def test_the_first_reason_stays(bed: Bed) -> None:
    """Draining a drained node keeps reason, time and author, also when a job's hold times out there."""
    bed.start()
    bed.call("node.drain", nodes="n[1-2]", reason="fan broken")
    before = bed.call("node.list")
    assert before[0]["by"] == f"uid {os.geteuid()}"
    bed.call("node.drain", nodes="n2", reason="something else")
    assert bed.call("node.list") == before
    job = bed.submit(nodes="n[2-3]")
    bed.wait(job, "ready")
    bed.call("hold.start", id=job, phase="epilog", name="unmount", timeout="50ms")
    bed.call("job.cancel", id=job)
    bed.wait(job, "clean")
    reason = f"hold epilog/unmount timed out for job {job}"
    assert bed.drained() == {"n[1-2]": "fan broken", "n3": reason}
    bed.call("node.drain", nodes="n[2-3]", reason="replaced", force=True)
    bed.kill9()
    bed.start()
    assert bed.drained() == {"n1": "fan broken", "n[2-3]": "replaced"}


def test_what_makes_no_sense_is_refused(bed: Bed) -> None:
    """An empty set, a bad set, and a bad reason are EINVAL, and nothing is drained."""
    bed.start()
    for nodes in ("", "n[1-", "n[1-2000000000]", 7):
        for method in ("node.drain", "node.undrain"):
            assert bed.refusal(method, nodes=nodes).startswith("EINVAL: ")
    for reason in ("", "two\nlines", "x" * 1025):
        assert bed.refusal("node.drain", nodes="n1", reason=reason).startswith("EINVAL: ")
    assert bed.call("node.list") == []
    bed.call("node.undrain", nodes="n1")


def test_nodes_are_listed_folded(bed: Bed) -> None:
    """Nodes with equal state and jobs are one row; each row says which live jobs hold it."""
    bed.start()
    one = bed.submit(nodes="n[1-6]")
    two = bed.submit(nodes="n[4-9]")
    bed.call("node.drain", nodes="n[6-7,20]", reason="fan broken")
    rows = bed.call("node.list")
    shown = {(row["nodes"], row["state"], tuple(row["jobs"])) for row in rows}
    assert shown == {
        ("n[1-3]", "allocated", (one,)),
        ("n[4-5]", "allocated", (one, two)),
        ("n[8-9]", "allocated", (two,)),
        ("n6", "drained", (one, two)),
        ("n7", "drained", (two,)),
        ("n20", "drained", ()),
    }
    assert {row["nodes"] for row in bed.call("node.list", nodes="n[3-4]")} == {"n3", "n4"}
    bed.call("job.cancel", id=two)
    bed.wait(two, "clean")
    assert ("n[1-5]", "allocated") in {(row["nodes"], row["state"]) for row in bed.call("node.list")}


@pytest.mark.parametrize("restart", ["none", "broker", "both"])
def test_a_node_stays_drained_while_a_stuck_script_lives_there(bed: Bed, restart: str) -> None:
    """Undrain is refused with the pid until the stuck process has died, over restarts too, unless forced."""
    trace = Trace(bed)
    bed.action(
        "a",
        epilog=trace.script("while :; do sleep 0.05; done", on_term=":"),
        timeout={"epilog": "100ms"},
        kill_timeout="100ms",
    )
    bed.start()
    job = bed.run_job(nodes="n[1-4]")
    (stuck,) = bed.call("script.list")
    reason = f"epilog a stuck for job {job}: pid {stuck['pid']} is still running"
    assert bed.drained() == {"n[1-4]": reason}
    if restart != "none":
        bed.kill9()
        if restart == "both":
            bed.kill9_executor()
        bed.start()
        bed.executor_answers()
    refused = bed.refusal("node.undrain", nodes="n[2-3,9]")
    assert refused.startswith(f"ESTATE: n[2-3]: epilog a of job {job} is stuck there (pid {stuck['pid']})")
    bed.call("node.undrain", nodes="n4", force=True)
    assert bed.drained() == {"n[1-3]": reason}
    os.kill(stuck["pid"], signal.SIGKILL)
    until(lambda: bed.call("script.list") == [])
    bed.call("node.undrain", nodes="n[1-3]")
    assert bed.drained() == {}


def test_a_stuck_script_that_dies_without_a_broker_is_not_stuck_any_more(bed: Bed) -> None:
    """The death of a stuck process while the broker was away is known to the next one."""
    trace = Trace(bed)
    bed.action(
        "a",
        epilog=trace.script("while :; do sleep 0.05; done", on_term=":"),
        timeout={"epilog": "100ms"},
        kill_timeout="100ms",
    )
    bed.start()
    bed.run_job()
    (stuck,) = bed.call("script.list")
    bed.kill9()
    os.kill(stuck["pid"], signal.SIGKILL)
    until(lambda: not bed.running_scripts())
    bed.start()
    bed.executor_answers()
    assert bed.call("script.list") == []
    bed.call("node.undrain", nodes="n1")
    assert bed.drained() == {}


def test_the_management_node_is_drained_by_hand_only(bed: Bed) -> None:
    """The broker's own host is never drained on account of a job; an administrator can."""
    here = socket.gethostname()
    bed.start()
    job = bed.submit(nodes=f"{here},n1", holds=[{"phase": "prolog", "name": "x", "timeout": "50ms"}])
    bed.wait(job, "clean")
    assert bed.drained() == {"n1": f"hold prolog/x timed out for job {job}"}
    bed.call("node.drain", nodes=here, reason="reinstall")
    assert bed.drained()[here] == "reinstall"
