"""Dependencies between jobs: when they are met, when they never can be, over restarts and on ended jobs."""

from __future__ import annotations

import pytest

from bed import Bed

KINDS = ("after", "afterany", "afterok", "afternotok", "afterclean")


def met(bed: Bed, dependents: dict[str, int]) -> set[str]:
    """Return the kinds whose dependents have left DEPEND well."""
    return {kind for kind, job in dependents.items() if "depend" in bed.names(job)}


def failed(bed: Bed, dependents: dict[str, int]) -> set[str]:
    """Return the kinds whose dependents were ended."""
    return {kind for kind, job in dependents.items() if bed.job(job)["result"] == "FAILED"}


@pytest.mark.parametrize("restart", [False, True])
def test_each_kind_is_met_at_its_event(bed: Bed, restart: bool) -> None:
    """After at start; afterany, afterok at finish, not before completion is done; afterclean at clean."""
    bed.start()
    holds = [{"phase": phase, "name": "x"} for phase in ("completion", "epilog")]
    target = bed.submit(key="target", holds=holds)
    dependents = {kind: bed.submit(dependencies=[f"{kind}:target"]) for kind in KINDS}

    def restarted() -> None:
        if restart:
            bed.kill9()
            bed.start()

    restarted()
    assert met(bed, dependents) == set()
    assert bed.job(dependents["afterok"])["waiting_for"] == f"dependency afterok:{target}"
    bed.wait(target, "ready")
    bed.call("job.start", id=target)
    assert met(bed, dependents) == {"after"}
    restarted()
    bed.call("job.exit", id=target, status=0)
    assert met(bed, dependents) == {"after"}
    bed.call("hold.finish", id=target, phase="completion", name="x")
    restarted()
    assert met(bed, dependents) == {"after", "afterany", "afterok"}
    assert failed(bed, dependents) == {"afternotok"}
    bed.call("hold.finish", id=target, phase="epilog", name="x")
    assert met(bed, dependents) == {"after", "afterany", "afterok", "afterclean"}


@pytest.mark.parametrize("how", ["application fails", "stage-out fails", "canceled before start"])
def test_a_job_that_ends_badly_meets_what_asks_for_that(bed: Bed, how: str) -> None:
    """After a failure afterok can never be met, and after a job that never started neither can after."""
    bed.start()
    target = bed.submit(holds=[{"phase": "completion", "name": "x"}])
    dependents = {kind: bed.submit(dependencies=[f"{kind}:{target}"]) for kind in KINDS}
    bed.wait(target, "ready")
    if how == "canceled before start":
        bed.call("job.cancel", id=target)
    else:
        bed.call("job.start", id=target)
        bed.call("job.exit", id=target, status=256 if how == "application fails" else 0)
        bed.call("hold.finish", id=target, phase="completion", name="x", status=0 if "app" in how else 256)
    bed.wait(target, "clean")
    never = {"afterok", "after"} if "cancel" in how else {"afterok"}
    assert met(bed, dependents) == set(KINDS) - never
    assert failed(bed, dependents) == never
    result = bed.job(target)["result"]
    exception = bed.event(dependents["afterok"], "exception")["context"]
    assert (exception["type"], exception["severity"]) == ("dependency", 0)
    dependent = dependents["afterok"]
    assert exception["note"] == (
        f"dependency afterok:{target} of job {dependent} can never be met: job {target} is {result}"
    )
    assert bed.names(dependent) == [
        "submit",
        f"dependency-add afterok:{target}",
        "exception",
        f"dependency-remove afterok:{target}",
        "clean",
    ]


def test_a_job_can_depend_on_one_that_has_ended(bed: Bed) -> None:
    """A dependency on an ended job, by id or key, is judged at once, by its result, over a restart too."""
    bed.start()
    good, bad = bed.run_job(key="good"), bed.run_job(status=256, key="bad")
    for target in (f"{good}", "good", "key:good"):
        bed.wait(
            bed.submit(dependencies=[f"{kind}:{target}" for kind in KINDS if kind != "afternotok"]), "ready"
        )
    bed.wait(bed.submit(dependencies=[f"afternotok:{bad}"]), "ready")
    bed.wait(bed.submit(dependencies=["afterok:bad"]), "exception", type="dependency")
    waiting = bed.submit(dependencies=["afterok:good"], holds=[{"phase": "depend", "name": "approval"}])
    bed.wait(waiting, "dependency-remove", description=f"afterok:{good}")
    bed.kill9()
    bed.start()
    assert bed.job(waiting)["state"] == "DEPEND"
    bed.call("hold.finish", id=waiting, phase="depend", name="approval")
    bed.wait(waiting, "ready")


def test_all_dependencies_must_be_met(bed: Bed) -> None:
    """A job with several waits for each; the first that cannot be met ends it and cancels the others."""
    bed.start()
    one, two = bed.submit(), bed.submit()
    both = bed.submit(dependencies=[f"afterok:{one}", f"afterany:{two}", f"afterok:{one}"])
    for target in (one, two):
        assert bed.job(both)["state"] == "DEPEND"
        bed.wait(target, "ready")
        bed.call("job.start", id=target)
        bed.call("job.exit", id=target, status=0)
    bed.wait(both, "ready")
    assert bed.names(both).count(f"dependency-add afterok:{one}") == 1
    three, four = bed.submit(), bed.submit()
    neither = bed.submit(dependencies=[f"afterok:{three}", f"afterok:{four}"])
    bed.call("job.cancel", id=three)
    bed.wait(neither, "clean")
    assert (
        bed.event(neither, "dependency-remove", description=f"afterok:{four}")["context"]["outcome"]
        == "canceled"
    )


@pytest.mark.parametrize(
    ("text", "refused"),
    [
        ("afterok:99", "ENOENT: dependencies: afterok:99: no such job: 99"),
        ("afterok:nobody", "ENOENT: no job with key 'nobody'"),
        ("before:1", "EINVAL: dependencies: 'before:1', expected after, "),
        ("afterok", "EINVAL: dependencies: 'afterok', expected after, "),
    ],
)
def test_a_dependency_that_makes_no_sense_is_refused(bed: Bed, text: str, refused: str) -> None:
    """A dependency on nothing, or of an unknown kind, is refused, and no job comes to be."""
    bed.start()
    assert bed.refusal("job.submit", dependencies=[text]).startswith(refused)
    assert bed.call("job.list") == []
