"""What `pip install .` gives an administrator: three commands that work for every user of the host."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING

from bed import ROOT, Bed

if TYPE_CHECKING:
    from pathlib import Path

#: A user without any rights (nobody's uid on most hosts); where the tests lack root, ourselves.
NOBODY = 65534 if os.geteuid() == 0 else os.geteuid()


def _output(*command: str | Path) -> str:
    """Run a command as a user without rights, outside of the tree, and return what it prints."""
    done = subprocess.run(
        [str(word) for word in command],
        check=False,
        capture_output=True,
        text=True,
        user=NOBODY,
        cwd="/",
        env={"PATH": "/usr/bin:/bin"},
    )
    assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout


def test_every_command_starts_for_every_user(installed_venv: Path) -> None:
    """All three commands are installed, and a user without rights gets their help."""
    for name in ("perilogd", "perilog-exec", "perilog"):
        assert "--help" in _output(installed_venv / name, "--help")


def test_the_command_keeps_its_first_lines(installed_venv: Path) -> None:
    """Pip installs `perilog` byte by byte: the lines that make its start cheap are still there."""
    assert (installed_venv / "perilog").read_bytes() == (ROOT / "clients/bin/perilog").read_bytes()


def test_the_command_knows_its_version(installed_venv: Path) -> None:
    """`perilog --version` gives the version of the package that is installed."""
    assert _output(installed_venv / "perilog", "--version").split() == ["perilog", _version()]


def test_manual_pages_and_units_come_along(installed_venv: Path) -> None:
    """Manual pages, documentation and units are installed below share, unchanged."""
    share = installed_venv.parent / "share"
    for ours, theirs in (
        ("docs/man/perilog.1", "man/man1/perilog.1"),
        ("docs/man/perilogd.toml.5", "man/man5/perilogd.toml.5"),
        ("docs/man/perilogd.8", "man/man8/perilogd.8"),
        ("docs/man/perilog-exec.8", "man/man8/perilog-exec.8"),
        ("docs/concepts.md", "doc/perilogd/concepts.md"),
        ("systemd/perilogd.service", "perilogd/systemd/perilogd.service"),
    ):
        assert (share / theirs).read_bytes() == (ROOT / ours).read_bytes()


def test_only_our_packages_are_installed(installed_venv: Path) -> None:
    """The distribution brings the packages perilog and perilogd with their type marks, and no other."""
    listed = _output(installed_venv / "python3", "-m", "pip", "show", "--files", "perilogd").splitlines()
    files = {line.strip() for line in listed if line.startswith("  ")}
    top = {file.split("/")[0] for file in files if not file.startswith("..") and ".dist-info" not in file}
    assert top == {"perilog", "perilogd"}
    assert {"perilog/py.typed", "perilogd/py.typed"} <= files


def test_a_job_runs_with_what_is_installed(installed_venv: Path, folder: Path) -> None:
    """The installed daemon and executor take a job with a prolog and an epilog from submit to clean."""
    with Bed(folder, programs=installed_venv) as bed:
        bed.action("mark", prolog=f"touch {folder}/made", epilog=f"rm {folder}/made")
        bed.start()
        job = bed.submit()
        bed.wait(job, "ready")
        assert (folder / "made").exists()
        command = [str(installed_venv / "perilog"), "-s", str(bed.socket)]
        for words in (["start", str(job)], ["exit", str(job), "--code", "0"], ["wait", str(job), "clean"]):
            subprocess.run([*command, *words], check=True)
        assert not (folder / "made").exists()


def _version() -> str:
    text = (ROOT / "pyproject.toml").read_text()
    return text.split('\nversion = "')[1].split('"')[0]
