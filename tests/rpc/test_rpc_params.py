"""Arguments: what is accepted, and what a person reads who sent something else."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perilogd.config import durations
from perilogd.errors import Refusal
from perilogd.rpc.method import EVERYONE, Method, table
from perilogd.rpc.params import (
    KEY,
    NAME,
    NOTE,
    Anything,
    Argument,
    Arguments,
    Boolean,
    Duration,
    Either,
    Integer,
    Kind,
    ListOf,
    MapOf,
    Mismatch,
    Number,
    OneOf,
    Parsed,
    Text,
    bind,
    printable_up_to,
    text_up_to,
)

DURATION = Duration(durations.parse)


def refused(kind: Kind, value: object) -> str:
    """Return what is said of a value for an argument `a` of a method `m`."""
    with pytest.raises(Refusal) as caught:
        bind("m", Arguments(Argument("a", kind, required=True)), [{"a": value}])
    assert caught.value.code == "EINVAL"
    return caught.value.text


@pytest.mark.parametrize(
    ("kind", "value", "result"),
    [
        (Integer(0, 5), 5, 5),
        (Number(0, 100), 99.5, 99.5),
        (Number(0, 100), 0, 0),
        (Boolean(), False, False),
        (NAME, "a.B_9:@+-", "a.B_9:@+-"),
        (NAME, "x" * 64, "x" * 64),
        (KEY, "slurm:1 é", "slurm:1 é"),
        (NOTE, "é" * 512, "é" * 512),
        (printable_up_to(3), "a b", "a b"),
        (OneOf("x", "y"), "y", "y"),
        (DURATION, "1.5h", 5400.0),
        (DURATION, "infinity", None),
        (DURATION, 0, None),
        (DURATION, 2.5, 2.5),
        (ListOf(Integer(0, 9), 2), [1, 2], [1, 2]),
        (MapOf(NAME, Boolean(), 1), {"a": True}, {"a": True}),
        (Either(OneOf("all"), ListOf(NAME, 2)), ["n1"], ["n1"]),
        (Either(OneOf("all"), ListOf(NAME, 2)), "all", "all"),
        (Parsed("number", "digits", int), "17", 17),
        (Arguments(Argument("from", NAME), Argument("b", NAME)), {"from": "x", "b": None}, {"from_": "x"}),
        (Anything(), {"a": [None]}, {"a": [None]}),
    ],
)
def test_what_fits_is_handed_on(kind: Kind, value: object, result: object) -> None:
    """Each kind hands on what fits, as the method wants it."""
    assert kind.check(value) == result


@pytest.mark.parametrize(
    ("kind", "value", "text"),
    [
        (Integer(1, 5), "x", "m: argument a is 'x', expected an integer from 1 to 5"),
        (Integer(1, 5), True, "m: argument a is true, expected an integer from 1 to 5"),
        (Integer(1, 5), 6, "m: argument a is 6, expected an integer from 1 to 5"),
        (Integer(1, 5), 2.0, "m: argument a is 2.0, expected an integer from 1 to 5"),
        (Integer(1, 5), None, "m: argument a is nil, expected an integer from 1 to 5"),
        (Number(0, 100), math.nan, "m: argument a is nan, expected a number from 0 to 100"),
        (Boolean(), 1, "m: argument a is 1, expected true or false"),
        (NAME, "", "m: argument a is '', expected a name: 1 to 64 of the characters A-Z a-z 0-9 . _ : @ + -"),
        (OneOf("x", "y"), "z", 'm: argument a is \'z\', expected "x" or "y"'),
        (Text("yes", "yes".__eq__), b"yes", "m: argument a is 3 bytes of bin, expected yes"),
        (ListOf(Boolean(), 2), [True, 5], "m: argument a[1] is 5, expected true or false"),
        (ListOf(Boolean(), 2), [True] * 3, "m: argument a is an array of 3, expected an array of at most 2"),
        (MapOf(NAME, Boolean(), 2), {"b": 5}, "m: argument a.b is 5, expected true or false"),
        (MapOf(NAME, Boolean(), 2), {"\n": True}, "m: argument a has a key '\\n', expected a name"),
        (Parsed("number", "digits", int), "x", "m: argument a is 'x', expected digits (invalid literal"),
        (DURATION, "soon", "m: argument a is 'soon', expected a duration such as"),
        (DURATION, math.inf, "m: argument a is inf, expected a duration"),
        (DURATION, -1, "m: argument a is -1, expected a duration"),
        (DURATION, True, "m: argument a is true, expected a duration"),
        (Either(Boolean(), OneOf("x")), 5, 'm: argument a is 5, expected true or false or "x"'),
        (Either(Boolean(), ListOf(NAME, 2)), ["n1", 5], "m: argument a[1] is 5, expected a name"),
        (Arguments(Argument("b", NAME)), 5, "m: argument a is 5, expected a map of b"),
        (Arguments(Argument("b", NAME)), {"c": 1}, "m: argument a.c is unknown, expected only these: b"),
        (Arguments(Argument("b", NAME, required=True)), {}, "m: argument a.b is missing, expected a name"),
        (
            ListOf(Arguments(Argument("b", NAME)), 5),
            [{}, {"b": 0}],
            "m: argument a[1].b is 0, expected a name",
        ),
    ],
)
def test_the_text_names_argument_value_and_expectation(kind: Kind, value: object, text: str) -> None:
    """A refusal says which argument it is about, what was found there and what was expected."""
    assert refused(kind, value).startswith(text)


@pytest.mark.parametrize("name", ["a\nb", "a\0b", "a" * 65, "a" * 10_000, "é", "a b", "a/b", "a\n"])
def test_names_with_anything_else_are_refused(name: str) -> None:
    """A name of other characters or too long is refused, in one short printable line."""
    text = refused(NAME, name)
    assert text.isprintable()
    assert len(text) < 250


@pytest.mark.parametrize("key", ["", "17", "a\n", "a\0", "x" * 256, "\x1b[31m", 17, b"k"])
def test_keys_that_could_be_mistaken_are_refused(key: object) -> None:
    """A key must not look like an id, nor hold what a terminal would act upon."""
    assert "a key: 1 to 255 printable characters" in refused(KEY, key)


def test_sizes_of_text_count_in_bytes() -> None:
    """A note's bound is in bytes, not in characters."""
    assert "text of at most 1024 bytes" in refused(NOTE, "é" * 513)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
        lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
        max_leaves=20,
    )
)
def test_any_value_is_checked_without_surprise(value: Any) -> None:
    """Whatever comes in, each kind returns or says Mismatch; the text is one short printable line."""
    field = Argument("b", NAME, required=True)
    for kind in (
        Integer(0, 9),
        Number(0, 1),
        Boolean(),
        KEY,
        NOTE,
        OneOf("x"),
        DURATION,
        ListOf(ListOf(NAME, 2), 3),
        MapOf(NAME, MapOf(KEY, NAME, 2), 3),
        Either(NAME, Arguments(field)),
        Arguments(field, Argument("c", ListOf(Arguments(field), 9))),
    ):
        try:
            kind.check(value)
        except Mismatch:
            text = refused(kind, value)
            assert text.isprintable()
            assert len(text) < 600


