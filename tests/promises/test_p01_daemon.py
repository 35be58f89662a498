"""P1 on real processes: what was set up is undone exactly once, whatever happens, whoever is killed."""

from __future__ import annotations

import os
import random
import shutil
import signal
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from bed import Bed, until
from tracing import Trace

Victims = Callable[[Bed], None]


def kill_broker(bed: Bed) -> None:
    """Kill the broker, and start another."""
    bed.kill9()
    bed.start()


def kill_executor(bed: Bed) -> None:
    """Kill the executor; the broker starts another."""
    bed.kill9_executor()
    bed.executor_answers()


def kill_both(bed: Bed) -> None:
    """Kill both, the broker first, and start another broker, which starts another executor."""
    bed.kill9()
    bed.kill9_executor()
    bed.start()
    bed.executor_answers()


def end_well(bed: Bed, job: int) -> None:
    """The application ends with exit code 0."""
    bed.wait(job, "ready")
    bed.call("job.start", id=job)
    bed.call("job.exit", id=job, status=0)


def end_badly(bed: Bed, job: int) -> None:
    """The application fails."""
    bed.wait(job, "ready")
    bed.call("job.start", id=job)
    bed.call("job.exit", id=job, status=256)


def cancel_in_time(bed: Bed, job: int) -> None:
    """The job is canceled before the application was started."""
    bed.wait(job, "ready")
    bed.call("job.cancel", id=job)


def cancel_the_application(bed: Bed, job: int) -> None:
    """The job is canceled while the application runs, which ends of it."""
    bed.wait(job, "ready")
    bed.call("job.start", id=job)
    bed.call("job.cancel", id=job)
    bed.call("job.exit", id=job, status=signal.SIGTERM)


def raise_an_exception(bed: Bed, job: int) -> None:
    """Somebody raises a fatal exception of his own type."""
    bed.wait(job, "ready")
    bed.call("job.raise", id=job, type="licence", severity=0)


def undone_once(bed: Bed, trace: Trace, job: int) -> None:
    """Check that the epilog of action a began once, after its prolog's end and before the release."""
    bed.wait(job, "clean")
    words = trace.words(job)
    assert words.count("begin prolog a") == 1
    assert words.count("begin epilog a") == 1
    assert words.index("begin epilog a") == words.index("end prolog a") + 1
    names = bed.names(job)
    assert names.count("epilog-start a") == names.count("epilog-finish a") == 1
    assert names.index("prolog-finish a") < names.index("epilog-finish a") < names.index("release")
    assert names[-1] == "clean"


@pytest.mark.parametrize(
    "end", [end_well, end_badly, cancel_in_time, cancel_the_application, raise_an_exception]
)
def test_epilog_begins_once_however_the_job_ends(bed: Bed, end: Callable[[Bed, int], None]) -> None:
    """Success, failure, cancel before and after start, and a foreign exception each lead to one epilog."""
    trace = Trace(bed)
    bed.action("a", prolog=trace.script(), epilog=trace.script())
    bed.start()
    job = bed.submit()
    end(bed, job)
    undone_once(bed, trace, job)


@pytest.mark.parametrize("how", ["fails", "times out", "is canceled", "is killed"])
def test_epilog_begins_once_after_a_prolog_that_ended_badly(bed: Bed, how: str) -> None:
    """A prolog that ran half is undone once, after its end."""
    trace = Trace(bed)
    bed.action(
        "a",
        prolog=trace.script("exit 3") if how == "fails" else trace.gated("never"),
        epilog=trace.script(),
        timeout={"prolog": "300ms"} if how == "times out" else {},
    )
    bed.start()
    job = bed.submit()
    trace.wait("begin", "prolog", "a")
    if how == "is canceled":
        bed.call("job.cancel", id=job)
    elif how == "is killed":
        bed.call("script.kill", id=job, phase="prolog", action="a")
    undone_once(bed, trace, job)


@pytest.mark.parametrize("kill", [kill_broker, kill_executor, kill_both])
def test_epilog_begins_once_across_kills_at_every_stage(bed: Bed, kill: Victims) -> None:
    """A job whose daemons are killed in each of its stages has its prolog and its epilog begun once each."""
    trace = Trace(bed)
    bed.action("a", prolog=trace.gated("prolog"), epilog=trace.gated("epilog"))
    bed.start()
    job = bed.submit()
    trace.wait("begin", "prolog", "a")
    kill(bed)
    trace.open("prolog")
    bed.wait(job, "ready")
    kill(bed)
    bed.call("job.start", id=job)
    kill(bed)
    bed.call("job.exit", id=job, status=0)
    trace.wait("begin", "epilog", "a")
    kill(bed)
    trace.open("epilog")
    undone_once(bed, trace, job)
    assert bed.event(job, "epilog-finish")["context"]["outcome"] == "ok"


