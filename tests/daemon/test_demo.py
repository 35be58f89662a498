"""The demo: everything in it holds, with root and without, and nothing is left behind."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize("uid", [os.geteuid(), 65534 if os.geteuid() == 0 else os.geteuid()])
def test_the_demo_shows_what_it_says(uid: int, other_user_venv: Path, folder: Path) -> None:
    """`perilog demo` tells three stories and removes all that it has made, for root and for others."""
    folder.chmod(0o777 | 0o1000)
    done = subprocess.run(
        [str(other_user_venv / "perilog"), "demo"],
        check=False,
        capture_output=True,
        text=True,
        user=uid,
        env={"PATH": "/usr/bin:/bin", "TMPDIR": str(folder)},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("\n  -> ") == 3
    assert done.stdout.count(" clean\n") == 3  # each log to its end
    assert list(folder.iterdir()) == []
