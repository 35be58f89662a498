"""Requests over a real socket: replies, refusals, broken frames, roles, limits, and how connections end."""

from __future__ import annotations

import contextlib
import os
import random
import resource
import select
import socket
import stat
from pathlib import Path
from typing import Any

import msgpack
import pytest
import trio
import trio.testing
from structlog.testing import capture_logs

from perilogd.errors import Refusal
from perilogd.rpc.connection import Standing
from perilogd.rpc.framing import FRAME_LIMIT
from perilogd.rpc.method import ADMIN, USERS, Call, Method
from perilogd.rpc.params import Argument, Boolean
from perilogd.rpc.server import listen
from rpc.helpers import PATIENCE, PING, PONG, Connect, Serve, Served, connected

pack = msgpack.packb


def method(name: str, handler: Any, *arguments: Argument, roles: Any = USERS) -> Method:
    """Return a method for a test."""
    return Method(name, handler, arguments, roles=roles, doc="", result="")


# Requests


async def test_a_request_gets_its_reply(served: Served, connect: Connect) -> None:
    """A request is answered under its id, with the handler's result."""
    client = connect(served)
    for msgid in (0, 7, 2**32 - 1):
        await client.send(pack([0, msgid, "note", [{"id": 17, "from": 3, "name": "x"}]]))
        result = {"uid": os.getuid(), "job": 17, "from_": 3, "name": "x"}
        assert await client.message() == [1, msgid, None, result]


async def test_method_names_may_be_bin(served: Served, connect: Connect) -> None:
    """Old clients send method names as bin."""
    client = connect(served)
    await client.send(pack([0, 7, b"ping", []]))
    assert await client.message() == PONG
    await client.send(pack([0, 8, b"p\xff", []]))
    assert await client.message() == [
        1,
        8,
        [1, "EINVAL: no such method: p\\xff; broker.methods lists them"],
        None,
    ]


async def test_unknown_methods_are_refused(served: Served, connect: Connect) -> None:
    """An unknown method is EINVAL with its name, shortened and printable, and the connection goes on."""
    client = connect(served)
    assert await client.call("job.got") == (
        [1, "EINVAL: no such method: job.got; broker.methods lists them"],
        None,
    )
    for name in ("x" * 10_000, "a\nb\0"):
        error, _ = await client.call(name)
        assert error[1].startswith("EINVAL: no such method: '")
        assert error[1].isprintable()
        assert len(error[1]) < 200
    assert await client.ok("ping") == "pong"


async def test_bad_arguments_are_refused(served: Served, connect: Connect) -> None:
    """Wrong arguments are EINVAL, the method does not run, and the connection goes on."""
    client = connect(served)
    for arguments, text in (
        ({}, "note: argument id is missing, expected an integer from 1 to"),
        ({"id": "x"}, "note: argument id is 'x', expected"),
        ({"id": 1, "nid": 1}, "note: argument nid is unknown, expected only these: id, from, name, holds"),
        ({"id": 1, "holds": [{}, {"phase": 5}]}, "note: argument holds[0].phase is missing, expected"),
    ):
        (kind, found), _ = await client.call("note", **arguments)
        assert (kind, found[: len(text) + 8]) == (1, f"EINVAL: {text}")
    await client.send(pack([0, 7, "note", [1]]))
    assert (await client.message())[2][1].startswith("EINVAL: note: params must hold one map")  # type: ignore[index]
    assert served.seen == []
    assert await client.ok("ping") == "pong"


async def test_refusals_have_their_kind(serve: Serve, connect: Connect) -> None:
    """Kind 1 says that the request is at fault, kind 0 that the broker is."""

    def refuse(_: Call, full: bool) -> None:
        raise Refusal("ENOSPC", "no room") if full else Refusal("ENOENT", "no such job: 17")

    served = await serve(method("refuse", refuse, Argument("full", Boolean(), required=True)))
    client = connect(served)
    assert await client.call("refuse", full=False) == ([1, "ENOENT: no such job: 17"], None)
    assert await client.call("refuse", full=True) == ([0, "ENOSPC: no room"], None)


