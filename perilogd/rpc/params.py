"""What the arguments of a method may be, and what is said when they are not.

Small checkers live here. Each takes a value as it came off the wire, and returns what the method
wants or says what it expected. Nothing here knows a method, a job or the configuration.
"""

from __future__ import annotations

import keyword
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from perilogd.errors import Refusal

#: Longest piece of a wrong value that an error text repeats, in characters.
_SHOWN = 60


class Mismatch(Exception):  # noqa: N818 - an answer, not a malfunction
    """A value is not what was expected.

    Args:
        value: the value found.
        expected: what was expected, as in "expected …".
        path: where in the argument it was found, such as `[2].phase`; empty for the argument itself.
        found: how to speak of it; by default the value itself, shortened.
    """

    def __init__(self, value: object, expected: str, path: str = "", found: str = "") -> None:
        super().__init__()
        self.found = found or f"is {shown(value)}"
        self.expected = expected
        self.path = path


class Later(Exception):  # noqa: N818 - an answer, not a malfunction
    """To check a value takes too long for the loop's thread: do it in a worker thread."""


def shown(value: object) -> str:
    """Return a value for an error text: on one line, printable, and short whatever it is."""
    if value is None:
        return "nil"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return _quoted(value)
    if isinstance(value, bytes):
        return f"{len(value)} bytes of bin"
    if isinstance(value, list):
        return f"an array of {len(value)}"
    if isinstance(value, dict):
        return f"a map of {len(value)}"
    return repr(value)


def bare(name: str) -> str:
    """Return a name for an error text: as it is, or like any value if it is nothing like a name."""
    return name if len(name) <= _SHOWN and name.isprintable() else _quoted(name)


def _quoted(text: str) -> str:
    if len(text) <= _SHOWN:
        return repr(text)
    return f"{text[:_SHOWN]!r}… ({len(text)} characters)"


class Kind(Protocol):
    """A kind of argument.

    Attributes:
        name: one word or two for `broker.methods`.
        expected: what a value must be, as in "expected …".
    """

    @property
    def name(self) -> str: ...  # noqa: D102 - see the class

    @property
    def expected(self) -> str: ...  # noqa: D102 - see the class

    def check(self, value: object) -> Any:
        """Return the value as the method wants it.

        Raises:
            Mismatch: it is something else.
        """
        ...


class Integer:
    """An integer from `minimum` to `maximum`; booleans are none."""

    name = "integer"

    def __init__(self, minimum: int, maximum: int) -> None:
        self.minimum = minimum
        self.maximum = maximum
        self.expected = f"an integer from {minimum} to {maximum}"

    def check(self, value: object) -> int:
        """See `Kind.check`."""
        if type(value) is int and self.minimum <= value <= self.maximum:
            return value
        raise Mismatch(value, self.expected)


class WaitStatus(Integer):
    """A status that wait(2) gives for a process that has ended: neither stopped nor continued."""

    def __init__(self) -> None:
        super().__init__(0, 0xFFFF)
        self.expected = f"{self.expected} that is the wait(2) status of a process that has ended"

    def check(self, value: object) -> int:
        """See `Kind.check`."""
        status = super().check(value)
        if status & 0x7F == 0x7F:
            raise Mismatch(value, self.expected)
        return status


class Number:
    """A number from `minimum` to `maximum`, whole or not."""

    name = "number"

    def __init__(self, minimum: float, maximum: float) -> None:
        self.minimum = minimum
        self.maximum = maximum
        self.expected = f"a number from {minimum:g} to {maximum:g}"

    def check(self, value: object) -> float:
        """See `Kind.check`."""
        if type(value) in (int, float) and self.minimum <= value <= self.maximum:  # type: ignore[operator]
            return value  # type: ignore[return-value]
        raise Mismatch(value, self.expected)


class Boolean:
    """True or false."""

    name = "boolean"
    expected = "true or false"

    def check(self, value: object) -> bool:
        """See `Kind.check`."""
        if isinstance(value, bool):
            return value
        raise Mismatch(value, self.expected)


class Text:
    """Text that a predicate accepts.

    Args:
        expected: what the predicate wants, in words.
        accepts: tells whether a text will do.
        name: one word for `broker.methods`.
    """

    def __init__(self, expected: str, accepts: Callable[[str], object], name: str = "text") -> None:
        self.expected = expected
        self.name = name
        self._accepts = accepts

    def check(self, value: object) -> str:
        """See `Kind.check`."""
        if isinstance(value, str) and self._accepts(value):
            return value
        raise Mismatch(value, self.expected)


