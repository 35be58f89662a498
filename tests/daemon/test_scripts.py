"""The methods script.*: what runs and ran, how to end it, what it wrote."""

from __future__ import annotations

import signal

import pytest

from bed import Bed, until
from tracing import Trace


def test_running_and_ended_scripts_are_listed(bed: Bed) -> None:
    """script.list shows pid, state and deadline of what runs; with a job also what ran and its usage."""
    trace = Trace(bed)
    work = "i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done"
    bed.action("a", prolog=trace.gated("gate", work), epilog="exit 3", timeout={"prolog": "1h"})
    bed.start()
    job = bed.submit()
    bed.submit(holds=[{"phase": "prolog", "name": "x"}])
    trace.wait("begin", "prolog", "a", job)
    listed = until(lambda: [run for run in bed.call("script.list") if run["pid"] and run["id"] == job])
    (run,) = listed
    assert (run["phase"], run["action"], run["attempt"], run["state"]) == ("prolog", "a", 1, "running")
    assert run["pid"] in bed.running_scripts()
    assert run["deadline"] == pytest.approx(run["since"] + 3600, abs=1)
    assert [shown["pid"] for shown in bed.job(job)["scripts"]] == [run["pid"]]
    assert len(bed.call("script.list", limit=1)) == 1
    trace.open("gate")
    bed.wait(job, "ready")
    bed.call("job.cancel", id=job)
    bed.wait(job, "clean")
    bed.kill9()
    bed.start()
    prolog, epilog = sorted(bed.call("script.list", id=job), key=lambda run: run["phase"], reverse=True)
    assert (prolog["state"], prolog["outcome"], prolog["status"]) == ("ended", "ok", 0)
    assert (epilog["state"], epilog["outcome"], epilog["status"]) == ("ended", "failed", 3 << 8)
    assert prolog["wall"] > prolog["cpu_user"] + prolog["cpu_system"] > 0
    assert 1 << 16 < prolog["max_rss"] < 1 << 30


@pytest.mark.parametrize("number", [None, signal.SIGTERM, signal.SIGKILL])
def test_an_administrator_ends_a_script(bed: Bed, number: int | None) -> None:
    """script.kill ends a running prolog; a person's kill is a failure of the prolog, and told as such."""
    trace = Trace(bed)
    bed.action("a", prolog=trace.gated("never"), epilog=trace.script())
    bed.start()
    job = bed.submit()
    trace.wait("begin", "prolog", "a")
    until(lambda: bed.call("script.list")[0]["pid"])  # the broker hears of it a moment later
    arguments = {} if number is None else {"signal": number}
    assert bed.call("script.kill", id=job, phase="prolog", action="a", **arguments) == {}
    bed.wait(job, "clean")
    finish = bed.event(job, "prolog-finish")["context"]
    outcome = "canceled" if number is None else "failed"
    status = signal.SIGKILL if number == signal.SIGKILL else 256
    assert (finish["outcome"], finish["status"]) == (outcome, status)
    exception = bed.event(job, "exception")["context"]
    assert (exception["type"], exception["severity"]) == ("prolog", 0)
    assert bed.job(job)["result"] == "FAILED"
    words = trace.words(job)
    assert words.count("term prolog a") == (0 if number == signal.SIGKILL else 1)
    assert words[-2:] == ["begin epilog a", "end epilog a"]


def test_any_signal_reaches_everything_that_a_script_has_started(bed: Bed) -> None:
    """A signal of choice is delivered to a child in a session of its own too, and ends nothing by itself."""
    trace = Trace(bed)
    trap = "trap 'mark usr1' USR1"
    child = f"setsid sh -c 'trap \"echo child >> {bed.folder}/child\" USR1; while :; do sleep 0.02; done' &"
    bed.action(
        "a",
        prolog=trace.script(
            f"{trap}\n{child}\necho ready > {bed.folder}/ready\nwhile :; do sleep 0.02; done"
        ),
    )
    bed.start()
    job = bed.submit()
    until(lambda: (bed.folder / "ready").exists() and len(bed.running_scripts()) >= 4)
    bed.call("script.kill", id=job, phase="prolog", action="a", signal=signal.SIGUSR1)
    trace.wait("usr1", "prolog", "a")
    until((bed.folder / "child").exists)
    assert bed.job(job)["state"] == "PROLOG"
    assert bed.job(job)["exceptions"] == []


def test_a_stuck_script_can_be_killed_when_its_job_has_ended(bed: Bed) -> None:
    """What `undrain` asks for can be done: a signal reaches a stuck script, and its node is free then."""
    trace = Trace(bed)
    bed.action(
        "a",
        epilog=trace.script("while :; do sleep 0.05; done", on_term=":"),
        timeout={"epilog": "100ms"},
        kill_timeout="100ms",
    )
    bed.start()
    job = bed.run_job()
    assert [run["state"] for run in bed.call("script.list")] == ["stuck"]
    assert bed.refusal("script.kill", id=job, phase="prolog", action="a").startswith("ENOENT: ")
    bed.call("script.kill", id=job, phase="epilog", action="a", signal=signal.SIGKILL)
    until(lambda: bed.call("script.list") == [])
    bed.call("node.undrain", nodes="n1")


