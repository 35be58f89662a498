"""What users may do with their own jobs, and how far: guests, nodes, holds, limits, reloads."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import msgpack
import pytest

from raw import ALICE, BOB, CAROL, NOBODY, Raw

if TYPE_CHECKING:
    from bed import Bed
    from trust.conftest import As

pytestmark = pytest.mark.other_users


def running(bed: Bed, client: Raw, **arguments: object) -> int:
    """Return a job that this user has submitted, and that runs."""
    job: int = client.ok("job.submit", **arguments)["id"]
    if "nodes" not in arguments:
        bed.call("job.alloc", id=job, nodes="n[1-4]")
    bed.wait(job, "ready")
    client.ok("job.start", id=job)
    return job


def reload_with(bed: Bed, header: str, **keys: object) -> None:
    """Replace a table of the configuration and put it in force."""
    bed.tables = [table for table in bed.tables if table[0] != header]
    bed.table(header, **keys)
    bed.write_config()
    bed.call("broker.reload")


@pytest.mark.parametrize("uid", [NOBODY, ALICE])
def test_credentials_are_those_of_the_process_that_connected(bed: Bed, connect_as: As, uid: int) -> None:
    """Hello tells the kernel's word on who has called, whether that uid has a name or not."""
    bed.start()
    hello = connect_as(uid).ok("hello", client="test")
    assert (hello["uid"], hello["role"], hello["protocol"]) == (uid, "guest", 1)
    assert connect_as(os.geteuid()).ok("hello", client="test")["role"] == "admin"


def test_a_guest_takes_his_job_through_its_life(bed: Bed, connect_as: As) -> None:
    """With guests = "submit", anybody can run a job of his own from submit to clean."""
    bed.table("[broker]", guest_nodes="n[1-4]")
    bed.start()
    guest = connect_as(NOBODY)
    job = running(bed, guest, nodes="n[2-3]", name="mine")
    guest.ok("job.exit", id=job, status=0)
    assert guest.ok("job.wait", id=job, event="clean")["name"] == "clean"
    shown = guest.ok("job.get", id=job)
    assert (shown["userid"], shown["result"], shown["name"]) == (NOBODY, "COMPLETED", "mine")


def test_guests_who_may_only_read(bed: Bed, connect_as: As) -> None:
    """With guests = "read", a user submits nothing, and acts as owner on what was submitted for him."""
    bed.table("[broker]", guests="read")
    bed.start()
    user = connect_as(ALICE)
    assert user.ok("hello", client="test")["role"] == "owner"
    assert user.refused("job.submit").startswith(f"EPERM: uid {ALICE} may not submit jobs here")
    job = bed.submit(userid=ALICE)
    bed.wait(job, "ready")
    assert user.ok("job.get", id=job)["state"] == "RUN"
    user.ok("hold.start", id=job, phase="completion", name="mine")
    assert "EPERM" in user.refused("job.start", id=job)
    user.ok("job.cancel", id=job)
    bed.wait(job, "clean")


def test_guests_who_may_nothing(bed: Bed, connect_as: As) -> None:
    """With guests = "none", owners too may say hello, ping and ask for the methods, and nothing else."""
    bed.table("[broker]", guests="none")
    bed.start()
    job = bed.submit(userid=ALICE)
    user = connect_as(ALICE)
    assert user.ok("hello", client="test")["role"] == "none"
    user.ok("broker.ping")
    for method in user.ok("broker.methods"):
        if "none" not in method["roles"]:
            text = user.refused(method["name"], id=job)
            assert text.startswith(f"EPERM: {method['name']} is for ")
            assert text.endswith(f"uid {ALICE} is none")
    assert bed.names(job)[-1] == "ready"