def text_up_to(octets: int) -> Text:
    """Return the kind of any text that takes at most so many bytes as UTF-8."""
    return Text(f"text of at most {octets} bytes", lambda text: len(text.encode()) <= octets)


def printable_up_to(characters: int) -> Text:
    """Return the kind of 1 to so many printable characters: no line ends, no control characters."""
    return Text(
        f"1 to {characters} printable characters",
        lambda text: 0 < len(text) <= characters and text.isprintable(),
    )


class OneOf:
    """One of a few words."""

    name = "word"

    def __init__(self, *words: str) -> None:
        self.words = frozenset(words)
        self.expected = _either(f'"{word}"' for word in words)

    def check(self, value: object) -> str:
        """See `Kind.check`."""
        if isinstance(value, str) and value in self.words:
            return value
        raise Mismatch(value, self.expected)


class Parsed:
    """Text that a parser understands, handed on as what the parser made of it.

    Args:
        name: one word for `broker.methods`.
        expected: what the parser wants, in words.
        parse: returns the parsed value, or raises ValueError with a reason for people.
    """

    def __init__(self, name: str, expected: str, parse: Callable[[str], Any]) -> None:
        self.name = name
        self.expected = expected
        self._parse = parse

    def check(self, value: object) -> Any:
        """See `Kind.check`."""
        if not isinstance(value, str):
            raise Mismatch(value, self.expected)
        try:
            return self._parse(value)
        except ValueError as error:
            raise Mismatch(value, f"{self.expected} ({error})") from error


#: The longest time that is none without end, in seconds: beyond it clients could show no deadline.
_CENTURY = 36_525 * 86_400


class Duration:
    """A time: text as in RFC 23 (`"30m"`, `"infinity"`), or a number of seconds; 0 means no limit.

    Args:
        parse: seconds of a text, None for no limit; raises ValueError.
    """

    name = "duration"
    expected = (
        'a duration such as "250ms", "30m", "1.5h" or "infinity", or a number of seconds, up to a century'
    )

    def __init__(self, parse: Callable[[str], float | None]) -> None:
        self._parse = parse

    def check(self, value: object) -> float | None:
        """See `Kind.check`."""
        if type(value) in (int, float):
            seconds = float(value)  # type: ignore[arg-type]
            if 0 <= seconds <= _CENTURY:
                return seconds or None
        if not isinstance(value, str):
            raise Mismatch(value, self.expected)
        try:
            return self._parse(value)
        except ValueError as error:  # it says no more than we do
            raise Mismatch(value, self.expected) from error


class ListOf:
    """An array of at most `limit` things of one kind."""

    name = "array"

    def __init__(self, kind: Kind, limit: int) -> None:
        self.kind = kind
        self.limit = limit
        self.expected = f"an array of at most {limit}, each {kind.expected}"

    def check(self, value: object) -> list[Any]:
        """See `Kind.check`."""
        if not isinstance(value, list) or len(value) > self.limit:
            raise Mismatch(value, self.expected)
        check = self.kind.check
        checked = []
        for index, item in enumerate(value):
            try:
                checked.append(check(item))
            except Mismatch as mismatch:
                mismatch.path = f"[{index}]{mismatch.path}"
                raise
        return checked


class MapOf:
    """A map of at most `limit` keys of one kind of text to values of one kind."""

    name = "map"

    def __init__(self, key: Kind, kind: Kind, limit: int) -> None:
        self.key = key
        self.kind = kind
        self.limit = limit
        self.expected = f"a map of at most {limit} keys, each {key.expected}, to values, each {kind.expected}"

    def check(self, value: object) -> dict[str, Any]:
        """See `Kind.check`."""
        if not isinstance(value, dict) or len(value) > self.limit:
            raise Mismatch(value, self.expected)
        checked = {}
        for key, item in value.items():
            try:
                name = self.key.check(key)
            except Mismatch as mismatch:
                mismatch.found = f"has a key {shown(key)}"
                raise
            try:
                checked[name] = self.kind.check(item)
            except Mismatch as mismatch:
                mismatch.path = f".{name}{mismatch.path}"
                raise
        return checked


class Either:
    """A value of any of some kinds, the first that fits."""

    def __init__(self, *kinds: Kind) -> None:
        self.kinds = kinds
        self.name = _either(dict.fromkeys(kind.name for kind in kinds))
        self.expected = _either(kind.expected for kind in kinds)

    def check(self, value: object) -> Any:
        """See `Kind.check`."""
        for kind in self.kinds:
            try:
                return kind.check(value)
            except Mismatch as mismatch:
                if mismatch.path:  # the right kind, with something wrong inside: say what
                    raise
        raise Mismatch(value, self.expected)


