"""Watches: each event once and in order, from now or from the past, whatever happens meanwhile."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgpack
import pytest
import trio
import trio.testing

from perilogd.rpc.connection import HIGH_MARK, Connection
from perilogd.rpc.method import USERS, Call, Method
from perilogd.rpc.params import NAME, SEQUENCE, Argument, Boolean, Integer, ListOf
from perilogd.rpc.watch import PAGE, Page, Watches
from rpc.helpers import PATIENCE, Client, Connect, Serve, Served


class Event(NamedTuple):
    """An event of the log."""

    seq: int
    job: int
    userid: int
    wall: float
    name: str
    context: bytes


class Log:
    """A journal in memory and its watches, with methods like the broker's.

    Attributes:
        events: what is committed; published up to `watches.published`.
        purged: purge has taken events up to this number, but for jobs that are `kept`.
        gone: jobs of which nothing is left.
        hold: while cleared, a page that was read is not handed over.
        reading: set when a page has been read.
        pages: how many have been.
    """

    def __init__(self, limit: int = 10) -> None:
        self.events: list[Event] = []
        self.purged = 0
        self.gone: set[int] = set()
        self.kept: set[int] = set()
        self.hold = threading.Event()
        self.hold.set()
        self.reading = threading.Event()
        self.pages = 0
        self.watches = Watches(
            read=self._read,
            purged_through=lambda job: self.purged if job is None or job in self.gone else 0,
            published=0,
            limit=limit,
        )
        self.served: Served

    def _read(self, page: Page) -> Sequence[Event]:
        due = [
            event
            for event in self.events[max(page.start, 1) - 1 :]
            if page.job in (None, event.job) and (event.seq > self.purged or event.job in self.kept)
        ]
        found = due[: page.limit]
        self.pages += 1
        self.reading.set()
        assert self.hold.wait(PATIENCE)
        return found

    def methods(self) -> tuple[Method, ...]:
        """Return `watch` and `cancel`."""
        return (
            Method(
                "watch",
                self._watch,
                (
                    Argument("id", Integer(1, 9), into="job"),
                    Argument("from", SEQUENCE, into="start"),
                    Argument("names", ListOf(NAME, 9)),
                    Argument("userid", Integer(0, 9)),
                    Argument("progress", Boolean()),
                ),
                roles=USERS,
                doc="Watch.",
                result="its id",
            ),
            Method(
                "cancel",
                lambda call, watch: self.watches.cancel(call.connection, watch),
                (Argument("watch", Integer(1, 99), required=True),),
                roles=USERS,
                doc="Cancel a watch.",
                result="nothing",
            ),
        )

    def _watch(self, call: Call, start: int | None = None, **filters: Any) -> int:
        return self.watches.open(call, start=self.next if start is None else start, **filters)

    @property
    def next(self) -> int:
        """The next event's number."""
        return len(self.events) + 1

    def commit(
        self, number: int = 1, *, job: int = 1, userid: int = 0, name: str = "memo", size: int = 0
    ) -> None:
        """Commit events."""
        for _ in range(number):
            context = msgpack.packb({"n": self.next, "padding": "x" * size})
            self.events.append(Event(self.next, job, userid, self.next + 0.5, name, context))

    def publish(self) -> None:
        """Publish what was committed, and send it."""
        self.watches.publish(self.events[self.watches.published :])
        self.served.server.flush()

    def add(self, number: int = 1, **kwargs: Any) -> None:
        """Commit and publish."""
        self.commit(number, **kwargs)
        self.publish()

    async def read_begun(self) -> None:
        """Wait until a page has been read and is held back."""
        with trio.fail_after(PATIENCE):
            await trio.to_thread.run_sync(self.reading.wait)
        self.reading.clear()


@pytest.fixture
async def log(serve: Serve) -> Log:
    """A log that is served."""
    made = Log()
    made.served = await serve(*made.methods())
    return made


async def numbers(client: Client, count: int) -> list[int]:
    """Return the sequence numbers of the next events; nothing else may come between."""
    found = []
    for _ in range(count):
        method, event = await client.notification()
        assert method == "event", event
        found.append(event["seq"])
    return found


async def until(condition: Callable[[], object]) -> None:
    """Wait for a condition that comes about by itself."""
    with trio.fail_after(PATIENCE):
        while not condition():
            await trio.testing.wait_all_tasks_blocked(0.001)