def test_scripts_that_end_while_nobody_is_there_are_not_repeated(bed: Bed) -> None:
    """Prolog and epilog that end while the broker is dead are learnt from the executor, once each."""
    trace = Trace(bed)
    bed.action("a", prolog=trace.gated("prolog"), epilog=trace.gated("epilog", "exit 7"))
    bed.start()
    job = bed.submit()
    for phase in ("prolog", "epilog"):
        trace.wait("begin", phase, "a")
        bed.kill9()
        trace.open(phase)
        trace.wait("end", phase, "a")
        until(lambda: not bed.running_scripts())
        bed.start()
        if phase == "prolog":
            end_well(bed, job)
    undone_once(bed, trace, job)
    assert bed.event(job, "epilog-finish")["context"]["status"] == 7 << 8


def test_scripts_go_on_when_the_executor_is_stopped_or_renewed(bed: Bed) -> None:
    """SIGTERM and SIGHUP to the executor leave its scripts alone; both are found again."""
    trace = Trace(bed)
    bed.action("a", prolog=trace.gated("prolog"), epilog=trace.gated("epilog"))
    bed.start()
    job = bed.submit()
    trace.wait("begin", "prolog", "a")
    before = bed.executor()
    os.kill(before, signal.SIGTERM)
    until(lambda: before not in [process.pid for process in bed.processes()])
    trace.open("prolog")
    end_well(bed, job)
    trace.wait("begin", "epilog", "a")
    renewed = bed.executor_answers()
    os.kill(renewed, signal.SIGHUP)
    trace.open("epilog")
    undone_once(bed, trace, job)
    assert bed.executor_answers() == renewed
    assert bed.drained() == {}


def test_epilog_whose_end_cannot_be_known_is_lost_and_not_repeated(bed: Bed) -> None:
    """An epilog that dies with both daemons is `lost`: not begun again, and its nodes are drained."""
    trace = Trace(bed)
    bed.action("a", prolog=trace.script(), epilog=trace.gated("never"))
    bed.start()
    job = bed.submit()
    end_well(bed, job)
    trace.wait("begin", "epilog", "a")
    (run,) = bed.call("script.list")
    bed.kill9()
    bed.kill9_executor()
    os.kill(run["pid"], signal.SIGKILL)
    until(lambda: not Path(f"/proc/{run['pid']}").exists())  # a zombie would still tell its status
    bed.start()
    bed.wait(job, "clean")
    assert trace.words(job).count("begin epilog a") == 1
    assert bed.event(job, "epilog-finish")["context"]["outcome"] == "lost"
    assert list(bed.drained()) == ["n1"]


def test_scripts_that_a_reboot_took_are_lost_and_not_repeated(bed: Bed) -> None:
    """With processes and run-dir gone, as after a reboot, scripts are `lost`; a lost prolog is undone."""
    trace = Trace(bed)
    bed.action("a", match={"a": True}, prolog=trace.gated("prolog"), epilog=trace.script())
    bed.action("b", match={"b": True}, prolog=trace.script(), epilog=trace.gated("epilog"))
    bed.start()
    in_prolog = bed.submit(nodes="n1", attributes={"a": True})
    in_epilog = bed.submit(nodes="n2", attributes={"b": True})
    end_well(bed, in_epilog)
    trace.wait("begin", "prolog", "a")
    trace.wait("begin", "epilog", "b")
    bed.close()
    shutil.rmtree(bed.run_dir)
    bed.start()
    for job in (in_prolog, in_epilog):
        bed.wait(job, "clean")
    assert trace.words(in_prolog) == ["begin prolog a", "begin epilog a", "end epilog a"]
    assert trace.words(in_epilog)[2:] == ["begin epilog b"]
    for job, name in ((in_prolog, "prolog-finish"), (in_epilog, "epilog-finish")):
        finish = bed.event(job, name)["context"]
        assert (finish["outcome"], finish["status"]) == ("lost", 255 << 8)
    assert set(bed.drained()) == {"n1", "n2"}


def test_every_job_is_undone_once_when_daemons_are_killed_at_random(bed: Bed) -> None:
    """Jobs that go on through many kills of broker and executor at random moments are each undone once."""
    chance = random.Random(2)
    trace = Trace(bed)
    bed.action("a", prolog=trace.script("sleep 0.1"), epilog=trace.script("sleep 0.1"))
    bed.table("[executor]", concurrency=4)
    bed.start()
    keys = [f"job-{number}" for number in range(24)]
    for _ in range(6):
        with bed.connect() as client:
            watch = client.watch(names=["prolog-finish", "epilog-finish", "submit"])
            for _ in range(4):
                client.call("job.submit", key=keys.pop(), nodes="n1")
            for _ in range(chance.randrange(9)):
                watch.next(0.1)
            for job in client.call("job.list", state="RUN"):
                client.call("job.start", id=job["id"])
                client.call("job.exit", id=job["id"], status=0)
        chance.choice([kill_broker, kill_executor, kill_both])(bed)
    for job in range(1, 25):
        prolog = bed.wait(job, "prolog-finish")["context"]["outcome"]
        assert prolog in ("ok", "lost")  # lost: it ended while there was no executor
        if prolog == "ok" and "exit" not in bed.names(job):
            end_well(bed, job)
        bed.wait(job, "clean")
    begun = Counter((mark.job, mark.phase) for mark in trace.marks("begin"))
    assert begun == {(job, phase): 1 for job in range(1, 25) for phase in ("prolog", "epilog")}
