"""Fixtures of the journal's tests: a journal that is open, and a user whom file modes bind."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from journal.helpers import opened

if TYPE_CHECKING:
    from collections.abc import Iterator

    from perilogd.journal import Journal

_NOBODY = 65534


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Name a journal that does not exist yet."""
    return tmp_path / "journal.sqlite"


@pytest.fixture
def journal(path: Path) -> Iterator[Journal]:
    """Open a new journal."""
    with opened(path) as journal:
        yield journal


@pytest.fixture
def plain_folder() -> Iterator[Path]:
    """Make a folder, and be a user whom modes bind: root, whom nothing stops, becomes nobody meanwhile."""
    folder = Path(tempfile.mkdtemp())
    root = os.geteuid() == 0
    if root:
        os.chown(folder, _NOBODY, -1)
        os.seteuid(_NOBODY)
    try:
        yield folder
    finally:
        if root:
            os.seteuid(0)
        folder.chmod(0o700)
        shutil.rmtree(folder)
