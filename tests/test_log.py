"""The log on stderr."""

from __future__ import annotations

import subprocess
import sys


def test_what_users_write_cannot_forge_lines_of_the_log() -> None:
    """Line ends and escape codes in a logged text are shown as such, in one line."""
    program = (
        "import structlog; from perilogd.log import configure; configure('text');"
        "structlog.get_logger().warning('note \\n2026 [info] forged', why='\\x1b[2Jhidden')"
    )
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    (line,) = done.stderr.splitlines()
    assert "note \\n2026 [info] forged" in line
    assert "\\x1b[2Jhidden" in line
