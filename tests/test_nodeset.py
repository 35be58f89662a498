"""Node sets from outside: canonical form, bounds found before expansion, groups of the site."""

from __future__ import annotations

from typing import TYPE_CHECKING

import ClusterShell.NodeSet
import pytest
from ClusterShell.NodeSet import RESOLVER_NOGROUP, NodeSet
from hypothesis import given
from hypothesis import strategies as st

from perilogd import nodeset

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("n1", "n1"),
        ("n007", "n007"),
        ("login-1.example.org", "login-1.example.org"),
        ("n2,n1", "n[1-2]"),
        ("n[1-3],n[2-5],n9", "n[1-5,9]"),
        ("n[1-10/3]", "n[1,4,7,10]"),
        ("n[01-03],n3", "n[3,01-03]"),
        ("n[1-5]!n3", "n[1-2,4-5]"),
        ("n[1-5]&n[4-9]", "n[4-5]"),
        ("n[1-2]^n[2-3]", "n[1,3]"),
        ("n[1-3]5,n25", "n[15,25,35]"),
        ("r1n1,r1n2,r2n1,r2n2", "r[1-2]n[1-2]"),
        ("b,a", "a,b"),
        ("[1-3]", "[1-3]"),
    ],
)
def test_canonical_form(text: str, canonical: str) -> None:
    """Every way of writing a set gives ClusterShell's folded text, which is its own canonical form."""
    assert nodeset.parse(text) == canonical
    assert nodeset.parse(canonical) == canonical


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "an empty node set"),
        ("n1,", "not a node set at ''"),
        ("n1,,n2", "not a node set at ',n2'"),
        ("n1 n2", "not a node set at ' n2'"),
        ("n1\n", "not a node set at '\\n'"),
        ("n\0", "not a node set at '\\x00'"),
        ("n1;id", "not a node set at ';id'"),
        ("$(id)", "not a node set at '$(id)'"),
        ("n*", "not a node set at '*'"),
        ("-v", "not a node set at '-v'"),
        ("n1,-oProxyCommand", "not a node set at '-oProxyCommand'"),
        ("nö1", "not a node set at 'ö1'"),
        ("n[1-3", "not a node set at '[1-3'"),
        ("n]", "not a node set at ']'"),
        ("n[]", "not a node set at '[]'"),
        ("n[a]", "not a node set at '[a]'"),
        ("n[1,,2]", "not a range of numbers: ''"),
        ("n[3-1]", "not a range of numbers: '3-1'"),
        ("n[1-3/0]", "not a range of numbers: '1-3/0'"),
        ("n[1-9999999999999999]", "not a range of numbers: '1-9999999999999999'"),
        ("n[01-3]", 'bad range: "padding length mismatch : "01-3""'),
        ("n[1-2][3-4]", 'illegal reopening bracket: "[3-4]"'),
        ("n1!n1", "no node is left in this set"),
        ("n" * 256, f"not a node set at '{'n' * 40}'"),
        ("n[1-100001]", "100001 nodes, which is more than the limit of 100000"),
        ("n[1-99999],m[1-2]", "100001 nodes, which is more than the limit of 100000"),
        ("n[1-1000]x[1-1000]", "1000000 nodes, which is more than the limit of 100000"),
        ("n[1-999999999999999]", "999999999999999 nodes, which is more than the limit of 100000"),
        ("n[1-9999999]&n1", "10000000 nodes, which is more than the limit of 100000"),
    ],
)
def test_refused(text: str, said: str) -> None:
    """What is no node set, or too large a one, is refused with the reason, before anything is expanded."""
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the text is compared below
        nodeset.parse(text)
    assert str(caught.value) == said


def test_limit() -> None:
    """A configured limit counts, and is the number of nodes that are just allowed."""
    assert nodeset.parse("n[1-3]", 3) == "n[1-3]"
    with pytest.raises(ValueError, match=r"^3 nodes, which is more than the limit of 2$"):
        nodeset.parse("n[1-3]", 2)


def test_long_lists_of_names() -> None:
    """A hundred thousand names, or thousands with several numbers, are no more than their folded form."""
    assert nodeset.parse(",".join(f"n{number}" for number in range(100_000))) == "n[0-99999]"
    names = [f"r{rack}i{chassis}n{node}" for rack in range(20) for chassis in range(8) for node in range(20)]
    assert nodeset.parse(",".join(names)) == "r[0-19]i[0-7]n[0-19]"
    assert (
        nodeset.parse(",".join(f"n{number}.c2.example" for number in range(5000))) == "n[0-4999].c2.example"
    )


@pytest.mark.parametrize(
    ("operator", "form"), [(",", "n{0}x{1}"), ("!", "n{0}"), ("&", "n[0-{0}]"), ("^", "n{0}")]
)
def test_costly_sets(operator: str, form: str) -> None:
    """What would cost ClusterShell time without end is refused: so one client could stop all others."""
    operands = [form.format(number, number * number) for number in range(101)]
    assert nodeset.parse(operator.join(operands[:-1]))
    with pytest.raises(ValueError, match=r"^101 operands that do not fold, which is more than the limit of "):
        nodeset.parse(operator.join(operands))


