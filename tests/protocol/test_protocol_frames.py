"""Frames that are broken, too large, too deep, or slow: what the live broker answers, and who notices."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgpack
import pytest

from raw import Raw

if TYPE_CHECKING:
    from collections.abc import Callable

    from protocol.target import Target

pack = msgpack.packb
PING = pack([0, 1, "broker.ping", []])
MIB = 1 << 20


def nested(depth: int, open_: bytes, end: bytes = b"\xc0") -> bytes:
    """Return containers in each other."""
    return open_ * depth + end


def request(params: bytes) -> bytes:
    """Return a request of broker.ping, id 7, with encoded params."""
    return b"".join([b"\x94\x00\x07", pack("broker.ping"), params])


#: Broken frames from which the request's id can be told, and what is said about them.
BROKEN = {
    "three elements": (pack([0, 7, "broker.ping"]), "found 3 elements"),
    "five elements": (pack([0, 7, "broker.ping", [], 1]), "found 5 elements"),
    "method is a number": (pack([0, 7, 1, []]), "a request's method is text"),
    "method is nil": (pack([0, 7, None, []]), "a request's method is text"),
    "method is a list": (pack([0, 7, ["broker.ping"], []]), "a request's method is text"),
    "params are nil": (pack([0, 7, "broker.ping", None]), "its params are an array"),
    "params are a map": (pack([0, 7, "broker.ping", {}]), "its params are an array"),
    "params are text": (pack([0, 7, "broker.ping", "x"]), "its params are an array"),
    "not MessagePack": (request(b"\xc1"), "byte 0xc1 is not MessagePack"),
    "an extension": (request(b"\x91" + pack(msgpack.ExtType(4, b"x"))), "is an extension type"),
    "a long extension": (request(b"\x91" + pack(msgpack.ExtType(4, b"x" * 300))), "is an extension type"),
    "a timestamp": (request(b"\x91" + pack(msgpack.Timestamp(1, 1))), "is an extension type"),
    "a number as key": (request(b"\x91" + pack({1: 1})), "a map's key is not text"),
    "bytes as key": (request(b"\x91" + pack({b"id": 1})), "a map's key is not text"),
    "nil as key": (request(b"\x91" + pack({None: 1})), "a map's key is not text"),
    "an array as key": (request(b"\x91\x81\x90\x01"), "a map's key is not text"),
    "a key that is no UTF-8": (request(b"\x91\x81\xa1\xff\x01"), "a text is not valid UTF-8"),
    "a value that is no UTF-8": (request(b"\x91\x81\xa1a\xa2\xc3\x28"), "a text is not valid UTF-8"),
    "a surrogate": (request(b"\x91\x81\xa1a\xa3\xed\xa0\x80"), "a text is not valid UTF-8"),
    "arrays 33 deep": (request(nested(32, b"\x91")), "nested deeper than 32"),
    "arrays a million deep": (request(nested(MIB - 100, b"\x91")), "nested deeper than 32"),
    "maps 33 deep": (request(b"\x91" + nested(31, b"\x81\xa1a")), "nested deeper than 32"),
    "a text of 4 GiB": (request(b"\x91\xdb\xff\xff\xff\xff"), f"larger than {MIB} bytes"),
    "bytes of 1 MiB": (request(b"\x91" + pack(b"x" * MIB)), f"larger than {MIB} bytes"),
    "an array of 4 Gi": (request(b"\xdd\xff\xff\xff\xff"), "more than 65536 values"),
    "a map of 2 Gi": (request(b"\x91\xdf\x7f\xff\xff\xff"), "more than 65536 values"),
    "a million nils": (request(pack([None] * (MIB - 100))), "more than 65536 values"),
}

#: Broken frames without a usable id: the connection ends without a word.
NAMELESS: dict[str, bytes] = {
    "a number": pack(17),
    "a text": pack("broker.ping"),
    "a map": pack({"method": "broker.ping"}),
    "nil": pack(None),
    "an empty array": pack([]),
    "HTTP": b"GET / HTTP/1.1\r\n\r\n",
    "JSON": b'{"jsonrpc": "2.0", "method": "broker.ping", "id": 1}\n',
    "TLS": bytes.fromhex("1603010200010001fc0303"),
    "a response": pack([1, 7, None, None]),
    "type 3": pack([3, 7, "broker.ping", []]),
    "type -1": pack([-1, 7, "broker.ping", []]),
    "type true": pack([True, 7, "broker.ping", []]),
    "type 0.0": pack([0.0, 7, "broker.ping", []]),
    "no id": pack([0]),
    "id is text": pack([0, "7", "broker.ping", []]),
    "id is negative": pack([0, -7, "broker.ping", []]),
    "id has 33 bits": pack([0, 1 << 32, "broker.ping", []]),
    "id is true": pack([0, True, "broker.ping", []]),
    "notification of 2": pack([2, "broker.ping"]),
    "notification of 4": pack([2, "broker.ping", [], 1]),
    "notification named 1": pack([2, 1, []]),
    "notification without params": pack([2, "broker.ping", None]),
    "an extension": pack(msgpack.ExtType(1, b"x" * 16)),
    "arrays": nested(4096, b"\x91"),
    "0xc1": b"\xc1" * 100,
}


@pytest.mark.parametrize("kind", BROKEN)
def test_a_broken_request_is_answered_and_ends_its_connection(target: Target, client: Raw, kind: str) -> None:
    """EPROTO says what was wrong; what came before is done, what comes after is not; nobody else notices."""
    frame, said = BROKEN[kind]
    with target.unharmed():
        client.send(PING + frame + pack([0, 9, "job.submit", [{}]]))
        first, *rest = client.rest()
        assert first[:3] == [1, 1, None]
        ((type_, msgid, error, result),) = rest
        assert (type_, msgid, error[0], result) == (1, 7, 1, None)
        assert error[1].startswith("EPROTO: ")
        assert said in error[1]
        assert error[1].isprintable()


@pytest.mark.parametrize("kind", NAMELESS)
def test_a_broken_message_without_an_id_ends_its_connection(target: Target, client: Raw, kind: str) -> None:
    """Where no id is known nothing can be said: the connection ends, after what came before was done."""
    with target.unharmed():
        client.send(PING + NAMELESS[kind] + pack([0, 9, "job.submit", [{}]]))
        assert [message[:3] for message in client.rest()] == [[1, 1, None]]


def test_unknown_notifications_are_ignored(target: Target, client: Raw) -> None:
    """A notification of no method is ignored whatever its params; the connection goes on."""
    with target.unharmed():
        wrong: list[Any] = [[], [{}], [1, 2], {"a": 1}, None, 17, "x", b"x"]
        for params in wrong:
            client.send(pack([2, "nvim_ui_attach", params]) + pack([2, b"x\xff", params]))
        client.ok("broker.ping")


def test_refused_notifications_change_nothing(target: Target, client: Raw) -> None:
    """A notification of a method with wrong arguments is not answered, does nothing, and ends nothing."""
    with target.unharmed():
        for params in ([{"id": "x"}], [1, 2], [{"no": 1}], [{"id": 999_999}]):
            client.send(pack([2, "job.cancel", params]))
        client.ok("broker.ping")


@pytest.mark.parametrize("size", [1, 2, 10, 30])
def test_half_a_frame_is_nothing(target: Target, client: Raw, size: int) -> None:
    """What a client had begun to say when it went is not done."""
    with target.unharmed():
        client.send(pack([0, 9, "job.submit", [{"name": "x" * 30}]])[:size])
        client.sock.close()


def test_slow_frames_keep_nobody_waiting(target: Target, connect: Callable[[], Raw]) -> None:
    """While requests come in byte by byte on many connections, others are served; then so are they."""
    slow = [connect() for _ in range(8)]
    quick = connect()
    frame = pack([0, 9, "job.get", [{"id": 999_999}]])
    with target.unharmed():
        for byte in frame:
            for client in slow:
                client.send(bytes([byte]))
            quick.ok("broker.ping")
        for client in slow:
            error, _ = client.reply(9)
            assert error == [1, "ENOENT: no such job: 999999"]


def test_a_frame_of_just_the_limit_is_read(target: Target, client: Raw) -> None:
    """A frame of 1 MiB is a frame like any other; one byte more is EPROTO."""
    with target.unharmed():
        for size, code in ((MIB, "EINVAL: broker.ping: argument x is unknown"), (MIB + 1, "EPROTO: ")):
            empty = pack([0, 7, "broker.ping", [{"x": "x" * 70_000}]])
            client.send(pack([0, 7, "broker.ping", [{"x": "x" * (70_000 + size - len(empty))}]]))
            error, _ = client.reply(7)
            assert error[1].startswith(code)
        assert client.rest() == []


def test_nesting_up_to_the_limit_is_read(target: Target, client: Raw) -> None:
    """The deepest frame that is allowed is a request like any other."""
    value: Any = None
    for _ in range(29):
        value = {"a": value}
    with target.unharmed():
        assert client.refused("broker.ping", x=value).startswith("EINVAL: broker.ping: argument x is unknown")


def test_ids_of_requests_may_be_any_of_32_bits(target: Target, client: Raw) -> None:
    """Replies carry the request's id, the largest one and the one that is used twice, too."""
    with target.unharmed():
        for msgid in (0, (1 << 32) - 1, 5, 5):
            client.send(pack([0, msgid, "broker.ping", []]))
        for msgid in (0, (1 << 32) - 1, 5, 5):
            assert client.message()[:3] == [1, msgid, None]


def test_method_names_may_be_bytes(target: Target, client: Raw) -> None:
    """Old clients send names as bin."""
    with target.unharmed():
        error, result = client.reply(client.request(b"broker.ping"))
        assert error is None
        assert set(result) >= {"version", "time"}
