"""Every kind of fault, with the sentence that a person gets for it, and all of them at once."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from config_site import Site
from perilogd.config import ConfigError, Fault
from perilogd.config.trust import who

NAME = "a name of 1 to 64 of the characters A-Z a-z 0-9 . _ : @ + -"

#: What stands in a table before the wrong line, and how faults name the table.
TABLES = {
    "[[action]]": ('name = "a"\nprolog = ["/bin/true"]\n', '[[action]] "a"'),
    "[[provider]]": ('name = "p"\n', '[[provider]] "p"'),
}


@pytest.fixture
def site(folder: Path) -> Site:
    """An empty configuration folder."""
    return Site(folder)


def rows() -> list[tuple[str, str, str]]:
    """Return table, line and fault of each block in faults.txt."""
    blocks = (Path(__file__).parent / "faults.txt").read_text().split("\n\n")[1:]
    return [(header, line, fault) for header, line, fault in (block.strip().split("\n") for block in blocks)]


@pytest.mark.parametrize(("header", "line", "fault"), rows())
def test_key(site: Site, header: str, line: str, fault: str) -> None:
    """A wrong key gets the sentence that names file, table, key, value and expectation."""
    before, place = TABLES.get(header, ("", header))
    site.write(f"{header}\n{before}{line}\n")
    assert site.faults() == [f"SITE/perilogd.toml: {place} {fault}"]


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("[broker", "is not TOML: Expected ']' at the end of a table declaration (at end of document)"),
        (
            "[brokr]\n",
            (
                "brokr: unknown table, found {}; expected one of broker, limits, holds, journal, executor, "
                'nodes, housekeeping, action, provider (did you mean "broker"?)'
            ),
        ),
        ("broker = 1\n", "broker: found 1; expected a table: [broker]"),
        ("[[broker]]\n", "broker: found [{}]; expected a table: [broker]"),
        (
            '[action]\nname = "a"\n',
            'action: found { name = "a" }; expected tables in double brackets: [[action]]',
        ),
        ("provider = [1]\n", "provider: found [1]; expected tables in double brackets: [[provider]]"),
        ('[[action]]\nprolog = ["/bin/true"]\n', f"[[action]] number 1 name: not there; expected {NAME}"),
        ("[[provider]]\n", f"[[provider]] number 1 name: not there; expected {NAME}"),
        (
            '[[action]]\nname = "a b"\nprolog = ["/bin/true"]\n',
            f'[[action]] "a b" name: found "a b"; expected {NAME}',
        ),
        ("[[provider]]\nname = 7\n", f"[[provider]] number 1 name: found 7; expected {NAME}"),
        (
            '[[action]]\nname = "a"\n',
            '[[action]] "a": no script; expected at least one of prolog, completion, epilog',
        ),
    ],
)
def test_file(site: Site, text: str, fault: str) -> None:
    """What is wrong with the shape of a file, or with a table as a whole, is said as well."""
    site.write(text)
    assert site.faults() == [f"SITE/perilogd.toml: {fault}"]


def test_no_utf8(site: Site) -> None:
    """A file in another encoding is told by the byte that UTF-8 does not have."""
    site.write("")
    site.file.write_bytes(b"# caf\xe9\n")
    assert site.faults() == ["SITE/perilogd.toml: found the byte 0xe9; expected UTF-8"]


def test_unreadable_places(site: Site) -> None:
    """A file where a folder is expected, and the other way round, is a fault and no crash."""
    site.file.mkdir()
    site.write("", "perilogd.toml.d")
    site.write("", "prolog.d")
    assert site.faults() == [
        "SITE/perilogd.toml: cannot be read: Is a directory; expected a configuration file",
        "SITE/perilogd.toml.d: cannot be read: Not a directory; expected a folder of *.toml files",
        "SITE/prolog.d: cannot be read: Not a directory; expected a folder of scripts",
    ]


def test_long_option(site: Site) -> None:
    """A folder that is named as an option is judged like one in the file; the fault names the option."""
    site.write("")
    path = "/" + "s" * 92
    (fault,) = site.faults(run_dir=Path(path))
    assert fault == (
        f'command line: --run-dir: found "{path}"; expected at most 92 bytes: '
        "a socket's path is limited to 107 (unix(7))"
    )


@pytest.mark.parametrize(
    ("after", "circles"),
    [
        ({"a": "b", "b": "a"}, ["a after b after a"]),
        ({"c": "b", "b": "a", "a": "c"}, ["a after c after b after a"]),
        ({"a": "b", "b": "a", "c": "d", "d": "c", "e": "a"}, ["a after b after a", "c after d after c"]),
    ],
)
def test_circles(site: Site, after: dict[str, str], circles: list[str]) -> None:
    """Each circle is told once, by the names in it, at the first of them."""
    site.write(
        "".join(
            f'[[action]]\nname = "{name}"\nprolog = ["/bin/true"]\nafter = ["{other}"]\n'
            for name, other in after.items()
        )
    )
    assert sorted(site.faults()) == [
        f'SITE/perilogd.toml: [[action]] "{circle[0]}" after: found a circle: {circle}; expected none'
        for circle in circles
    ]


def test_names_used_twice(site: Site) -> None:
    """Actions, drop-in scripts, providers and their holds share names with nobody."""
    site.write(
        '[[action]]\nname = "a"\nprolog = ["/bin/true"]\n'
        '[[action]]\nname = "a"\nepilog = ["/bin/true"]\n'
        '[[provider]]\nname = "p"\nholds = ["epilog:a", "epilog:q", "prolog:x"]\n'
        '[[provider]]\nname = "q"\nholds = ["depend:x"]\n'
        '[[provider]]\nname = "a"\n'
    )
    site.script("epilog.d/a")
    file, first = "SITE/perilogd.toml", 'the name of the action in SITE/perilogd.toml: [[action]] "a"'
    end = "expected a name of its own"
    name_of_q = f'the name of the provider in {file}: [[provider]] "q"'
    hold_of_p = f'the name of the provider\'s hold in {file}: [[provider]] "p"'
    assert site.faults() == [
        f'{file}: [[action]] "a" name: found "a", which is {first}; {end}',
        f'SITE/epilog.d/a: found "a", which is {first}; {end}',
        f'{file}: [[provider]] "a" name: found "a", which is {first}; {end}',
        f'{file}: [[provider]] "p" holds: found "a", which is {first}; {end}',
        f'{file}: [[provider]] "p" holds: found "q", which is {name_of_q}; {end}',
        f'{file}: [[provider]] "q" holds: found "x", which is {hold_of_p}; {end}',
    ]


def test_drop_in_scripts(site: Site) -> None:
    """Of drop-in folders, names, kinds and modes of the files are judged; each fault names the file."""
    site.write("")
    site.script("prolog.d/a b")
    site.script("prolog.d/README", 0o644)
    site.script("epilog.d/lost").unlink()
    (site.folder / "epilog.d/lost").symlink_to("/nosuch")
    site.script("completion.d/folder/x")
    assert sorted(site.faults()) == [
        "SITE/completion.d/folder: is no regular file; expected an executable file",
        "SITE/epilog.d/lost: cannot be examined: No such file or directory; expected an executable file",
        "SITE/prolog.d/README: is not executable; expected mode 0755 (chmod 755 SITE/prolog.d/README)",
        f'SITE/prolog.d: found "a b"; expected {NAME}',
    ]


def test_places_that_others_can_write(site: Site) -> None:
    """A folder, file or script that others can write is told once, by its own name."""
    site.write('[[action]]\nname = "x"\nprolog = ["SITE/x"]\n'.replace("SITE", str(site.folder)))
    site.write("", "perilogd.toml.d/a.toml").chmod(0o666)
    site.script("x", 0o775)
    site.script("epilog.d/a", 0o757)
    site.script("epilog.d/b")
    (site.folder / "prolog.d").mkdir()
    (site.folder / "prolog.d").chmod(0o777)
    site.folder.chmod(0o775)

    def fault(place: str, who: str, mode: str, before: str = "SITE/{}: ") -> str:
        return (
            f"{before.format(place)}can be written by {who} (mode {mode}); "
            f"expected only by its owner (chmod go-w SITE/{place})"
        ).replace("SITE/.", "SITE")

    command = 'SITE/perilogd.toml: [[action]] "x" prolog: found "SITE/x", but SITE/{} '
    assert set(site.faults()) == {
        fault(".", "its group", "0775"),
        fault("perilogd.toml.d/a.toml", "its group and others", "0666"),
        fault("epilog.d/a", "others", "0757"),
        fault("prolog.d", "its group and others", "0777"),
        fault(".", "its group", "0775", command),
        fault("x", "its group", "0775", command),
    }


def test_somebody_elses_configuration(site: Site) -> None:
    """Files of a uid that is not the executor's are refused: here, ours by an executor of somebody else."""
    site.write("")
    site.script("prolog.d/a")
    other = 54321
    if os.geteuid() == 0:
        for path in [site.folder, *site.folder.rglob("*")]:
            os.chown(path, other, -1)
        text, uid = f"belongs to uid {other}; expected root", 0
    else:
        text, uid = f"belongs to {who(os.geteuid())}; expected root or uid {other}", other
    assert site.faults(uid=uid) == [
        f"{place}: {text}" for place in ("SITE", "SITE/perilogd.toml", "SITE/prolog.d", "SITE/prolog.d/a")
    ]


