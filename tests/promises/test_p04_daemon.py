"""P4 on a real broker: a hold is given up by its own name only, and asking twice does no harm."""

from __future__ import annotations

import pytest

from bed import Bed


def test_starting_and_finishing_twice_gives_the_same_reply_and_one_event(bed: Bed) -> None:
    """A repeated start gives the stored hold, a repeated finish the first outcome; each is logged once."""
    bed.start()
    job = bed.submit(holds=[{"phase": "completion", "name": "other"}])
    hold = {"id": job, "phase": "completion", "name": "stage-out"}
    first = bed.call("hold.start", **hold, note="first", timeout="1h")
    assert bed.call("hold.start", **hold, note="second", timeout="2h") == first
    done = bed.call("hold.finish", **hold, status=768)
    assert done == {"status": 768, "outcome": "failed"}
    assert bed.call("hold.finish", **hold, status=0) == done
    again = bed.call("hold.start", **hold)
    assert (again["stage"], again["status"], again["note"]) == ("ended", 768, "first")
    names = bed.names(job)
    assert names.count("completion-start stage-out") == names.count("completion-finish stage-out") == 1


@pytest.mark.parametrize("name", ["stage-in", "stage-ou", "STAGE-OUT"])
def test_finishing_what_was_never_held_changes_nothing(bed: Bed, name: str) -> None:
    """A finish by another name is refused with ENOENT, and the hold stays."""
    bed.start()
    job = bed.submit(holds=[{"phase": "completion", "name": "stage-out"}])
    before = bed.events(job)
    refused = bed.refusal("hold.finish", id=job, phase="completion", name=name)
    assert refused == f"ENOENT: job {job} has never had a hold completion/{name}"
    assert "ENOENT" in bed.refusal("hold.finish", id=job, phase="epilog", name="stage-out")
    assert bed.events(job) == before
    assert bed.hold(job, "completion", "stage-out")["stage"] == "declared"


def test_finishing_one_of_two_holds_leaves_the_other(bed: Bed) -> None:
    """Two holds of one phase are counted by name: finishing one twice does not free the other."""
    bed.start()
    job = bed.submit()
    for name in ("one", "two"):
        bed.call("hold.start", id=job, phase="epilog", name=name)
    bed.call("job.cancel", id=job)
    for _ in range(2):
        bed.call("hold.finish", id=job, phase="epilog", name="one")
    assert bed.job(job)["state"] == "EPILOG"
    bed.call("hold.finish", id=job, phase="epilog", name="two")
    bed.wait(job, "clean")
    assert bed.call("hold.finish", id=job, phase="epilog", name="two") == {"status": 0, "outcome": "ok"}
