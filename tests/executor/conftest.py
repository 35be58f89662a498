"""Fixtures of the executor's tests: each of them runs with an executor of every user that there can be."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from exec_bed import ExecBed, Signpost

if TYPE_CHECKING:
    from collections.abc import Iterator

NOBODY = 65534

#: Whom executors under test run as: root can try both, with and without privileges.
USERS = [0, NOBODY] if os.geteuid() == 0 else [os.geteuid()]


@contextlib.contextmanager
def _bed(folder: Path, uid: int, venv: Path) -> Iterator[ExecBed]:
    made = ExecBed(folder, uid, venv / "python")
    try:
        yield made
    finally:
        made.close()
        if made.log.exists():
            print(made.log.read_text())  # pytest shows it where the test failed


@pytest.fixture(params=USERS, ids=lambda uid: f"uid{uid}")
def bed(request: pytest.FixtureRequest, folder: Path, other_user_venv: Path) -> Iterator[ExecBed]:
    """An executor that is not started yet. Whatever it starts is ended."""
    with _bed(folder, request.param, other_user_venv) as made:
        yield made


@pytest.fixture
def own_bed(folder: Path, other_user_venv: Path) -> Iterator[ExecBed]:
    """The same for the tests' own user only: root, if they run as root."""
    with _bed(folder, USERS[0], other_user_venv) as made:
        yield made


@pytest.fixture
def plain_bed(folder: Path, other_user_venv: Path) -> Iterator[ExecBed]:
    """The same for a user without privileges."""
    with _bed(folder, USERS[-1], other_user_venv) as made:
        yield made


@pytest.fixture
def signpost(folder: Path) -> Iterator[Signpost]:
    """A FIFO by which scripts tell how far they are."""
    made = Signpost(folder / "signpost")
    yield made
    made.close()