async def quiet(client: Client) -> None:
    """Check that nothing more is sent to a client: whatever would be comes before the reply to a ping."""
    await trio.testing.wait_all_tasks_blocked()
    assert await client.ok("ping") == "pong"
    assert list(client.notifications) == []


# Live


async def test_an_event_has_its_shape(log: Log, connect: Connect) -> None:
    """An event comes as the protocol says, its context as the journal has it."""
    client = connect(log.served)
    watch = await client.ok("watch")
    log.add(job=7, name="prolog-start", size=3)
    assert await client.message() == [
        2,
        "event",
        [
            {
                "watch": watch,
                "job": 7,
                "seq": 1,
                "timestamp": 1.5,
                "name": "prolog-start",
                "context": {"n": 1, "padding": "xxx"},
            }
        ],
    ]


async def test_now_means_after_the_request(log: Log, connect: Connect) -> None:
    """Without `from`, a watch tells what is appended after its request: all of it, and nothing before."""
    client = connect(log.served)
    log.add(5)
    log.commit(5)  # appended before the request, published after it
    await client.ok("watch")
    log.publish()
    log.add(5)
    assert await numbers(client, 5) == [11, 12, 13, 14, 15]
    assert log.pages == 0  # nothing was read for it


async def test_events_follow_the_reply(log: Log, connect: Connect) -> None:
    """The reply with the watch's id comes before its first event, however long the gate holds it back."""
    client = connect(log.served)
    log.served.gate.shut()
    await client.send(msgpack.packb([0, 5, "watch", [{}]]) + msgpack.packb([0, 6, "watch", [{"from": 0}]]))
    while len(log.served.gate.waiting) < 2:
        await trio.testing.wait_all_tasks_blocked()
    log.add(3)
    log.served.gate.open(log.served.server)
    first, second = await client.message(), await client.message()
    assert [first, second] == [[1, 5, None, 1], [1, 6, None, 2]]
    events = [await client.notification() for _ in range(6)]
    for watch in (1, 2):
        assert [event["seq"] for _, event in events if event["watch"] == watch] == [1, 2, 3]


async def test_all_watchers_get_an_event(log: Log, connect: Connect) -> None:
    """Each watch of each client gets each event under its own id."""
    clients = [connect(log.served) for _ in range(3)]
    ids = {client: {await client.ok("watch"), await client.ok("watch")} for client in clients}
    log.add()
    for client in clients:
        assert {(await client.notification())[1]["watch"] for _ in range(2)} == ids[client]


@pytest.mark.parametrize("start", [0, None])
async def test_filters(log: Log, connect: Connect, start: int | None) -> None:
    """Job, names and user select, both live and from the past."""
    wanted: dict[str, dict[str, Any]] = {
        "job": {"id": 2},
        "names": {"names": ["start", "exit"]},
        "user": {"userid": 2},
        "job and names": {"id": 2, "names": ["start"]},
        "job of others": {"id": 1, "userid": 2},
        "all": {},
    }
    clients = {}

    def happen() -> None:
        for n in range(13):
            job = n % 3 + 1
            log.commit(job=job, userid=min(job, 2), name="memo" if n % 3 == 1 else ("start", "exit")[n % 2])

    if start is not None:
        happen()
        log.publish()
    for name, arguments in wanted.items():
        clients[name] = connect(log.served)
        await clients[name].ok("watch", **arguments, **{"from": start})
    if start is None:
        happen()
        log.publish()
    for name, arguments in wanted.items():
        expected = [event.seq for event in log.events if _selected(event, arguments)]
        assert await numbers(clients[name], len(expected)) == expected, name
        await quiet(clients[name])


def _selected(event: Event, arguments: dict[str, Any]) -> bool:
    return (
        arguments.get("id", event.job) == event.job
        and event.name in arguments.get("names", [event.name])
        and arguments.get("userid", event.userid) == event.userid
    )


# From the past


async def test_a_watch_begins_in_the_past(log: Log, connect: Connect) -> None:
    """From any number on, `from` included, everything is told, over many pages; then it is live."""
    client = connect(log.served)
    log.add(3 * PAGE + 5)
    await client.ok("watch", **{"from": 10})
    assert await numbers(client, 3 * PAGE - 4) == list(range(10, 3 * PAGE + 6))
    await trio.testing.wait_all_tasks_blocked()
    pages = log.pages
    log.add(2)
    assert await numbers(client, 2) == [3 * PAGE + 6, 3 * PAGE + 7]
    assert log.pages == pages


