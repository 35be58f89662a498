"""Bounds of [limits]: one more than is allowed is refused as documented, and everything else goes on."""

from __future__ import annotations

from typing import Any

import msgpack

from bed import Bed
from raw import Raw


def start(bed: Bed, **limits: object) -> Raw:
    """Start a broker with these limits, and return a client."""
    bed.table("[limits]", **limits)
    bed.start()
    return Raw.at(bed.socket)


def test_waiting_requests_of_a_connection(bed: Bed) -> None:
    """One request more than may wait is EAGAIN and not begun; when one is answered there is room again."""
    with start(bed, requests=3) as client, Raw.at(bed.socket) as other:
        job = bed.submit()
        waiting = [client.request("job.wait", {"id": job, "event": "start"}) for _ in range(3)]
        text = client.refused("job.wait", id=job, event="start")
        assert text == "EAGAIN: 3 requests of this client wait already ([limits] requests)"
        client.ok("broker.ping")
        other.ok("job.wait", id=job, event="submit")
        bed.wait(job, "ready")
        bed.call("job.start", id=job)
        replies = [client.message() for _ in waiting]
        assert {msgid for _, msgid, _, _ in replies} == {*waiting}  # in any order
        assert {event["name"] for *_, event in replies} == {"start"}
        client.ok("job.wait", id=job, event="submit")


def test_watches_of_a_connection(bed: Bed) -> None:
    """One watch more than a connection may have is EAGAIN; others have theirs, a cancelled one is free."""
    with start(bed, watches=2) as client, Raw.at(bed.socket) as other:
        first = client.ok("job.watch")["watch"]
        client.ok("job.watch")
        text = "EAGAIN: this connection has 2 watches already ([limits] watches)"
        assert client.refused("job.watch") == text
        other.ok("job.watch")
        client.ok("watch.cancel", watch=first)
        client.ok("job.watch")
        assert client.refused("watch.cancel", watch=first).startswith("ENOENT: ")


def test_active_jobs(bed: Bed) -> None:
    """One job more than may be active is EAGAIN; a known key still works; a job that ends makes room."""
    with start(bed, jobs=2) as client:
        first = client.ok("job.submit", key="a")["id"]
        client.ok("job.submit")
        assert client.refused("job.submit", key="b") == (
            "EAGAIN: 2 jobs are active, as many as [limits] jobs allows"
        )
        assert client.ok("job.submit", key="a") == {"id": first, "created": False}
        client.ok("job.cancel", id=first)
        client.ok("job.wait", id=first, event="clean")
        client.ok("job.submit", key="b")


def test_holds_of_a_job(bed: Bed) -> None:
    """More holds and dependencies than a job may have are EINVAL at submit, and EAGAIN one by one."""
    with start(bed, holds_per_job=2) as client:
        holds: Any = [{"phase": "completion", "name": name} for name in "abc"]
        text = "EINVAL: holds: more than [limits] holds-per-job allows (2)"
        assert client.refused("job.submit", holds=holds) == text
        target = client.ok("job.submit")["id"]
        dependencies = [f"after:{target}", f"afterok:{target}", f"afterany:{target}"]
        assert client.refused("job.submit", dependencies=dependencies) == text
        job = client.ok("job.submit", holds=holds[:2])["id"]
        text = client.refused("hold.start", id=job, phase="completion", name="c")
        assert text == f"EAGAIN: job {job} has 2 holds, as many as [limits] holds-per-job allows"
        client.ok("hold.start", id=job, phase="completion", name="a")  # is there already


def test_sizes(bed: Bed) -> None:
    """Attributes, variables, nodes and reruns beyond their bounds are EINVAL; the text gives the bound."""
    with start(bed, attributes=100, environment=100, nodes=10, reruns=3) as client:
        wrong: list[tuple[dict[str, Any], str]] = [
            ({"attributes": {"a": "x" * 100}}, "argument attributes takes 105 bytes, expected"),
            ({"nodes": "n[1-11]"}, "11 nodes, which is more than the limit of 10"),
            ({"nodes": "n[1-1000000000]"}, "1000000000 nodes, which is more than the limit of 10"),
            ({"max_reruns": 4}, "max_reruns: is 4, [limits] reruns allows 3"),
        ]
        for arguments, said in wrong:
            text = client.refused("job.submit", **arguments)
            assert text.startswith("EINVAL: ")
            assert said in text
        job = client.ok("job.submit", attributes={"a": "x" * 90}, nodes="n[1-10]", max_reruns=3)["id"]
        hold: dict[str, Any] = {"id": job, "phase": "epilog", "name": "a"}
        client.ok("hold.start", **hold)
        client.ok("hold.start", **hold | {"name": "b"})
        text = client.refused("hold.finish", **hold, environment={"A": "x" * 100})
        assert text.startswith("EINVAL: hold.finish: argument environment takes 101 bytes, expected")
        client.ok("hold.finish", **hold, environment={"A": "x" * 60})
        # It is the job's variables together that are bounded.
        text = client.refused("hold.finish", **hold | {"name": "b"}, environment={"B": "x" * 60})
        assert text.startswith("EINVAL: ")
        client.ok("hold.finish", **hold | {"name": "b"}, environment={"A": "y" * 60})
        client.ok("job.memo", id=job, memo={"a": "x" * 60})
        text = client.refused("job.memo", id=job, memo={"b": "x" * 60})
        assert text.startswith("EINVAL: ")
        assert client.ok("job.get", id=job)["memo"] == {"a": "x" * 60}