def test_guests_keep_to_guest_nodes(bed: Bed, connect_as: As) -> None:
    """A guest's job gets nodes of [broker] guest-nodes only; the refusal names those that are not."""
    bed.table("[broker]", guest_nodes="n[1-4]")
    bed.start()
    guest = connect_as(ALICE)
    text = guest.refused("job.submit", nodes="n[3-6]")
    assert text.startswith("EPERM: nodes: 'n[5-6]' is not among [broker] guest-nodes (n[1-4])")
    assert "EPERM" in guest.refused("job.submit", nodes="n[1-100000]")
    assert "EPERM" in guest.refused("job.alloc", id=guest.ok("job.submit")["id"], nodes="n1")
    guest.ok("job.submit", nodes="n[1-2]")
    assert bed.submit(nodes="n[1-6]")  # an administrator may


def test_guest_nodes_are_this_host_by_default(bed: Bed, connect_as: As) -> None:
    """Where nothing is configured, a guest's job runs here and nowhere else."""
    bed.start()
    here = bed.call("broker.config")["broker"]["guest-nodes"]
    guest = connect_as(ALICE)
    assert "EPERM" in guest.refused("job.submit", nodes=f"{here},n1")
    guest.ok("job.submit", nodes=here)


def test_jobs_for_others_need_an_administrator(bed: Bed, connect_as: As) -> None:
    """A user submits for himself only: neither for another user nor for root; naming himself is fine."""
    bed.start()
    guest = connect_as(ALICE)
    for uid in (0, BOB):
        text = f"EPERM: uid {ALICE} may not submit a job for uid {uid}; administrators may"
        assert guest.refused("job.submit", userid=uid) == text
    guest.ok("job.submit", userid=ALICE)


def test_keys_belong_to_the_submitter(bed: Bed, connect_as: As) -> None:
    """Two users' jobs of the same key are two jobs, and each finds his own by it; a stranger finds none."""
    bed.start()
    alice, bob, carol = connect_as(ALICE), connect_as(BOB), connect_as(CAROL)
    first, second = (user.ok("job.submit", key="k")["id"] for user in (alice, bob))
    assert first != second
    assert alice.ok("job.submit", key="k", name="ignored") == {"id": first, "created": False}
    assert [user.ok("job.get", key="k")["id"] for user in (alice, bob)] == [first, second]
    assert carol.refused("job.get", key="k") == "ENOENT: no job with key 'k'"
    assert "names several users' jobs" in bed.refusal("job.get", key="k")


def test_dependencies_on_others_jobs_are_refused(bed: Bed, connect_as: As) -> None:
    """A user's job depends on his own jobs only; an administrator's on any, and then on the owner's."""
    bed.start()
    alice, bob = connect_as(ALICE), connect_as(BOB)
    job = alice.ok("job.submit")["id"]
    text = bob.refused("job.submit", dependencies=[f"afterok:{job}"])
    assert text.startswith(f"EPERM: dependencies: afterok:{job}: job {job} belongs to uid {ALICE}")
    alice.ok("job.submit", dependencies=[f"afterok:{job}"])
    bed.call("job.submit", userid=BOB, dependencies=[f"afterok:{job}"])


def test_start_and_exit_are_for_the_one_who_submitted(bed: Bed, connect_as: As) -> None:
    """The owner of a job that somebody else runs can neither start nor end it, only cancel."""
    bed.start()
    alice = connect_as(ALICE)
    job = bed.submit(userid=ALICE)
    bed.wait(job, "ready")
    for method, arguments in (("job.start", {}), ("job.start", {"lease": True}), ("job.exit", {"status": 0})):
        text = alice.refused(method, id=job, **arguments)
        assert text.startswith(f"EPERM: job {job} was submitted by uid 0, who runs it; its owner may not")
    bed.call("job.start", id=job)
    assert "EPERM" in alice.refused("job.exit", id=job, status=0)
    alice.ok("job.cancel", id=job)
    assert bed.names(job)[-2:] == ["start", "exception"]


