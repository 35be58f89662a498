"""The life of holds: declared, started early, updated, finished, forced, standing, reserved."""

from __future__ import annotations

import os

import pytest

from bed import Bed
from tracing import Trace

ME = os.geteuid()


def run_to_exit(bed: Bed, job: int, status: int = 0) -> None:
    """Start and end a job's application."""
    bed.wait(job, "ready")
    bed.call("job.start", id=job)
    bed.call("job.exit", id=job, status=status)


def test_a_declared_hold_begins_with_its_phase(bed: Bed) -> None:
    """A hold declared at submit is shown as declared, begins when its phase does, and then has a deadline."""
    bed.start()
    job = bed.submit(
        holds=[{"phase": "completion", "name": "out", "timeout": "1h", "keep": "n1", "note": "tape"}]
    )
    hold = bed.hold(job, "completion", "out")
    assert (hold["stage"], hold["since"], hold["deadline"]) == ("declared", None, None)
    assert (hold["owner"], hold["keep"], hold["note"]) == (os.geteuid(), "n1", "tape")
    run_to_exit(bed, job)
    hold = bed.hold(job, "completion", "out")
    assert hold["stage"] == "active"
    assert hold["deadline"] == pytest.approx(hold["since"] + 3600, abs=1)
    started = bed.event(job, "completion-start")["context"]
    assert started == {"description": "out", "owner": os.geteuid(), "timeout": 3600.0, "keep": "n1"}
    names = bed.names(job)
    assert names.index("completion-start out") == names.index("exit") + 1


def test_a_declared_hold_finished_before_its_phase_is_not_due(bed: Bed) -> None:
    """An early finish posts start and finish at once, and its phase does not wait for it."""
    bed.start()
    job = bed.submit(holds=[{"phase": "epilog", "name": "undo"}, {"phase": "prolog", "name": "wait"}])
    assert bed.call("hold.finish", id=job, phase="epilog", name="undo") == {"status": 0, "outcome": "ok"}
    assert bed.names(job)[-2:] == ["epilog-start undo", "epilog-finish undo"]
    bed.call("hold.finish", id=job, phase="prolog", name="wait")
    run_to_exit(bed, job)
    bed.wait(job, "clean")
    assert bed.names(job).count("epilog-start undo") == 1


def test_a_phase_that_has_passed_cannot_be_held(bed: Bed) -> None:
    """Taking a hold too late is refused with the job's state, and changes nothing."""
    bed.start()
    job = bed.submit()
    bed.wait(job, "ready")
    before = bed.events(job)
    for phase in ("depend", "prolog"):
        refused = bed.refusal("hold.start", id=job, phase=phase, name="late")
        assert refused == f"ESTATE: the {phase} phase of job {job} has passed; the job is in state RUN"
    assert bed.events(job) == before
    bed.call("job.cancel", id=job)
    bed.wait(job, "clean")
    assert "has passed" in bed.refusal("hold.start", id=job, phase="epilog", name="late")


def test_progress_is_shown_but_not_journaled(bed: Bed) -> None:
    """Progress and note show in job.get and waiting_for, leave no event, and are gone after kill -9."""
    bed.start()
    job = bed.submit(holds=[{"phase": "prolog", "name": "setup"}])
    before = bed.events(job)
    hold = {"id": job, "phase": "prolog", "name": "setup"}
    shown = bed.call("hold.update", **hold, progress=40, note="formatting")
    assert (shown["progress"], shown["note"]) == (40, "formatting")
    assert "prolog hold setup: formatting, 40 %" in bed.job(job)["waiting_for"]
    assert bed.events(job) == before
    for wrong in (-1, 101, "much"):
        assert "argument progress is" in bed.refusal("hold.update", **hold, progress=wrong)
    bed.kill9()
    bed.start()
    assert bed.hold(job, "prolog", "setup")["progress"] is None


def test_an_update_moves_the_deadline(bed: Bed) -> None:
    """A new timeout counts from now and is an event; an update after the end is refused."""
    bed.start()
    job = bed.submit(holds=[{"phase": "prolog", "name": "setup", "timeout": "1h"}])
    hold = {"id": job, "phase": "prolog", "name": "setup"}
    first = bed.hold(job, "prolog", "setup")["deadline"]
    moved = bed.call("hold.update", **hold, timeout="3h")["deadline"]
    assert moved == pytest.approx(first + 7200, abs=30)
    assert bed.call("hold.update", **hold, timeout="infinity")["deadline"] is None
    bed.call("hold.update", **hold, timeout="50ms")
    bed.wait(job, "clean")
    updates = [event["context"] for event in bed.events(job) if event["name"] == "hold-update"]
    assert [update["timeout"] for update in updates] == [10800.0, None, 0.05]
    assert all(update["userid"] == os.geteuid() for update in updates)
    assert bed.event(job, "prolog-finish")["context"]["outcome"] == "timeout"
    assert "has ended (timeout)" in bed.refusal("hold.update", **hold, timeout="1h")


