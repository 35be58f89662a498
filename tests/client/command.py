"""Running the command `perilog` in tests, and reading what it writes as it comes."""

from __future__ import annotations

import os
import select
import subprocess
from typing import TYPE_CHECKING

from client.fake_broker import PATIENCE

if TYPE_CHECKING:
    from pathlib import Path


class Command:
    """The command `perilog` as installed in a folder of its own, and the broker's socket that it is told of.

    Args:
        program: the installed script.
        socket: what $PERILOG_SOCKET names.
    """

    def __init__(self, program: Path, socket: Path) -> None:
        self.program = program
        self.environment = {"PATH": os.environ["PATH"], "PERILOG_SOCKET": str(socket), "LANG": "C.UTF-8"}

    def __call__(self, *words: str, status: int | None = 0, **more: str) -> subprocess.CompletedProcess[str]:
        """Run it to its end.

        Args:
            words: its arguments.
            status: the exit status that it must have; None: any.
            more: further environment.
        """
        done = subprocess.run(
            [str(self.program), *words],
            env={**self.environment, **more},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        assert "Traceback" not in done.stderr, done.stderr
        assert status is None or done.returncode == status, (done.returncode, done.stdout, done.stderr)
        return done

    def start(self, *words: str, **more: str) -> subprocess.Popen[str]:
        """Start it and return at once."""
        return subprocess.Popen(
            [str(self.program), *words],
            env={**self.environment, **more},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )


def line(process: subprocess.Popen[str], stream: str = "stderr") -> str:
    """Return the next line that a process writes."""
    pipe = getattr(process, stream).fileno()
    read = b""
    while not read.endswith(b"\n"):
        assert select.select([pipe], [], [], PATIENCE)[0], f"nothing came on {stream} behind {read!r}"
        read += os.read(pipe, 1) or b"(its end)\n"
    return read.decode()


def ended(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    """Wait for a process; return its exit status, and what was not read yet of its output."""
    out, err = process.communicate(timeout=PATIENCE)
    assert "Traceback" not in err, err
    return process.returncode, out, err
