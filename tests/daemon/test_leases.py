"""Leases: an application that lives as long as its client's connection."""

from __future__ import annotations

import pytest

import perilog
from bed import Bed


def lease(bed: Bed, job: int) -> perilog.Client:
    """Take the lease of a job over a connection of its own."""
    client = bed.connect()
    client.call("job.start", id=job, lease=True)
    return client


def ready_job(bed: Bed) -> int:
    """Return a job that may start."""
    job = bed.submit()
    bed.wait(job, "ready")
    return job


def test_the_lease_ends_with_its_connection(bed: Bed) -> None:
    """A connection that ends while the broker lives: exception exec, exit lost, result FAILED."""
    bed.start()
    job = ready_job(bed)
    lease(bed, job).close()
    bed.wait(job, "clean")
    assert bed.event(job, "start")["context"] == {"attempt": 1, "lease": True}
    exception = bed.event(job, "exception")["context"]
    assert (exception["type"], exception["severity"]) == ("exec", 0)
    assert exception["note"].startswith(f"lease of job {job} ended: the connection of the client")
    assert bed.event(job, "exit")["context"] == {"status": 65280, "attempt": 1, "outcome": "lost"}
    shown = bed.job(job)
    assert (shown["result"], shown["exit_code"]) == ("FAILED", 255)


def test_an_application_without_a_lease_needs_no_connection(bed: Bed) -> None:
    """Without a lease, and after its exit, the end of a connection means nothing."""
    bed.start()
    job = ready_job(bed)
    with bed.connect() as client:
        client.call("job.start", id=job)
    leased = bed.submit(holds=[{"phase": "completion", "name": "out"}])
    bed.wait(leased, "ready")
    with bed.connect() as client:
        client.call("job.start", id=leased, lease=True)
        client.call("job.exit", id=leased, status=0)
    bed.call("job.exit", id=job, status=0)
    bed.call("hold.finish", id=leased, phase="completion", name="out")
    for ended in (job, leased):
        bed.wait(ended, "clean")
        assert bed.job(ended)["result"] == "COMPLETED"


def test_the_lease_is_taken_again_after_a_restart(bed: Bed) -> None:
    """Within the grace a `job.start` of the same attempt takes the lease again, without an event."""
    bed.start()
    job = ready_job(bed)
    client = lease(bed, job)
    bed.kill9()
    client.close()
    bed.start()
    assert bed.names(job)[-1] == "broker-restart"
    client = bed.connect()
    assert client.call("job.start", id=job, attempt=1, lease=True) == {"attempt": 1}
    assert bed.names(job)[-1] == "broker-restart"
    client.close()
    bed.wait(job, "clean")
    assert bed.event(job, "exit")["context"]["outcome"] == "lost"


def test_the_grace_passes_when_nobody_comes_back(bed: Bed) -> None:
    """After a restart the lease ends `lease-grace` after READY, with a note that says so."""
    bed.table("[broker]", lease_grace="100ms")
    bed.start()
    job = ready_job(bed)
    client = lease(bed, job)
    bed.kill9()
    client.close()
    bed.start()
    bed.wait(job, "clean")
    note = bed.event(job, "exception")["context"]["note"]
    assert note.endswith("did not come back within 0.1 s of a broker restart")
    assert bed.job(job)["result"] == "FAILED"


@pytest.mark.parametrize("restart", [False, True])
def test_a_lease_can_be_handed_over(bed: Bed, restart: bool) -> None:
    """Another connection that takes the lease replaces the first, whose end then means nothing."""
    bed.start()
    job = ready_job(bed)
    first = lease(bed, job)
    if restart:
        bed.kill9()
        first.close()
        bed.start()
        first = lease(bed, job)
    second = lease(bed, job)
    first.close()
    second.call("job.exit", id=job, status=0)
    second.close()
    bed.wait(job, "clean")
    assert bed.job(job)["result"] == "COMPLETED"