def test_lists_show_a_user_his_own_jobs_only(bed: Bed, connect_as: As) -> None:
    """Jobs, holds and events of others are in no user's list or watch; a provider's has all of them."""
    bed.table("[[provider]]", name="nnf", users=[CAROL])
    bed.start()
    alice, bob, carol = connect_as(ALICE), connect_as(BOB), connect_as(CAROL)
    watches = {client: client.ok("job.watch", **{"from": 1})["watch"] for client in (alice, carol)}
    held: Any = [{"phase": "depend", "name": "d"}]
    mine, other = (user.ok("job.submit", holds=held)["id"] for user in (alice, bob))
    ended = [user.ok("job.submit")["id"] for user in (alice, bob)]
    for user, job in zip((alice, bob), ended, strict=True):
        user.ok("job.cancel", id=job)
        user.ok("job.wait", id=job, event="clean")
    assert [job["id"] for job in alice.ok("job.list")] == [mine, ended[0]]
    assert [hold["id"] for hold in alice.ok("hold.list")] == [mine]
    assert [job["id"] for job in alice.ok("job.list", userid=ALICE)] == [mine, ended[0]]
    assert alice.refused("job.list", userid=BOB) == (f"EPERM: userid: uid {ALICE} may list only its own jobs")
    assert [hold["id"] for hold in carol.ok("hold.list")] == [mine, other]
    assert [job["id"] for job in carol.ok("job.list")] == [mine, other, *ended]
    for client, jobs in ((alice, {mine, ended[0]}), (carol, {mine, other, *ended})):
        client.ok("broker.ping")
        told = [params for _, name, (params,) in client.notifications if name == "event"]
        assert {params["watch"] for params in told} == {watches[client]}
        assert {params["job"] for params in told} == jobs


def test_owners_holds_are_capped(bed: Bed, connect_as: As) -> None:
    """An owner's hold lasts no longer than [holds] owner.timeout from its start, however it is extended."""
    bed.table("[holds]", owner={"timeout": "1h"}, maximum={"completion": "2d"})
    bed.start()
    alice = connect_as(ALICE)
    job = running(bed, alice)
    for name, timeout in (("a", "30d"), ("b", "infinity"), ("c", 0), ("d", None)):
        hold = alice.ok("hold.start", id=job, phase="completion", name=name, timeout=timeout)
        assert hold["timeout"] == 3600
        assert alice.ok("hold.update", id=job, phase="completion", name=name, timeout="2d")["timeout"] <= 3600
    declared = alice.ok("job.submit", holds=[{"phase": "completion", "name": "e", "timeout": "2d"}])["id"]
    assert alice.ok("job.get", id=declared)["holds"][0]["timeout"] == 3600
    alice.ok("job.exit", id=job, status=0)
    for timeout in ("1h", "2d", "infinity"):
        # It has begun to count: what is left is less than an hour, whatever is asked for.
        hold = alice.ok("hold.update", id=job, phase="completion", name="a", timeout=timeout)
        assert hold["deadline"] <= hold["since"] + 3601
    # An administrator may give it more.
    hold = bed.call("hold.update", id=job, phase="completion", name="a", timeout="infinity")
    assert hold["timeout"] is None


def test_owners_holds_are_counted(bed: Bed, connect_as: As) -> None:
    """A job has at most [holds] owner.holds of its owner's, declared ones and earlier ones counted."""
    bed.table("[holds]", owner={"holds": 2})
    bed.start()
    alice = connect_as(ALICE)
    three = [{"phase": "completion", "name": name} for name in "abc"]
    assert alice.refused("job.submit", holds=three) == (
        "EPERM: holds: 3 of yours, [holds] owner.holds allows 2"
    )
    job = running(bed, alice, holds=three[:1])
    alice.ok("hold.start", id=job, phase="completion", name="b")
    text = alice.refused("hold.start", id=job, phase="completion", name="c")
    assert text.endswith("you hold 2 already, [holds] owner.holds allows 2")
    bed.call("hold.start", id=job, phase="completion", name="c")  # an administrator's is not counted
    alice.ok("hold.finish", id=job, phase="completion", name="a")
    alice.ok("hold.start", id=job, phase="completion", name="d")


