"""P5 on real processes: every hold and script has a deadline, at which something happens by itself."""

from __future__ import annotations

import os
import signal
import time

import pytest

from bed import Bed, until
from tracing import Trace

ME = os.geteuid()


def test_a_providers_hold_that_times_out_ends_the_job_and_drains_its_nodes(bed: Bed) -> None:
    """A standing prolog hold that nobody finishes is fatal at its deadline, and drains what it kept."""
    bed.table("[[provider]]", name="dws", users=[ME], holds=["prolog:setup"], timeout={"prolog": "200ms"})
    bed.start()
    job = bed.submit(nodes="n[1-4]")
    bed.call("hold.update", id=job, phase="prolog", name="setup", keep="n[2-3]")
    bed.wait(job, "clean")
    finish = bed.event(job, "prolog-finish")["context"]
    assert (finish["description"], finish["outcome"], finish["status"]) == ("setup", "timeout", 31744)
    exception = bed.event(job, "exception")["context"]
    assert (exception["type"], exception["severity"]) == ("hold", 0)
    reason = f"hold prolog/setup timed out for job {job}"
    assert exception["note"] == f"{reason} on n[2-3]"
    assert bed.drained() == {"n[2-3]": reason}
    assert bed.job(job)["result"] == "FAILED"


def test_an_owners_hold_that_times_out_drains_nothing(bed: Bed) -> None:
    """A declared completion hold ends at its deadline, makes the job fail, and drains nobody."""
    bed.start()
    job = bed.submit(holds=[{"phase": "completion", "name": "stage-out", "timeout": "100ms"}])
    bed.wait(job, "ready")
    bed.call("job.start", id=job)
    bed.call("job.exit", id=job, status=0)
    bed.wait(job, "clean")
    assert bed.event(job, "completion-finish")["context"]["outcome"] == "timeout"
    assert bed.event(job, "exception")["context"]["severity"] == 0
    assert bed.drained() == {}
    assert bed.job(job)["result"] == "FAILED"
    assert bed.event(job, "finish")["context"]["status"] == 31744


def test_a_deadline_counts_from_the_holds_own_phase(bed: Bed) -> None:
    """An epilog hold taken during the prolog has no deadline until the epilog; then it has severity 2."""
    bed.start()
    job = bed.submit(holds=[{"phase": "prolog", "name": "wait"}])
    early = bed.call("hold.start", id=job, phase="epilog", name="unmount", timeout="50ms")
    assert (early["stage"], early["deadline"]) == ("active", None)
    until(lambda: time.time() > early["since"] + 0.1)
    bed.call("hold.finish", id=job, phase="prolog", name="wait")
    bed.wait(job, "ready")
    assert bed.hold(job, "epilog", "unmount")["stage"] == "active"
    bed.call("job.start", id=job)
    bed.call("job.exit", id=job, status=0)
    bed.wait(job, "clean")
    assert bed.event(job, "epilog-finish")["context"]["outcome"] == "timeout"
    assert bed.event(job, "exception")["context"]["severity"] == 2
    assert bed.job(job)["result"] == "COMPLETED"
    assert bed.drained() == {"n1": f"hold epilog/unmount timed out for job {job}"}


def test_only_infinity_means_no_deadline(bed: Bed) -> None:
    """Each phase's default is its configured timeout; "infinity" leaves a hold without a deadline."""
    bed.table("[holds]", timeout={"prolog": "1h", "completion": "infinity", "epilog": "2h"})
    bed.start()
    job = bed.submit()
    for phase, timeout in (("completion", None), ("epilog", 7200.0)):
        assert bed.call("hold.start", id=job, phase=phase, name="x")["timeout"] == timeout
    assert bed.call("hold.start", id=job, phase="epilog", name="y", timeout="infinity")["timeout"] is None
    other = bed.call("job.submit", holds=[{"phase": "prolog", "name": "x"}])["id"]
    assert bed.hold(other, "prolog", "x")["timeout"] == 3600.0


def test_a_deadline_that_passed_while_the_broker_was_down_waits_for_restart_grace(bed: Bed) -> None:
    """A holder that reports within `restart-grace` of READY is not too late."""
    bed.table("[holds]", restart_grace="60s")
    bed.start()
    job = bed.submit(holds=[{"phase": "prolog", "name": "setup", "timeout": "100ms"}])
    deadline = bed.hold(job, "prolog", "setup")["deadline"]
    bed.kill9()
    until(lambda: time.time() > deadline)
    bed.start()
    assert bed.hold(job, "prolog", "setup")["stage"] == "active"
    assert bed.call("hold.finish", id=job, phase="prolog", name="setup")["outcome"] == "ok"
    bed.wait(job, "ready")


def test_a_deadline_that_passed_while_the_broker_was_down_acts_after_restart_grace(bed: Bed) -> None:
    """When the grace has passed, the deadline acts by itself."""
    bed.table("[holds]", restart_grace="50ms")
    bed.start()
    job = bed.submit(holds=[{"phase": "prolog", "name": "setup", "timeout": "100ms"}])
    deadline = bed.hold(job, "prolog", "setup")["deadline"]
    bed.kill9()
    until(lambda: time.time() > deadline)
    bed.start()
    bed.wait(job, "clean")
    assert bed.event(job, "prolog-finish")["context"]["outcome"] == "timeout"


