"""Bytes to messages: whatever comes in, and however it is cut."""

from __future__ import annotations

import random
import struct
import tracemalloc
from itertools import pairwise
from typing import Any

import msgpack
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from perilogd.rpc import framing
from perilogd.rpc.framing import DEPTH_LIMIT, FRAME_LIMIT, VALUE_LIMIT, Decoder, FrameError

REQUEST = msgpack.packb([0, 7, "job.get", [{"id": 17}]])

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False)
    | st.text(max_size=40)
    | st.binary(max_size=300)
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=20) | st.dictionaries(st.text(max_size=8), inner, max_size=20),
    max_leaves=30,
)
#: Bytes that mean something to MessagePack, so that random frames get further than their first byte.
HEADERS = st.sampled_from(
    (
        b"\x94\x00\x05 \x80 \x90 \x91 \x81\xa1a \x81\x01 \xdc\x00\x02 \xdd\x00\x00\x00\x01 \xde\x00\x01 "
        b"\xc1 \xa2\xff\xfe \xd9\x02\xff \xc6\x7f\xff\xff\xff \xc7\x00 \xd4\x01\x02 \xd6\xff\x00\x00\x00\x01"
    ).split(b" ")
)
PIECES = HEADERS | st.sampled_from([b"\x91" * 40, REQUEST]) | st.binary(max_size=12)


def run(pieces: list[bytes], limit: int = FRAME_LIMIT) -> tuple[list[Any], tuple[int | None, str] | None]:
    """Return the messages of a stream that comes in pieces, and the error that ended it."""
    decoder = Decoder(limit)
    messages = []
    try:
        for piece in pieces:
            for message in decoder.feed(piece):
                messages.append(message)  # noqa: PERF402 - those before an error count
    except FrameError as error:
        return messages, (error.msgid, error.text)
    return messages, None


def cut(data: bytes, places: list[int]) -> list[bytes]:
    """Return data in pieces."""
    borders = sorted({0, len(data), *(place % (len(data) + 1) for place in places)})
    return [data[a:b] for a, b in pairwise(borders)]


def error(data: bytes) -> tuple[int | None, str]:
    """Return the error that a stream ends with, the same whether it comes whole or byte by byte."""
    whole = run([data])
    assert run([bytes([byte]) for byte in data]) == whole
    assert whole[1] is not None
    return whole[1]


@settings(max_examples=150, deadline=None)
@given(st.lists(VALUES, min_size=1, max_size=5), st.lists(st.integers(0, 1 << 20), max_size=30))
def test_what_was_packed_comes_out_however_it_is_cut(values: list[Any], places: list[int]) -> None:
    """Sound messages come out as they went in, wherever the bytes are cut."""
    data = b"".join(map(msgpack.packb, values))
    assert run(cut(data, places)) == (values, None)
    assert run([bytes([byte]) for byte in data]) == (values, None)


@settings(max_examples=500, deadline=None)
@given(
    st.lists(PIECES, max_size=20),
    st.lists(st.integers(0, 1 << 20), max_size=20),
    st.sampled_from([24, 100, FRAME_LIMIT]),
)
@example([b"\x94\x00\x05\xa1x\x91\xd6\xff\x00\x00\x00\x01"], [], FRAME_LIMIT)
@example([b"\x91\xd7\xff\xff\xff\xff\xff\x00\x00\x00\x00"], [], FRAME_LIMIT)
def test_noise_gives_one_result_however_it_is_cut(noise: list[bytes], places: list[int], limit: int) -> None:
    """Any bytes at all give messages and perhaps a FrameError, the same ones wherever they are cut."""
    data = b"".join(noise)
    whole = run([data], limit)
    assert run(cut(data, places), limit) == whole
    assert run([bytes([byte]) for byte in data], limit) == whole


@settings(max_examples=300, deadline=None)
@given(VALUES, st.data())
def test_a_changed_byte_is_borne(value: Any, data: st.DataObject) -> None:
    """A sound frame with one byte changed gives the same result whole and byte by byte."""
    frame = bytearray(msgpack.packb(value))
    frame[data.draw(st.integers(0, len(frame) - 1))] = data.draw(st.integers(0, 255))
    frame += REQUEST
    # As text, in which a NaN is the same as itself.
    assert repr(run([bytes(frame)])) == repr(run([bytes([byte]) for byte in frame]))