async def test_unknown_notifications_are_ignored(served: Served, connect: Connect) -> None:
    """A notification of no method is ignored, whatever its params."""
    client = connect(served)
    params: Any
    for params in ([], [{"a": 1}], [1, 2], 42, None, "x", {"a": {}}):
        await client.send(pack([2, "nvim_ui_attach", params]) + pack([2, b"x", params]))
    assert await client.ok("ping") == "pong"
    assert not client.notifications


async def test_known_notifications_run_without_reply(served: Served, connect: Connect) -> None:
    """A notification of a method runs it; neither a result nor a refusal comes back."""
    client = connect(served)
    await client.send(pack([2, "note", [{"id": 5}]]) + pack([2, "note", [{}]]) + pack([2, "hang", []]) + PING)
    assert await client.message() == PONG
    assert served.seen == [{"job": 5}]


async def test_a_pipeline_is_answered_in_order(served: Served, connect: Connect) -> None:
    """All requests that came in together are answered, in order."""
    client = connect(served)
    await client.send(b"".join(pack([0, n, "ping", []]) for n in range(200)))
    for n in range(200):
        assert await client.message() == [1, n, None, "pong"]


async def test_slow_frames_are_served(served: Served, connect: Connect) -> None:
    """A request that comes byte by byte is served, and nobody waits for it."""
    slow, quick = connect(served), connect(served)
    for byte in pack([0, 7, "note", [{"id": 17}]]):
        await slow.send(bytes([byte]))
        assert await quick.ok("ping") == "pong"
    assert (await slow.message())[3]["job"] == 17  # type: ignore[index]


# The gate


async def test_replies_wait_for_the_gate(served: Served, connect: Connect) -> None:
    """Replies, refusals and reads too, leave in order when the gate opens, as they were when asked for."""
    client, other = connect(served), connect(served)
    served.gate.shut()
    await client.send(pack([0, 1, "note", [{"id": 1}]]) + pack([0, 2, "note", []]) + pack([0, 3, "ping", []]))
    with trio.fail_after(PATIENCE):
        await served.gate.waited.wait()
    await other.send(PING)
    while len(served.gate.waiting) < 4:
        await trio.testing.wait_all_tasks_blocked()
    readable, _, _ = select.select([client.sock, other.sock], [], [], 0)
    assert readable == []
    served.gate.open(served.server)
    assert [(await client.message())[1] for _ in range(3)] == [1, 2, 3]  # type: ignore[index]
    assert await other.message() == PONG


async def test_the_gate_bounds_a_pipeline(serve: Serve, connect: Connect) -> None:
    """While nothing leaves, a client's requests are read up to the limit and then left in the socket."""
    served = await serve(requests=10)
    client = connect(served)
    served.gate.shut()
    await client.send(PING * 500)
    await trio.testing.wait_all_tasks_blocked()
    assert len(served.gate.waiting) == 10
    served.gate.open(served.server)
    for _ in range(500):
        assert await client.message() == PONG


# What breaks the protocol


def nested(depth: int) -> list[Any]:
    """Return arrays in arrays."""
    return [nested(depth - 1)] if depth > 1 else []


BROKEN_REQUESTS = {
    "too short": [0, 7, "ping"],
    "too long": [0, 7, "ping", [], 1],
    "method is no text": [0, 7, 5, []],
    "method is nil": [0, 7, None, []],
    "params are a map": [0, 7, "ping", {}],
    "params are nil": [0, 7, "nope", None],
    "too deep": [0, 7, "ping", nested(32)],
    "extension": [0, 7, "ping", [{"a": msgpack.ExtType(1, b"x")}]],
    "timestamp": [0, 7, "ping", [{"a": msgpack.Timestamp(1)}]],
    "key is an integer": [0, 7, "ping", [{1: 2}]],
    "key is bin": [0, 7, "ping", [{b"id": 2}]],
    "too large": [0, 7, "ping", [{"a": "x" * FRAME_LIMIT}]],
    "too many values": [0, 7, "ping", [[None] * 100_000]],
}