def test_a_script_cannot_give_more_variables_than_a_job_may_have(bed: Bed) -> None:
    """Variables of a script that would exceed the bound are left out as a whole, and the log says so."""
    bed.action("a", prolog='echo "A=0123456789" > $PERILOG_ENVIRONMENT', epilog="true")
    bed.action("b", after=["a"], prolog='echo "B=0123456789" > $PERILOG_ENVIRONMENT')
    with start(bed, environment=20) as client:
        job = bed.submit()
        bed.wait(job, "ready")
        assert client.ok("job.get", id=job)["environment"] == {"A": "0123456789"}
        note = bed.event(job, "prolog-finish", description="b")["context"]["note"]
        assert note == (
            "PERILOG_ENVIRONMENT was ignored: with it the job's variables would take 22 bytes,"
            " [limits] environment allows 20"
        )


def test_a_job_too_large_for_the_executor_fails_alone(bed: Bed) -> None:
    """Where limits were raised beyond what perilog-exec reads, such a job's scripts fail; others are run."""
    bed.action("a", prolog="true", epilog="true")
    with start(bed, attributes="4MiB", frame="8MiB"):
        bed.executor_answers()
        large = bed.submit(attributes={"text": "\1" * (1 << 20)})  # six bytes each as JSON
        bed.wait(large, "clean")
        assert "as JSON" in bed.wait(large, "prolog-finish")["context"]["note"]
        assert bed.job(large)["result"] == "FAILED"
        bed.run_job()


def test_the_size_of_a_frame(bed: Bed) -> None:
    """[limits] frame bounds what one client can send at a time."""
    with start(bed, frame="4KiB") as client:
        client.ok("job.submit", attributes={"a": "x" * 3000})
        client.send(msgpack.packb([0, 7, "job.submit", [{"attributes": {"a": "x" * 5000}}]]))
        assert client.reply(7)[0] == [
            1,
            "EPROTO: the frame is larger than 4096 bytes, the most that is accepted",
        ]
        assert client.rest() == []


def test_a_long_log_is_told_in_pages(bed: Bed) -> None:
    """However large its events are, a job's log is read in replies of bounded size, each event once."""
    with start(bed) as client:
        job = client.ok("job.submit")["id"]
        for number in range(60):
            client.ok("job.memo", id=job, memo={"number": number, "text": "x" * 60_000})
        seen: list[int] = []
        start_at, pages = 0, 0
        while page := client.ok("job.events", **{"id": job, "from": start_at}):
            assert len(msgpack.packb(page)) < 2 << 20
            seen += [event["context"]["number"] for event in page if event["name"] == "memo"]
            start_at = page[-1]["seq"] + 1
            pages += 1
        assert seen == list(range(60))
        assert pages > 3
        client.ok("job.watch", **{"id": job, "from": 0})
        told = 0
        while told < 62:
            message = client.message()
            told += message[:2] == [2, "event"]


def test_large_jobs_are_listed_in_pages(bed: Bed) -> None:
    """However large jobs are, they are listed in replies of bounded size, live and ended ones, each once."""
    with start(bed) as client:
        jobs = [client.ok("job.submit", attributes={"text": "x" * 60_000})["id"] for _ in range(200)]
        for job in jobs[::2]:
            client.ok("job.cancel", id=job)
        client.ok("job.wait", id=jobs[-2], event="clean")
        found: list[int] = []
        pages = 0
        while page := client.ok("job.list", after=found[-1] if found else 0):
            assert len(msgpack.packb(page)) < 10 << 20
            found += [job["id"] for job in page]
            pages += 1
        assert found == jobs
        assert pages > 1
        assert [job["id"] for job in client.ok("job.list", limit=3)] == jobs[:3]
        assert [job["id"] for job in client.ok("job.list", state="INACTIVE", limit=3)] == jobs[:5:2]
        assert [job["id"] for job in client.ok("job.list", state="SCHED", limit=3)] == jobs[1:6:2]