def test_other_user_needs_root(site: Site) -> None:
    """An executor that is not root cannot run scripts as somebody else, and says so before it has to."""
    site.write('[[action]]\nname = "a"\nprolog = ["/bin/true"]\nuser = "daemon"')
    uid = os.geteuid() or 54321
    (fault,) = site.faults(uid=uid)
    assert fault == (
        f'SITE/perilogd.toml: [[action]] "a" user: found "daemon", but the executor is {who(uid)}, '
        "and running scripts as another user needs root; expected no user, or perilog-exec run by root"
    )


def test_long_value_is_cut(site: Site) -> None:
    """A fault stays readable, however much was written."""
    site.write(f'[broker]\nguests = "{"x" * 5000}"\n')
    assert site.faults() == [
        f'SITE/perilogd.toml: [broker] guests: found "{"x" * 99}…; expected one of "submit", "read", "none"'
    ]


def test_control_characters_are_escaped(site: Site) -> None:
    """What was written cannot do anything to the terminal of whoever reads of it."""
    site.write('[broker]\nguests = "\\u001b[2J\\n\\"\\\\\\U000e0001"\n')
    (fault,) = site.faults()
    assert fault == (
        'SITE/perilogd.toml: [broker] guests: found "\\u001b[2J\\n\\"\\\\\\U000e0001"; '
        'expected one of "submit", "read", "none"'
    )


