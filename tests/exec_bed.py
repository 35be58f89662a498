"""A real perilog-exec with real scripts, and the broker's side of its socket.

What many tests of the executor share lives here; what a test proves does not.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import select
import signal
import socket
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import msgpack

from perilogd.config import Config, load
from perilogd.executor import wire

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parent.parent

#: Longest time in seconds that a test waits for an event. Only a fault lasts that long.
PATIENCE = 30.0

#: Another one for each test process: run ids are found in the environments of all processes on this machine.
JOURNAL = secrets.token_hex(8)

Record = dict[str, Any]


class Signpost:
    """A FIFO by which a script tells the test how far it is."""

    def __init__(self, path: Path) -> None:
        os.mkfifo(path)
        path.chmod(0o666)  # whatever the umask
        self.path = path
        self._fd = os.open(path, os.O_RDWR | os.O_NONBLOCK)  # never at its end, and writers never wait
        self._unread = b""

    def __str__(self) -> str:
        """Return its path, as a script writes to it."""
        return str(self.path)

    def line(self) -> str:
        """Wait for the next line that a script writes."""
        until = time.monotonic() + PATIENCE
        while b"\n" not in self._unread:
            ready, _, _ = select.select([self._fd], [], [], max(0.0, until - time.monotonic()))
            assert ready, f"no script wrote to {self.path.name} within {PATIENCE} s"
            self._unread += os.read(self._fd, 4096)
        line, _, self._unread = self._unread.partition(b"\n")
        return line.decode()

    def silent(self) -> bool:
        """Tell whether there is nothing to be read."""
        return not self._unread and not select.select([self._fd], [], [], 0)[0]

    def close(self) -> None:
        """Stop listening."""
        os.close(self._fd)


class Peer:
    """The broker's end of a connection.

    Args:
        sock: connected to an executor.
    """

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        sock.settimeout(PATIENCE)
        self._decoder = wire.Decoder(wire.REPLY_LIMIT)
        self.seen: list[tuple[str, dict[str, Any]]] = []
        self._taken = 0
        self.hello: dict[str, Any] = {}

    def say(self, *messages: tuple[str, dict[str, Any]]) -> None:
        """Send messages in one piece."""
        self.sock.sendall(b"".join(wire.encode(kind, body) for kind, body in messages))

    def send(self, kind: str, **body: object) -> None:
        """Send one message."""
        self.say((kind, body))

    def greet(self, journal: str = JOURNAL) -> Self:
        """Say hello, and keep the answer."""
        self.send("hello", protocol=wire.PROTOCOL, journal=journal)
        self.hello = self.next("hello")
        return self

    def ask(self, kind: str, **body: object) -> dict[str, Any]:
        """Send a question and return its answer."""
        self.send(kind, **body)
        return self.next(kind)

    def barrier(self) -> None:
        """Return when all that was sent before has been dealt with, and what came of it at once has come."""
        for _ in range(2):  # the first answer comes before what its turn of the loop has to tell
            self.ask("output", tag="barrier", id=wire.run_id(JOURNAL, 0, "prolog", 1, "none"), limit=0)

    def _more(self) -> bool:
        data = self.sock.recv(1 << 18)
        self.seen += self._decoder.feed(data)
        return bool(data)

    def next(self, kind: str) -> dict[str, Any]:
        """Return the next message of a kind; others are kept in `seen`."""
        while True:
            while self._taken < len(self.seen):
                found = self.seen[self._taken]
                self._taken += 1
                if found[0] == kind:
                    return found[1]
            if not self._more():
                raise ConnectionResetError(f"the executor closed the connection: {self.seen[-1:]}")

    def records(self) -> list[Record]:
        """Return all records that have come so far."""
        return [record for kind, body in self.seen if kind == "exits" for record in body["records"]]

    def record(self, run: str) -> Record:
        """Wait for the record of a run."""
        while not (found := [record for record in self.records() if record["id"] == run]):
            assert self._more(), f"the executor closed the connection: {self.seen[-1:]}"
        return found[-1]

    def started(self, run: str) -> tuple[int, float, float | None]:
        """Wait until a run has begun; return its pid, boot time and deadline."""
        while True:
            for kind, body in self.seen:
                if kind == "started":
                    for name, pid, since, deadline in body["runs"]:
                        if name == run:
                            return pid, since, deadline
            assert self._more(), f"the executor closed the connection: {self.seen[-1:]}"

    def died(self, run: str) -> int:
        """Wait until a stuck run's process has died; return its status."""
        while not (found := [b["status"] for kind, b in self.seen if kind == "died" and b["id"] == run]):
            assert self._more(), f"the executor closed the connection: {self.seen[-1:]}"
        return int(found[-1])

    def listed(self, run: str) -> dict[str, Any] | None:
        """Return a run as the hello listed it, None if it did not."""
        return next((entry for entry in self.hello["runs"] if entry["id"] == run), None)

    def closing_words(self) -> str | None:
        """Wait until the executor closes the connection; return the text of its last error."""
        with contextlib.suppress(ConnectionResetError):
            while self._more():
                pass
        return next((body["text"] for kind, body in reversed(self.seen) if kind == "error"), None)

    def close(self) -> None:
        """Close the connection."""
        self.sock.close()