def test_names_without_numbers() -> None:
    """Names that fold with nothing are bounded as well."""
    letters = "abcdefghij"
    names = ["".join(letters[int(digit)] for digit in str(number)) for number in range(5001)]
    with pytest.raises(ValueError, match=r"^5001 operands that do not fold, "):
        nodeset.parse(",".join(names))
    assert nodeset.count(nodeset.parse(",".join(names[:-1]))) == 5000


NUMBERS = st.integers(0, 12).map(str) | st.integers(0, 12).map("{:02}".format)
RANGES = st.builds(lambda first, more: f"[{first}-{first + more}]", st.integers(0, 12), st.integers(0, 5))
NAMES = st.lists(
    st.builds(lambda *parts: "".join(parts), st.sampled_from("nm"), NUMBERS | RANGES)
    | st.builds(
        lambda *parts: "".join(parts),
        st.sampled_from("nm"),
        NUMBERS | RANGES,
        st.sampled_from(["x", "-", ".c", ""]),
        NUMBERS,
    ),
    min_size=1,
    max_size=6,
)


@given(NAMES, st.lists(st.sampled_from(",!&^"), min_size=5, max_size=5) | st.just([","] * 5))
def test_same_as_clustershell(names: list[str], operators: list[str]) -> None:
    """A set has the nodes that ClusterShell says it has, however its names are merged before."""
    text = names[0] + "".join(operator + name for operator, name in zip(operators, names[1:], strict=False))
    expected = NodeSet(text, resolver=RESOLVER_NOGROUP)
    try:
        parsed = nodeset.parse(text)
    except ValueError as error:
        assert str(error) == "no node is left in this set"  # noqa: PT017 - only then may it be refused
        assert not expected
        return
    assert set(NodeSet(parsed, resolver=RESOLVER_NOGROUP)) == set(expected)
    assert nodeset.count(parsed) == len(expected)


@given(st.text() | st.text("n019-[],/!&^@*:. \n", max_size=30))
def test_any_text(text: str) -> None:
    """Whatever is written is a node set or refused as none; nothing else happens."""
    try:
        parsed = nodeset.parse(text, 1000)
    except ValueError:
        return
    assert 1 <= nodeset.count(parsed) <= 1000
    assert nodeset.parse(parsed, 1000) == parsed


def test_count_of_nothing() -> None:
    """No nodes are written as an empty text, and are none."""
    assert nodeset.count("") == 0


@pytest.fixture
def groups(folder: Path) -> Iterator[Path]:
    """A site's groups, from a program; the file to which it writes each question."""
    asked = folder / "asked"
    (folder / "groups.conf").write_text(
        "[Main]\ndefault: local\n"
        "[local]\n"
        f'map: echo "$GROUP" >>{asked}; case "$GROUP" in rack1) echo n[1-4];; rack2) echo n[5-8];; '
        "huge) echo n[1-2000];; esac\n"
        "all: echo n[1-8]\nlist: echo rack1 rack2\n"
        "[broken]\nmap: exit 3\n"
    )
    ClusterShell.NodeSet.set_std_group_resolver_config(str(folder / "groups.conf"))
    yield asked
    ClusterShell.NodeSet.set_std_group_resolver(None)


@pytest.mark.usefixtures("groups")
@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("@rack1", "n[1-4]"),
        ("@local:rack2,m1", "m1,n[5-8]"),
        ("@rack[1-2]!n3", "n[1-2,4-8]"),
        ("n[1-9]!@rack1", "n[5-9]"),
        ("@*", "n[1-8]"),
    ],
)
def test_groups(text: str, canonical: str) -> None:
    """Groups are replaced by their nodes."""
    assert nodeset.parse(text) == canonical


@pytest.mark.usefixtures("groups")
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("@rack3", "group @rack3 is not known here, or has no nodes"),
        ("n1,@rack3", "group @rack3 is not known here, or has no nodes"),
        ("@broken:rack1", '@broken:rack1 cannot be resolved here: exit 3: "@broken:rack1"'),
        ("@nosource:rack1", "@nosource:rack1 cannot be resolved here: nosource"),
        ("@rack[1-101]", "more than 100 groups"),
        ("@huge", "2000 nodes, which is more than the limit of 1000"),
    ],
)
def test_refused_groups(text: str, said: str) -> None:
    """A group that is not known is an error, not an empty set: the job would silently lack nodes."""
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the text is compared below
        nodeset.parse(text, 1000)
    assert str(caught.value) == said


@pytest.mark.parametrize(
    "name",
    [
        "x;touch",
        "$(id)",
        "`id`",
        "-x",
        "a b",
        "a|b",
        "a>b",
        "a'b",
        'a"b',
        "local:-x",
        "a\nb",
    ],
)
def test_group_names_never_reach_a_shell(groups: Path, name: str) -> None:
    """Group programs are run by a shell: a name that means something to it is refused before it is asked."""
    with pytest.raises(ValueError, match=r"^not a node set at "):
        nodeset.parse(f"@{name}")
    assert not groups.exists()
