"""P6 across kill -9: what a reply confirmed is on disk; what none did can be asked again."""

from __future__ import annotations

from typing import Any

import pytest

from bed import Bed

Request = tuple[str, dict[str, Any], str]

#: One job's life: method, arguments, and the event (with description) that it leads to.
LIFE: list[Request] = [
    ("job.submit", {"key": "run-7", "max_reruns": 1}, "submit"),
    ("job.alloc", {"id": 1, "nodes": "n[1-2]"}, "alloc"),
    (
        "hold.start",
        {"id": 1, "phase": "completion", "name": "drain", "timeout": "1h"},
        "completion-start drain",
    ),
    ("job.start", {"id": 1, "attempt": 1}, "start"),
    ("job.exit", {"id": 1, "attempt": 1, "status": 256}, "exit"),
    ("job.rerun", {"id": 1, "attempt": 2}, "rerun"),
    ("job.start", {"id": 1, "attempt": 2}, "start"),
    ("hold.start", {"id": 1, "phase": "epilog", "name": "unmount"}, "epilog-start unmount"),
    ("job.exit", {"id": 1, "attempt": 2, "status": 0}, "exit"),
    (
        "hold.finish",
        {"id": 1, "phase": "completion", "name": "drain", "status": 0},
        "completion-finish drain",
    ),
    ("hold.finish", {"id": 1, "phase": "epilog", "name": "unmount", "status": 0}, "epilog-finish unmount"),
]


def count(bed: Bed, event: str, arguments: dict[str, Any]) -> int:
    """Count the events that a request leads to: of its attempt, where it names one."""
    if "attempt" in arguments:
        found = [e for e in bed.events(1) if e["name"] == event]
        return sum(e["context"]["attempt"] == arguments["attempt"] for e in found)
    return bed.names(1).count(event)


def same(reply: Any, again: Any) -> bool:
    """Tell whether two replies say the same; deadlines are reckoned anew from the running clock."""
    if isinstance(reply, dict) and reply.get("deadline") is not None:
        reply = {**reply, "deadline": pytest.approx(reply["deadline"], abs=0.01)}
    return bool(again == reply)


def test_what_a_reply_confirmed_survives_kill_9_straight_after_it(bed: Bed) -> None:
    """Each request of a job's life, confirmed just before kill -9, is in the log once, repeated or not."""
    bed.start()
    for method, arguments, event in LIFE:
        reply = bed.call(method, **arguments)
        bed.kill9()
        bed.start()
        assert count(bed, event, arguments) == 1, method
        again = bed.call(method, **arguments)
        if method == "job.submit":
            assert (reply["created"], again["created"]) == (True, False)
            assert again["id"] == reply["id"]
        else:
            assert same(reply, again), method
        assert count(bed, event, arguments) == 1, method
    bed.wait(1, "clean")


def test_what_was_not_confirmed_can_be_asked_again_and_happens_once(bed: Bed) -> None:
    """Each request of a job's life, cut off from its reply by kill -9, is asked again and happens once."""
    bed.start()
    for method, arguments, event in LIFE:
        client = bed.connect()
        client.begin(method, **arguments)
        bed.kill9()
        client.close()
        bed.start()
        bed.call(method, **arguments)
        assert count(bed, event, arguments) == 1, method
    bed.wait(1, "clean")
    assert bed.job(1)["result"] == "COMPLETED"


def test_many_confirmed_jobs_are_there_after_kill_9(bed: Bed) -> None:
    """Of a stream of submits cut off by kill -9, every confirmed one is there, with its id."""
    bed.start()
    known: dict[str, int] = {}
    for number in range(5):
        with bed.connect() as client:
            keys = [f"{number}-{index}" for index in range(100)]
            replies = {key: client.begin("job.submit", key=key, nodes="n1") for key in keys}
            replies[keys[10 * number]].result()
            bed.kill9()
            confirmed = {key: reply.result()["id"] for key, reply in replies.items() if reply.done}
        known |= confirmed
        bed.start()
        for key in keys:
            known.setdefault(key, bed.call("job.submit", key=key, nodes="n1")["id"])
    jobs = bed.call("job.list")
    assert {job["key"]: job["id"] for job in jobs} == known
    assert len(jobs) == 500


def test_drained_nodes_are_remembered_at_once(bed: Bed) -> None:
    """A confirmed drain or undrain, and a confirmed memo, survive kill -9 straight after the reply."""
    bed.start()
    job = bed.submit()
    bed.call("node.drain", nodes="n[1-3]", reason="fan broken")
    bed.kill9()
    bed.start()
    assert bed.drained() == {"n1": "fan broken", "n[2-3]": "fan broken"}
    bed.call("node.undrain", nodes="n2")
    bed.kill9()
    bed.start()
    assert bed.drained() == {"n1": "fan broken", "n3": "fan broken"}
    bed.call("job.memo", id=job, memo={"rank": 3})
    bed.kill9()
    bed.start()
    assert bed.job(job)["memo"] == {"rank": 3}
