"""Following a job: job.wait, job.events, job.watch, also over the broker's restarts."""

from __future__ import annotations

import pytest

import perilog
from bed import Bed, until


def test_wait_returns_what_has_happened_and_what_will(bed: Bed) -> None:
    """job.wait gives an event of the past, one that comes later, and one that fits `match`."""
    bed.start()
    job = bed.submit(holds=[{"phase": "prolog", "name": "one"}, {"phase": "prolog", "name": "two"}])
    assert bed.wait(job, "alloc")["context"] == {"nodes": "n1"}
    with bed.connect() as client:
        ready = client.begin("job.wait", id=job, event="ready")
        two = client.begin("job.wait", id=job, event="prolog-finish", match={"description": "two"})
        for name in ("one", "two"):
            bed.call("hold.finish", id=job, phase="prolog", name=name)
        assert two.result()["context"]["description"] == "two"
        assert ready.result()["name"] == "ready"
    assert bed.wait(job, "ready")["seq"] == bed.events(job)[-1]["seq"]


def test_wait_ends_when_the_event_can_no_longer_come(bed: Bed) -> None:
    """Waiting for what cannot come any more, from the beginning or from some moment on, is ESTATE at once."""
    bed.start()
    job = bed.submit(holds=[{"phase": "prolog", "name": "one"}])
    with bed.connect() as client:
        start = client.begin("job.wait", id=job, event="start")
        clean = client.begin("job.wait", id=job, event="clean")
        bed.call("job.cancel", id=job)
        with pytest.raises(perilog.Error, match="ESTATE: event 'start' of job 1 can no longer come"):
            start.result()
        assert clean.result()["name"] == "clean"
    for event in ("ready", "finish", "memo"):
        assert bed.refusal("job.wait", id=job, event=event).startswith("ESTATE: ")
    assert bed.refusal("job.wait", id=99, event="ready") == "ENOENT: no such job: 99"


def test_wait_gives_up_after_its_timeout(bed: Bed) -> None:
    """job.wait with a timeout ends with ETIMEDOUT and names the job's state."""
    bed.start()
    job = bed.submit()
    refused = bed.refusal("job.wait", id=job, event="exit", timeout="20ms")
    assert refused.startswith("ETIMEDOUT: no event 'exit' of job 1 within 0.02 s; the job is in state RUN")


def test_events_are_read_page_by_page(bed: Bed) -> None:
    """job.events gives the log from a sequence number on, at most `limit` at a time, of ended jobs too."""
    bed.start()
    job = bed.run_job()
    whole = bed.events(job)
    seqs = [event["seq"] for event in whole]
    assert seqs == sorted(set(seqs))
    assert [event["name"] for event in whole][-1] == "clean"
    assert bed.call("job.events", id=job, limit=2) == whole[:2]
    assert bed.call("job.events", id=job, **{"from": seqs[2], "limit": 3}) == whole[2:5]
    assert bed.call("job.events", id=job, **{"from": seqs[-1] + 1}) == []
    bed.kill9()
    bed.start()
    assert bed.events(job) == whole


def test_a_watch_of_all_jobs_has_every_event_once_in_order(bed: Bed) -> None:
    """A watch opened now sees all that is committed afterwards; sequence numbers have no holes."""
    bed.start()
    bed.run_job()
    with bed.connect() as client:
        watch = client.watch()
        client.call("broker.ping")
        jobs = [bed.run_job() for _ in range(5)]
        wanted = {(job, event["seq"]) for job in jobs for event in bed.events(job)}
        seen = [watch.next(10) for _ in wanted]
    numbers = [event.seq for event in seen if event is not None and event.seq is not None]
    assert {(event.job, event.seq) for event in seen if event is not None} == wanted
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))


def test_a_watch_of_a_job_begins_at_its_beginning(bed: Bed) -> None:
    """A job's watch has the past, then the present; `names` leaves out the rest; cancel ends it."""
    bed.start()
    job = bed.submit(holds=[{"phase": "prolog", "name": "one"}])
    bed.submit()
    with bed.connect() as client:
        watch = client.watch(job)
        some = client.watch(job, names=["submit", "ready", "clean"])
        bed.call("hold.finish", id=job, phase="prolog", name="one")
        bed.call("job.cancel", id=job)
        assert [event.name for event in watch] == [event["name"] for event in bed.events(job)]
        assert [event.name for event in some] == ["submit", "ready", "clean"]
        gone = client.call("job.watch")["watch"]
        client.call("watch.cancel", watch=gone)
        with pytest.raises(perilog.Error, match=f"ENOENT: this connection has no watch {gone}"):
            client.call("watch.cancel", watch=gone)


def test_a_watch_is_resumed_over_restarts_without_loss_or_repetition(bed: Bed) -> None:
    """A client that resumes behind the last number it saw gets every event once, through several kills."""
    bed.start()
    with perilog.connect(str(bed.socket), patience=60) as client:
        watch = client.watch(start=1)
        seen = []
        for _ in range(3):
            job = bed.submit(holds=[{"phase": "prolog", "name": "one"}])
            first = watch.next(10)
            assert first is not None
            seen.append(first.seq)
            bed.kill9()
            bed.start()
            bed.call("hold.finish", id=job, phase="prolog", name="one")
            bed.call("job.cancel", id=job)
            bed.wait(job, "clean")
        last = bed.events(job)[-1]["seq"]
        while seen[-1] != last:
            event = watch.next(10)
            assert event is not None
            seen.append(event.seq)
    assert seen == list(range(1, last + 1))


def test_progress_is_told_to_who_asked_for_it(bed: Bed) -> None:
    """A watch with `progress` hears of updates at once, another does not."""
    bed.start()
    job = bed.submit(holds=[{"phase": "prolog", "name": "one"}])
    with bed.connect() as client:
        told = client.watch(job, progress=True, names=["clean"])
        plain = client.watch(job, names=["clean"])
        report = {"phase": "prolog", "name": "one", "progress": 12.5, "note": "half a quarter"}

        def report_it() -> perilog.Event | None:  # again, since only a watch that has caught up is told
            client.call("hold.update", id=job, **report)
            return told.next(0.1)

        event = until(report_it)
        assert event is not None
        assert (event.name, event.job, event.seq) == ("progress", job, None)
        assert event.context == report
        bed.call("job.cancel", id=job)
        assert [event.name for event in plain] == ["clean"]