BROKEN_MESSAGES = {
    "reply": [1, 7, None, None],
    "no such type": [3, 7, "ping", []],
    "type is true": [True, 7, "ping", []],
    "type is false": [False, 7, "ping", []],
    "type is a float": [0.0, 7, "ping", []],
    "empty": [],
    "id is negative": [0, -1, "ping", []],
    "id is too large": [0, 1 << 32, "ping", []],
    "id is text": [0, "7", "ping", []],
    "id is true": [0, True, "ping", []],
    "id is a float": [0, 7.0, "ping", []],
    "id is missing": [0],
    "notification too short": [2, "ping"],
    "notification too long": [2, "ping", [], []],
    "notification of no text": [2, 5, []],
    "notification of a method, params no array": [2, "ping", {}],
    "integer": 5,
    "map": {"method": "ping"},
}


@pytest.mark.parametrize("broken", BROKEN_REQUESTS.values(), ids=BROKEN_REQUESTS)
async def test_broken_requests_get_eproto(served: Served, connect: Connect, broken: Any) -> None:
    """A broken request with an id gets an EPROTO reply after those before it; then the connection ends."""
    client, bystander = connect(served), connect(served)
    await client.send(PING + pack(broken))
    first, *rest = await client.rest()
    assert first == PONG
    ((_, msgid, (kind, text), result),) = rest
    assert (msgid, kind, result) == (7, 1, None)
    assert text.startswith("EPROTO: ")
    assert await bystander.ok("ping") == "pong"


@pytest.mark.parametrize("broken", BROKEN_MESSAGES.values(), ids=BROKEN_MESSAGES)
async def test_broken_messages_end_the_connection(served: Served, connect: Connect, broken: Any) -> None:
    """A broken message without an id ends the connection, after the replies before it, none after it."""
    client, bystander = connect(served), connect(served)
    await client.send(PING + pack(broken) + pack([0, 8, "note", [{"id": 1}]]))
    assert await client.rest() == [PONG]
    assert served.seen == []
    assert await bystander.ok("ping") == "pong"


async def test_noise_harms_nobody(served: Served, connect: Connect) -> None:
    """Clients that send any bytes at all end themselves only."""
    rng = random.Random(7)
    bystander = connect(served)
    seeds = [PING, b"GET / HTTP/1.1\r\n\r\n", pack([0, 1, "note", [{"id": 1, "holds": [{"phase": "x"}]}]])]
    for _ in range(300):
        noise = bytearray(rng.choice(seeds))
        for _ in range(rng.randrange(4)):
            noise[rng.randrange(len(noise))] = rng.randrange(256)
        client = connect(served)
        await client.send(bytes(noise) + rng.randbytes(rng.randrange(20)))
        client.sock.shutdown(socket.SHUT_WR)
        for message in await client.rest():
            assert message[0] == 1
        client.close()
        assert await bystander.ok("ping") == "pong"


async def test_eproto_waits_for_the_journal(served: Served, connect: Connect) -> None:
    """Replies that wait for the journal when the client breaks the protocol still reach it, EPROTO last."""
    client = connect(served)
    served.gate.shut()
    await client.send(pack([0, 1, "note", [{"id": 1}]]) + pack([0, 2, "ping"]))
    while len(served.gate.waiting) < 2:
        await trio.testing.wait_all_tasks_blocked()
    served.gate.open(served.server)
    assert [(message[1], message[2] and message[2][1][:6]) for message in await client.rest()] == [
        (1, None),
        (2, "EPROTO"),
    ]