async def test_resumption(log: Log, connect: Connect) -> None:
    """A reader that comes again from the number after its last misses nothing and gets nothing twice."""
    rng = random.Random(3)
    seen: list[int] = []
    while len(seen) < 1000:
        log.add(rng.randrange(60))
        client = connect(log.served)
        await client.ok("watch", **{"from": len(seen) + 1})
        log.add(rng.randrange(60))
        seen += await numbers(client, rng.randrange(log.next - len(seen)))
        client.close()
    assert seen == list(range(1, len(seen) + 1))


async def test_a_number_to_come(log: Log, connect: Connect) -> None:
    """A watch from a number that is not there yet waits for it."""
    client = connect(log.served)
    log.add(2)
    await client.ok("watch", **{"from": 6})
    log.add(6)
    assert await numbers(client, 3) == [6, 7, 8]


async def test_events_while_a_page_is_read(log: Log, connect: Connect) -> None:
    """What is committed and published while a page is being read is told once, and in order."""
    client = connect(log.served)
    log.add(4)
    log.hold.clear()
    await client.ok("watch", **{"from": 1})
    await log.read_begun()
    log.add(3)  # not in the page
    log.hold.set()
    assert await numbers(client, 7) == list(range(1, 8))
    log.add(1)
    assert await numbers(client, 1) == [8]


async def test_a_page_may_be_ahead_of_what_is_published(log: Log, connect: Connect) -> None:
    """What is read from the journal before it is published is not told again when it is."""
    client = connect(log.served)
    log.add(2)
    log.commit(3)
    await client.ok("watch", **{"from": 1})
    assert await numbers(client, 5) == [1, 2, 3, 4, 5]
    log.publish()
    log.add()
    assert await numbers(client, 1) == [6]
    await quiet(client)


@pytest.mark.parametrize("seed", range(4))
async def test_hand_over_under_load(log: Log, connect: Connect, seed: int) -> None:
    """While events come all the time, watches from anywhere get each event from there on, once, in order."""
    rng = random.Random(seed)
    log.add(1000)
    followers_begun = 0

    async def load() -> None:
        while followers_begun < 8:
            log.commit(rng.randrange(40), job=rng.randrange(1, 4))
            if rng.random() < 0.5:
                await trio.lowlevel.checkpoint()
            log.publish()
            await trio.lowlevel.checkpoint()
        for job in (1, 2, 3):
            log.add(job=job, name="end")

    async def follow(start: int, job: int | None) -> None:
        nonlocal followers_begun
        client = connect(log.served)
        await client.ok("watch", **{"from": start, "id": job})
        got = []
        while True:
            _, event = await client.notification()
            got.append(event["seq"])
            if len(got) == 20:
                followers_begun += 1
            if event["name"] == "end" and event["job"] == (job or 3):
                break
        assert got == [e.seq for e in log.events[start - 1 :] if job in (None, e.job)]

    async with trio.open_nursery() as nursery:
        nursery.start_soon(load)
        for job in (None, None, None, None, 1, 2, 2, 3):
            nursery.start_soon(follow, rng.randrange(1, log.next - 100), job)
            for _ in range(rng.randrange(20)):
                await trio.lowlevel.checkpoint()


# Readers that fall behind


async def test_a_slow_reader_falls_behind_alone(log: Log, connect: Connect) -> None:
    """A reader that stops reading keeps few bytes here and nothing from others, and misses no event."""
    slow, quick = connect(log.served), connect(log.served)
    watch = await slow.ok("watch")
    connection = next(each for each in log.served.server.connections.values() if each.watches)
    await quick.ok("watch")
    for n in range(500):
        log.add(4, size=1000)
        assert await numbers(quick, 4) == [4 * n + 1, 4 * n + 2, 4 * n + 3, 4 * n + 4]
        assert connection.buffered < HIGH_MARK + 5000
    assert not connection.watches[watch].live
    assert await numbers(slow, 2000) == list(range(1, 2001))
    log.add()
    assert await numbers(slow, 1) == [2001]