def test_owners_holds_keep_few_nodes(bed: Bed, connect_as: As) -> None:
    """A hold of the owner's keeps at most [holds] owner.nodes nodes, be they the job's or written out."""
    bed.table("[broker]", guest_nodes="n[1-10]")
    bed.table("[holds]", owner={"nodes": 2})
    bed.start()
    alice = connect_as(ALICE)
    for keep, nodes in (
        ("all", "n[1-4]"),
        ("n[1-3]", "n[1-4]"),
        ("n[1-3]", None),
        ({"nodes": "n[1-3]"}, None),
    ):
        hold: Any = {"phase": "completion", "name": "a", "keep": keep}
        text = alice.refused("job.submit", **{"holds": [hold], **({"nodes": nodes} if nodes else {})})
        assert "owner.nodes allows 2" in text
    job = running(bed, alice)
    arguments = {"id": job, "phase": "completion", "name": "a"}
    assert "would keep 4 nodes" in alice.refused("hold.start", **arguments)
    for keep in ("n[1-100000]", {"nodes": "n[1-100000]"}):
        assert "may name at most 1000 nodes" in alice.refused("hold.start", **arguments, keep=keep)
    assert alice.ok("hold.start", **arguments, keep="n[1-2]")["keep"] == "n[1-2]"
    assert alice.ok("hold.start", **arguments | {"name": "b"}, keep="none")["keep"] == "none"


def test_owners_neither_touch_nor_force_others_holds(bed: Bed, connect_as: As) -> None:
    """On his own job too, an owner ends, moves and forces only what he holds himself."""
    bed.table("[[provider]]", name="nnf", users=[CAROL], holds=["completion"])
    bed.start()
    alice, carol = connect_as(ALICE), connect_as(CAROL)
    job = running(bed, alice)
    bed.call("hold.start", id=job, phase="completion", name="root")
    carol.ok("hold.start", id=job, phase="completion", name="nnf")
    before = bed.events(job)
    for name in ("root", "nnf"):
        hold: dict[str, Any] = {"id": job, "phase": "completion", "name": name}
        assert "EPERM" in alice.refused("hold.finish", **hold)
        assert "EPERM" in alice.refused("hold.finish", **hold, force=True)
        assert "EPERM" in alice.refused("hold.update", **hold, timeout="1s")
        assert "EPERM" in alice.refused("hold.update", **hold, progress=99)
    assert "EPERM" in carol.refused("hold.finish", id=job, phase="completion", name="root")
    assert bed.events(job) == before
    carol.ok("hold.finish", id=job, phase="completion", name="nnf")


def test_a_provider_is_bound_by_its_users(bed: Bed, connect_as: As) -> None:
    """Only a uid in [[provider]] users speaks for it, by hello and by taking its names."""
    bed.table("[[provider]]", name="nnf", users=[CAROL], holds=["epilog:nnf-undo"])
    bed.table("[[provider]]", name="dws", users=[BOB])
    bed.start()
    alice, carol = connect_as(ALICE), connect_as(CAROL)
    assert "EPERM" in alice.refused("hello", client="x", provider="nnf")
    assert "EPERM" in carol.refused("hello", client="x", provider="dws")
    assert carol.ok("hello", client="x", provider="nnf")["role"] == "provider"
    job = alice.ok("job.submit")["id"]
    for name in ("nnf", "nnf-undo"):
        text = alice.refused("hold.start", id=job, phase="completion", name=name)
        assert text.startswith(f"EPERM: name: {name!r} belongs to an action or a provider")
        declared = [{"phase": "completion", "name": name}]
        assert "belongs to an action or a provider" in alice.refused("job.submit", holds=declared)
    assert "EPERM" in carol.refused("hold.start", id=job, phase="epilog", name="dws")
    hold = carol.ok("hold.start", id=job, phase="epilog", name="nnf-undo", timeout="1h")
    assert (hold["owner"], hold["timeout"]) == ("provider:nnf", 3600)