async def test_a_client_that_still_sends_is_told_what_is_wrong(served: Served, connect: Connect) -> None:
    """A client in the middle of a frame that is too large can send it, and then reads what was wrong."""
    client = connect(served)
    await client.send(b"\x94\x00\x07\xa4ping\x91\x81\xa1a\xdb\x00\x80\x00\x00")
    await client.send(b"x" * (1 << 23))
    ((_, msgid, (_, text), _),) = await client.rest()
    assert msgid == 7
    assert text == f"EPROTO: the frame is larger than {FRAME_LIMIT} bytes, the most that is accepted"


async def test_eproto_ends_what_waits(served: Served, connect: Connect) -> None:
    """Requests that wait are cancelled when their client breaks the protocol."""
    client = connect(served)
    await client.send(pack([0, 1, "hang", []]) + pack([0, 2, "ping"]))
    assert [message[1] for message in await client.rest()] == [2]
    with trio.fail_after(PATIENCE):
        await served.cancelled.wait()


# Who calls


async def test_roles_decide(serve: Serve, connect: Connect) -> None:
    """A method is for its roles only; the refusal comes before any look at the arguments."""
    served = await serve(method("admin", lambda _: True, roles=ADMIN))
    served.uid_standing = Standing("guest")
    client = connect(served)
    uid = os.getuid()
    error, _ = await client.call("admin", nonsense=1)
    assert error == [1, f"EPERM: admin is for admin; uid {uid} is guest"]
    served.uid_standing = Standing("admin")
    assert (await client.call("admin"))[0][1].startswith("EPERM")
    served.server.renew()
    assert await client.ok("admin") is True


async def test_hello_binds(served: Served, connect: Connect) -> None:
    """Hello tells who the client is to the broker, and binds the connection to a provider."""
    client = connect(served)
    reply = await client.ok("hello", client="test", provider="dws")
    (connection,) = served.hellos
    assert reply == {
        "protocol": 1,
        "version": "1.2",
        "uid": os.getuid(),
        "role": "admin",
        "id": connection.id,
    }
    assert (connection.client, connection.provider) == ("test", "dws")
    await client.ok("hello", client="again")
    assert (connection.client, connection.provider) == ("again", "dws")


async def test_hello_for_somebody_else_is_refused(served: Served, connect: Connect) -> None:
    """A uid speaks only for providers that are its own, and a connection for one provider."""
    client = connect(served)
    error, _ = await client.call("hello", client="test", provider="nnf")
    assert error == [1, f"EPERM: uid {os.getuid()} may not speak for provider nnf ([[provider]] users)"]
    assert served.hellos == []
    await client.ok("hello", client="test", provider="dws")
    served.uid_standing = Standing("provider", frozenset({"dws", "nnf"}))
    served.server.renew()
    error, _ = await client.call("hello", client="test", provider="nnf")
    assert error == [1, "EINVAL: argument provider: this connection speaks for dws"]


# Requests that take time


async def test_waiting_requests_keep_nobody_waiting(serve: Serve, connect: Connect) -> None:
    """A request that takes time leaves its connection free; its reply comes when it is done, or refused."""
    done = trio.Event()

    async def wait(_: Call, refuse: bool) -> str:
        await done.wait()
        if refuse:
            raise Refusal("ETIMEDOUT", "too late")
        return "done"

    served = await serve(method("wait", wait, Argument("refuse", Boolean(), required=True)))
    client = connect(served)
    for msgid, refuse in ((1, False), (2, True)):
        await client.send(pack([0, msgid, "wait", [{"refuse": refuse}]]))
    await client.send(PING)
    assert await client.message() == PONG
    done.set()
    replies = sorted([await client.message(), await client.message()], key=str)
    assert replies == [[1, 1, None, "done"], [1, 2, [1, "ETIMEDOUT: too late"], None]]