def test_messages_before_a_bad_one_are_delivered() -> None:
    """What came before a bad frame in the same bytes is not lost."""
    messages, failure = run([REQUEST + REQUEST + b"\xc1"])
    assert messages == [msgpack.unpackb(REQUEST)] * 2
    assert failure is not None


def test_nesting_is_bounded_exactly() -> None:
    """Nesting of 32 is accepted, in a small frame and a large one; 33 is not."""
    for padding in ("", "x" * 20_000):
        for depth in (DEPTH_LIMIT, DEPTH_LIMIT + 1):
            inner: Any = []
            for _ in range(depth - 2):
                inner = [inner]
            frame = msgpack.packb([padding, inner])
            if depth == DEPTH_LIMIT:
                assert run([frame]) == ([[padding, inner]], None)
            else:
                assert "nested deeper than 32" in error(frame)[1]


def test_a_map_counts_as_nesting_even_if_empty() -> None:
    """An empty map at depth 33 is one too deep."""
    assert "nested deeper" in error(b"\x91" * 32 + b"\x80")[1]


@pytest.mark.parametrize(
    "extension",
    [
        msgpack.packb(msgpack.ExtType(5, b"ab")),
        msgpack.packb(msgpack.ExtType(5, b"")),
        msgpack.packb(msgpack.ExtType(5, b"x" * 70_000)),
        msgpack.packb(msgpack.Timestamp(1, 2)),
    ],
)
def test_extension_types_are_refused(extension: bytes) -> None:
    """No extension type is understood, timestamps included; the request's id is still told."""
    msgid, text = error(b"\x94\x00\x09\xa1x\x91\x81\xa1a" + extension)
    assert msgid == 9
    assert "extension type" in text


def test_keys_must_be_text() -> None:
    """A key that is an integer, bin, nil or an array is refused."""
    for key in (b"\x01", b"\xc4\x01a", b"\xc0", b"\x90"):
        msgid, text = error(b"\x94\x00\x09\xa1x\x91\x81" + key + b"\x01")
        assert msgid == 9
        assert "key is not text" in text


def test_text_must_be_utf8() -> None:
    """Text that is no UTF-8 is refused, and says what to send instead."""
    msgid, text = error(b"\x94\x00\x09\xa1x\x91\x81\xa1a\xa2\xff\xfe")
    assert msgid == 9
    assert "UTF-8" in text
    assert "bin" in text


def test_the_unused_byte_is_refused() -> None:
    """0xc1 is no MessagePack."""
    assert "0xc1 is not MessagePack" in error(b"\xc1")[1]


def test_a_frame_of_just_the_limit_is_accepted() -> None:
    """The frame limit is exact, and says how much is accepted."""
    head = b"\x94\x00\x09\xa1x\x91\x81\xa1a"
    for size, fits in ((FRAME_LIMIT, True), (FRAME_LIMIT + 1, False)):
        body = struct.pack(">BI", 0xDB, size - len(head) - 5) + b"y" * (size - len(head) - 5)
        messages, failure = run(cut(head + body, list(range(0, size, 16384))))
        assert (failure is None) is fits
        assert len(messages) == fits
    assert failure == (9, "the frame is larger than 1048576 bytes, the most that is accepted")


def test_the_limit_counts_for_each_frame() -> None:
    """Any number of frames may come in at once: the limit is for one."""
    frame = msgpack.packb([0, 1, "x", [{"a": "y" * 50}]])
    assert run([frame * 100], limit=len(frame)) == ([msgpack.unpackb(frame)] * 100, None)
    assert run([frame], limit=len(frame) - 1)[1] is not None


