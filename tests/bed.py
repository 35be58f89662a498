"""A test bed: a real `perilogd` with real scripts in a folder of its own.

Here lives what many tests of the daemon share: writing scripts and configuration, starting and killing,
asking and waiting. What a test proves does not belong here. Starting and ending the processes is done
by `perilog.testing`, which users have as well.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import perilog
from perilog.testing import PrivateBroker

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

T = TypeVar("T")
Event = dict[str, Any]

#: The tree under test.
ROOT = Path(__file__).resolve().parent.parent

#: Longest time in seconds that a test waits for an event. Only a fault lasts that long.
PATIENCE = 60.0

#: struct ucred (unix(7)): pid, uid, gid.
_UCRED = struct.Struct("3i")


def until(what: Callable[[], T], patience: float = PATIENCE) -> T:
    """Ask again and again until the answer is true, and return it: for what nobody announces.

    Args:
        what: asks.
        patience: seconds after which the answer is taken to be a fault.
    """
    deadline = time.monotonic() + patience
    while not (answer := what()):
        assert time.monotonic() < deadline, "it did not come to be in time"
        time.sleep(0.01)
    return answer


def toml(value: object) -> str:
    """Write a value as TOML on one line: JSON but for tables."""
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{json.dumps(key)} = {toml(item)}" for key, item in value.items()) + " }"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(toml(item) for item in value) + "]"
    return json.dumps(value)


class Bed(PrivateBroker):
    """A broker under test.

    Args:
        folder: an existing folder with a short path.
        programs: see `PrivateBroker`.

    Attributes:
        tables: the configuration as lists of `(header, keys)`, written at each `start` and `reload`.
        scripts: folder of the scripts.
    """

    def __init__(self, folder: Path, *, programs: Path | None = None) -> None:
        super().__init__(folder, programs=programs)
        self.tables: list[tuple[str, Mapping[str, object]]] = []
        self.scripts = folder / "scripts"
        self.scripts.mkdir()
        self._client: perilog.Client | None = None

    # -- configuration ------------------------------------------------------------------------------

    def table(self, header: str, **keys: object) -> None:
        """Add a table to the configuration.

        Args:
            header: with its brackets, as in "[holds]" or "[[provider]]".
            keys: its keys, with "_" for "-".
        """
        self.tables.append((header, {key.replace("_", "-"): value for key, value in keys.items()}))

    def script(self, name: str, body: str) -> str:
        """Write an executable script and return its path.

        Args:
            name: the file's name.
            body: what it does: sh, unless it begins with its own "#!".
        """
        path = self.scripts / name
        path.write_text(body if body.startswith("#!") else f"#!/bin/sh\n{body}\n")
        path.chmod(0o755)
        return str(path)

    def action(self, name: str, **keys: object) -> None:
        """Add an action, writing its scripts.

        Args:
            name: the action's name.
            keys: keys of its table with "_" for "-"; a text for prolog, completion or epilog is the body of a
                script (see `script`), a list is a command.
        """
        for phase in ("prolog", "completion", "epilog"):
            if isinstance(body := keys.get(phase), str):
                keys[phase] = [self.script(f"{name}.{phase}", body)]
        self.table("[[action]]", name=name, **keys)

    def drop_in(self, phase: str, name: str, body: str) -> Path:
        """Write a drop-in script, such as `prolog.d/NAME`, and return its path."""
        folder = self.folder / f"{phase}.d"
        folder.mkdir(exist_ok=True)
        path = folder / name
        path.write_text(body if body.startswith("#!") else f"#!/bin/sh\n{body}\n")
        path.chmod(0o755)
        return path

    def write_config(self) -> None:
        """Write the configuration file from `tables`."""
        lines: list[str] = []
        for header, keys in self.tables:
            lines += [header, *(f"{json.dumps(key)} = {toml(value)}" for key, value in keys.items()), ""]
        self.config.write_text("\n".join(lines))

    # -- life ---------------------------------------------------------------------------------------

    def start(self, timeout: float = PATIENCE) -> None:
        """Write the configuration, start the broker, and return once it is ready."""
        self.write_config()
        super().start(timeout)

    def kill9(self) -> None:
        """Kill the broker with SIGKILL; executor and scripts go on."""
        self._disconnect()
        self.kill()

    def stop(self) -> None:
        """Stop the broker with SIGTERM; executor and scripts go on."""
        self._disconnect()
        super().stop()

    def executor(self) -> int:
        """Return the pid of the executor: of whoever listens on its socket.

        Raises:
            OSError: none is running.
        """
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(self.run_dir / "exec/exec.sock"))
            peer = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
        pid, _, _ = _UCRED.unpack(peer)
        return int(pid)

    def executor_answers(self) -> int:
        """Wait until the broker and an executor have found each other, and return the executor's pid."""

        def pid() -> int:
            executor = self.call("broker.stats")["executor"]
            return int(executor["pid"]) if executor["answers"] else 0

        return until(pid)

    def kill9_executor(self) -> None:
        """Kill the executor, if one is running, with SIGKILL; broker and scripts go on."""
        with contextlib.suppress(FileNotFoundError, ConnectionRefusedError):
            os.kill(self.executor(), signal.SIGKILL)

    def running_scripts(self) -> list[int]:
        """Return the pids of scripts and of what they have started."""
        return [process.pid for process in self.processes() if not process.daemon]

    # -- asking -------------------------------------------------------------------------------------

    def connect(self) -> perilog.Client:
        """Return a new connection to the broker; the caller closes it."""
        return perilog.connect(str(self.socket))

    def call(self, method: str, **arguments: object) -> Any:
        """Call a method over the bed's own connection and return its result."""
        if self._client is None:
            self._client = self.connect()
        return self._client.call(method, **arguments)

    def command(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run the command `perilog` on this broker and return what it printed and its exit status."""
        program = Path(sys.executable).with_name("perilog")
        return subprocess.run(
            [program, "-s", str(self.socket), *words],
            check=False,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )

    def refusal(self, method: str, **arguments: object) -> str:
        """Call a method that must be refused, and return how: code, colon and text."""
        try:
            result = self.call(method, **arguments)
        except perilog.Error as error:
            return str(error)
        raise AssertionError(f"{method} was not refused, but gave {result}")

    def submit(self, **arguments: object) -> int:
        """Submit a job, on node n1 unless told otherwise, and return its id."""
        result = self.call("job.submit", **{"nodes": "n1", **arguments})
        return int(result["id"])

    def wait(self, job: int, event: str, **match: object) -> Event:
        """Return an event of a job once it is there; with `match`, one whose context holds these values."""
        arguments = {"match": match} if match else {}
        found: Event = self.call("job.wait", id=job, event=event, timeout=PATIENCE, **arguments)
        return found

    def events(self, job: int) -> list[Event]:
        """Return the job's events so far."""
        found: list[Event] = self.call("job.events", id=job)
        return found

    def event(self, job: int, name: str, **match: object) -> Event:
        """Return the only event of this name so far, of those whose context holds these values."""
        (found,) = [
            event
            for event in self.events(job)
            if event["name"] == name and match.items() <= event["context"].items()
        ]
        return found

    def job(self, job: int) -> dict[str, Any]:
        """Return the job as clients see it."""
        shown: dict[str, Any] = self.call("job.get", id=job)
        return shown

    def hold(self, job: int, phase: str, name: str) -> dict[str, Any]:
        """Return a hold of a job as clients see it."""
        (found,) = [h for h in self.job(job)["holds"] if (h["phase"], h["name"]) == (phase, name)]
        return dict(found)

    def drained(self) -> dict[str, str]:
        """Return the reasons of the nodes that are drained."""
        rows = self.call("node.list")
        return {row["nodes"]: row["reason"] for row in rows if row["state"] == "drained"}

    def names(self, job: int) -> list[str]:
        """Return the names of the job's events so far, with the description where there is one."""
        return [
            f"{event['name']} {event['context']['description']}"
            if "description" in event["context"]
            else event["name"]
            for event in self.events(job)
        ]

    def run_job(self, *, status: int = 0, **arguments: object) -> int:
        """Take a job through its whole life and return its id once it is clean.

        Args:
            status: the application's wait status.
            arguments: of `submit`.
        """
        job = self.submit(**arguments)
        self.wait(job, "ready")
        self.call("job.start", id=job)
        self.call("job.exit", id=job, status=status)
        self.wait(job, "clean")
        return job

    def _disconnect(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            client.close()
