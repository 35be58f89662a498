"""What one user can do to all others: nothing. Floods, bombs and races, each with a bystander who is served.

No times are measured: what is shown is who comes first, and what has not grown.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgpack
import pytest

from raw import ALICE, BOB, Raw

if TYPE_CHECKING:
    from bed import Bed
    from trust.conftest import As

pytestmark = pytest.mark.other_users

MIB = 1 << 20


def request(msgid: int, method: str, **arguments: object) -> bytes:
    """Return an encoded request."""
    data: bytes = msgpack.packb([0, msgid, method, [arguments]])
    return data


def memory(bed: Bed) -> int:
    """Return the most bytes of memory that the broker has ever had."""
    assert bed.process is not None
    lines = Path(f"/proc/{bed.process.pid}/status").read_text().splitlines()
    (peak,) = [line.split()[1] for line in lines if line.startswith("VmHWM:")]
    return int(peak) * 1024


def replies_so_far(client: Raw) -> int:
    """Return how many replies have come in, without waiting."""
    client.sock.settimeout(0)
    count = 0
    try:
        while client.message() is not None:
            count += 1
    except BlockingIOError:
        return count
    return count


def talkative_job(client: Raw, number: int, size: int) -> int:
    """Return a job with this many memos of this many bytes."""
    job: int = client.ok("job.submit")["id"]
    for index in range(number):
        client.ok("job.memo", id=job, memo={"index": index, "text": "x" * size})
    return job


def test_a_flood_of_reads_keeps_no_commit_waiting(bed: Bed, connect_as: As) -> None:
    """While one user's thousands of reads of a long log are on their way, another's job is written."""
    bed.start()
    alice = [connect_as(ALICE) for _ in range(4)]
    job = talkative_job(alice[0], 200, 100)
    flood = b"".join(
        request(msgid, "job.wait", id=job, event="memo", match={"index": 199}) for msgid in range(1000)
    )
    for client in alice:
        client.send(flood)
    bob = connect_as(BOB)
    mine = bob.ok("job.submit")["id"]
    bob.ok("job.cancel", id=mine)
    bob.ok("job.wait", id=mine, event="clean")
    assert sum(map(replies_so_far, alice)) < 4000


def test_a_flood_of_requests_is_served_in_turns(bed: Bed, connect_as: As) -> None:
    """One user's pipelines on many connections are not worked off before another user's single request."""
    bed.start()
    alice = [connect_as(ALICE) for _ in range(8)]
    job = alice[0].ok("job.submit")["id"]
    flood = b"".join(request(msgid, "job.get", id=job) for msgid in range(2000))
    for client in alice:
        client.sock.setblocking(False)
        client.sock.send(flood)
    connect_as(BOB).ok("broker.ping")
    assert sum(map(replies_so_far, alice)) < 16_000


@pytest.mark.parametrize(
    "arguments",
    [
        {"nodes": "n[1-100000]"},
        {"nodes": "n[000001-100000]"},
        {"nodes": ",".join(f"a[{n}-{n + 20}]b[{n}-{n + 40}]" for n in range(100))},
        {"nodes": ",".join(f"{'abcdefghij'[n // 10 % 10]}x{'abcdefghij'[n % 10]}{n}y" for n in range(3000))},
    ],
    ids=["many nodes", "many padded nodes", "products", "names that do not fold"],
)
def test_sets_of_nodes_are_no_bombs(bed: Bed, connect_as: As, arguments: dict[str, str]) -> None:
    """A user's set that takes long to read is read beside the loop, and refused where it is too large."""
    bed.start()
    alice = connect_as(ALICE)
    job = alice.ok("job.submit")["id"]
    alice.send(b"".join(request(msgid, "node.list", **arguments) for msgid in range(100, 140)))
    bob = connect_as(BOB)
    bob.ok("broker.ping")
    bob.ok("job.submit")
    assert replies_so_far(alice) < 40
    hold: dict[str, Any] = {"id": job, "phase": "completion", "name": "a"}
    with Raw.at(bed.socket) as admin:
        assert admin.call("node.list", arguments)[0] is None  # an administrator may
    mallory = connect_as(ALICE)
    for method, more in (
        ("job.submit", arguments),
        ("job.list", {"node": arguments["nodes"]}),
        ("hold.start", hold | {"keep": arguments["nodes"]}),
    ):
        text = mallory.refused(method, **more)
        assert text.startswith(("EPERM: ", "EINVAL: "))
        assert len(text) < 500


