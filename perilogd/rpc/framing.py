"""MessagePack-RPC frames: bytes to messages and back.

What a frame may look like lives here: its size, its nesting, which types it may hold. What a
message means does not. Nothing here does any I/O.

A frame is checked before a single value of it is made: a scanner steps from token to token, keeps
its place when the bytes end, and refuses what breaks the bounds as soon as it sees it. So a slow
frame costs no more than a quick one, an unfinished frame costs its own bytes and no more, and a
declared length is never believed. Only a whole, sound frame is handed to msgpack.

Nearly all requests are small and come in whole. Those are unpacked first and looked at afterwards,
which takes a third of the time; whatever is odd about one, the scanner then sees it and says what.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgpack

#: Largest frame that a client may send, in bytes (PROTOCOL, "Wire").
FRAME_LIMIT = 1 << 20

#: Deepest nesting of arrays and maps, the message's own array included.
DEPTH_LIMIT = 32

#: Most values in one frame, keys and containers included. A megabyte could hold a million of them, which
#: would take the broker a tenth of a second to unpack, and everybody else would wait for that long.
VALUE_LIMIT = 1 << 16

MSGID_MAX = (1 << 32) - 1

#: Bytes at the beginning of a frame that hold its message id, however wastefully they are encoded.
_HEAD = 5 + 9 + 9


class FrameError(Exception):
    """What came in is not a frame that a client may send; nothing after it can be understood.

    Attributes:
        msgid: the id of the request that it was to be, None when that cannot be told.
        text: what was wrong, and what is expected instead.
    """

    def __init__(self, msgid: int | None, text: str) -> None:
        super().__init__(text)
        self.msgid = msgid
        self.text = text


def _token_sizes() -> tuple[int, ...]:
    """Return, by first byte, the whole size of a token; 0 where the first byte alone does not tell it."""
    sizes = [0] * 256
    for byte in (*range(0x80), *range(0xE0, 0x100), 0xC0, 0xC2, 0xC3):  # small integers, nil, false, true
        sizes[byte] = 1
    for byte in range(0xA0, 0xC0):  # short text
        sizes[byte] = 1 + (byte & 0x1F)
    for byte, payload in ((0xCA, 4), (0xCB, 8)):  # float
        sizes[byte] = 1 + payload
    for byte, payload in enumerate((1, 2, 4, 8, 1, 2, 4, 8), 0xCC):  # unsigned, then signed integers
        sizes[byte] = 1 + payload
    return tuple(sizes)


# The tables follow https://github.com/msgpack/msgpack/blob/master/spec.md, "Formats".
_SIZE = _token_sizes()
#: First byte of what carries a length field: the width of that field in bytes.
_WIDTH = {0xC4: 1, 0xC5: 2, 0xC6: 4, 0xD9: 1, 0xDA: 2, 0xDB: 4, 0xDC: 2, 0xDD: 4, 0xDE: 2, 0xDF: 4}
_TEXT = frozenset({*range(0xA0, 0xC0), 0xD9, 0xDA, 0xDB})


_SCALARS = frozenset({type(None), bool, int, float, str, bytes})
#: Most items of a container that is unpacked before it has been scanned.
_SMALL = 1024


class Decoder:
    """Cuts a stream of bytes into messages.

    Args:
        limit: largest frame in bytes.
    """

    __slots__ = ("_buffer", "_keyed", "_left", "_limit", "_quick", "_scanned", "_stack", "_values")

    def __init__(self, limit: int = FRAME_LIMIT) -> None:
        self._limit = limit
        self._quick = min(limit, VALUE_LIMIT)  # so many bytes keep to both bounds whatever they are
        self._buffer = bytearray()
        self._begin_frame()

    def _begin_frame(self) -> None:
        self._scanned = 0  # where the next token begins; past the buffer's end while a text is coming in
        self._left = 1  # values still due in the innermost container; keys count too
        self._keyed = False  # whether the innermost container is a map
        self._stack: list[tuple[int, bool]] = []  # the same two for the containers around it
        self._values = 1

    def feed(self, data: bytes) -> Iterator[object]:
        """Take what was received, and yield the messages that it completes, one by one.

        Run it to its end, or until it raises: what is not consumed is lost.

        Yields:
            Each message as plain Python values: None, bool, int, float, str, bytes, list, dict with str keys.

        Raises:
            FrameError: once all before the bad frame has been yielded. The decoder is of no use afterwards.
        """
        if not self._buffer and len(data) <= self._quick:
            while data:
                try:
                    message, rest = _unpack_small(data), b""
                except msgpack.ExtraData as more:
                    message, rest = more.unpacked, more.extra
                except ValueError:
                    break
                if not _is_plain(message, DEPTH_LIMIT):
                    break
                data = rest
                yield message
        self._buffer += data
        while self._buffer and self._scan():
            frame = self._buffer[: self._scanned]
            del self._buffer[: self._scanned]
            try:
                message = msgpack.unpackb(frame)
            except UnicodeDecodeError as error:
                raise FrameError(
                    _msgid(frame), f"a text is not valid UTF-8 ({error.reason}); send arbitrary bytes as bin"
                ) from error
            self._begin_frame()
            yield message

    def _scan(self) -> bool:
        """Go on to the end of the first frame in the buffer; tell whether it has come in whole."""
        buffer, size, limit = self._buffer, len(self._buffer), self._limit
        position, left, keyed, stack = self._scanned, self._left, self._keyed, self._stack
        while left:
            if position >= size:
                break
            begin = position
            byte = buffer[begin]
            if keyed and not left & 1 and byte not in _TEXT:
                raise self._fault(begin, f"a map's key is not text (str): byte 0x{byte:02x}")
            token = _SIZE[byte]
            count = 0
            if token:
                position += token
            elif byte < 0xA0:  # fixmap, fixarray
                position += 1
                count = byte & 0x0F
            else:
                width = _WIDTH.get(byte)
                if width is None:
                    kind = "not MessagePack" if byte == 0xC1 else "an extension type"
                    raise self._fault(
                        begin, f"byte 0x{byte:02x} is {kind}; only plain MessagePack types are understood"
                    )
                if position + 1 + width > size:
                    break
                position += 1 + width
                length = int.from_bytes(buffer[position - width : position])
                if byte < 0xDC:
                    position += length
                else:
                    count = length
            if position > limit:
                raise self._fault(begin, f"the frame is larger than {limit} bytes, the most that is accepted")
            left -= 1
            if token == 0 and (byte < 0xA0 or byte >= 0xDC):  # a container
                if len(stack) + 1 > DEPTH_LIMIT:
                    raise self._fault(begin, f"arrays and maps are nested deeper than {DEPTH_LIMIT}")
                is_map = byte < 0x90 or byte >= 0xDE
                if is_map:
                    count *= 2
                self._values += count
                if self._values > VALUE_LIMIT:
                    raise self._fault(begin, f"the frame holds more than {VALUE_LIMIT} values")
                stack.append((left, keyed))
                left, keyed = count, is_map
            while not left and stack:
                left, keyed = stack.pop()
        self._scanned, self._left, self._keyed = position, left, keyed
        return not left and position <= size

    def _fault(self, begin: int, text: str) -> FrameError:
        # What comes after the bad token is not looked at: how much of it is there depends on the weather.
        return FrameError(_msgid(self._buffer[:begin]), text)


def _unpack_small(data: bytes) -> object:
    """Unpack a frame that has not been scanned: a length that it declares reserves kilobytes at most.

    Raises:
        ValueError: it is not whole, not small or not sound; or, as ExtraData, more comes after it.
    """
    return msgpack.unpackb(data, max_array_len=_SMALL, max_map_len=_SMALL)


def _is_plain(value: Any, depth: int) -> bool:
    """Tell whether a value keeps to the rules: nested at most `depth`, text keys, no extension types."""
    kind = type(value)
    if kind in _SCALARS:
        return True
    if not depth:
        return False
    if kind is list:
        items = value
    elif kind is dict:
        for key in value:
            if type(key) is not str:
                return False
        items = value.values()
    else:
        return False
    for item in items:  # noqa: SIM110 - a generator would cost more than all the rest
        if type(item) not in _SCALARS and not _is_plain(item, depth - 1):
            return False
    return True


def _msgid(frame: bytearray) -> int | None:
    """Return the id of a request from the beginning of its frame, None if this is no request."""
    head = msgpack.Unpacker()
    head.feed(frame[:_HEAD])
    try:
        size, kind, msgid = head.read_array_header(), head.unpack(), head.unpack()
    except (ValueError, msgpack.UnpackException):
        return None
    return msgid if size >= 2 and is_integer(kind) and kind == 0 and is_msgid(msgid) else None


def is_integer(value: object) -> bool:
    """Tell an integer from a boolean, which is an int to Python but not on the wire."""
    return type(value) is int


def is_msgid(value: object) -> bool:
    """Tell whether a value can be a request's id: an integer of 32 bits without a sign."""
    return type(value) is int and 0 <= value <= MSGID_MAX


# A packer keeps its buffer from one use to the next, which `msgpack.packb` does not.
_pack: Callable[[object], bytes] = msgpack.Packer().pack


def response(msgid: int, error: tuple[int, str] | None, result: object) -> bytes:
    """Return the frame of a reply.

    Args:
        msgid: the request's id.
        error: kind and text, or None.
        result: anything that msgpack can pack; None when there is an error.
    """
    return _pack((1, msgid, error, result))


def notification(method: str, params: Mapping[str, object]) -> bytes:
    """Return the frame of a notification with one map of named arguments."""
    return _pack((2, method, (params,)))
