"""The front's own MessagePack against the msgpack package."""

from __future__ import annotations

import posix
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perilog.wire import default_socket, pack, unpack

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary()
)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=40
)
SENT = st.recursive(
    SCALARS.filter(lambda value: not isinstance(value, bytes)),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=40,
)


@given(SENT)
def test_what_is_packed_is_read_by_msgpack(value: Any) -> None:
    """The package reads from our encoding exactly what was put in."""
    assert msgpack.unpackb(pack(value)) == value


@given(VALUES)
def test_what_msgpack_packs_is_read(value: Any) -> None:
    """Our decoder reads what the package writes, to the last byte."""
    data = msgpack.packb(value)
    assert unpack(data) == (value, len(data))


@pytest.mark.parametrize("size", [0, 15, 16, 31, 32, 255, 256, 65535, 65536])
def test_every_length_form_is_read(size: int) -> None:
    """Text, binary, arrays and maps are read in each of their length forms, and single floats."""
    for value in ("x" * size, b"x" * size, [1] * size, dict.fromkeys(map(str, range(size)))):
        data = msgpack.packb(value)
        assert unpack(data) == (value, len(data))
    assert unpack(msgpack.packb(0.5, use_single_float=True)) == (0.5, 5)


@given(VALUES)
def test_a_part_is_told_from_the_whole(value: Any) -> None:
    """Cut anywhere, a message is recognized as unfinished."""
    data = msgpack.packb(value)
    for length in range(len(data)):
        with pytest.raises(IndexError):
            unpack(data[:length])


@pytest.mark.parametrize("data", [b"\xc1", b"\xd4\x01\x00", b"\xc7\x00\x01", b"\xa1\xff"])
def test_what_is_not_on_this_wire_is_refused(data: bytes) -> None:
    """The unused type byte, extension types and text that is not UTF-8 are errors, not values."""
    with pytest.raises(ValueError, match=r"used|codec"):
        unpack(data)


@pytest.mark.parametrize(
    ("value", "error"),
    [("\udc80", UnicodeEncodeError), (2**64, OverflowError), (-(2**63) - 1, OverflowError), ({1}, TypeError)],
)
def test_what_cannot_be_sent_is_refused(value: object, error: type[Exception]) -> None:
    """A value that the wire cannot carry raises, so that nothing half is ever sent."""
    with pytest.raises(error):
        pack(value)


def test_the_socket_is_the_environments_or_the_systems(monkeypatch: pytest.MonkeyPatch) -> None:
    """$PERILOG_SOCKET names the socket; unset or empty, it is the system's broker's."""
    monkeypatch.setitem(posix.environ, b"PERILOG_SOCKET", b"/tmp/x")
    assert default_socket() == "/tmp/x"
    monkeypatch.setitem(posix.environ, b"PERILOG_SOCKET", b"")
    assert default_socket() == "/run/perilogd/perilogd.sock"