async def test_a_slow_reader_of_the_past_is_bounded(log: Log, connect: Connect) -> None:
    """A long past is read only as fast as the client takes it."""
    client = connect(log.served)
    log.add(5000, size=1000)
    await client.ok("watch", **{"from": 1})
    (connection,) = log.served.server.connections.values()
    await until(lambda: connection._waiting)
    assert connection.buffered < (PAGE + 10) * 1100 + HIGH_MARK
    assert log.pages < 10
    assert await numbers(client, 5000) == list(range(1, 5001))


async def test_a_large_commit_is_no_reason_to_fall_behind(log: Log, connect: Connect) -> None:
    """A reader that reads stays live although one commit brings more than the mark."""
    client = connect(log.served)
    await client.ok("watch")
    number = HIGH_MARK // 1000 + 50
    log.add(number, size=1000)
    assert await numbers(client, number) == list(range(1, number + 1))
    assert log.pages == 0


# Purge


async def test_a_gap_is_told(log: Log, connect: Connect) -> None:
    """What purge took of what is due is told before the first event, and told once."""
    client = connect(log.served)
    log.add(20)
    log.purged = 8
    watch = await client.ok("watch", **{"from": 3})
    assert await client.notification() == ("gap", {"watch": watch, "from": 3, "to": 8})
    assert await numbers(client, 12) == list(range(9, 21))
    log.purged = 20
    log.add()
    assert await numbers(client, 1) == [21]


async def test_a_gap_before_everything_is_none(log: Log, connect: Connect) -> None:
    """Nothing is told of a purge of what was not asked for."""
    client = connect(log.served)
    log.add(20)
    log.purged = 8
    await client.ok("watch", **{"from": 9})
    assert await numbers(client, 12) == list(range(9, 21))


async def test_a_gap_when_all_is_gone(log: Log, connect: Connect) -> None:
    """A gap is told also when nothing is left after it."""
    client = connect(log.served)
    log.add(20)
    log.purged = 20
    watch = await client.ok("watch", **{"from": 0})
    assert await client.notification() == ("gap", {"watch": watch, "from": 1, "to": 20})
    log.add()
    assert await numbers(client, 1) == [21]


async def test_a_purge_overtakes_a_slow_reader(log: Log, connect: Connect) -> None:
    """What purge takes while a reader is behind is told where it is missing."""
    client = connect(log.served)
    log.add(3000, size=1000)
    await client.ok("watch", **{"from": 1})
    (connection,) = log.served.server.connections.values()
    await until(lambda: connection._waiting)  # no page is being read
    log.purged = 2500
    due = 1
    gaps = []
    while due <= 3000:
        method, arguments = await client.notification()
        if method == "gap":
            gaps.append((arguments["from"], arguments["to"]))
            assert arguments["from"] == due
            due = arguments["to"] + 1
        else:
            assert arguments["seq"] == due
            due += 1
    assert len(gaps) == 1
    assert gaps[0][1] == 2500


async def test_a_gap_is_told_once_though_jobs_were_kept(log: Log, connect: Connect) -> None:
    """Purge takes whole jobs: events of those that it kept follow the gap, and it is not told again."""
    client = connect(log.served)
    for _ in range(3 * PAGE):
        log.commit(job=1)
        log.commit(job=2)
    log.publish()
    log.purged = 6 * PAGE - 4
    log.kept.add(2)
    watch = await client.ok("watch", **{"from": 1})
    assert await client.notification() == ("gap", {"watch": watch, "from": 1, "to": 6 * PAGE - 4})
    left = list(range(2, 6 * PAGE - 3, 2)) + list(range(6 * PAGE - 3, 6 * PAGE + 1))
    assert await numbers(client, len(left)) == left


async def test_a_jobs_watch_has_a_gap_only_with_its_job(log: Log, connect: Connect) -> None:
    """A watch of one job is told of purge if the job itself is gone, and of no other purge."""
    client = connect(log.served)
    log.add(6, job=1)
    log.add(6, job=2)
    log.purged = 6
    await client.ok("watch", id=2, **{"from": 0})
    assert await numbers(client, 6) == list(range(7, 13))
    log.gone.add(1)
    watch = await client.ok("watch", id=1, **{"from": 0})
    assert await client.notification() == ("gap", {"watch": watch, "from": 1, "to": 6})


# The end of a watch


async def test_cancel(log: Log, connect: Connect) -> None:
    """After the reply to its cancel a watch tells nothing; other watches go on."""
    client = connect(log.served)
    first, second = await client.ok("watch"), await client.ok("watch", id=1)
    log.add()
    assert await numbers(client, 2) == [1, 1]
    await client.ok("cancel", watch=second)
    log.add()
    assert (await client.notification())[1]["watch"] == first
    await client.ok("cancel", watch=first)
    log.add()
    await quiet(client)


