"""Where the broker's socket is, and MessagePack in pure Python, as small as the fast front needs it.

No I/O lives here. The library uses the msgpack package instead of this codec: it is faster in long
conversations, but takes longer to load than a whole call of the front lasts.
Source of the format: https://github.com/msgpack/msgpack/blob/master/spec.md
"""

from __future__ import annotations

import posix
from _struct import pack as _pack
from _struct import unpack as _unpack

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

#: The socket of the system's broker.
SOCKET = "/run/perilogd/perilogd.sock"


def default_socket() -> str:
    """Return the socket that $PERILOG_SOCKET names, else that of the system's broker."""
    return posix.environ.get(b"PERILOG_SOCKET", b"").decode(errors="surrogateescape") or SOCKET


def pack(value: Any) -> bytes:
    """Encode None, a bool, int, float, str, list, tuple or dict of these.

    Raises:
        TypeError: for any other type.
        UnicodeEncodeError: for a str that UTF-8 cannot carry.
        OverflowError: for an int outside of 64 bits.
    """
    if value is None:
        return b"\xc0"
    if value is True:
        return b"\xc3"
    if value is False:
        return b"\xc2"
    if isinstance(value, int):
        if 0 <= value < 0x80:
            return bytes((value,))
        if value < 0:
            return b"\xd3" + value.to_bytes(8, "big", signed=True)
        return b"\xcf" + value.to_bytes(8, "big")
    if isinstance(value, float):
        return _pack(">Bd", 0xCB, value)
    if isinstance(value, str):
        data = value.encode()
        if len(data) < 32:
            return bytes((0xA0 | len(data),)) + data
        return b"\xdb" + len(data).to_bytes(4, "big") + data
    if isinstance(value, (list, tuple)):
        return b"\xdd" + len(value).to_bytes(4, "big") + b"".join(map(pack, value))
    if isinstance(value, dict):
        items = [pack(part) for item in value.items() for part in item]
        return b"\xdf" + len(value).to_bytes(4, "big") + b"".join(items)
    raise TypeError(f"cannot send a {type(value).__name__}: {value!r}")


def unpack(data: bytes, at: int = 0) -> tuple[Any, int]:
    """Decode the value that begins at `at`.

    Returns:
        The value (text as str, binary as bytes) and the offset behind it.

    Raises:
        IndexError: the value's end has not arrived yet.
        ValueError: the data is not MessagePack, or uses an extension type.
    """
    kind = data[at]
    at += 1
    if kind < 0x80:
        return kind, at
    if kind >= 0xE0:
        return kind - 256, at
    if kind < 0x90:
        return _map(data, at, kind & 15)
    if kind < 0xA0:
        return _array(data, at, kind & 15)
    if kind < 0xC0:
        return _bytes(data, at, kind & 31).decode(), at + (kind & 31)
    if kind in _CONSTANTS:
        return _CONSTANTS[kind], at
    if kind in _FLOATS:
        form, size = _FLOATS[kind]
        return _unpack(form, _bytes(data, at, size))[0], at + size
    if kind not in _SIZES:
        raise ValueError(f"the type byte {kind:#x} is not used on this wire")
    size = _SIZES[kind]
    number = int.from_bytes(_bytes(data, at, size), "big", signed=0xD0 <= kind <= 0xD3)
    at += size
    if 0xCC <= kind <= 0xD3:
        return number, at
    if kind >= 0xDE:
        return _map(data, at, number)
    if kind >= 0xDC:
        return _array(data, at, number)
    body = _bytes(data, at, number)
    return (body.decode() if kind >= 0xD9 else body), at + number


_CONSTANTS = {0xC0: None, 0xC2: False, 0xC3: True}
_FLOATS = {0xCA: (">f", 4), 0xCB: (">d", 8)}
#: Type byte → size of the integer behind it.
_SIZES = {
    first + power: 1 << (low + power)
    for first, count, low in (
        (0xC4, 3, 0),  # bin
        (0xCC, 4, 0),  # uint
        (0xD0, 4, 0),  # int
        (0xD9, 3, 0),  # str
        (0xDC, 2, 1),  # array
        (0xDE, 2, 1),  # map
    )
    for power in range(count)
}


def _bytes(data: bytes, at: int, size: int) -> bytes:
    if at + size > len(data):
        raise IndexError(size)
    return data[at : at + size]


def _array(data: bytes, at: int, length: int) -> tuple[list[Any], int]:
    array = []
    for _ in range(length):
        value, at = unpack(data, at)
        array.append(value)
    return array, at


def _map(data: bytes, at: int, length: int) -> tuple[dict[Any, Any], int]:
    table = {}
    for _ in range(length):
        key, at = unpack(data, at)
        table[key], at = unpack(data, at)
    return table, at