def test_text_groups_faults_by_file() -> None:
    """The whole text names each file once, with its faults below."""
    error = ConfigError([Fault("/a", "[x] y", "one"), Fault("/b", "", "two"), Fault("/a", "", "three")])
    assert str(error) == "3 faults in the configuration:\n/a\n  [x] y: one\n  three\n/b\n  two"
    assert str(ConfigError([Fault("/a", "", "one")])) == "1 fault in the configuration:\n/a\n  one"


@given(st.lists(st.sampled_from(rows()), unique_by=lambda row: (row[0], row[1].split(" ")[0])))
def test_all_faults_at_once(chosen: list[tuple[str, str, str]]) -> None:
    """However many faults there are, each is told, with its own sentence, and nothing else is."""
    text, expected = "", []
    for header in dict.fromkeys(header for header, _, _ in chosen):
        before, place = TABLES.get(header, ("", header))
        text += f"{header}\n{before}"
        for other, line, fault in chosen:
            if other == header:
                text += f"{line}\n"
                expected.append(f"SITE/perilogd.toml: {place} {fault}")
    with tempfile.TemporaryDirectory() as folder:
        site = Site(Path(folder))
        site.write(text)
        if expected:
            assert sorted(site.faults()) == sorted(expected)
        else:
            assert site.load().actions == ()