async def test_waiting_requests_end_with_their_client(served: Served, connect: Connect) -> None:
    """A request that takes time is cancelled when its client goes, and the broker is told that it went."""
    client = connect(served)
    await client.send(pack([0, 1, "hang", []]))
    with trio.fail_after(PATIENCE):
        await served.begun.wait()
    (connection,) = served.server.connections.values()
    client.close()
    assert await served.ended() is connection
    assert served.cancelled.is_set()
    assert served.server.connections == {}


async def test_waiting_requests_are_bounded(serve: Serve, connect: Connect) -> None:
    """One more waiting request than allowed is EAGAIN and not begun; others are served as ever."""
    served = await serve(requests=3)
    client = connect(served)
    await client.send(b"".join(pack([0, n, "hang", []]) for n in range(5)))
    for msgid in (3, 4):
        text = "EAGAIN: 3 requests of this client wait already ([limits] requests)"
        assert await client.message() == [1, msgid, [1, text], None]
    assert await client.ok("ping") == "pong"


# How connections end


async def test_half_closed_clients_get_their_replies(serve: Serve, connect: Connect) -> None:
    """A client that has stopped sending still gets every reply, those that take time too; then the end."""
    done = trio.Event()

    async def wait(_: Call) -> str:
        await done.wait()
        return "done"

    served = await serve(method("wait", wait))
    client = connect(served)
    served.gate.shut()
    await client.send(pack([0, 1, "wait", []]) + pack([0, 2, "fill", [{"size": 2_000_000}]]))
    client.sock.shutdown(socket.SHUT_WR)
    await trio.testing.wait_all_tasks_blocked()
    served.gate.open(served.server)
    second = await client.message()
    assert second is not None
    assert (second[1], len(second[3])) == (2, 2_000_000)
    done.set()
    assert await client.rest() == [[1, 1, None, "done"]]
    await served.ended()


async def test_half_closed_clients_can_still_go(served: Served, connect: Connect) -> None:
    """When a client that has stopped sending is gone for good, its waiting requests are cancelled."""
    client = connect(served)
    await client.send(pack([0, 1, "hang", []]))
    client.sock.shutdown(socket.SHUT_WR)
    await trio.testing.wait_all_tasks_blocked()
    assert served.begun.is_set()
    assert not served.cancelled.is_set()
    client.close()
    await served.ended()
    assert served.cancelled.is_set()


async def test_requests_of_a_client_that_went_are_done(served: Served, connect: Connect) -> None:
    """What a client sent just before it went is done, though nobody waits for the reply."""
    client = connect(served)
    await client.send(pack([2, "note", [{"id": 1}]]) + pack([0, 1, "note", [{"id": 2}]]))
    client.close()
    await served.ended()
    assert served.seen == [{"job": 1}, {"job": 2}]


async def test_clients_that_go_without_reading_harm_nobody(served: Served, connect: Connect) -> None:
    """A client that goes while its replies are on their way (EPIPE, ECONNRESET) ends alone."""
    bystander = connect(served)
    for size in (10, 100_000, 10_000_000):
        client = connect(served)
        await client.send(pack([0, 1, "fill", [{"size": size}]]) * 3)
        client.close()
        await served.ended()
    assert await bystander.ok("ping") == "pong"


async def test_the_brokers_own_end_is_not_the_clients(folder: Path) -> None:
    """When the server is cancelled no client has gone: it may come back to the next broker."""
    async with trio.open_nursery() as nursery:
        served = Served(folder / "sock")
        await nursery.start(served.run)
        client = served.client()
        assert await client.ok("ping") == "pong"
        nursery.cancel_scope.cancel()
    assert await client.message() is None
    client.close()
    with pytest.raises(trio.WouldBlock):
        served.closed.receive_nowait()


