"""Clients that do not read: what they cost is bounded, and nobody else feels them."""

from __future__ import annotations

import socket

import msgpack
import trio
import trio.testing

from perilogd.rpc.connection import HIGH_MARK
from rpc.helpers import PATIENCE, Client, Connect, Served

FILL = 50_000
NUMBER = 1000
#: More than a socket holds.
REQUESTS = b"".join(
    msgpack.packb([0, n, "fill", [{"size": FILL, "padding": "x" * 1000}]]) for n in range(NUMBER)
)


async def send_until_stuck(client: Client) -> int:
    """Send requests until the server reads no more, and return how many bytes went."""
    sent = 0
    stuck = False
    with socket.fromfd(client.sock.fileno(), socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        while sent < len(REQUESTS):
            try:
                sent += sock.send(REQUESTS[sent:], socket.MSG_DONTWAIT)
                stuck = False
            except BlockingIOError:
                if stuck:
                    return sent
                # Once nothing runs any more and there is still no room, the server has stopped reading.
                await trio.testing.wait_all_tasks_blocked()
                stuck = True
    raise AssertionError("the server never stopped reading")


async def test_a_client_that_never_reads_is_bounded(served: Served, connect: Connect) -> None:
    """The requests of a client that takes no replies stay in the socket, and others are served as ever."""
    client, bystander = connect(served), connect(served)
    assert await bystander.ok("ping") == "pong"
    await send_until_stuck(client)
    hoarder = next(each for each in served.server.connections.values() if each.buffered)
    assert HIGH_MARK < hoarder.buffered < HIGH_MARK + 2 * FILL
    for _ in range(10):
        assert await bystander.ok("ping") == "pong"
    assert HIGH_MARK < hoarder.buffered < HIGH_MARK + 2 * FILL


async def test_a_client_that_reads_late_gets_everything(
    served: Served, connect: Connect, nursery: trio.Nursery
) -> None:
    """A client that reads at last gets every reply, whole and in order."""
    client = connect(served)
    sent = await send_until_stuck(client)
    nursery.start_soon(client.send, REQUESTS[sent:])
    for msgid in range(NUMBER):
        reply = await client.message()
        assert reply is not None
        assert (reply[:3], len(reply[3])) == ([1, msgid, None], FILL)


async def test_a_client_that_never_reads_can_go(served: Served, connect: Connect) -> None:
    """When a client that takes no replies is gone, so is all that was kept for it."""
    client = connect(served)
    await send_until_stuck(client)
    client.close()
    await served.ended()
    assert served.server.connections == {}


async def test_large_requests_come_in_while_others_are_served(
    served: Served, connect: Connect, nursery: trio.Nursery
) -> None:
    """Between the pieces of a large request everybody else is served."""
    client, bystander = connect(served), connect(served)
    assert await bystander.ok("ping") == "pong"
    done = trio.Event()

    async def send_large() -> None:
        for _ in range(5):
            assert await client.ok("take", text="x" * 1_000_000) == 1_000_000
        done.set()

    nursery.start_soon(send_large)
    served_meanwhile = 0
    with trio.fail_after(PATIENCE):
        while not done.is_set():
            assert await bystander.ok("ping") == "pong"
            served_meanwhile += 1
    assert served_meanwhile > 5
