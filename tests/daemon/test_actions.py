"""Actions on real scripts: order, matching, drop-ins, cancel, abandon, rerun."""

from __future__ import annotations

import pytest

from bed import Bed
from tracing import Trace


def run_to_exit(bed: Bed, job: int, status: int = 0) -> None:
    """Start and end a job's application."""
    bed.wait(job, "ready")
    bed.call("job.start", id=job)
    bed.call("job.exit", id=job, status=status)


def test_what_was_set_up_last_is_undone_first(bed: Bed) -> None:
    """Prologs follow `after`, whatever the order in the file; epilogs run the other way round."""
    trace = Trace(bed)
    for name, after in (("c", ["b"]), ("a", []), ("b", ["a"])):
        bed.action(name, prolog=trace.script(), completion=trace.script(), epilog=trace.script(), after=after)
    bed.start()
    job = bed.run_job()
    words = [
        f"{word} {phase} {name}"
        for phase in ("prolog", "completion")
        for name in "abc"
        for word in ("begin", "end")
    ]
    words += [f"{word} epilog {name}" for name in "cba" for word in ("begin", "end")]
    assert trace.words(job) == words


def test_when_the_third_of_five_fails_three_are_undone(bed: Bed) -> None:
    """A failure in a chain of prologs leaves the rest unbegun, and undoes those begun, newest first."""
    trace = Trace(bed)
    for number in range(1, 6):
        prolog = trace.script("exit 1" if number == 3 else "")
        after = [f"a{number - 1}"] if number > 1 else []
        bed.action(f"a{number}", prolog=prolog, epilog=trace.script(), after=after)
    bed.start()
    job = bed.submit()
    bed.wait(job, "clean")
    begun = [f"{mark.phase} {mark.action}" for mark in trace.marks("begin")]
    assert begun == ["prolog a1", "prolog a2", "prolog a3", "epilog a3", "epilog a2", "epilog a1"]
    undone = [name for name in bed.names(job) if name.startswith("epilog-")]
    assert undone == [f"epilog-{what} a{n}" for n in (3, 2, 1) for what in ("start", "finish")]


def test_independent_actions_run_side_by_side(bed: Bed) -> None:
    """Actions without `after` do not wait for one another; an epilog waits for every prolog of its job."""
    trace = Trace(bed)
    bed.action("a", prolog=trace.gated("never"), epilog=trace.script())
    bed.action("b", prolog=trace.gated("b", "exit 1"), epilog=trace.script())
    bed.action("slow", prolog=trace.gated("slow"), cancel_on_exception=False)
    bed.start()
    job = bed.submit()
    for name in ("a", "b", "slow"):
        trace.wait("begin", "prolog", name)
    trace.open("b")
    bed.wait(job, "prolog-finish", description="a")
    assert trace.marks(phase="epilog") == []
    trace.open("slow")
    bed.wait(job, "clean")
    words = trace.words(job)
    assert words.count("term prolog a") == 1
    assert "term prolog slow" not in words
    last_prolog = max(number for number, word in enumerate(words) if "prolog" in word)
    assert all(words.index(f"begin epilog {name}") > last_prolog for name in ("a", "b"))


def test_match_decides_which_jobs_an_action_is_for(bed: Bed) -> None:
    """All keys of `match` must hold: true means there and not false, anything else is compared as text."""
    bed.action("there", prolog="exit 0", match={"x": True})
    bed.action("text", prolog="exit 0", match={"x": "2"})
    bed.action("both", prolog="exit 0", match={"x": True, "y": False})
    bed.start()
    expected: list[tuple[dict[str, object], set[str]]] = [
        ({}, set()),
        ({"x": False}, set()),
        ({"x": 2}, {"there", "text"}),
        ({"x": "2", "y": False}, {"there", "text", "both"}),
        ({"x": None, "y": "false"}, {"there", "both"}),
        ({"x": True, "y": 0}, {"there"}),
    ]
    for attributes, names in expected:
        job = bed.submit(attributes=attributes)
        bed.wait(job, "ready")
        begun = {
            event["context"]["description"] for event in bed.events(job) if event["name"] == "prolog-start"
        }
        assert begun == names, attributes