def test_a_reload_takes_rights_away_at_once(bed: Bed, connect_as: As) -> None:
    """Who is no administrator any more sees and does no more than a guest, over an open connection too."""
    bed.action("undo", epilog="true")
    bed.table("[broker]", admins=["root", BOB])
    bed.start()
    bed.executor_answers()
    bob = connect_as(BOB)
    others = bob.ok("job.submit", userid=ALICE)["id"]
    bob.ok("job.watch")
    bob.ok("job.watch", id=others)
    reload_with(bed, "[broker]", admins=["root"])
    assert "EPERM" in bob.refused("broker.stats")
    assert "EPERM" in bob.refused("job.get", id=others)
    bob.ok("broker.ping")
    bob.notifications.clear()
    bed.call("job.memo", id=others, memo={"secret": 1})
    mine = bob.ok("job.submit")["id"]
    bob.ok("job.wait", id=mine, event="depend")
    assert {params["job"] for _, _, (params,) in bob.notifications} == {mine}
    reload_with(bed, "[broker]", admins=["root"], guests="none")
    bob.ok("broker.ping")
    bob.notifications.clear()
    bed.call("job.memo", id=mine, memo={"secret": 1})
    bob.ok("broker.ping")
    assert bob.notifications == []


def test_connections_of_a_user_are_counted(bed: Bed, connect_as: As) -> None:
    """One connection too many is told why and closed; other users and administrators have theirs."""
    bed.table("[limits]", connections_per_user=2)
    bed.start()
    first, second = connect_as(ALICE), connect_as(ALICE)
    for client in (first, second):
        client.ok("broker.ping")
    third = connect_as(ALICE)
    (kind, text), _ = third.call("broker.ping")
    assert (kind, text) == (1, f"EAGAIN: uid {ALICE} has 2 connections ([limits] connections-per-user)")
    assert third.rest() == []
    connect_as(BOB).ok("broker.ping")
    for _ in range(4):
        connect_as(os.geteuid()).ok("broker.ping")
    first.sock.close()
    second.ok("broker.ping")
    connect_as(ALICE).ok("broker.ping")


def test_one_user_cannot_take_up_all_jobs(bed: Bed, connect_as: As) -> None:
    """A user has a tenth of [limits] jobs; the rest is for others, and he has room again when one ends."""
    bed.table("[limits]", jobs=20)
    bed.start()
    alice, bob = connect_as(ALICE), connect_as(BOB)
    jobs = [alice.ok("job.submit")["id"] for _ in range(2)]
    text = f"EAGAIN: uid {ALICE} has 2 active jobs, the part of [limits] jobs that one user may have"
    assert alice.refused("job.submit") == text
    bob.ok("job.submit")
    bed.call("job.submit", userid=ALICE)
    alice.ok("job.cancel", id=jobs[0])
    alice.ok("job.cancel", id=jobs[1])
    alice.ok("job.submit")


def test_a_log_cannot_be_made_longer_for_ever(bed: Bed, connect_as: As) -> None:
    """At ten thousand events a user's memos and exceptions are refused; the job can still be canceled."""
    bed.start()
    alice = connect_as(ALICE)
    job = alice.ok("job.submit")["id"]
    memo = msgpack.packb([2, "job.memo", [{"id": job, "memo": {"a": 1}}]])
    for _ in range(100):
        alice.send(memo * 100)
        alice.ok("broker.ping")
    for method, arguments in (
        ("job.memo", {"memo": {"a": 2}}),
        ("job.raise", {"type": "x", "severity": 1}),
    ):
        text = alice.refused(method, id=job, **arguments)
        assert text.startswith(f"EAGAIN: the log of job {job} has 10000 events")
    bed.call("job.memo", id=job, memo={"a": 3})
    alice.ok("job.cancel", id=job)
    alice.ok("job.wait", id=job, event="clean")


@pytest.mark.parametrize("type_", ["timelimit", "prolog", "node", "exec", "finish", "timeout"])
def test_reserved_types_are_not_for_owners(bed: Bed, connect_as: As, type_: str) -> None:
    """An owner cannot make his job look as if the broker or the workload manager had ended it."""
    bed.start()
    alice = connect_as(ALICE)
    job = running(bed, alice)
    text = alice.refused("job.raise", id=job, type=type_, severity=0)
    assert text == f"EPERM: type: {type_!r} is reserved; owners may raise cancel and types of their own"
    assert bed.call("job.get", id=job)["exceptions"] == []
    bed.call("job.raise", id=job, type=type_, severity=0)
