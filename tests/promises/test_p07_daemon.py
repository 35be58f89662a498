"""P7 on real processes: the broker's death loses no script, no exit status and no timer."""

from __future__ import annotations

import pytest

from bed import Bed, until
from tracing import Trace


def reach(bed: Bed, job: int, phase: str) -> None:
    """Bring a job to a phase in which its script runs."""
    if phase != "prolog":
        bed.wait(job, "ready")
        bed.call("job.start", id=job)
        bed.call("job.exit", id=job, status=0)


@pytest.mark.parametrize("phase", ["prolog", "completion", "epilog"])
def test_a_running_script_goes_on_and_its_status_is_true(bed: Bed, phase: str) -> None:
    """A script outlives kill -9 of the broker with its pid and deadline; its status is in the log."""
    trace = Trace(bed)
    bed.action("a", **{phase: trace.gated("gate", "exit 3")}, timeout={phase: "1h"})
    bed.start()
    job = bed.submit()
    reach(bed, job, phase)
    trace.wait("begin", phase, "a")
    (before,) = until(lambda: [run for run in bed.call("script.list") if run["pid"]])
    bed.kill9()
    assert before["pid"] in bed.running_scripts()
    bed.start()
    bed.executor_answers()
    (after,) = bed.call("script.list")
    assert after["pid"] == before["pid"]
    assert after["deadline"] == pytest.approx(before["deadline"], abs=0.01)
    trace.open("gate")
    assert bed.wait(job, f"{phase}-finish", description="a")["context"]["status"] == 3 << 8
    bed.wait(job, "clean")
    assert trace.words(job) == [f"begin {phase} a", f"end {phase} a"]
    assert bed.names(job).count("broker-restart") == 1


@pytest.mark.parametrize("phase", ["prolog", "completion", "epilog"])
def test_a_script_that_ends_without_a_broker_has_its_true_status(bed: Bed, phase: str) -> None:
    """The exit status of a script that ended while no broker lived is in the log of the next one."""
    trace = Trace(bed)
    bed.action("a", **{phase: trace.gated("gate", 'echo "out of space" > "$PERILOG_MESSAGE"; exit 9')})
    bed.start()
    job = bed.submit()
    reach(bed, job, phase)
    trace.wait("begin", phase, "a")
    bed.kill9()
    trace.open("gate")
    until(lambda: not bed.running_scripts())
    bed.start()
    finish = bed.wait(job, f"{phase}-finish", description="a")["context"]
    assert (finish["status"], finish["outcome"], finish["message"]) == (9 << 8, "failed", "out of space")


def test_a_cancel_that_was_journaled_reaches_the_script_after_the_restart(bed: Bed) -> None:
    """A cancel whose reply came just before kill -9 ends the prolog all the same, with one SIGTERM."""
    trace = Trace(bed)
    bed.action("a", prolog=trace.gated("never"), epilog=trace.script())
    bed.start()
    job = bed.submit()
    trace.wait("begin", "prolog", "a")
    bed.call("job.cancel", id=job)
    bed.kill9()
    bed.start()
    bed.wait(job, "clean")
    assert trace.words(job) == [
        "begin prolog a",
        "term prolog a",
        "end prolog a",
        "begin epilog a",
        "end epilog a",
    ]


def test_holds_keep_their_deadlines_over_a_restart(bed: Bed) -> None:
    """Deadlines of holds, extended or not, or not counting yet, are the same afterwards."""
    bed.start()
    job = bed.submit(holds=[{"phase": "prolog", "name": "one", "timeout": "1h"}])
    bed.call("hold.start", id=job, phase="prolog", name="two", timeout="2h")
    bed.call("hold.start", id=job, phase="epilog", name="later", timeout="3h")
    bed.call("hold.update", id=job, phase="prolog", name="two", timeout="4h")
    before = {hold["name"]: hold["deadline"] for hold in bed.job(job)["holds"]}
    assert before["two"] - before["one"] == pytest.approx(3 * 3600, abs=60)
    assert before["later"] is None
    bed.kill9()
    bed.start()
    after = {hold["name"]: hold["deadline"] for hold in bed.job(job)["holds"]}
    assert after == pytest.approx(before, abs=0.01)


def test_a_timer_acts_after_the_restart(bed: Bed) -> None:
    """A hold's deadline that comes after the restart acts without anybody asking."""
    bed.start()
    job = bed.submit(holds=[{"phase": "prolog", "name": "setup", "timeout": "1s"}])
    bed.kill9()
    bed.start()
    bed.wait(job, "clean")
    assert bed.event(job, "prolog-finish")["context"]["outcome"] == "timeout"