def test_what_does_not_run_cannot_be_killed(bed: Bed) -> None:
    """Killing a script that has ended, was never there, or of no job, is refused and changes nothing."""
    bed.action("a", prolog="exit 0")
    bed.start()
    job = bed.submit()
    bed.wait(job, "ready")
    before = bed.events(job)
    for phase, action in (("prolog", "a"), ("epilog", "a"), ("prolog", "b")):
        refused = bed.refusal("script.kill", id=job, phase=phase, action=action)
        assert refused == f"ESTATE: {phase} {action} of job {job} does not run; the job is in state RUN"
    assert bed.refusal("script.kill", id=99, phase="prolog", action="a").startswith("ENOENT: ")
    for number in (0, 65, -9):
        refused = bed.refusal("script.kill", id=job, phase="prolog", action="a", signal=number)
        assert refused.startswith("EINVAL: ")
    assert bed.events(job) == before


def test_an_owed_epilog_cannot_be_killed_before_it_has_begun(bed: Bed) -> None:
    """A waiting prolog can be ended unspawned; a waiting epilog is owed, and begins in its turn."""
    trace = Trace(bed)
    bed.table("[executor]", concurrency=1)
    bed.action("a", prolog=trace.gated("prolog-$PERILOG_JOB_ID"), epilog=trace.gated("epilog"))
    bed.start()
    first = bed.submit()
    trace.wait("begin", "prolog", "a", first)
    second = bed.submit()
    prolog = {"id": second, "phase": "prolog", "action": "a"}
    assert "nothing is there to be signaled" in bed.refusal("script.kill", **prolog, signal=signal.SIGKILL)
    bed.call("job.cancel", id=first)
    trace.wait("begin", "epilog", "a", first)
    trace.wait("begin", "prolog", "a", second)
    bed.call("script.kill", **prolog)
    bed.wait(second, "prolog-finish", outcome="canceled")
    epilog = {"id": second, "phase": "epilog", "action": "a"}
    for number in (None, signal.SIGTERM, signal.SIGKILL):
        arguments = {} if number is None else {"signal": number}
        refused = bed.refusal("script.kill", **epilog, **arguments)
        assert refused.startswith(f"ESTATE: epilog a of job {second} is not known to have begun; it is owed")
    third = bed.submit()
    trace.wait("begin", "prolog", "a", third)
    fourth = bed.submit()
    bed.call("script.kill", id=fourth, phase="prolog", action="a")
    assert bed.event(fourth, "prolog-finish")["context"]["status"] == 15
    trace.open("epilog")
    for job in (first, second, fourth):
        bed.wait(job, "clean")
        assert trace.words(job)[-2:] == ["begin epilog a", "end epilog a"]
    assert trace.marks(phase="prolog", job=fourth) == []


def test_output_is_shown_while_a_script_runs_and_afterwards(bed: Bed) -> None:
    """script.output has what a running script wrote so far, and a failed one's after both daemons died."""
    trace = Trace(bed)
    bed.action(
        "a",
        prolog=trace.gated("gate", "echo later >&2; exit 1").replace("mark begin", "echo first; mark begin"),
    )
    bed.start()
    job = bed.submit()
    trace.wait("begin", "prolog", "a")
    script = {"id": job, "phase": "prolog", "action": "a"}
    bed.executor_answers()
    assert bed.call("script.output", **script) == {"head": b"first\n", "tail": b"", "size": 6}
    assert bed.refusal("script.output", **{**script, "phase": "epilog"}).startswith("ENOENT: ")
    trace.open("gate")
    bed.wait(job, "clean")
    assert bed.call("script.output", **script)["head"] == b"first\nlater\n"
    bed.kill9()
    bed.kill9_executor()
    for file in (bed.run_dir / "exec/runs").iterdir():
        file.unlink()
    bed.start()
    bed.executor_answers()
    assert bed.call("script.output", **script) == {"head": b"first\nlater\n", "tail": b"", "size": 12}


def test_an_endless_writer_is_bounded(bed: Bed) -> None:
    """Of much output head and tail are kept within `output-limit`, and the script is not blocked."""
    bed.table("[executor]", output_limit="64KiB")
    bed.action("a", prolog='echo head; head -c 20000000 /dev/zero | tr "\\0" x; echo; echo tail')
    bed.start()
    job = bed.submit()
    bed.wait(job, "ready")
    output = bed.call("script.output", id=job, phase="prolog", action="a")
    assert output["size"] == 20000011
    assert output["head"].startswith(b"head\nxxx")
    assert output["tail"].endswith(b"xxx\ntail\n")
    assert len(output["head"]) + len(output["tail"]) <= 64 << 10
    (file,) = [file for file in (bed.run_dir / "exec/runs").iterdir() if file.suffix == ".out"]
    assert file.stat().st_blocks * 512 <= 128 << 10