def test_keep_only_shrinks(bed: Bed) -> None:
    """What a hold keeps becomes fewer nodes or fewer parts of them, never more; each change is an event."""
    bed.start()
    job = bed.submit(nodes="n[1-8]", holds=[{"phase": "completion", "name": "out"}])
    run_to_exit(bed, job)
    hold = {"id": job, "phase": "completion", "name": "out"}
    assert bed.call("hold.update", **hold, keep="n[1-4,9]")["keep"] == "n[1-4]"
    parts = {"nodes": "n[1-3]", "cores": "0-3", "storage": "0"}
    assert bed.call("hold.update", **hold, keep=parts)["keep"] == parts
    for more in ("n5", "all", {"nodes": "n1", "cores": "4"}, {"nodes": "n1", "gpus": "0"}):
        assert bed.refusal("hold.update", **hold, keep=more).startswith("EINVAL: keep: ")
    fewer = {"nodes": "n1", "cores": "0", "storage": "0"}
    assert bed.call("hold.update", **hold, keep=fewer)["keep"] == fewer
    assert bed.call("hold.update", **hold, keep="none")["keep"] == "none"
    bed.kill9()
    bed.start()
    assert bed.hold(job, "completion", "out")["keep"] == "none"
    kept = [event["context"]["keep"] for event in bed.events(job) if event["name"] == "hold-update"]
    assert kept == ["n[1-4]", parts, fewer, "none"]


@pytest.mark.parametrize(
    ("phase", "kind", "severity", "result"),
    [
        ("depend", "dependency", 0, "FAILED"),
        ("prolog", "prolog", 0, "FAILED"),
        ("completion", None, None, "FAILED"),
        ("epilog", "epilog", 2, "COMPLETED"),
    ],
)
def test_a_hold_that_finishes_badly(
    bed: Bed, phase: str, kind: str | None, severity: int | None, result: str
) -> None:
    """A status other than 0 is an exception of the phase's kind; in completion, the job's own status."""
    bed.start()
    job = bed.submit(holds=[{"phase": phase, "name": "x"}])
    if phase in ("completion", "epilog"):
        run_to_exit(bed, job)
    bed.call("hold.finish", id=job, phase=phase, name="x", status=5 << 8, note="disk full")
    bed.wait(job, "clean")
    shown = bed.job(job)
    assert shown["result"] == result
    told = [(item["type"], item["severity"], item["note"]) for item in shown["exceptions"]]
    note = f"{phase} x failed for job {job}: exit code 5: disk full"
    assert told == ([] if kind is None else [(kind, severity, note)])
    if phase == "completion":
        assert (shown["status"], shown["exit_code"]) == (5 << 8, 5)
    finish = [event["context"] for event in bed.events(job) if event["context"].get("note") == "disk full"]
    assert [(context["status"], context["outcome"]) for context in finish] == [(5 << 8, "failed")]


def test_an_administrator_ends_anothers_hold_by_force(bed: Bed) -> None:
    """A forced finish says who did it; without a status it is canceled, with 0 it lets the job go on."""
    bed.table("[[provider]]", name="dws", users=[], holds=["prolog:setup", "prolog:mount", "epilog:undo"])
    bed.start()
    job = bed.submit()
    refused = bed.refusal("hold.finish", id=job, phase="prolog", name="setup")
    assert refused.startswith("EPERM: ")
    assert "provider:dws" in refused
    assert "force" in refused
    me = os.geteuid()
    done = bed.call("hold.finish", id=job, phase="prolog", name="setup", status=0, force=True)
    assert done == {"status": 0, "outcome": "ok", "forced": me}
    assert bed.job(job)["state"] == "PROLOG"
    done = bed.call("hold.finish", id=job, phase="prolog", name="mount", force=True, note="gave up")
    assert done == {"status": 15, "outcome": "canceled", "forced": me}
    finish = bed.event(job, "prolog-finish", description="mount")["context"]
    assert (finish["forced"], finish["userid"], finish["note"]) == (me, me, "gave up")
    assert bed.job(job)["result"] == "FAILED"
    bed.call("hold.finish", id=job, phase="epilog", name="undo", force=True, status=0)
    bed.wait(job, "clean")


def test_a_standing_hold_is_taken_while_its_provider_is_away(bed: Bed) -> None:
    """A provider that never connects has its holds taken for matching jobs, and finds them in hold.list."""
    bed.table(
        "[[provider]]",
        name="dws",
        users=[ME],
        match={"dw": True},
        holds=["prolog:setup", "epilog"],
        timeout={"prolog": "20m"},
    )
    bed.start()
    other = bed.submit()
    bed.wait(other, "ready")
    job = bed.submit(attributes={"dw": "10GB"})
    (hold,) = bed.call("hold.list", owner="provider:dws")
    assert (hold["id"], hold["phase"], hold["name"]) == (job, "prolog", "setup")
    assert hold["deadline"] == pytest.approx(hold["since"] + 1200, abs=1)
    refused = bed.refusal("hold.finish", id=job, phase="epilog", name="dws")
    assert refused.startswith("ESTATE: ")
    assert "turn" in refused
    bed.kill9()
    bed.start()
    assert [entry["name"] for entry in bed.call("hold.list", owner="provider:dws")] == ["setup"]
    bed.call("hold.finish", id=job, phase="prolog", name="setup")
    run_to_exit(bed, job)
    bed.call("hold.finish", id=job, phase="epilog", name="dws")
    bed.wait(job, "clean")