async def test_a_fault_of_the_broker_ends_it(folder: Path) -> None:
    """An exception that is no refusal is not swallowed."""
    served = Served(folder / "sock", method("fault", lambda _: 1 // 0))
    with pytest.RaisesGroup(ZeroDivisionError, flatten_subgroups=True), trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery:
            await nursery.start(served.run)
            client = served.client()
            await client.send(pack([0, 1, "fault", []]))
            await trio.sleep_forever()
    client.close()


# Limits of connections


async def test_connections_of_a_uid_are_bounded(serve: Serve, connect: Connect) -> None:
    """One connection more than a uid may have is told why; when another ends, there is room again."""
    served = await serve(connections=2)
    served.uid_standing = Standing("guest")
    first, second, third = connect(served), connect(served), connect(served)
    for client in (first, second):
        assert await client.ok("ping") == "pong"
    await third.send(PING)
    text = f"EAGAIN: uid {os.getuid()} has 2 connections ([limits] connections-per-user)"
    assert await third.rest() == [[1, 7, [1, text], None]]
    first.close()
    await served.ended()
    assert await connect(served).ok("ping") == "pong"


async def test_administrators_may_have_more_connections(serve: Serve, connect: Connect) -> None:
    """The bound is not for administrators."""
    served = await serve(connections=1)
    for client in [connect(served) for _ in range(5)]:
        assert await client.ok("ping") == "pong"


async def test_many_silent_connections_too_many_are_dropped(serve: Serve, connect: Connect) -> None:
    """Connections beyond the bound take up no room, whether they say something, nonsense or nothing."""
    served = await serve(connections=1)
    served.uid_standing = Standing("guest")
    first = connect(served)
    assert await first.ok("ping") == "pong"
    surplus = [connect(served) for _ in range(80)]
    with contextlib.suppress(OSError):
        await surplus[0].send(b"\xc1")
    for client in surplus:
        with contextlib.suppress(ConnectionResetError):
            assert await client.rest() == []
    assert await first.ok("ping") == "pong"
    assert len(served.server.connections) == 1


async def test_running_out_of_descriptors_is_survived(served: Served, connect: Connect) -> None:
    """Without file descriptors new clients wait while the others are served; then they are, too."""
    first = connect(served)
    assert await first.ok("ping") == "pong"
    late = socket.socket(socket.AF_UNIX)  # has its descriptor while there are any
    lowest_free = os.dup(late.fileno())
    os.close(lowest_free)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with capture_logs() as logs:
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest_free, hard))
        try:
            late.connect(os.fspath(served.path))
            await trio.testing.wait_all_tasks_blocked()
            assert await first.ok("ping") == "pong"
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert [(entry["log_level"], entry["error"]) for entry in logs] == [("warning", "Too many open files")]
    with late:
        late.setblocking(False)
        late.send(PING)
        with trio.fail_after(PATIENCE):
            await trio.lowlevel.wait_readable(late)
        assert msgpack.unpackb(late.recv(100)) == PONG


# The listening socket


def test_everybody_may_connect(folder: Path) -> None:
    """Any user may connect to the socket: what he may do is decided by his role."""
    path = folder / "sock"
    with listen(path), connected(path):
        assert stat.S_IMODE(path.stat().st_mode) == 0o666


def test_a_dead_socket_is_replaced(folder: Path) -> None:
    """The socket file of a broker that was killed does not keep the next one from starting."""
    path = folder / "sock"
    listen(path).close()
    assert path.is_socket()
    with listen(path), connected(path):
        pass


def test_a_live_socket_is_left_alone(folder: Path) -> None:
    """Neither another broker's socket, busy or not, nor a file that is none is taken away."""
    path = folder / "sock"
    with listen(path) as other:
        with pytest.raises(FileExistsError, match="another process listens there"):
            listen(path)
        other.listen(0)  # the attempt above waits to be accepted, and there is no room for another one
        with pytest.raises(FileExistsError, match="another process listens there"):
            listen(path)
    path.unlink()
    path.write_text("precious")
    with pytest.raises(FileExistsError, match="it is no socket"):
        listen(path)
    assert path.read_text() == "precious"
