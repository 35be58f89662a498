"""Events as RFC 18 lines and as text."""

from __future__ import annotations

import json
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from perilogd.journal import Entry
from perilogd.journal.export import relative, rfc18


def _entry(name: str, context: dict[str, Any], wall: float = 1552593348.073045) -> Entry:
    return Entry(1, 1, wall, 5.0, 1, name, msgpack.packb(context))


def test_rfc18_line() -> None:
    """An event is one compact object with timestamp, name and context, in this order."""
    line = rfc18(_entry("submit", {"urgency": 16, "userid": 5588, "flags": 0}))
    assert (
        line
        == '{"timestamp":1552593348.073045,"name":"submit","context":{"urgency":16,"userid":5588,"flags":0}}'
    )
    assert rfc18(_entry("clean", {})) == '{"timestamp":1552593348.073045,"name":"clean","context":{}}'


def test_what_json_lacks() -> None:
    """Bytes become text, also those that are none; numbers that are none become their names."""
    context = {"a": b"text", "b": [b"\xff"], "c": {"d": float("nan")}, "e": float("-inf")}
    assert json.loads(rfc18(_entry("memo", context)))["context"] == {
        "a": "text",
        "b": ["\\xff"],
        "c": {"d": "nan"},
        "e": "-inf",
    }


_json: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


@given(context=st.dictionaries(st.text(), _json))
def test_any_context_is_one_line(context: dict[str, Any]) -> None:
    """Whatever the context holds, both forms are one line, and JSON gives it back unchanged."""
    event = _entry("memo", context)
    line = rfc18(event)
    assert json.loads(line) == {"timestamp": event.wall, "name": "memo", "context": context}
    assert len(line.splitlines()) == 1
    text = relative(event, event.wall)
    assert text.isprintable()
    assert text.startswith("    0.000000 memo")


def test_relative_text() -> None:
    """The text form has seconds since a zero, the name, and the context's values as JSON."""
    event = _entry("alloc", {"nodes": "n[1-4]", "n": 2, "x": None, "l": [1, True]}, wall=100.000123)
    assert relative(event, 100.0) == '    0.000123 alloc nodes="n[1-4]" n=2 x=null l=[1,true]'
    assert relative(_entry("clean", {}, wall=4000.5), 100.0) == " 3900.500000 clean"


def test_text_does_not_reach_the_terminal_as_commands() -> None:
    """Letters of any language are shown; what a terminal would obey is escaped."""
    event = _entry("memo", {"note": "für\x1b[2J\x9b\n\u202e\U000e0001"}, wall=1.0)
    assert relative(event, 1.0) == '    0.000000 memo note="für\\u001b[2J\\u009b\\n\\u202e\\udb40\\udc01"'


def test_damaged_context() -> None:
    """An event that cannot be decoded is a ValueError, in both forms."""
    event = _entry("memo", {})._replace(context=b"\xc1")
    with pytest.raises(ValueError, match="cannot be decoded"):
        rfc18(event)
    with pytest.raises(ValueError, match="cannot be decoded"):
        relative(event, 0.0)
