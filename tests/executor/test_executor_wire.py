"""What is said to the executor: in any pieces, in any state, and whatever it is."""

from __future__ import annotations

import contextlib
from typing import Any

import msgpack
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from exec_bed import JOURNAL, ExecBed, Peer
from perilogd.executor import wire

RUN = wire.run_id(JOURNAL, 1, "prolog", 1, "a")

anything = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.binary()
    | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)
kinds = st.sampled_from(["hello", "run", "cancel", "signal", "ack", "output", "prepare", "commit", "keep"])
keys = st.sampled_from(["id", "ids", "tag", "limit", "signal", "reason", "config", "definitions", "journal"])
nearly_right = st.tuples(
    kinds, st.dictionaries(keys, st.just(RUN) | st.just([RUN]) | st.just("0" * 64) | anything, max_size=5)
)


@given(st.lists(st.tuples(st.text(max_size=8), st.dictionaries(st.text(max_size=4), st.integers(0, 9)))),
       st.lists(st.integers(1, 9), min_size=1))  # fmt: skip
def test_messages_are_the_same_in_whatever_pieces_they_come(
    messages: list[tuple[str, dict[str, int]]], sizes: list[int]
) -> None:
    """The decoder does not care where the stream is cut."""
    stream = b"".join(wire.encode(kind, body) for kind, body in messages)
    decoder = wire.Decoder(wire.REQUEST_LIMIT)
    found: list[tuple[str, dict[str, Any]]] = []
    turn = 0
    while stream:
        size = sizes[turn % len(sizes)]
        turn += 1
        found += decoder.feed(stream[:size])
        stream = stream[size:]
    assert found == messages


@pytest.mark.parametrize(
    "data",
    [
        msgpack.packb("text"),
        msgpack.packb(["hello"]),
        msgpack.packb(["hello", {}, 1]),
        msgpack.packb([b"hello", {}]),
        msgpack.packb(["hello", []]),
        msgpack.packb(["hello", {1: 2}]),
        b"\xc1",
        b"\x91" * 2000,
        b"\x92\xa1\xff\x80",
        b"\xdd\xff\xff\xff\xff",
        b"\x92\xa1x\xdf\xff\xff\xff\xff",
    ],
)
def test_what_is_no_message_is_refused(data: bytes) -> None:
    """Other shapes, other keys, broken encodings, depth and sizes beyond all bounds end the stream."""
    with pytest.raises(wire.WireError):
        list(wire.Decoder(wire.REQUEST_LIMIT).feed(data))


def test_a_message_beyond_the_limit_is_refused_before_it_is_whole() -> None:
    """Memory is bounded by the limit, however long a message claims to become."""
    decoder = wire.Decoder(1000)
    assert list(decoder.feed(b"\x92\xa1x\x81\xa1y\xc6\x00\x00\x03\x00")) == []
    assert list(decoder.feed(b"z" * 700)) == []
    with pytest.raises(wire.WireError, match="longer than this side reads"):
        list(decoder.feed(b"z" * 700))


def test_records_that_are_encoded_already_make_a_message() -> None:
    """An exits message of encoded records reads like one that was encoded as a whole."""
    records = [{"id": str(number)} for number in range(20)]
    data = wire.encode_exits(msgpack.packb(record) for record in records)
    assert list(wire.Decoder(wire.REPLY_LIMIT).feed(data)) == [("exits", {"records": records})]


@pytest.mark.parametrize(
    "text",
    ["", "x", "ab,1,prolog,1", "ab,1,depend,1,a", "ab,-1,prolog,1,a", "ab,1,prolog,1,a/..",
     "ab,1,prolog,1,../a", "ab,1,prolog,1,a\n", "ab,1,prolog,1,a,n1,n2", "ab,1,prolog,1," + "a" * 65,
     "ab,1,prolog,1,a,"],
)  # fmt: skip
def test_only_run_ids_are_run_ids(text: str) -> None:
    """Nothing passes for a run id that could not be the name of its files."""
    assert not wire.is_run_id(text)


