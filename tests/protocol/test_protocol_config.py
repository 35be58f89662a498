"""Configuration with every kind of fault: `perilogd --check` names it, a reload changes nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from bed import ROOT

if TYPE_CHECKING:
    from bed import Bed

#: What a table needs besides the wrong line.
BESIDES = {
    "[[action]]": 'name = "a"\nprolog = ["/bin/true"]\n',
    "[[provider]]": 'name = "p"\n',
}


def key_faults() -> list[tuple[str, str]]:
    """Return for each wrong key a file that has it, and what is said about it."""
    blocks = (ROOT / "tests/config/faults.txt").read_text().split("\n\n")[1:]
    faults = []
    for block in blocks:
        header, line, said = block.strip().split("\n")
        if line.startswith("after") or "twice" in said:
            continue  # what is said depends on other tables, see FILE_FAULTS
        faults.append((f"{header}\n{BESIDES.get(header, '')}{line}\n", said))
    return faults


#: Files that are wrong as a whole, or together with the system, and a part of what is said about them.
FILE_FAULTS = [
    (b"[broker", "is not TOML"),
    (b"\xff = 1\n", "found the byte 0xff; expected UTF-8"),
    (b"a = '\0'\n", "is not TOML"),
    (b"[brokr]\n", "brokr: unknown table"),
    (b"broker = 1\n", "broker: found 1; expected a table"),
    (b"[[broker]]\n", "expected a table: [broker]"),
    (b'[action]\nname = "a"\n', "expected tables in double brackets: [[action]]"),
    (b'[[action]]\nname = "a"\n', "no script; expected at least one of prolog, completion, epilog"),
    (b'[[action]]\nname = "a"\nprolog = ["/bin/true"]\n' * 2, 'found "a", which is the name of the action'),
    (b'[[action]]\nname = "a"\nprolog = ["/bin/true"]\nafter = ["a"]\n', "found a circle: a after a"),
    (b'[[action]]\nname = "a"\nprolog = ["/bin/true"]\nafter = ["zzz"]\n', 'found "zzz"; expected the name'),
    (b'[[action]]\nname = "a"\nprolog = ["/nonexistent"]\n', "/nonexistent cannot be examined"),
    (b'[[action]]\nname = "a"\nprolog = ["/etc"]\n', "/etc is no regular file"),
    (b'[[action]]\nname = "a"\nprolog = ["/etc/passwd"]\n', "/etc/passwd is not executable"),
    (b'[[provider]]\nname = "p"\nholds = ["epilog", "epilog:p"]\n', 'found "epilog:p" twice'),
    (b'[[provider]]\nname = "p"\n' * 2, 'found "p", which is the name of the provider'),
    (b'[[provider]]\nname = "p"\nusers = ["no-such-user"]\n', "which is no user of this host"),
]


def check(bed: Bed) -> str:
    """Run `perilogd --check`, which must find faults, and return what it says."""
    program = Path(sys.executable).with_name("perilogd")
    command: list[str | Path] = [program, "--config", bed.config, "--check"]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (2, "")
    return done.stdout


def test_check_names_every_fault_at_once(bed: Bed) -> None:
    """With each wrong key in a file of its own, `--check` tells each by file, table and key, and fails."""
    folder = Path(f"{bed.config}.d")
    folder.mkdir()
    bed.write_config()
    faults = key_faults()
    for number, (text, _) in enumerate(faults):
        (folder / f"{number:03}.toml").write_text(text)
    told = check(bed)
    for number, (_, said) in enumerate(faults):
        (block,) = [part for part in told.split(str(folder)) if part.startswith(f"/{number:03}.toml\n")]
        assert said in block


def test_check_says_what_is_well(bed: Bed) -> None:
    """Without faults `--check` tells who takes part in jobs, and ends with 0."""
    bed.action("a", prolog="true", epilog="true")
    bed.write_config()
    program = Path(sys.executable).with_name("perilogd")
    done = subprocess.run(
        [program, "--config", bed.config, "--check"], capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith(
        f"{bed.config}: no faults\n  action a: prolog {bed.scripts}/a.prolog; epilog "
    )


def test_a_reload_with_any_fault_changes_nothing(bed: Bed) -> None:
    """For each fault: the reload is EINVAL and tells it, and not even what was right in it is in force."""
    bed.action("good", prolog="true")
    bed.start()
    bed.executor_answers()
    before = bed.call("broker.config")
    events = bed.call("broker.stats")["events"]
    folder = Path(f"{bed.config}.d")
    folder.mkdir()
    (folder / "90-good.toml").write_text(
        '[limits]\nwatches = 7\n[[action]]\nname = "new"\nprolog = ["/bin/true"]\n'
    )
    wrong = folder / "10-wrong.toml"
    texts = [(text.encode(), said) for text, said in key_faults()]
    for content, said in [*texts, *FILE_FAULTS]:
        wrong.write_bytes(content)
        told = bed.refusal("broker.reload")
        assert told.startswith("EINVAL: the configuration stays as it was: ")
        assert said in told, content
        assert str(wrong) in told
        assert bed.call("broker.config") == before
    assert bed.call("broker.stats")["events"] == events
    job = bed.submit()
    bed.wait(job, "ready")
    assert [name for name in bed.names(job) if name.startswith("prolog-start")] == ["prolog-start good"]
    wrong.unlink()
    bed.call("broker.reload")
    assert bed.call("broker.config")["limits"]["watches"] == 7


@pytest.mark.parametrize(
    "spoil",
    [
        lambda bed: bed.config.unlink(),
        lambda bed: (bed.config.unlink(), bed.config.mkdir()),
        lambda bed: Path(f"{bed.config}.d").write_text("x"),
        lambda bed: (bed.folder / "prolog.d").write_text("x"),
        lambda bed: bed.drop_in("prolog", "a b", "true"),
        lambda bed: bed.drop_in("epilog", "no-x", "true").chmod(0o644),
    ],
    ids=["no file", "a folder", "a file as folder", "a file as drop-ins", "a bad name", "not executable"],
)
def test_what_is_wrong_with_the_files_is_told(bed: Bed, spoil: object) -> None:
    """A reload finds out about missing files, folders in their place, and drop-ins that are no scripts."""
    bed.start()
    bed.executor_answers()
    before = bed.call("broker.config")
    assert callable(spoil)
    spoil(bed)
    told = bed.refusal("broker.reload")
    assert told.startswith("EINVAL: the configuration stays as it was: 1 fault in the configuration:\n")
    assert str(bed.folder) in told
    assert "expected" in told
    assert bed.call("broker.config") == before
