"""Fixtures that tests of several parts share: a private daemon, and installed copies of the project."""

from __future__ import annotations

import fcntl
import os
import shutil
import stat
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import hypothesis
import pytest

from bed import ROOT, Bed

if TYPE_CHECKING:
    from collections.abc import Iterator

# How long an example takes says more about the machine than about the code. In CI the same examples are tried
# each time, so that a change is judged by what it changes; elsewhere new ones, and what fails is remembered.
hypothesis.settings.register_profile(
    "perilogd", deadline=None, print_blob=True, derandomize=bool(os.environ.get("CI"))
)
hypothesis.settings.load_profile("perilogd")

#: Names the folder that all workers of one test run share: made before they start, removed after they end.
_SHARED = "PERILOGD_TESTS_SHARED"


def pytest_configure(config: pytest.Config) -> None:
    """Make the shared folder, in the process that starts the workers (or is the only one)."""
    if _SHARED not in os.environ:
        shared = tempfile.mkdtemp(prefix="perilogd-tests-", dir="/tmp")
        Path(shared).chmod(0o755)  # other users run what gets installed there
        os.environ[_SHARED] = shared
        config.add_cleanup(lambda: shutil.rmtree(shared))


@pytest.fixture
def folder() -> Iterator[Path]:
    """An empty folder with a path short enough for Unix sockets, which others may pass through."""
    with tempfile.TemporaryDirectory(prefix="pl-", dir="/tmp") as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.fixture
def bed(folder: Path) -> Iterator[Bed]:
    """A test bed whose broker is not started yet. Whatever it starts is ended, and nothing may stay."""
    with Bed(folder) as made:
        yield made
        if made.log.exists():
            print(made.log_tail())  # pytest shows it where the test failed
    assert made.processes() == []


@pytest.fixture(scope="session")
def installed_venv() -> Path:
    """The bin folder of a virtual environment, usable by every user, with the project installed by pip.

    Made once in a test run, from a copy of the tree, the way an administrator would.
    """
    shared = Path(os.environ[_SHARED])
    venv, source, complete = shared / "venv", shared / "source", shared / "complete"
    with (shared / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another worker may be at it
        if not complete.exists():
            ignored = shutil.ignore_patterns(".*", "build", "*.egg-info", "tests")
            shutil.copytree(ROOT, source, ignore=ignored, dirs_exist_ok=True)
            _run([str(ROOT / ".ci/make-venv"), str(venv)])
            _run([str(venv / "bin/pip"), "install", "--quiet", str(source)])
            complete.touch()
    return venv / "bin"


@pytest.fixture(scope="session")
def other_user_venv(request: pytest.FixtureRequest) -> Path:
    """The bin folder of a virtual environment whose programs any user may run.

    That is the one running the tests, unless it or its Python lies in somebody's private folder.
    """
    ours = Path(sys.prefix, "bin")
    if all(_open_to_all(path) for path in (ours, Path(sys.executable).resolve(), ROOT)):
        return ours
    installed: Path = request.getfixturevalue("installed_venv")
    return installed


def _run(command: list[str]) -> None:
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, f"{command} failed:\n{done.stdout}{done.stderr}"


def _open_to_all(path: Path) -> bool:
    """Tell whether any user may reach and read this file or folder."""
    wanted = stat.S_IROTH | stat.S_IXOTH
    return path.stat().st_mode & wanted == wanted and all(
        p.stat().st_mode & stat.S_IXOTH for p in path.parents
    )
