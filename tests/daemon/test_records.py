"""What the broker keeps of jobs that have ended: listing, purge, damage."""

from __future__ import annotations

import os
import sqlite3

import pytest

import perilog
from bed import Bed, until


def test_a_key_names_one_job_however_fast_it_is_asked_for(bed: Bed) -> None:
    """A submit that still looks up its dependencies, and quicker ones of the same key, are one job."""
    bed.start()
    ended = bed.submit()
    bed.call("job.cancel", id=ended)
    dependencies = [f"afterany:{ended}"] * 200
    with bed.connect() as slow, bed.connect() as quick:
        first = slow.begin("job.submit", key="k", dependencies=dependencies)
        ids = {quick.call("job.submit", key="k")["id"] for _ in range(3)}
        ids.add(first.result()["id"])
    assert len(ids) == 1
    assert bed.call("broker.ping")


def test_jobs_are_listed_live_and_ended(bed: Bed) -> None:
    """job.list merges both by ascending id, and is filtered by state, user, hold and node."""
    bed.start()
    hold = {"phase": "prolog", "name": "x"}
    ended = [bed.run_job(nodes=nodes, userid=userid) for nodes, userid in (("n[1-3]", 20001), ("n4", 20002))]
    held = bed.submit(nodes="n[3-5]", holds=[hold], userid=20001)
    last = bed.run_job(nodes="n9", userid=20001)
    waiting = bed.call("job.submit", name="no nodes yet")["id"]

    def ids(**filters: object) -> list[int]:
        return [job["id"] for job in bed.call("job.list", **filters)]

    assert ids() == [*ended, held, last, waiting]
    assert ids(state="INACTIVE") == [*ended, last]
    assert ids(state="PROLOG") == [held]
    assert ids(state="SCHED") == [waiting]
    assert ids(userid=20001) == [ended[0], held, last]
    assert ids(userid=20003) == []
    assert ids(node="n[3-4]") == [*ended, held]
    assert ids(node="n3", userid=20001, state="INACTIVE") == [ended[0]]
    assert ids(held_by="x") == [held]
    assert ids(held_by=20001) == []
    assert ids(held_by=os.geteuid()) == [held]
    assert ids(limit=2) == ended
    assert ids(limit=2, after=ended[1]) == [held, last]
    assert ids(after=waiting) == []
    for wrong in ({"state": "WAITING"}, {"limit": 0}, {"limit": 1001}, {"node": "n[1-"}, {"userid": "root"}):
        assert bed.refusal("job.list", **wrong).startswith("EINVAL: job.list: argument ")
    before = bed.call("job.list")
    bed.kill9()
    bed.start()
    assert [{**job, "waiting_for": ""} for job in bed.call("job.list")] == [
        {
            **job,
            "waiting_for": "",
            "holds": [
                {**h, "deadline": pytest.approx(h["deadline"], abs=0.01)} if h["deadline"] else h
                for h in job["holds"]
            ],
        }
        for job in before
    ]


def test_many_jobs_are_paged_without_gaps(bed: Bed) -> None:
    """Pages of any size put together are all jobs, each once, though live and ended ones alternate."""
    bed.start()
    with bed.connect() as client:
        replies = [client.begin("job.submit", nodes="n1") for _ in range(500)]
        for number, reply in enumerate(replies):
            job = reply.result()["id"]
            if number % 3:
                client.begin("job.cancel", id=job)
        last = client.call("job.submit")["id"]
        for limit in (1000, 201, 97):
            pages = client.pages("job.list", "id", limit=limit)
            assert [job["id"] for job in pages] == list(range(1, last + 1))
        ended = client.pages("job.list", "id", state="INACTIVE", limit=101)
        assert len(list(ended)) == sum(1 for number in range(500) if number % 3)