@given(
    st.integers(0, 2**63 - 1), st.sampled_from(["prolog", "completion", "epilog"]), st.integers(0, 10**9 - 1),
    st.from_regex(r"[A-Za-z0-9._:@+-]{1,64}", fullmatch=True),
    st.just("") | st.from_regex(r"[A-Za-z0-9._-]{1,100}", fullmatch=True),
)  # fmt: skip
def test_every_run_has_an_id(job: int, phase: wire.ScriptPhase, attempt: int, action: str, node: str) -> None:
    """All that can be configured makes an id, and with any extension a file name."""
    run = wire.run_id("f" * 16, job, phase, attempt, action, node)
    assert wire.is_run_id(run)
    assert len(f"{run}.environment") <= 255


@pytest.mark.parametrize(
    ("kind", "body", "text"),
    [
        ("nonsense", {}, "unknown message type 'nonsense'"),
        ("hello", {"protocol": 2, "journal": JOURNAL}, "hello: protocol: expected 1"),
        ("hello", {"protocol": 1, "journal": "../x"}, "hello: journal"),
        ("cancel", {"id": "x", "reason": "r"}, "cancel: id: expected a run id, got 'x'"),
        ("cancel", {"id": RUN}, "cancel: reason: expected a string, got None"),
        ("signal", {"id": RUN, "signal": 0}, "signal: signal: expected a signal number from 1 to 64, got 0"),
        ("signal", {"id": RUN, "signal": 65}, "got 65"),
        ("signal", {"id": RUN, "signal": True}, "got True"),
        ("ack", {"ids": [RUN, 1]}, "ack: ids: expected a list of run ids"),
        ("output", {"tag": 1, "id": RUN, "limit": (1 << 20) + 1}, "output: limit"),
        ("output", {"tag": [], "id": RUN, "limit": 1}, "output: tag"),
        ("commit", {"config": "../../etc/passwd"}, "commit: config: expected a hash"),
        ("commit", {"config": "0" * 64}, "was not prepared"),
        ("keep", {"definitions": ["../x"]}, "keep: definitions: expected a list of hashes"),
        ("cancel", {"id": RUN.replace(JOURNAL, "other"), "reason": "r"}, "is not a run of journal"),
        ("ack", {"ids": [RUN.replace(JOURNAL, "other")]}, "is not a run of journal"),
    ],
)
def test_each_mistake_is_named_and_ends_the_connection(
    own_bed: ExecBed, kind: str, body: dict[str, Any], text: str
) -> None:
    """An error says what was wrong and what was expected; a new connection works, nothing has changed."""
    own_bed.action("a", "exit 0")
    peer = own_bed.start()
    peer.send(kind, **body)
    assert text in str(peer.closing_words())
    assert own_bed.connect().greet().hello["runs"] == []


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (
            {"id": wire.run_id(JOURNAL, 2, "prolog", 1, "a")},
            "does not agree with job, phase, attempt and action",
        ),
        ({"action": "b"}, "does not agree"),
        ({"phase": "depend"}, "does not agree"),
        ({"definition": "../../evil"}, "run: definition: expected a hash"),
        ({"userid": -1}, "run: userid: expected a uid"),
        ({"userid": 2**32 - 1}, "run: userid: expected a uid"),
        ({"variables": {"A B": "x"}}, "run: variables: expected a map of variables"),
        ({"variables": {"A": 1}}, "run: variables"),
        ({"variables": {"A=B": "x"}}, "run: variables"),
        ({"user_variables": []}, "run: user_variables"),
        ({"document": "text"}, "run: document: expected bytes"),
        ({"status": "0"}, "run: status: expected a wait status or nil"),
        ({"nodes": None}, "run: nodes: expected a string"),
    ],
)
def test_a_run_that_is_wrong_is_not_run(own_bed: ExecBed, change: dict[str, Any], text: str) -> None:
    """Each key of a run is checked; the refused run leaves no trace."""
    own_bed.action("a", f"touch {own_bed.folder}/begun")
    peer = own_bed.start()
    peer.say(("run", {**own_bed.order("a"), **change}))
    assert text in str(peer.closing_words())
    assert own_bed.connect().greet().hello["runs"] == []
    assert not (own_bed.folder / "begun").exists()