class ExecBed:
    """An executor under test.

    Args:
        folder: an existing folder with a short path; it is given to `uid`.
        uid: whom the executor runs as: the tests' own user, or another if that is root.
        python: an interpreter that this user may run.
    """

    def __init__(self, folder: Path, uid: int, python: Path) -> None:
        self.folder = folder
        self.uid = uid
        self.python = python
        self.scripts = folder / "scripts"
        self.scripts.mkdir()
        self.config = folder / "perilogd.toml"
        self.log = folder / "log"
        self.run_dir = folder / "run"
        self.exec_dir = self.run_dir / "exec"
        self.runs = self.exec_dir / "runs"
        self._tables: list[str] = []
        self._process: subprocess.Popen[bytes] | None = None
        self._guardian: subprocess.Popen[str] | None = None
        self.pid = 0
        self._peers: list[Peer] = []
        self._as_user: dict[str, Any] = {}
        if uid != os.geteuid():
            self._as_user = {"user": uid, "group": uid, "extra_groups": []}
        self._give(folder, self.scripts)

    # -- configuration ------------------------------------------------------------------------------

    def table(self, text: str) -> None:
        """Add to the configuration, as TOML."""
        self._tables.append(text)

    def script(self, name: str, body: str) -> Path:
        """Write a script: sh, unless its body begins with its own "#!"."""
        path = self.scripts / name
        path.write_text(body if body.startswith("#!") else f"#!/bin/sh\n{body}\n")
        path.chmod(0o755)
        self._give(path)
        return path

    def action(self, name: str, body: str, phase: str = "prolog", **keys: object) -> Path:
        """Add an action with one script, and return the script's path.

        Args:
            name: the action's.
            body: see `script`.
            phase: in which the script runs.
            keys: of its table, with "_" for "-"; as TOML where they are no texts.
        """
        path = self.script(f"{name}.{phase}", body)
        lines = ["[[action]]", f'name = "{name}"', f'{phase} = ["{path}"]']
        lines += [
            f"{key.replace('_', '-')} = {json.dumps(value) if isinstance(value, str) else value}"
            for key, value in keys.items()
        ]
        self.table("\n".join(lines))
        return path

    def write_config(self) -> None:
        """Write the configuration as it was put together."""
        self.config.write_text("\n\n".join(self._tables) + "\n")
        self._give(self.config)

    def forget_config(self) -> None:
        """Begin a new configuration."""
        self._tables = []

    def loaded(self) -> Config:
        """Return the configuration as the executor reads it."""
        return load(self.config, uid=self.uid, run_dir=self.run_dir)

    def definition(self, name: str) -> str:
        """Return the definition hash of an action."""
        return next(action.definition for action in self.loaded().actions if action.name == name)

    def _give(self, *paths: Path) -> None:
        if self.uid != os.geteuid():
            for path in paths:
                os.chown(path, self.uid, -1)

    # -- life ---------------------------------------------------------------------------------------

    @property
    def command(self) -> list[str]:
        """The executor's command line."""
        return [
            *(str(self.python), "-m", "perilogd.executor.main"),
            *("--config", str(self.config), "--run-dir", str(self.run_dir)),
        ]

    def _popen(self, command: list[str], **how: Any) -> subprocess.Popen[Any]:
        environment = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT), "BASH_ENV": "/nonexistent"}
        with self.log.open("ab") as log:
            return subprocess.Popen(command, env=environment, cwd=ROOT, stderr=log, **self._as_user, **how)

    def start(self, *options: str, config: bool = True) -> Peer:
        """Start an executor and return a connection that has said hello.

        Args:
            options: more of its command line.
            config: whether to write the configuration before.
        """
        if config:
            self.write_config()
        self._process = self._popen([*self.command, *options])
        self.pid = self._process.pid
        return self._greeted()

    def start_below(self, *words: str) -> Peer:
        """Start an executor as child of a guardian, which the first of these calls starts.

        Args:
            words: of the guardian, see there; only for the first call.
        """
        self.write_config()
        if self._guardian is None:
            guardian = Path(__file__).with_name("guardian.py")
            self._guardian = self._popen(
                [str(self.python), str(guardian), *words, "--", *self.command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )
        assert self._guardian.stdin is not None
        assert self._guardian.stdout is not None
        self._guardian.stdin.write("\n")
        self._guardian.stdin.flush()
        self.pid = int(self._guardian.stdout.readline())
        return self._greeted()

    def _greeted(self) -> Peer:
        while True:
            with contextlib.suppress(ConnectionError):
                # A child of a killed executor holds the old socket until its exec, and lets us in so long.
                return self.connect().greet()

    def limit(self, what: str, soft: object) -> None:
        """Change a soft limit of the running executor, see prlimit(1)."""
        subprocess.run(["prlimit", f"--pid={self.pid}", f"--{what}={soft}:"], check=True, **self._as_user)

    def kill(self) -> None:
        """Kill the executor with SIGKILL, and return once it has gone."""
        self._end(signal.SIGKILL)

    def stop(self) -> int | None:
        """Stop the executor with SIGTERM; return its status, None if it is a guardian's."""
        return self._end(signal.SIGTERM)

    def _end(self, number: int) -> int | None:
        pid, self.pid = self.pid, 0
        pidfd = os.pidfd_open(pid)
        os.kill(pid, number)
        wait_for_end(pidfd)
        process, self._process = self._process, None
        return process.wait() if process is not None else None

    def connect(self) -> Peer:
        """Return a new connection, as the user whom the executor runs as."""
        until = time.monotonic() + PATIENCE
        while True:
            sock = socket.socket(socket.AF_UNIX)
            try:
                with acting_as(self.uid):
                    sock.connect(str(self.exec_dir / "exec.sock"))
            except (FileNotFoundError, ConnectionRefusedError):
                sock.close()
                ended = self._process is not None and self._process.poll() is not None
                assert not ended, self.log.read_text()
                assert time.monotonic() < until, self.log.read_text()
                time.sleep(0.01)  # there is no event for a socket that comes to be
                continue
            peer = Peer(sock)
            self._peers.append(peer)
            return peer

    def close(self) -> None:
        """End all that was started."""
        for peer in self._peers:
            peer.close()
        if self.pid:
            self.kill()
        if self._guardian is not None:
            assert self._guardian.stdin is not None
            assert self._guardian.stdout is not None
            self._guardian.stdin.close()
            self._guardian.stdout.close()
        while pids := [*self.left()]:  # again, since they may have been about to fork
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    pidfd = os.pidfd_open(pid)
                    os.kill(pid, signal.SIGKILL)
                    wait_for_end(pidfd)
        if self._guardian is not None:
            self._guardian.wait()

    def left(self) -> Iterator[int]:
        """Return the pids of what runs with the name of our folder in a script's environment."""
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                with contextlib.suppress(OSError):
                    environment = (entry / "environ").read_bytes()
                    if b"PERILOG_RUN_ID=" in environment and bytes(self.folder) in environment:
                        yield int(entry.name)

    # -- runs ---------------------------------------------------------------------------------------

    def order(
        self, action: str, phase: wire.ScriptPhase = "prolog", job: int = 1, **more: Any
    ) -> dict[str, Any]:
        """Return the map of a `run` message.

        Args:
            action: the action's name.
            phase: of the run.
            job: of the run.
            more: other keys, instead of harmless values.
        """
        attempt = more.setdefault("attempt", 1)
        return {
            "id": wire.run_id(JOURNAL, job, phase, attempt, action),
            "job": job,
            "phase": phase,
            "action": action,
            "definition": more.pop("definition", None) or self.definition(action),
            "userid": self.uid,
            "jobname": "a job",
            "key": "a key",
            "nodes": "n[1-4]",
            "socket": "/run/perilogd/perilogd.sock",
            "variables": {},
            "user_variables": {},
            "document": b'{"id":1}',
            **more,
        }

    def run(
        self, peer: Peer, action: str, phase: wire.ScriptPhase = "prolog", job: int = 1, **more: Any
    ) -> str:
        """Ask for a run and return its id."""
        order = self.order(action, phase, job, **more)
        peer.say(("run", order))
        return str(order["id"])

    def entries(self, run: str) -> list[Any]:
        """Return what an executor has written down of a run."""
        unpacker = msgpack.Unpacker()
        name = f"{run}.run" if ".run" in self.files(run) else f"{run}.exit"
        unpacker.feed((self.runs / name).read_bytes())
        return list(unpacker)

    def files(self, run: str) -> set[str]:
        """Return the extensions of the files that there are of a run."""
        return {path.name[len(run) :] for path in self.runs.glob("*") if path.name.startswith(f"{run}.")}


@contextlib.contextmanager
def acting_as(uid: int) -> Iterator[None]:
    """Do something as another user, if that is not our own."""
    before = os.geteuid()
    if uid != before:
        os.seteuid(uid)
    try:
        yield
    finally:
        if uid != before:
            os.seteuid(before)


def wait_for_end(pidfd: int) -> None:
    """Wait until a process has ended, and close its pidfd."""
    try:
        ready, _, _ = select.select([pidfd], [], [], PATIENCE)
        assert ready, f"a process did not end within {PATIENCE} s"
    finally:
        os.close(pidfd)


def eventually(condition: Any) -> None:
    """Wait until something holds of which no event tells."""
    until = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < until, "it did not come to hold"
        time.sleep(0.01)