def test_a_job_is_found_by_its_key(bed: Bed) -> None:
    """job.get takes a key of a live or ended job; exactly one of id and key; commands take either."""
    bed.start()
    job = bed.run_job(key="run/7")
    assert bed.call("job.get", key="run/7")["id"] == job
    assert bed.command("show", "run/7").returncode == 0
    assert bed.command("show", "key:run/7").returncode == 0
    assert bed.command("show", "run/8").returncode == 5
    assert bed.refusal("job.get", key="run/8") == "ENOENT: no job with key 'run/8'"
    assert bed.refusal("job.get", key="run/7", id=job).startswith("EINVAL: ")
    assert bed.refusal("job.get").startswith("EINVAL: ")


@pytest.mark.parametrize("limit", [{"inactive_num_limit": 2}, {"inactive_age_limit": "1ms"}])
def test_ended_jobs_are_purged_and_the_gap_is_told(bed: Bed, limit: dict[str, object]) -> None:
    """By number or age old records go; live jobs stay, ids are not reused, watchers are told the gap."""
    bed.table("[journal]", **limit)
    bed.start()
    live = bed.submit(holds=[{"phase": "prolog", "name": "x"}])
    first = bed.run_job(key="k")
    jobs = [bed.run_job() for _ in range(3)]
    last = bed.events(jobs[-1])[-1]["seq"]
    bed.kill9()
    bed.start()
    kept = jobs[-2:] if "inactive_num_limit" in limit else []
    until(lambda: [job["id"] for job in bed.call("job.list")] == [live, *kept])
    assert bed.refusal("job.get", id=first) == f"ENOENT: no such job: {first}"
    assert bed.refusal("job.events", id=first).startswith("ENOENT: ")
    assert bed.refusal("job.submit", dependencies=[f"afterany:{first}"]).startswith("ENOENT: ")
    assert bed.call("job.submit", key="k") == {"id": jobs[-1] + 1, "created": True}
    with bed.connect() as client:
        seen: list[perilog.Event] = []
        watch = client.watch(start=1)
        while not seen or seen[-1].job != jobs[-1] + 1:
            event = watch.next(10)
            assert event is not None
            seen.append(event)
    (gap,) = [event for event in seen if event.name == "gap"]
    assert gap.context["from"] == 1
    assert gap.context["to"] <= last
    numbers = [event.seq for event in seen if event.name != "gap" and event.seq is not None]
    assert numbers == sorted(set(numbers))
    assert {event.job for event in seen if event.name != "gap"} == {live, *kept, jobs[-1] + 1}


def test_a_damaged_job_is_set_aside(bed: Bed) -> None:
    """A job whose record is damaged is reported, its nodes drained, its dependents ended; others go on."""
    bed.start()
    damaged = bed.submit(nodes="n[1-2]", holds=[{"phase": "prolog", "name": "x"}])
    other = bed.submit(nodes="n3", holds=[{"phase": "prolog", "name": "x"}])
    dependent = bed.submit(dependencies=[f"afterany:{damaged}"])
    bed.stop()
    with sqlite3.connect(bed.state_dir / "journal.sqlite") as journal:
        broken = "UPDATE events SET context = x'c1' WHERE job = ? AND name = 'prolog-start'"
        assert journal.execute(broken, [damaged]).rowcount == 1
    journal.close()
    bed.start()
    assert bed.call("broker.stats")["damaged"] == [damaged]
    assert list(bed.drained()) == ["n[1-2]"]
    assert f"job {damaged} cannot be read" in bed.drained()["n[1-2]"]
    bed.call("hold.finish", id=other, phase="prolog", name="x")
    bed.wait(other, "ready")
    assert bed.refusal("job.get", id=damaged).startswith("ESTATE: ")
    bed.wait(dependent, "clean")
    note = bed.event(dependent, "exception")["context"]["note"]
    assert note.startswith(f"dependency afterany:{damaged} of job {dependent} can never be met: ")
    assert bed.refusal("job.submit", dependencies=[f"afterany:{damaged}"]).startswith("ESTATE: ")
    assert [job["id"] for job in bed.call("job.list")] == [other, dependent]
    assert bed.submit() == dependent + 1