@pytest.mark.parametrize(
    ("method", "arguments"),
    [
        ("job.submit", {"resources": {"cores": ",".join(["0-16383"] * 500)}}),
        ("job.list", {"limit": 1000}),
        ("job.events", {"id": 1}),
        ("job.get", {"id": 1}),
        ("hold.list", {}),
        ("job.watch", {"from": 0}),
    ],
)
def test_replies_that_nobody_reads_take_no_memory(
    bed: Bed, connect_as: As, method: str, arguments: dict[str, Any]
) -> None:
    """A client that asks a thousand times for megabytes and reads nothing makes the broker little larger."""
    bed.start()
    alice = connect_as(ALICE)
    talkative_job(alice, 60, 50_000)
    note = "x" * 1000
    for _ in range(10):
        alice.ok("job.submit", holds=[{"phase": "depend", "name": f"h{n}", "note": note} for n in range(500)])
    before = memory(bed)
    greedy = [connect_as(ALICE) for _ in range(4)]
    for client in greedy:
        client.sock.setblocking(False)
        client.sock.send(b"".join(request(msgid, method, **arguments) for msgid in range(1000)))
    bob = connect_as(BOB)
    for _ in range(20):
        bob.ok("job.wait", id=bob.ok("job.submit")["id"], event="depend")
    assert memory(bed) - before < 100 * MIB


def test_a_users_scripts_do_not_take_all_places(bed: Bed, connect_as: As) -> None:
    """While one user's scripts do not end, however many jobs he has, another user's job goes through."""
    gate = bed.folder / "gate"
    bed.table("[executor]", concurrency=4)
    bed.action("a", prolog=f'[ "$PERILOG_JOB_USERID" != {ALICE} ] || until [ -e {gate} ]; do sleep 0.1; done')
    bed.start()
    alice, bob = connect_as(ALICE), connect_as(BOB)
    jobs = [alice.ok("job.submit")["id"] for _ in range(8)]
    for job in jobs:
        bed.call("job.alloc", id=job, nodes="n1")
    mine = bob.ok("job.submit")["id"]
    bed.call("job.alloc", id=mine, nodes="n2")
    bob.ok("job.wait", id=mine, event="ready")
    states = [entry["state"] for entry in bed.call("script.list")]
    assert len(states) == 8
    assert states.count("queued") == 5
    gate.touch()
    for job in jobs:
        bed.wait(job, "ready")


def test_nobody_gets_hold_of_a_copy_of_a_live_job(bed: Bed, connect_as: As) -> None:
    """Requests about a job that is just being submitted find that job or none: the log stays one life."""
    bed.action("a", prolog="true", epilog="true")
    bed.table("[broker]", guest_nodes="n1")
    bed.start()
    one, other = connect_as(ALICE), connect_as(ALICE)
    job = one.ok("job.submit")["id"]
    latest = job
    for attempt in range(60):
        # The memo's commit is on its way when the next job's id is asked for, and when it is submitted.
        memo = {"text": "x" * 60_000}
        one.send(request(7, "job.memo", id=job, memo=memo) + request(8, "job.cancel", id=latest + 1))
        time.sleep(attempt % 20 * 0.0002)
        latest = other.ok("job.submit", nodes="n1")["id"]
        for _ in range(2):
            _, msgid, error, _ = one.message()
            assert error is None or (msgid, error[1]) == (8, f"ENOENT: no such job: {latest}")
    before = {shown["id"]: shown["result"] for shown in bed.call("job.list")}
    for shown in range(job + 1, latest + 1):
        bed.wait(shown, "clean" if before[shown] else "ready")
    bed.stop()
    bed.start()
    assert bed.call("broker.stats")["damaged"] == []
    assert {shown["id"]: shown["result"] for shown in bed.call("job.list")} == before
