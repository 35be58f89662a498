"""The kinds of values that a configuration can hold.

Each kind says what it expects, and turns the TOML value into ours. Which key has which kind is
said in schema.py; whether the files that are named exist and can be trusted is found out later.
"""

from __future__ import annotations

import os
import pwd
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perilogd import nodeset
from perilogd.config import durations, sizes
from perilogd.lifecycle.policy import PHASES

_NAME = re.compile(r"[A-Za-z0-9._:@+-]{1,64}")
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
_PATTERN = re.compile(r"[A-Za-z0-9_*?\[\]!-]+")
_ESCAPES = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t"}
_MOST = 10**9
_SHOWN = 100
#: sun_path of unix(7) has 108 bytes, one of them for the NUL at the end.
_LONGEST_SOCKET = 107

#: What a name of a hold, action or provider looks like, for people.
NAME_EXPECTED = "a name of 1 to 64 of the characters A-Z a-z 0-9 . _ : @ + -"


class WrongValueError(Exception):
    """A value is not what its key expects.

    Args:
        expected: what was expected instead; None: what the kind always expects.
        found: the part of the value that is wrong, as shown to people; None: all of it.
    """

    def __init__(self, expected: str | None = None, found: str | None = None) -> None:
        super().__init__(expected, found)
        self.expected = expected
        self.found = found


@dataclass(frozen=True, slots=True)
class Kind:
    """What values a key takes.

    Args:
        expected: what was expected, told to whoever wrote something else.
        read: returns our value for a TOML value, or raises WrongValueError.
    """

    expected: str
    read: Callable[[Any], Any]


def is_name(value: object) -> bool:
    """Tell whether a value can be the name of a hold, an action or a provider."""
    return isinstance(value, str) and _NAME.fullmatch(value) is not None


def shown(value: object) -> str:
    """Return a TOML value as it could stand in a file, cut where it is long."""
    text = _toml(value)
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "…"


def key_shown(key: str) -> str:
    """Return a key as it could stand in a file."""
    return key if _BARE_KEY.fullmatch(key) else shown(key)


def closest(word: str, known: Iterable[str]) -> str:
    """Return the question whether the nearest known word was meant, to end a sentence; "" if none is near."""
    import difflib  # noqa: PLC0415 - only a fault needs it

    near = difflib.get_close_matches(word, list(known), 1)
    return f" (did you mean {shown(near[0])}?)" if near else ""


def _toml(value: object) -> str:
    if isinstance(value, str):
        return f'"{"".join(map(_escaped, value))}"'
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    if isinstance(value, dict):
        return (
            f"{{ {', '.join(f'{key_shown(k)} = {_toml(v)}' for k, v in value.items())} }}" if value else "{}"
        )
    return str(value)


def _escaped(character: str) -> str:
    if character in _ESCAPES:
        return _ESCAPES[character]
    if character.isprintable():
        return character
    number = ord(character)
    return f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"


def _is_text(value: object) -> bool:
    """Tell whether a value is a string that can be handed to the kernel."""
    return isinstance(value, str) and "\0" not in value


def _texts(value: object) -> list[str]:
    if isinstance(value, list) and all(map(_is_text, value)):
        return value
    raise WrongValueError


def _boolean(value: object) -> bool:
    if isinstance(value, bool):
        return value
    raise WrongValueError


BOOLEAN = Kind("true or false", _boolean)


def integer(least: int) -> Kind:
    """Return the kind of a number of things."""

    def read(value: object) -> int:
        if isinstance(value, int) and not isinstance(value, bool) and least <= value <= _MOST:
            return value
        raise WrongValueError

    return Kind(f"an integer from {least} to {_MOST}", read)


def _size(value: object) -> int:
    try:
        return sizes.parse(value) if isinstance(value, str) else integer(1).read(value)
    except ValueError as error:
        raise WrongValueError from error


SIZE = Kind(f"{sizes.EXPECTED}, or a number of bytes", _size)


def _duration(value: object, zero: float | None = None) -> float | None:
    if not isinstance(value, str):
        raise WrongValueError
    try:
        return durations.parse(value, zero=zero)
    except ValueError as error:
        raise WrongValueError from error


def _delay(value: object) -> float | None:
    return _duration(value, zero=0.0)


def _finite(value: object) -> float:
    seconds = _duration(value)
    if seconds is None:
        raise WrongValueError(found=f"{shown(value)}, which means no limit")
    return seconds


#: None: without end.
DURATION = Kind(durations.EXPECTED, _duration)
#: Here "0" means at once.
DELAY = Kind(f'{durations.EXPECTED} ("0": no delay)', _delay)
#: What somebody waits for in any case has an end.
FINITE = Kind('a duration with an end, such as "250ms", "30m" or "1.5h"', _finite)


