"""Every argument of every method, with every wrong type; unknown, missing and positional arguments."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import pytest

from raw import Raw

if TYPE_CHECKING:
    from protocol.target import Target

HUGE = 2**64 - 1
#: Values that are wrong for a type of argument, by the type's name in `broker.methods`.
NO_TEXT: list[Any] = [0, -1, HUGE, 1.5, True, b"x", [], ["x"], {}, {"x": 1}]
ODD_TEXT = ["", "a b", "a\nb", "a\0b", "a\x1b[2J", "ä", "x" * 10_000]
WRONG: dict[str, list[Any]] = {
    "integer": ["1", "", -1, -(2**63), HUGE, 1.0, 1.5, math.nan, math.inf, True, b"1", [], [1], {}],
    "number": ["1", -1, 101, HUGE, math.nan, math.inf, -math.inf, True, b"1", [], {}],
    "boolean": ["true", "", 0, 1, HUGE, 1.0, b"1", [], {}],
    "word": [*NO_TEXT, *ODD_TEXT, "no-such-word"],
    "name": [*NO_TEXT, *ODD_TEXT],
    "text": [*NO_TEXT, "x" * 10_000],
    "key": [*NO_TEXT, "", "a\nb", "a\0b", "a\x1b[2J", "x" * 10_000, "123", "٣"],
    "duration": [
        *ODD_TEXT,
        4e9,
        1e300,
        "101y",
        "40000d",
        HUGE,
        -1,
        -0.5,
        math.nan,
        math.inf,
        True,
        b"1s",
        [],
        {},
        "5x",
        "-1s",
        "1h30m",
        "nan",
    ],
    "node set": [
        *NO_TEXT,
        *ODD_TEXT,
        "n[1-1000000000]",
        "n[0-9]" + "[0-9]" * 8,
        "n[5-1]",
        "n[1-2",
        "n[]",
        "n[1-2]!n[1-2]",
        "@no-such-group",
        ",",
        "n1,",
        "n1;reboot",
        "$(reboot)",
        "-oProxyCommand=x",
    ],
    "map": ["x", "", 0, HUGE, 1.5, True, b"x", [], [{}]],
    "array": ["x", "", 0, HUGE, 1.5, True, b"x", {}],
    "word or node set or map": [1, -1, 1.5, True, b"x", [], {}, {"nodes": 1}, "n[1-1000000000]", "", "a\nb"],
    "integer or name": [-1, HUGE, 1.5, True, b"x", [], {}, *ODD_TEXT],
}


def the_text(client: Raw, method: str, *params: object) -> str:
    """Call a method with params that it must refuse as EINVAL, and return the text: short and printable."""
    error, result = client.reply(client.request(method, *params))
    assert result is None
    kind, text = error
    assert kind == 1
    assert text.startswith("EINVAL: ")
    assert text.isprintable()
    assert len(text) < 1000
    return str(text)


def test_every_argument_refuses_every_wrong_type(target: Target, client: Raw) -> None:
    """For each method and argument there is, a value of another type is EINVAL, and the text names both."""
    with target.unharmed():
        for name, method in target.methods.items():
            for argument in method["arguments"]:
                for wrong in WRONG[argument["type"]]:
                    text = the_text(client, name, {argument["name"]: wrong})
                    assert text.startswith(f"EINVAL: {name}: argument {argument['name']}"), (wrong, text)
                    assert "expected" in text


NESTED: list[tuple[str, dict[str, Any], str]] = [
    ("job.submit", {"holds": [1]}, "holds[0]"),
    ("job.submit", {"holds": [{"phase": "depend"}]}, "holds[0].name"),
    ("job.submit", {"holds": [{"phase": "run", "name": "x"}]}, "holds[0].phase"),
    ("job.submit", {"holds": [{"phase": "depend", "name": "a b"}]}, "holds[0].name"),
    ("job.submit", {"holds": [{"phase": "depend", "name": "a"}, {"x": 1}]}, "holds[1].x"),
    ("job.submit", {"holds": [{"phase": "depend", "name": "a", "timeout": "x"}]}, "holds[0].timeout"),
    (
        "job.submit",
        {"holds": [{"phase": "depend", "name": "a", "keep": {"nodes": 1}}]},
        "holds[0].keep.nodes",
    ),
    ("job.submit", {"holds": [{"phase": "depend", "name": "a", "note": "x" * 1025}]}, "holds[0].note"),
    ("job.submit", {"holds": [{"phase": "depend", "name": str(n)} for n in range(1001)]}, "holds"),
    ("job.submit", {"resources": {"cores": "0-99999"}}, "resources.cores"),
    ("job.submit", {"resources": {"cores": "٣"}}, "resources.cores"),
    ("job.submit", {"resources": {"gpus": "3-1"}}, "resources.gpus"),
    ("job.submit", {"resources": {"storage": ""}}, "resources.storage"),
    ("job.submit", {"resources": {"memory": "1"}}, "resources.memory"),
    ("job.submit", {"dependencies": [17]}, "dependencies[0]"),
    ("job.submit", {"dependencies": ["afterok:1"] * 1001}, "dependencies"),
    ("job.submit", {"attributes": {"a": {"b": [1, math.nan]}}}, "attributes"),
    ("job.submit", {"attributes": {"a": -math.inf}}, "attributes"),
    ("job.submit", {"attributes": {"a": "x" * 65_536}}, "attributes"),
    ("job.memo", {"id": 1, "memo": {}}, "memo"),
    ("job.memo", {"id": 1, "memo": {"a": math.inf}}, "memo"),
    ("job.memo", {"id": 1, "memo": {"a": "x" * 65_536}}, "memo"),
    ("job.wait", {"id": 1, "event": "clean", "match": {"a b": 1}}, "match"),
    ("job.wait", {"id": 1, "event": "clean", "match": {f"k{n}": n for n in range(65)}}, "match"),
    ("job.watch", {"names": ["clean", 1]}, "names[1]"),
    ("job.watch", {"names": ["clean"] * 101}, "names"),
    ("hold.start", {"id": 1, "phase": "completion", "name": "x", "keep": {"cores": "0"}}, "keep.nodes"),
    ("hold.start", {"id": 1, "phase": "completion", "name": "x", "keep": {"nodes": "n1", "x": 1}}, "keep.x"),
    ("hold.start", {"id": 1, "phase": "completion", "name": "x", "keep": "n[1-3000000]"}, "keep"),
    ("hold.finish", {"id": 1, "phase": "completion", "name": "x", "status": 65_536}, "status"),
    ("hold.finish", {"id": 1, "phase": "completion", "name": "x", "environment": {"1A": "x"}}, "environment"),
    (
        "hold.finish",
        {"id": 1, "phase": "completion", "name": "x", "environment": {"A=B": "x"}},
        "environment",
    ),
    ("hold.finish", {"id": 1, "phase": "completion", "name": "x", "environment": {"A": 1}}, "environment.A"),
    (
        "hold.finish",
        {"id": 1, "phase": "completion", "name": "x", "environment": {"A": "a\0b"}},
        "environment.A",
    ),
    (
        "hold.finish",
        {"id": 1, "phase": "completion", "name": "x", "environment": {"A": "x" * 65_536}},
        "environment",
    ),
]


@pytest.mark.parametrize(("method", "arguments", "named"), NESTED)
def test_what_is_wrong_inside_an_argument_is_named(
    target: Target, client: Raw, method: str, arguments: dict[str, Any], named: str
) -> None:
    """A wrong value inside a list or map is EINVAL; the text leads to it."""
    with target.unharmed():
        assert the_text(client, method, arguments).startswith(f"EINVAL: {method}: argument {named} ")


def test_required_arguments_must_not_be_nil(target: Target, client: Raw) -> None:
    """Nil stands for an argument that is not given; where it must be given, nil is refused."""
    with target.unharmed():
        for name, method in target.methods.items():
            for argument in method["arguments"]:
                if argument["required"]:
                    text = the_text(client, name, {**target.required(name), argument["name"]: None})
                    assert text.startswith(f"EINVAL: {name}: argument {argument['name']} is nil, expected")


def test_missing_arguments_are_named(target: Target, client: Raw) -> None:
    """A method without one of its required arguments is EINVAL, and the text names that argument."""
    with target.unharmed():
        for name, method in target.methods.items():
            for argument in method["arguments"]:
                if argument["required"]:
                    rest = target.required(name)
                    del rest[argument["name"]]
                    text = the_text(client, name, rest)
                    assert text.startswith(
                        f"EINVAL: {name}: argument {argument['name']} is missing, expected"
                    )


@pytest.mark.parametrize("unknown", ["no-such", "ID", "", "id ", "a\nb", "a\0b", "\x1b[2J", "x" * 10_000])
def test_unknown_arguments_are_named(target: Target, client: Raw, unknown: str) -> None:
    """An argument that a method does not have is EINVAL and names those that it has; nothing is done."""
    with target.unharmed():
        for name, method in target.methods.items():
            text = the_text(client, name, {unknown: 1, **target.required(name)})
            shown = unknown if unknown.isprintable() and len(unknown) < 60 else repr(unknown[:60])
            assert text.startswith(f"EINVAL: {name}: argument {shown}")
            known = ", ".join(argument["name"] for argument in method["arguments"]) or "none"
            assert text.endswith(f"is unknown, expected only these: {known}")


@pytest.mark.parametrize(
    "params", [["x"], [1], [None], [[]], [{}, {}], [1, 2, 3], [{"id": 1}, {"id": 1}], ["x" * 10_000]]
)
def test_positional_arguments_are_refused(target: Target, client: Raw, params: list[object]) -> None:
    """Params other than one map are EINVAL for every method, and the text says what they must be."""
    with target.unharmed():
        for name in target.methods:
            assert the_text(client, name, *params).startswith(
                f"EINVAL: {name}: params must hold one map of named arguments"
            )


@pytest.mark.parametrize(
    "method", ["job.got", "", "job", "JOB.GET", "node.down", "resource.watch", "a\nb", "a\0b", "\x1b]0;x\7"]
)
def test_unknown_methods_are_named(target: Target, client: Raw, method: str) -> None:
    """A method that is not there, be it one of a later version, is EINVAL, whatever its params."""
    with target.unharmed():
        wrong: list[list[Any]] = [[], [{}], [{"id": 1}], [1, 2, 3]]
        for params in wrong:
            shown = method if method.isprintable() else repr(method)
            text = the_text(client, method, *params)
            assert text == f"EINVAL: no such method: {shown}; broker.methods lists them"
        assert len(the_text(client, method * 10_000 + "x")) < 200
