"""Which files are believed: owners, modes, folders above, symbolic links.

Root makes files of another uid; whoever else runs these tests is himself the other one, for an
executor that believes root alone.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from perilogd.config.trust import untrusted, who

OTHER = 54321
ME = os.geteuid()
BELIEVED = (0, ME)


def give_away(path: Path) -> tuple[int, ...]:
    """Make a file belong to somebody who is not among the owners returned."""
    if ME == 0:
        os.chown(path, OTHER, -1, follow_symlinks=False)
    return (0,)


def owner_text(path: Path) -> tuple[Path, str]:
    """Return what is said of a file that belongs to somebody else than root."""
    return path, f"belongs to {who(path.lstat().st_uid)}; expected root"


@pytest.fixture
def file(folder: Path) -> Path:
    """A file in a folder of its own, both in order."""
    below = folder / "below"
    below.mkdir()
    below.chmod(0o755)
    made = below / "file"
    made.write_text("")
    made.chmod(0o755)
    return made


def test_own_file_is_believed(file: Path) -> None:
    """A file below /tmp, a sticky folder of root's, is believed if its owner alone can write it."""
    assert untrusted(file, BELIEVED) == []


def test_root_owned_program_is_believed() -> None:
    """Programs of the system are root's, whoever the executor is, also where /bin is a link."""
    assert untrusted("/bin/true", BELIEVED) == []


@pytest.mark.parametrize(
    ("mode", "writers"),
    [
        (0o775, "its group"),
        (0o757, "others"),
        (0o777, "its group and others"),
        (0o1777, "its group and others"),
    ],
)
@pytest.mark.parametrize("name", ["file", "."])
def test_others_can_write(file: Path, name: str, mode: int, writers: str) -> None:
    """What others can write is not believed, file or folder above; a sticky bit helps root's folders."""
    place = (file.parent / name).resolve()
    place.chmod(mode)
    text = f"can be written by {writers} (mode {mode:04o}); expected only by its owner (chmod go-w {place})"
    sticky = mode & 0o1000 and place.is_dir() and ME == 0
    assert untrusted(file, BELIEVED) == ([] if sticky else [(place, text)])


def test_somebody_elses_file(file: Path) -> None:
    """A file that belongs to somebody else is not believed."""
    owners = give_away(file)
    assert owner_text(file) in untrusted(file, owners)


def test_somebody_elses_folder(file: Path) -> None:
    """A folder above that belongs to somebody else spoils the file."""
    owners = give_away(file.parent)
    assert owner_text(file.parent) in untrusted(file, owners)


def test_expected_owners_are_named() -> None:
    """The sentence names whom the file could belong to, by name where there is one."""
    assert untrusted("/", (OTHER, OTHER + 1)) == [
        (Path("/"), f"belongs to root; expected uid {OTHER} or uid {OTHER + 1}")
    ]


def test_link_and_target_are_both_examined(file: Path, folder: Path) -> None:
    """Of a symbolic link, its own folders and those of its target must be in order."""
    elsewhere = folder / "elsewhere"
    elsewhere.mkdir()
    link = elsewhere / "link"
    link.symlink_to("../below/file")
    elsewhere.chmod(0o777)
    file.parent.chmod(0o777)
    assert [place for place, _ in untrusted(link, BELIEVED)] == [elsewhere, file.parent]


def test_somebody_elses_link(file: Path) -> None:
    """A link that somebody else made is not believed, wherever it points: in /tmp anyone could make it."""
    link = file.parent / "link"
    link.symlink_to("/bin/true")
    owners = give_away(link)
    assert owner_text(link) in untrusted(link, owners)


def test_parent_of_a_link_is_the_targets(file: Path, folder: Path) -> None:
    """`link/..` is the folder above the target, as it is for the kernel."""
    (folder / "link").symlink_to("below")
    file.parent.chmod(0o777)
    assert [place for place, _ in untrusted(folder / "link/../below/file", BELIEVED)] == [file.parent]
    (folder / "root").symlink_to("/usr/bin")
    assert untrusted(folder / "root/../bin/env", BELIEVED) == []


def test_missing_file(folder: Path) -> None:
    """A file that is not there cannot be believed either, and the sentence says so."""
    assert untrusted(folder / "no/file", BELIEVED) == [
        (folder / "no", "cannot be examined: No such file or directory")
    ]


def test_circle_of_links(folder: Path) -> None:
    """Links in a circle end in a fault, not in an endless walk."""
    (folder / "one").symlink_to("two")
    (folder / "two").symlink_to("one")
    assert untrusted(folder / "one", BELIEVED) == [
        (folder / "one", "is one of more than 40 symbolic links; expected a file")
    ]


@pytest.mark.parametrize(("uid", "text"), [(0, "root"), (OTHER, f"uid {OTHER}"), (1, "uid 1 (daemon)")])
def test_who(uid: int, text: str) -> None:
    """People are told a uid's name where it has one."""
    assert who(uid) == text