def test_hello_comes_first(own_bed: ExecBed) -> None:
    """Who has not said for which journal he speaks, can ask for nothing."""
    own_bed.action("a", "exit 0")
    own_bed.start()
    peer = own_bed.connect()
    peer.say(("run", own_bed.order("a")))
    assert "expected hello, got run" in str(peer.closing_words())


def test_the_newest_hello_wins(own_bed: ExecBed) -> None:
    """An older broker is told and closed; what it has sent after that has no effect."""
    own_bed.action("a", "exit 0")
    old = own_bed.start()
    new = own_bed.connect().greet()
    assert "another broker has said hello" in str(old.closing_words())
    assert new.record(own_bed.run(new, "a"))["outcome"] == "ok"


def test_unread_reports_do_not_hold_up_anybody(own_bed: ExecBed) -> None:
    """A broker that never reads is not read from beyond a bound; scripts and another broker feel nothing."""
    own_bed.action("a", "head -c 20000 /dev/zero | tr '\\0' x; exit 1", timeout="1h")
    peer = own_bed.start()
    run = own_bed.run(peer, "a")
    peer.record(run)
    question = wire.encode("output", {"tag": 1, "id": run, "limit": 1 << 20})
    peer.sock.setblocking(False)
    with contextlib.suppress(BlockingIOError):
        while peer.sock.send(question * 100):
            pass
    new = own_bed.connect().greet()
    assert new.record(own_bed.run(new, "a", job=2))["outcome"] == "failed"


def test_a_slow_half_message_holds_up_nobody(own_bed: ExecBed) -> None:
    """Bytes that never become a message wait, without any effect on others."""
    own_bed.action("a", "exit 0")
    own_bed.start()
    slow = own_bed.connect()
    slow.sock.sendall(b"\x92\xa5hel")
    peer = own_bed.connect().greet()
    assert peer.record(own_bed.run(peer, "a"))["outcome"] == "ok"
    slow.sock.sendall(wire.encode("hello", {"protocol": 1, "journal": JOURNAL})[5:])
    assert slow.next("hello")["protocol"] == 1


def test_connections_are_bounded(own_bed: ExecBed) -> None:
    """Connections beyond a few are closed at once; the broker's goes on."""
    own_bed.action("a", "exit 0")
    peer = own_bed.start()
    others = [own_bed.connect() for _ in range(20)]
    assert others[-1].closing_words() is None
    assert peer.record(own_bed.run(peer, "a"))["outcome"] == "ok"


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.binary(max_size=40) | st.builds(msgpack.packb, nearly_right | anything), max_size=6),
    st.booleans(),
)
def test_no_input_ends_the_executor_or_disturbs_a_run(
    fuzzed: Fuzzed, pieces: list[bytes], polite: bool
) -> None:
    """Whatever is sent, the executor answers the next broker, and the bystander's script still runs."""
    peer = fuzzed.bed.connect()
    if polite:
        peer.greet()
    peer.sock.sendall(b"".join(pieces))
    peer.sock.shutdown(1)
    peer.closing_words()
    new = fuzzed.bed.connect().greet("bystander")
    assert [entry["state"] for entry in new.hello["runs"]] == ["running"]
    peer.close()
    new.close()


class Fuzzed:
    """An executor with a bystander's script."""

    def __init__(self, bed: ExecBed) -> None:
        self.bed = bed
        bed.action("a", "exec sleep 1000")
        bed.start().close()
        bystander: Peer = bed.connect().greet("bystander")
        order = bed.order("a") | {"id": wire.run_id("bystander", 1, "prolog", 1, "a")}
        bystander.say(("run", order))
        bystander.started(order["id"])
        bystander.close()


@pytest.fixture
def fuzzed(own_bed: ExecBed) -> Fuzzed:
    """One executor for all that is tried on it."""
    return Fuzzed(own_bed)