def test_drop_in_scripts_are_actions_in_lexical_order(bed: Bed) -> None:
    """Files of the same name in prolog.d and epilog.d form an action, each after the one before it."""
    trace = Trace(bed)
    for name in ("20-mount", "10-check"):
        for phase in ("prolog", "epilog"):
            bed.drop_in(phase, name, trace.script())
    bed.drop_in("prolog", "30-only-prolog", trace.script())
    bed.drop_in("epilog", "05-only-epilog", trace.script())
    bed.start()
    job = bed.run_job()
    begun = [f"{mark.phase} {mark.action}" for mark in trace.marks("begin", job=job)]
    assert begun == [
        "prolog 10-check",
        "prolog 20-mount",
        "prolog 30-only-prolog",
        "epilog 20-mount",
        "epilog 10-check",
        "epilog 05-only-epilog",
    ]


def test_an_epilog_without_prolog_is_owed_to_jobs_that_got_nodes(bed: Bed) -> None:
    """It runs for a job cancelled in its prolog, not for one that never had nodes, which releases nothing."""
    trace = Trace(bed)
    bed.action("tidy", epilog=trace.script())
    bed.start()
    without = bed.call("job.submit")["id"]
    bed.call("job.cancel", id=without)
    bed.wait(without, "clean")
    assert bed.names(without) == ["submit", "depend", "exception", "clean"]
    having = bed.submit(holds=[{"phase": "prolog", "name": "x"}])
    bed.call("job.cancel", id=having)
    bed.wait(having, "clean")
    assert [(mark.word, mark.job) for mark in trace.marks()] == [("begin", having), ("end", having)]


def test_cancel_lets_completion_work_go_on(bed: Bed) -> None:
    """Cancelled while it runs, a job stays in RUN until its exit; then completion work is done as ever."""
    trace = Trace(bed)
    bed.action("drain", completion=trace.script())
    bed.start()
    job = bed.submit(holds=[{"phase": "completion", "name": "out"}])
    bed.wait(job, "ready")
    bed.call("job.start", id=job)
    bed.call("job.cancel", id=job)
    assert bed.job(job)["state"] == "RUN"
    assert bed.job(job)["waiting_for"] == "the application to end, told to stop (cancel)"
    bed.call("job.exit", id=job, status=15)
    bed.wait(job, "completion-finish", description="drain")
    assert bed.job(job)["state"] == "COMPLETION"
    bed.call("hold.finish", id=job, phase="completion", name="out")
    bed.wait(job, "clean")
    assert trace.words(job) == ["begin completion drain", "end completion drain"]
    shown = bed.job(job)
    assert (shown["result"], shown["exit_code"], shown["status"]) == ("CANCELED", 143, 15)


def test_abandon_ends_completion_work(bed: Bed) -> None:
    """Abandon: TERM to the script, its own status kept; `abandon-grace` for holds, then `canceled`."""
    trace = Trace(bed)
    bed.table("[holds]", abandon_grace="200ms")
    bed.action("drain", completion=trace.gated("never", on_term="exit 4"), epilog=trace.script())
    bed.start()
    job = bed.submit(holds=[{"phase": "completion", "name": name} for name in ("out", "tidy")])
    run_to_exit(bed, job)
    trace.wait("begin", "completion", "drain")
    bed.call("job.cancel", id=job, abandon=True)
    bed.call("hold.finish", id=job, phase="completion", name="tidy")
    bed.wait(job, "clean")
    ended = {hold["name"]: hold["outcome"] for hold in bed.job(job)["holds"] if hold["phase"] == "completion"}
    assert ended == {"drain": "canceled", "out": "canceled", "tidy": "ok"}
    assert bed.event(job, "completion-finish", description="drain")["context"]["status"] == 4 << 8
    assert trace.words(job)[:3] == ["begin completion drain", "term completion drain", "end completion drain"]
    assert trace.words(job)[3:] == ["begin epilog drain", "end epilog drain"]
    assert bed.event(job, "exception", type="cancel")["context"]["abandon"] is True
    assert bed.drained() == {}