def choice(*words: str) -> Kind:
    """Return the kind of a word out of a list."""

    def read(value: object) -> str:
        if value in words:
            return str(value)
        raise WrongValueError

    return Kind(f"one of {', '.join(map(shown, words))}", read)


def path(longest: int | None = None) -> Kind:
    """Return the kind of a file's or folder's absolute path.

    Args:
        longest: most bytes that it may have, where sockets depend on it.
    """

    def read(value: object) -> Path:
        if not _is_text(value) or not str(value).startswith("/"):
            raise WrongValueError
        if longest is not None and len(os.fsencode(str(value))) > longest:
            raise WrongValueError(
                f"at most {longest} bytes: a socket's path is limited to {_LONGEST_SOCKET} (unix(7))"
            )
        return Path(str(value))

    return Kind("an absolute path", read)


PATH = path()
SOCKET = path(_LONGEST_SOCKET)


def socket_folder(below: str) -> Kind:
    """Return the kind of a folder that will have a socket in it.

    Args:
        below: the longest path of a socket in that folder.
    """
    return path(_LONGEST_SOCKET - len("/") - len(below))


def _name(value: object) -> str:
    if is_name(value):
        return str(value)
    raise WrongValueError


NAME = Kind(NAME_EXPECTED, _name)


def _names(value: object) -> tuple[str, ...]:
    if isinstance(value, list) and all(map(is_name, value)):
        return tuple(dict.fromkeys(value))
    raise WrongValueError


NAMES = Kind('an array of names of actions and providers, such as ["nnf"]', _names)


def _patterns(value: object) -> tuple[str, ...]:
    texts = _texts(value)
    if not all(map(_PATTERN.fullmatch, texts)):
        raise WrongValueError
    return tuple(texts)


PATTERNS = Kind('an array of shell patterns for names of variables, such as ["DW_*"]', _patterns)


def _user(value: object) -> str:
    if not _is_text(value):
        raise WrongValueError
    _uid(value)
    return str(value)


USER = Kind('the name of a user, such as "root"', _user)


def _uid(user: object) -> int:
    """Return the uid of a user given by name or number."""
    if isinstance(user, int) and not isinstance(user, bool) and 0 <= user < 2**32 - 1:
        return user
    if not _is_text(user):
        raise WrongValueError
    try:
        return pwd.getpwnam(str(user)).pw_uid
    except KeyError:
        raise WrongValueError(found=f"{shown(user)}, which is no user of this host") from None


def _uids(value: object) -> tuple[int, ...]:
    if not isinstance(value, list):
        raise WrongValueError
    return tuple(dict.fromkeys(map(_uid, value)))


USERS = Kind('an array of users, by name or uid, such as ["root"]', _uids)


def _node_set(value: object) -> str:
    if not _is_text(value):
        raise WrongValueError
    try:
        return nodeset.parse(str(value))
    except ValueError as error:
        raise WrongValueError(found=f"{shown(value)} ({error})") from error


NODE_SET = Kind('a node set such as "n[1-16]"', _node_set)


def _program(value: object) -> tuple[str, ...]:
    texts = _texts(value)
    if not texts or not texts[0].startswith("/"):
        raise WrongValueError
    return tuple(texts)


COMMAND = Kind("an array: the program's absolute path, then its arguments", _program)


def _optional_program(value: object) -> tuple[str, ...]:
    return () if value == [] else _program(value)


OPTIONAL_COMMAND = Kind(f"{COMMAND.expected} ([]: none)", _optional_program)


def _launcher(value: object) -> str | tuple[str, ...]:
    if value in ("ssh", "local"):
        return str(value)
    texts = _texts(value)
    if not any("%h" in text for text in texts):
        raise WrongValueError
    return tuple(texts)


LAUNCHER = Kind('"ssh", "local", or an array: a program and its arguments, with %h for the host', _launcher)


def _match(value: object) -> dict[str, str | bool]:
    if not isinstance(value, dict):
        raise WrongValueError
    for wanted in value.values():
        if not isinstance(wanted, str | bool | int | float):
            raise WrongValueError(found=shown(wanted))
    return {key: wanted if isinstance(wanted, bool) else str(wanted) for key, wanted in value.items()}


MATCH = Kind("a table of attributes: true, or the text that the attribute must equal", _match)


def _hold(value: object) -> tuple[str, str | None]:
    phase, colon, name = str(value).partition(":")
    if not isinstance(value, str) or phase not in PHASES or (colon and not is_name(name)):
        raise WrongValueError(found=shown(value))
    return phase, name or None


def _holds(value: object) -> tuple[tuple[str, str | None], ...]:
    if not isinstance(value, list):
        raise WrongValueError
    return tuple(map(_hold, value))


#: Pairs of phase and name; None for the provider's own name.
HOLDS = Kind(f'an array of "PHASE" or "PHASE:NAME", where PHASE is one of {", ".join(PHASES)}', _holds)