@pytest.mark.parametrize(
    "header", [b"\xdb\xff\xff\xff\xff", b"\xc6\x00\x20\x00\x00", b"\xdd\xff\xff\xff\xff"]
)
def test_declared_lengths_are_refused_at_once(header: bytes) -> None:
    """A length beyond the limit is refused when it is declared, not when its bytes have come in."""
    failure = run([b"\x94\x00\x09\xa1x\x91\x81\xa1a" + header])[1]
    assert failure is not None
    assert failure[0] == 9


def test_values_are_bounded() -> None:
    """More values than a request can need are refused: unpacking them would keep everybody waiting."""
    assert run([msgpack.packb([None] * (VALUE_LIMIT - 1))])[1] is None
    assert "65536 values" in error(b"\xdd\x00\x01\x00\x00")[1]
    assert "65536 values" in error(msgpack.packb([{}] * 300 + [[None] * 300] * 300))[1]


def test_an_unfinished_frame_costs_its_own_bytes() -> None:
    """Unfinished frames full of containers, the dearest there are, take no more memory than their bytes."""
    inner = msgpack.packb([[] for _ in range(30_000)])
    decoders = [Decoder() for _ in range(3)]
    tracemalloc.start()
    try:
        for decoder in decoders:
            for start in range(0, len(inner) - 1, 16384):
                assert not list(decoder.feed(inner[start : min(start + 16384, len(inner) - 1)]))
        kept, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < 3 * len(inner) * 2
    assert peak < 3 * len(inner) * 2 + (1 << 20)


def test_nested_declarations_reserve_nothing() -> None:
    """A few bytes that declare large arrays within arrays make no large arrays."""
    bomb = b"\xdc\x03\xff" * 31
    tracemalloc.start()
    try:
        assert run([bomb]) == ([], None)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1 << 20


def test_a_slow_frame_is_scanned_once() -> None:
    """Each byte of a frame is looked at once, however slowly they come: the scanner keeps its place."""

    class Counting(bytearray):
        looks = 0

        def __getitem__(self, where: Any) -> Any:
            Counting.looks += isinstance(where, int)
            return super().__getitem__(where)

    frame = msgpack.packb([0, 1, "x", [{"a": list(range(100))}]])
    decoder = Decoder()
    decoder._buffer = Counting(b"")
    for byte in frame[:-1]:
        assert not list(decoder.feed(bytes([byte])))
    assert list(decoder.feed(frame[-1:])) == [msgpack.unpackb(frame)]
    # The first byte comes alone and is unpacked by itself; a length field is waited for, and looked at again.
    assert Counting.looks <= len(frame) * 1.1


def test_ids_are_told_only_of_requests() -> None:
    """The id of a bad frame is told if it is a request's, however it is encoded, and None otherwise."""
    bad = b"\xa1x\xc1"
    assert error(b"\x94\x00\x07" + bad)[0] == 7
    assert error(b"\xdd\x00\x00\x00\x04\xd3" + bytes(8) + b"\xcf" + bytes(7) + b"\x07" + bad)[0] == 7
    for not_request in (
        b"\x94\x02\x07",
        b"\x94\xc2\x07",
        b"\x94\x00\xff",
        b"\x94\x00\xc3",
        b"\x93\x02\x07",
        b"",
    ):
        assert error(not_request + bad)[0] is None


def test_replies_and_notifications_have_their_shape() -> None:
    """Replies and notifications are what the MessagePack-RPC specification says."""
    assert msgpack.unpackb(framing.response(7, None, {"id": 1})) == [1, 7, None, {"id": 1}]
    assert msgpack.unpackb(framing.response(7, (1, "ENOENT: x"), None)) == [1, 7, [1, "ENOENT: x"], None]
    assert msgpack.unpackb(framing.notification("gap", {"from": 1})) == [2, "gap", [{"from": 1}]]


def test_many_random_cuts_of_many_requests() -> None:
    """A long pipeline comes out whole when it is cut at random."""
    rng = random.Random(20)
    requests = [[0, n, "job.get", [{"id": n, "note": "é" * (n % 70)}]] for n in range(500)]
    data = b"".join(map(msgpack.packb, requests))
    for _ in range(20):
        places = [rng.randrange(len(data)) for _ in range(rng.randrange(60))]
        assert run(cut(data, places)) == (requests, None)