def test_an_abandon_before_the_exit_sticks(bed: Bed) -> None:
    """Given before `exit`, completion scripts never start and declared completion holds lapse."""
    trace = Trace(bed)
    bed.action("drain", completion=trace.script())
    bed.start()
    job = bed.submit(holds=[{"phase": "completion", "name": "out"}])
    bed.wait(job, "ready")
    bed.call("job.start", id=job)
    bed.call("job.cancel", id=job, abandon=True)
    bed.kill9()
    bed.start()
    bed.call("job.exit", id=job, status=15)
    bed.wait(job, "clean")
    assert trace.words(job) == []
    assert not [name for name in bed.names(job) if name.startswith("completion-")]
    refused = bed.refusal("job.raise", id=bed.submit(), type="timelimit", severity=0, abandon=True)
    assert refused.startswith("EINVAL: abandon: ")


def test_a_rerun_repeats_the_application_and_completion_but_no_prolog(bed: Bed) -> None:
    """While completion is held the application may start again; its scripts get TERM and run again later."""
    trace = Trace(bed)
    bed.action("a", prolog=trace.script(), completion=trace.gated("gate"), epilog=trace.script())
    bed.start()
    job = bed.submit(max_reruns=1, holds=[{"phase": "completion", "name": "out"}])
    run_to_exit(bed, job, status=256)
    bed.call("hold.start", id=job, phase="completion", name="scr", timeout="1h")
    trace.wait("begin", "completion", "a")
    assert bed.call("job.rerun", id=job) == {"attempt": 2}
    shown = bed.job(job)
    assert (shown["state"], shown["attempt"]) == ("RUN", 2)
    assert bed.hold(job, "completion", "scr")["deadline"] is None
    bed.wait(job, "completion-finish", description="a", outcome="canceled")
    bed.kill9()
    bed.start()
    bed.call("job.start", id=job, attempt=2)
    bed.call("job.exit", id=job, attempt=2, status=0)
    trace.wait("begin", "completion", "a", times=2)
    assert bed.hold(job, "completion", "scr")["deadline"] is not None
    refused = bed.refusal("job.rerun", id=job)
    assert refused == f"ESTATE: job {job} has used all of its reruns (max_reruns 1)"
    trace.open("gate")
    for name in ("out", "scr"):
        bed.call("hold.finish", id=job, phase="completion", name=name)
    bed.wait(job, "clean")
    begun = [f"{mark.phase} {mark.action}" for mark in trace.marks("begin")]
    assert begun == ["prolog a", "completion a", "completion a", "epilog a"]
    assert bed.job(job)["result"] == "COMPLETED"
    assert bed.names(job).count("completion-start scr") == 1


@pytest.mark.parametrize("how", ["fatal", "finished", "not yet"])
def test_a_rerun_is_refused_when_it_makes_no_sense(bed: Bed, how: str) -> None:
    """No rerun after a fatal exception, after `finish`, or before `exit`: ESTATE, and no event."""
    bed.start()
    job = bed.submit(max_reruns=9, holds=[{"phase": "completion", "name": "out"}])
    bed.wait(job, "ready")
    bed.call("job.start", id=job)
    if how != "not yet":
        bed.call("job.exit", id=job, status=0)
    if how == "fatal":
        bed.call("job.cancel", id=job)
    if how == "finished":
        bed.call("hold.finish", id=job, phase="completion", name="out")
    assert bed.refusal("job.rerun", id=job).startswith("ESTATE: ")
    assert "rerun" not in bed.names(job)