def test_standing_holds_take_turns_with_scripts(bed: Bed) -> None:
    """A hold `after` an action begins when its prolog has ended, and ends before its epilog begins."""
    trace = Trace(bed)
    bed.table("[[provider]]", name="dws", users=[ME], holds=["prolog", "epilog"], after=["a"])
    bed.action("a", prolog=trace.gated("prolog"), epilog=trace.script())
    bed.start()
    job = bed.submit()
    trace.wait("begin", "prolog", "a")
    assert bed.hold(job, "prolog", "dws")["stage"] == "due"
    assert bed.refusal("hold.finish", id=job, phase="prolog", name="dws").startswith("ESTATE: ")
    trace.open("prolog")
    bed.wait(job, "prolog-start", description="dws")
    names = bed.names(job)
    assert names.index("prolog-start dws") == names.index("prolog-finish a") + 1
    bed.call("hold.finish", id=job, phase="prolog", name="dws")
    run_to_exit(bed, job)
    assert bed.hold(job, "epilog", "a")["stage"] == "due"
    assert trace.marks(phase="epilog") == []
    bed.call("hold.finish", id=job, phase="epilog", name="dws")
    bed.wait(job, "clean")
    names = bed.names(job)
    assert names.index("epilog-finish dws") + 1 == names.index("epilog-start a")


def test_names_of_actions_and_providers_are_reserved(bed: Bed) -> None:
    """No hold can be declared or taken under an action's or another's name, no script's hold ended."""
    trace = Trace(bed)
    bed.table("[[provider]]", name="dws", users=[], holds=["prolog:setup"], match={"dw": True})
    bed.action("scratch", prolog=trace.gated("never"))
    bed.start()
    job = bed.submit()
    for name in ("scratch", "dws", "setup"):
        declared = [{"phase": "completion", "name": name}]
        assert bed.refusal("job.submit", holds=declared).startswith(f"EINVAL: holds: completion:{name}: ")
        assert bed.refusal("hold.start", id=job, phase="epilog", name=name).startswith("EPERM: name: ")
    for force in (False, True):
        refused = bed.refusal("hold.finish", id=job, phase="prolog", name="scratch", force=force)
        assert refused.startswith("EPERM: ")
        assert f"perilog scripts kill {job} prolog scratch" in refused
    assert bed.refusal("hold.update", id=job, phase="prolog", name="scratch", timeout="9h").startswith(
        "EPERM"
    )


def test_hold_list_is_filtered_and_paged(bed: Bed) -> None:
    """A provider reconciles by phase, name and owner, page by page, with no job's holds torn apart."""
    bed.start()
    jobs = [
        bed.submit(
            holds=[{"phase": phase, "name": name} for phase, name in (("prolog", "x"), ("epilog", "y"))]
        )
        for _ in range(3)
    ]
    assert [hold["id"] for hold in bed.call("hold.list", name="x")] == jobs
    assert {hold["name"] for hold in bed.call("hold.list", phase="epilog")} == {"y"}
    assert len(bed.call("hold.list", owner=os.geteuid())) == 6
    assert bed.call("hold.list", owner="provider:none") == []
    page = bed.call("hold.list", limit=3)
    assert [hold["id"] for hold in page] == [jobs[0]] * 2
    assert [hold["id"] for hold in bed.call("hold.list", limit=3, after=jobs[0])] == [jobs[1]] * 2
    bed.call("hold.finish", id=jobs[0], phase="prolog", name="x")
    assert [hold["id"] for hold in bed.call("hold.list", name="x")] == jobs[1:]


def test_a_job_has_a_bounded_number_of_holds(bed: Bed) -> None:
    """Beyond `holds-per-job` a declared hold is EINVAL and a started one EAGAIN."""
    bed.table("[limits]", holds_per_job=3)
    bed.start()
    many = [{"phase": "completion", "name": f"h{number}"} for number in range(4)]
    assert bed.refusal("job.submit", holds=many).startswith("EINVAL: holds: ")
    job = bed.submit(holds=many[:3])
    assert bed.refusal("hold.start", id=job, phase="epilog", name="x").startswith("EAGAIN: ")
    assert len(bed.job(job)["holds"]) == 3


def test_a_bad_name_is_refused(bed: Bed) -> None:
    """A hold's name that is no name is refused with what was expected, and no event is posted."""
    bed.start()
    job = bed.submit()
    bed.wait(job, "ready")
    before = bed.events(job)
    for name in ("", "a b", "a\nb", "a\0b", "x" * 65, "x" * 10000, "ä", 7, ["a"]):
        refused = bed.refusal("hold.start", id=job, phase="epilog", name=name)
        assert refused.startswith("EINVAL: hold.start: argument name ")
    assert bed.events(job) == before