def test_a_scripts_deadline_is_enforced_while_the_broker_is_down(bed: Bed) -> None:
    """The executor sends SIGTERM and SIGKILL on time without a broker, and the next one learns the truth."""
    trace = Trace(bed)
    bed.action(
        "a",
        prolog=trace.script("while :; do sleep 0.05; done", on_term=":"),
        timeout={"prolog": "500ms"},
        kill_timeout="200ms",
        on_stuck="kill",
    )
    bed.start()
    job = bed.submit()
    trace.wait("begin", "prolog", "a")
    bed.kill9()
    until(lambda: not bed.running_scripts())
    assert trace.words(job) == ["begin prolog a", "term prolog a"]
    bed.start()
    bed.wait(job, "clean")
    finish = bed.event(job, "prolog-finish")["context"]
    assert (finish["outcome"], finish["status"]) == ("timeout", 9)


def test_without_an_executor_scripts_end_as_not_started(bed: Bed) -> None:
    """With nobody to run them for `absent-timeout`, prolog and epilog end with 127 and the job is over."""
    bed.table("[executor]", absent_timeout="200ms")
    bed.action("a", prolog="exit 0", epilog="exit 0")
    bed.run_dir.mkdir()
    bed.run_dir.chmod(0o777)  # an executor does not start in a folder of everybody's
    bed.start()
    job = bed.submit()
    bed.wait(job, "clean")
    for name in ("prolog-finish", "epilog-finish"):
        finish = bed.event(job, name)["context"]
        assert (finish["outcome"], finish["status"]) == ("failed", 127 << 8)
        assert "perilog-exec has not answered for 0.2 s" in finish["note"]
    assert bed.drained() == {}


def test_several_scripts_of_a_job_end_without_an_executor(bed: Bed) -> None:
    """Giving up one waiting prolog ends the job and so the others; the broker takes that in its stride."""
    bed.table("[executor]", absent_timeout="200ms")
    for name in ("a", "b", "c"):
        bed.action(name, prolog="exit 0", epilog="exit 0")
    bed.run_dir.mkdir()
    bed.run_dir.chmod(0o777)  # an executor does not start in a folder of everybody's
    bed.start()
    job = bed.submit()
    bed.wait(job, "clean")
    ends = sorted(bed.event(job, "prolog-finish", description=name)["context"]["status"] for name in "abc")
    assert ends == [15, 15, 127 << 8]
    assert [event["name"] for event in bed.events(job)].count("epilog-finish") == 3


def test_an_executor_that_stays_away_leaves_its_runs_lost(bed: Bed) -> None:
    """A script whose executor does not come back ends as `lost`, a waiting one as not started."""
    trace = Trace(bed)
    bed.table("[executor]", absent_timeout="1s", concurrency=1)
    bed.action("a", prolog=trace.gated("a"))
    bed.start()
    bed.executor_answers()
    running, waiting = bed.submit(nodes="n1"), bed.submit(nodes="n2")
    trace.wait("begin", "prolog", "a", running)
    bed.run_dir.chmod(0o777)  # the next executor does not start in a folder of everybody's
    bed.kill9_executor()
    for job, outcome, status in ((running, "lost", 255 << 8), (waiting, "failed", 127 << 8)):
        bed.wait(job, "clean")
        finish = bed.event(job, "prolog-finish")["context"]
        assert (finish["outcome"], finish["status"]) == (outcome, status)
    assert list(bed.drained()) == ["n1"]
    assert trace.marks(job=waiting) == []


def test_an_executor_that_hangs_is_as_good_as_absent(bed: Bed) -> None:
    """With an executor that lives but does not answer jobs end; once it answers, others run as ever."""
    trace = Trace(bed)
    bed.table("[executor]", absent_timeout="1s")
    bed.action("a", match={"slow": True}, prolog=trace.gated("gate"))
    bed.action("b", match={"slow": False}, prolog=trace.script())
    bed.start()
    executor = bed.executor_answers()
    job = bed.submit(attributes={"slow": True})
    trace.wait("begin", "prolog", "a", job)
    os.kill(executor, signal.SIGSTOP)
    try:
        bed.wait(job, "clean")
        assert bed.event(job, "prolog-finish")["context"]["outcome"] == "lost"
    finally:
        os.kill(executor, signal.SIGCONT)
    assert bed.executor_answers() == executor
    (outlived,) = bed.call("script.list")
    assert (outlived["id"], outlived["state"]) == (job, "stuck")
    assert "is stuck there" in bed.refusal("node.undrain", nodes="n1")
    bed.wait(bed.submit(attributes={"slow": False}), "ready")
    trace.open("gate")
    until(lambda: bed.call("script.list") == [])
    bed.call("node.undrain", nodes="n1")


@pytest.mark.parametrize("state", ["DEPEND", "SCHED", "PROLOG", "RUN", "COMPLETION", "EPILOG"])
def test_a_job_says_what_it_waits_for(bed: Bed, state: str) -> None:
    """In each state `waiting_for` names whoever has to act, in one sentence."""
    bed.start()
    phase = state.lower()
    holds = [{"phase": phase, "name": "mover", "note": "copying"}] if state not in ("SCHED", "RUN") else []
    job = bed.call("job.submit", holds=holds, **({} if state == "SCHED" else {"nodes": "n1"}))["id"]
    if state in ("RUN", "COMPLETION", "EPILOG"):
        bed.wait(job, "ready")
        bed.call("job.start", id=job)
    if state in ("COMPLETION", "EPILOG"):
        bed.call("job.exit", id=job, status=0)
    shown = bed.job(job)
    assert shown["state"] == state
    expected = {"SCHED": "nodes from the workload manager", "RUN": "the application to end"}
    assert shown["waiting_for"].startswith(expected.get(state, f"{phase} hold mover: copying, for "))