class Anything:
    """Any value that a frame can hold."""

    name = "any"
    expected = "any value"

    def check(self, value: object) -> Any:
        """See `Kind.check`."""
        return value


def _either(words: Iterable[str]) -> str:
    return " or ".join(words)


@dataclass(frozen=True, slots=True)
class Argument:
    """A named argument.

    Args:
        name: its name on the wire.
        kind: what it may be.
        required: whether it must be given. One that need not may also be nil, the same as not given.
        doc: what it means, for people.
        into: the handler's parameter; by default `name`, with an underscore appended to a word of Python's.
    """

    name: str
    kind: Kind
    required: bool = False
    doc: str = ""
    into: str = ""

    def __post_init__(self) -> None:
        """Fill in `into`."""
        if not self.into:
            object.__setattr__(self, "into", f"{self.name}_" if keyword.iskeyword(self.name) else self.name)

    def describe(self) -> dict[str, object]:
        """Return it for `broker.methods`."""
        return {
            "name": self.name,
            "type": self.kind.name,
            "required": self.required,
            "expected": self.kind.expected,
            "doc": self.doc,
        }


class Arguments:
    """The named arguments that belong together: a method's, or the fields of a map among them."""

    name = "map"

    def __init__(self, *arguments: Argument) -> None:
        self.arguments = arguments
        self._by_name = {argument.name: argument for argument in arguments}
        self._required = tuple(argument for argument in arguments if argument.required)
        self.names = ", ".join(self._by_name) or "none"
        self.expected = f"a map of {self.names}"

    def check(self, value: object) -> dict[str, Any]:
        """Return the values given, each as its kind makes it, by the name of the handler's parameter.

        Raises:
            Mismatch: no map, or a name that is unknown or missing, or a value that is not of its kind.
        """
        if not isinstance(value, dict):
            raise Mismatch(value, self.expected)
        checked = {}
        for name, item in value.items():
            argument = self._by_name.get(name)
            if argument is None:
                raise Mismatch(item, f"only these: {self.names}", f".{name}", "is unknown")
            if item is None and not argument.required:
                continue
            try:
                checked[argument.into] = argument.kind.check(item)
            except Mismatch as mismatch:
                mismatch.path = f".{name}{mismatch.path}"
                raise
        for argument in self._required:
            if argument.into not in checked:
                raise Mismatch(None, argument.kind.expected, f".{argument.name}", "is missing")
        return checked


def bind(method: str, arguments: Arguments, params: list[Any]) -> Mapping[str, Any]:
    """Return the arguments for a method's handler.

    Args:
        method: the method's name, for the error text.
        arguments: what it takes.
        params: as they came off the wire: nothing, or one map.

    Raises:
        Refusal: EINVAL; the text names the argument, what was found and what was expected.
    """
    if not params:
        given: object = {}
    elif len(params) == 1:
        given = params[0]
    else:
        given = params
    try:
        return arguments.check(given)
    except Mismatch as mismatch:
        if not mismatch.path:
            text = f"params must hold one map of named arguments ({arguments.names}), found {shown(given)}"
        else:
            text = f"argument {bare(mismatch.path[1:])} {mismatch.found}, expected {mismatch.expected}"
        raise Refusal("EINVAL", f"{method}: {text}") from mismatch


_NAME = re.compile(r"[A-Za-z0-9._:@+-]{1,64}")

#: Names of holds, actions and providers.
NAME = Text("a name: 1 to 64 of the characters A-Z a-z 0-9 . _ : @ + -", _NAME.fullmatch, "name")

#: A job's key: not all digits, so that it is never taken for an id.
KEY = Text(
    "a key: 1 to 255 printable characters, not all of them digits",
    lambda text: 0 < len(text) <= 255 and text.isprintable() and not text.isdecimal(),
    "key",
)

JOB_ID = Integer(1, (1 << 63) - 1)
SEQUENCE = Integer(0, (1 << 63) - 1)
UID = Integer(0, (1 << 32) - 2)  # the last one is no uid: chown(2) takes it for "leave as it is"
WAIT_STATUS = WaitStatus()
PERCENT = Number(0, 100)
NOTE = text_up_to(1024)
LIMIT = Integer(1, 1000)