async def test_cancel_while_behind(log: Log, connect: Connect) -> None:
    """A watch that is cancelled while a page is read for it tells nothing of that page."""
    client = connect(log.served)
    log.add(5)
    log.hold.clear()
    watch = await client.ok("watch", **{"from": 1})
    await log.read_begun()
    await client.ok("cancel", watch=watch)
    log.hold.set()
    await until(lambda: log.served.server.workers.borrowed_tokens == 0)
    await quiet(client)
    log.add()
    await quiet(client)


async def test_only_ones_own_watch_is_cancelled(log: Log, connect: Connect) -> None:
    """What is no watch of this connection is ENOENT."""
    client, other = connect(log.served), connect(log.served)
    watch = await other.ok("watch")
    for ident in (watch, 99):
        error, _ = await client.call("cancel", watch=ident)
        assert error == [1, f"ENOENT: this connection has no watch {ident}"]
    log.add()
    assert await numbers(other, 1) == [1]


async def test_watches_are_bounded(serve: Serve, connect: Connect) -> None:
    """A connection has so many watches and no more; a cancelled one makes room."""
    log = Log(limit=2)
    log.served = await serve(*log.methods())
    client = connect(log.served)
    first, _ = await client.ok("watch"), await client.ok("watch")
    error, _ = await client.call("watch")
    assert error == [1, "EAGAIN: this connection has 2 watches already ([limits] watches)"]
    await client.ok("cancel", watch=first)
    await client.ok("watch")


@pytest.mark.parametrize("start", [1, 100])
async def test_watches_end_with_their_connection(log: Log, connect: Connect, start: int) -> None:
    """Nothing is kept for a client that has gone, whether it was live or behind, and publishing goes on."""
    client, other = connect(log.served), connect(log.served)
    await other.ok("watch")
    log.add(5)
    log.hold.clear()
    await client.ok("watch", **{"from": start})
    await client.ok("watch", id=1, **{"from": start})
    client.close()
    await trio.testing.wait_all_tasks_blocked()
    log.add()
    log.hold.set()
    gone: Connection = await log.served.ended()
    log.watches.forget(gone)
    log.add()
    assert await numbers(other, 7) == list(range(1, 8))
    assert [*log.watches._live] == [("all", 0)]
    assert len(log.watches._live["all", 0]) == 1


async def test_half_closed_watchers_are_told_on(log: Log, connect: Connect) -> None:
    """A client that only listens any more is still told."""
    client = connect(log.served)
    await client.ok("watch")
    client.sock.shutdown(trio.socket.SHUT_WR)
    await trio.testing.wait_all_tasks_blocked()
    log.add(2)
    assert await numbers(client, 2) == [1, 2]
    client.close()
    await log.served.ended()


# Progress


async def test_progress(log: Log, connect: Connect) -> None:
    """Progress is told to those who want it and may see the job, without a number."""
    client = connect(log.served)
    wanted = [
        await client.ok("watch", progress=True),
        await client.ok("watch", progress=True, id=1),
        await client.ok("watch", progress=True, userid=5, names=["exit"]),
    ]
    await client.ok("watch")
    await client.ok("watch", progress=True, id=2)
    await client.ok("watch", progress=True, userid=6)
    log.watches.tell_progress(1, 5, {"phase": "prolog", "name": "x", "progress": 40})
    log.served.server.flush()
    told = [await client.notification() for _ in wanted]
    assert sorted(arguments["watch"] for _, arguments in told) == wanted
    assert told[0] == (
        "progress",
        {"watch": told[0][1]["watch"], "job": 1, "phase": "prolog", "name": "x", "progress": 40},
    )
    await quiet(client)


async def test_progress_is_dropped_for_who_is_behind(log: Log, connect: Connect) -> None:
    """A reader that is behind gets its events and no stale progress."""
    client = connect(log.served)
    log.add(5)
    log.hold.clear()
    await client.ok("watch", progress=True, **{"from": 1})
    await log.read_begun()
    log.watches.tell_progress(1, 0, {"progress": 40})
    log.served.server.flush()
    log.hold.set()
    assert await numbers(client, 5) == [1, 2, 3, 4, 5]
    await quiet(client)