@pytest.mark.parametrize("params", [[{}, {}], [5], [[]], ["x"], [None]])
def test_params_hold_one_map(params: list[Any]) -> None:
    """Positional arguments are refused with the names that there are."""
    with pytest.raises(
        Refusal, match=r"EINVAL: m: params must hold one map of named arguments \(a, b\), found"
    ):
        bind("m", Arguments(Argument("a", NAME), Argument("b", NAME)), params)


def test_no_params_are_no_arguments() -> None:
    """Empty params, or an empty map, give no arguments."""
    arguments = Arguments(Argument("a", NAME))
    assert bind("m", arguments, []) == bind("m", arguments, [{}]) == {}


def test_unknown_argument_is_named_shortly() -> None:
    """The name of an unknown argument is repeated, but not 10 kB of it and no control characters."""
    for name in ("x" * 10_000, "\x1b[2J\n"):
        with pytest.raises(Refusal, match="is unknown, expected only these: a") as caught:
            bind("m", Arguments(Argument("a", NAME)), [{name: 1}])
        assert caught.value.text.isprintable()
        assert len(caught.value.text) < 200


def test_a_handler_must_fit_its_arguments() -> None:
    """A handler that lacks a parameter, or needs one too many, is found when the table is made."""
    argument = Argument("a", NAME)
    for handler in (lambda _call: None, lambda _call, a: a, lambda _call, a=0, *, b: (a, b)):
        with pytest.raises(TypeError, match="the handler of m does not fit its arguments"):
            Method("m", handler, (argument,), roles=EVERYONE, doc="", result="")
    Method("m", lambda _call, a=0: a, (argument,), roles=EVERYONE, doc="", result="")


def test_two_methods_of_one_name_are_found() -> None:
    """A name stands for one method."""
    method = Method("m", lambda _call: None, roles=EVERYONE, doc="", result="")
    assert table(method) == {"m": method}
    with pytest.raises(ValueError, match="two methods are named m"):
        table(method, method)


def test_a_method_describes_itself() -> None:
    """A description has arguments with types, roles, and what people need to know."""
    method = Method(
        "m",
        lambda _call, a, b=None: (a, b),
        (
            Argument("a", Integer(0, 9), required=True, doc="a digit"),
            Argument("b", Either(NAME, text_up_to(9))),
        ),
        roles=frozenset({"admin", "guest"}),
        doc="Do it.",
        result="nothing",
    )
    described: dict[str, Any] = method.describe()
    assert described["name"] == "m"
    assert described["roles"] == ["admin", "guest"]
    first, second = described["arguments"]
    assert first == {
        "name": "a",
        "type": "integer",
        "required": True,
        "expected": "an integer from 0 to 9",
        "doc": "a digit",
    }
    assert second["type"] == "name or text"
