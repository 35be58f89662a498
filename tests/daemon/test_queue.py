"""The run queue: a number of places for each phase, users take turns, waiting is not charged."""

from __future__ import annotations

import time

from bed import Bed, until
from tracing import Trace


def test_no_more_scripts_of_a_phase_run_than_have_a_place(bed: Bed) -> None:
    """With three places never more than three prologs run at a time, and all get their turn."""
    trace = Trace(bed)
    bed.table("[executor]", concurrency=3)
    bed.action("a", prolog=trace.script("sleep 0.05"))
    bed.start()
    jobs = [bed.submit() for _ in range(12)]
    for job in jobs:
        bed.wait(job, "ready")
    running = most = 0
    for mark in trace.marks():
        running += 1 if mark.word == "begin" else -1
        most = max(most, running)
    assert (running, most) == (0, 3)


def test_a_full_phase_keeps_no_other_phase_waiting(bed: Bed) -> None:
    """While all places of prologs and completions are taken, an epilog begins and ends."""
    trace = Trace(bed)
    bed.table("[executor]", concurrency=1)
    bed.action("slow", match={"slow": True}, prolog=trace.gated("never"))
    bed.action("drain", match={"drain": True}, completion=trace.gated("never"))
    bed.action("undo", match={"undo": True}, epilog=trace.script())
    bed.start()
    bed.submit(attributes={"slow": True})
    draining = bed.submit(attributes={"drain": True})
    bed.wait(draining, "ready")
    bed.call("job.start", id=draining)
    bed.call("job.exit", id=draining, status=0)
    trace.wait("begin", "prolog", "slow")
    trace.wait("begin", "completion", "drain")
    job = bed.run_job(attributes={"undo": True})
    assert trace.words(job) == ["begin epilog undo", "end epilog undo"]


def test_users_take_turns(bed: Bed) -> None:
    """A user with one job does not wait behind all of another user's jobs."""
    trace = Trace(bed)
    bed.table("[executor]", concurrency=1)
    bed.action("a", prolog=trace.gated("$PERILOG_JOB_ID"))
    bed.start()
    crowd = [bed.submit(userid=20001) for _ in range(5)]
    trace.wait("begin", "prolog", "a", crowd[0])
    lone = [bed.submit(userid=20002) for _ in range(2)]
    for job in (*crowd, *lone):
        trace.open(job)
    for job in (*crowd, *lone):
        bed.wait(job, "ready")
    order = [mark.job for mark in trace.marks("begin")]
    assert order == [crowd[0], crowd[1], lone[0], crowd[2], lone[1], *crowd[3:]]


def test_a_stuck_script_gives_its_place_back(bed: Bed) -> None:
    """With one place, a script that will not end does not keep the next job's waiting."""
    trace = Trace(bed)
    bed.table("[executor]", concurrency=1)
    loop = trace.script("while :; do sleep 0.05; done", on_term=":")
    limits = {"timeout": {"prolog": "100ms"}, "kill_timeout": "100ms"}
    bed.action("a", match={"stuck": True}, prolog=loop, **limits)
    bed.action("b", match={"stuck": False}, prolog=trace.script())
    bed.start()
    stuck = bed.submit(attributes={"stuck": True})
    other = bed.submit(attributes={"stuck": False})
    bed.wait(other, "ready")
    assert bed.event(stuck, "prolog-finish")["context"]["outcome"] == "stuck"


def test_time_in_the_queue_is_not_charged_to_a_script(bed: Bed) -> None:
    """A script that waited longer for its place than its timeout still has all of its time."""
    trace = Trace(bed)
    bed.table("[executor]", concurrency=1)
    bed.action("slow", match={"slow": True}, prolog=trace.gated("slow"))
    bed.action("quick", match={"slow": False}, prolog=trace.script(), timeout={"prolog": "500ms"})
    bed.start()
    bed.submit(attributes={"slow": True})
    trace.wait("begin", "prolog", "slow")
    waiting = bed.submit(attributes={"slow": False})
    since = bed.event(waiting, "prolog-start")["timestamp"]
    until(lambda: time.time() > since + 1)
    (queued,) = [run for run in bed.call("script.list") if run["id"] == waiting]
    assert (queued["state"], queued["pid"], queued["deadline"]) == ("queued", None, None)
    trace.open("slow")
    bed.wait(waiting, "ready")
    assert bed.event(waiting, "prolog-finish")["context"]["outcome"] == "ok"


def test_the_queue_survives_kill_9(bed: Bed) -> None:
    """Scripts that waited for a place when the broker was killed each run once afterwards."""
    trace = Trace(bed)
    bed.table("[executor]", concurrency=2)
    bed.action("a", prolog=trace.gated("gate"))
    bed.start()
    jobs = [bed.submit() for _ in range(8)]
    trace.wait("begin", "prolog", "a", times=2)
    bed.kill9()
    bed.start()
    bed.executor_answers()
    states = sorted(run["state"] for run in bed.call("script.list"))
    assert states == ["queued"] * 6 + ["running"] * 2
    trace.open("gate")
    for job in jobs:
        bed.wait(job, "ready")
    assert sorted(mark.job for mark in trace.marks("begin")) == jobs
