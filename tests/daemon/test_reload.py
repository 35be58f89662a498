"""Reloading the configuration: whole or not at all, and no job loses what it is owed."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from bed import Bed, until
from tracing import Trace


def reload(bed: Bed) -> None:
    """Write the configuration anew and have it put in force."""
    bed.executor_answers()
    bed.write_config()
    bed.call("broker.reload")


def test_a_bad_configuration_changes_nothing(bed: Bed) -> None:
    """A reload with faults is refused with all of them; everything stays as it was, and jobs go on."""
    trace = Trace(bed)
    bed.action("a", prolog=trace.script(), epilog=trace.script())
    bed.start()
    bed.executor_answers()
    before = bed.call("broker.config")
    bed.table("[limits]", requests="many")
    bed.table("[[action]]", name="b", prolog=["/nonexistent"], colour="red")
    bed.action("c", prolog="exit 1")
    bed.write_config()
    refused = bed.refusal("broker.reload")
    assert refused.startswith("EINVAL: the configuration stays as it was: ")
    for part in (str(bed.config), "[limits] requests", "/nonexistent", "colour"):
        assert part in refused
    assert bed.call("broker.config") == before
    job = bed.run_job()
    assert trace.words(job) == ["begin prolog a", "end prolog a", "begin epilog a", "end epilog a"]


@pytest.mark.parametrize(("header", "key"), [("[broker]", "socket"), ("[journal]", "path")])
def test_what_cannot_change_while_running_is_refused(bed: Bed, header: str, key: str) -> None:
    """A reload that would move the journal is refused as a whole; options outrank the file."""
    bed.start()
    bed.executor_answers()
    bed.table(header, **{key: str(bed.folder / "elsewhere")})
    bed.table("[limits]", requests=7)
    bed.write_config()
    if key == "socket":  # --socket is given, so the file's key means nothing
        bed.call("broker.reload")
    else:
        assert "change only with a restart" in bed.refusal("broker.reload")
    assert bed.call("broker.config")["limits"]["requests"] == (7 if key == "socket" else 1024)


def test_a_running_script_keeps_what_it_started_with(bed: Bed) -> None:
    """A running script's limits are those of its start, over a kill too; the next job has the new ones."""
    trace = Trace(bed)
    bed.action("a", prolog=trace.gated("gate"), timeout={"prolog": "1h"})
    bed.start()
    first = bed.submit(nodes="n1")
    trace.wait("begin", "prolog", "a", first)
    bed.tables[0] = ("[[action]]", {**bed.tables[0][1], "timeout": {"prolog": "300ms"}})
    reload(bed)
    second = bed.submit(nodes="n2")
    bed.wait(second, "clean")
    assert bed.event(second, "prolog-finish")["context"]["outcome"] == "timeout"
    assert bed.job(first)["state"] == "PROLOG"
    bed.kill9_executor()
    trace.open("gate")
    bed.wait(first, "ready")
    assert trace.words(first) == ["begin prolog a", "end prolog a"]


@pytest.mark.parametrize("how", ["reload", "restart of the broker", "restart of both"])
def test_what_is_planned_runs_as_it_was_planned(bed: Bed, how: str) -> None:
    """Scripts whose turn comes after a change are those of the plan, though they were never run before."""
    trace = Trace(bed)
    bed.action("first", prolog=trace.gated("first"))
    bed.action("then", after=["first"], prolog=trace.script())
    bed.start()
    bed.executor_answers()
    job = bed.submit()
    trace.wait("begin", "prolog", "first")
    bed.tables[1] = ("[[action]]", {**bed.tables[1][1], "prolog": [bed.script("other", "exit 9")]})
    if how == "reload":
        reload(bed)
    else:
        bed.kill9()
        if how == "restart of both":
            bed.kill9_executor()
        bed.start()
        bed.executor_answers()
    trace.open("first")
    bed.wait(job, "ready")
    assert trace.words(job)[-2:] == ["begin prolog then", "end prolog then"]
    after = bed.submit()
    assert bed.wait(after, "prolog-finish", description="then")["context"]["status"] == 9 << 8


@pytest.mark.parametrize("killed", [False, True])
def test_the_epilog_of_a_removed_action_runs_from_the_stored_definition(bed: Bed, killed: bool) -> None:
    """An owed epilog survives the removal of its action, and a kill of both daemons on top of it."""
    trace = Trace(bed)
    bed.action("a", prolog=trace.script(), epilog=trace.script())
    bed.start()
    job = bed.submit()
    bed.wait(job, "ready")
    bed.tables.clear()
    reload(bed)
    if killed:
        bed.kill9()
        bed.kill9_executor()
        bed.start()
    bed.call("job.cancel", id=job)
    bed.wait(job, "clean")
    assert trace.words(job) == ["begin prolog a", "end prolog a", "begin epilog a", "end epilog a"]
    other = bed.run_job()
    assert trace.words(other) == []


def test_an_owed_epilog_uses_the_definition_of_today(bed: Bed) -> None:
    """If the action still exists its epilog is the one that is configured when the epilog begins."""
    trace = Trace(bed)
    bed.action("a", prolog=trace.script(), epilog="exit 3")
    bed.start()
    job = bed.submit()
    bed.wait(job, "ready")
    better = bed.script("better", trace.script())
    bed.tables[0] = ("[[action]]", {**bed.tables[0][1], "epilog": [better]})
    reload(bed)
    bed.call("job.cancel", id=job)
    bed.wait(job, "clean")
    assert trace.words(job)[-2:] == ["begin epilog a", "end epilog a"]
    assert bed.event(job, "epilog-finish")["context"]["outcome"] == "ok"


def test_definitions_that_nobody_owes_are_forgotten(bed: Bed) -> None:
    """The executor keeps a removed action's definition as long as a job owes its epilog, and no longer."""
    bed.action("a", prolog="exit 0", epilog="exit 0")
    bed.start()
    job = bed.submit()
    bed.wait(job, "ready")
    stored = bed.run_dir / "exec/definitions"
    assert len(list(stored.iterdir())) == 1
    bed.tables.clear()
    reload(bed)
    assert len(list(stored.iterdir())) == 1
    bed.call("job.cancel", id=job)
    bed.wait(job, "clean")
    reload(bed)
    until(lambda: list(stored.iterdir()) == [])


def test_sighup_reloads(bed: Bed) -> None:
    """SIGHUP puts a good configuration in force; a bad one is logged, and the old one stays."""
    bed.start()
    bed.executor_answers()
    assert bed.process is not None
    bed.table("[limits]", requests=7)
    bed.write_config()
    os.kill(bed.process.pid, signal.SIGHUP)
    until(lambda: bed.call("broker.config")["limits"]["requests"] == 7)
    bed.table("[limit]", requests=9)
    bed.write_config()
    os.kill(bed.process.pid, signal.SIGHUP)
    until(lambda: "reload refused" in bed.log_tail())
    assert bed.call("broker.config")["limits"]["requests"] == 7


def test_a_script_that_became_writable_by_others_is_refused(bed: Bed) -> None:
    """Ownership is checked at each reload, and the refusal names the script."""
    bed.action("a", prolog="exit 0")
    bed.start()
    bed.executor_answers()
    script = Path(bed.scripts / "a.prolog")
    script.chmod(0o777)
    assert str(script) in bed.refusal("broker.reload")
    script.chmod(0o755)
    bed.call("broker.reload")
