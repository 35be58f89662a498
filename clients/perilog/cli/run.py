"""`perilog run`: a job around one command, which runs here, in the caller's own context.

The order of things with the broker lives here: submit, start with a lease, exit, the wait for the
result. The child process itself is in `perilog.cli.child`.
"""

from __future__ import annotations

import os
import secrets
import signal
import sys
from typing import TYPE_CHECKING, Any

from perilog.cli.child import Child
from perilog.cli.follow import ENDING, USER, Follower, LeftError, Signals
from perilog.cli.simple import add_options
from perilog.client import connect
from perilog.errors import Error
from perilog.verbs import VERBS, duration

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from perilog.client import Client, Event

#: Wait statuses of what could not be started, as of a shell's exit codes 127 and 126.
NOT_FOUND = 127 << 8
NOT_EXECUTABLE = 126 << 8


class Runner(Follower):
    """A follower that runs the job's application.

    Args:
        client: see `Follower`.
        signals: see `Follower`.
        wait_event: see `Follower`.
        command: program and arguments.
        grace: seconds from SIGTERM to SIGKILL; None: never.
    """

    def __init__(
        self,
        client: Client,
        signals: Signals,
        *,
        wait_event: str | None,
        command: list[str],
        grace: float | None,
    ) -> None:
        super().__init__(client, signals, wait_event=wait_event, stream=sys.stderr, delay=1.0)
        self._command = command
        self._grace = grace
        self._child: Child | None = None
        self._attempt = 0
        self._status: int | None = None
        self._reported = True
        self._leaving: int | None = None

    def submit(self, params: dict[str, Any]) -> int:
        """Submit the job, once, however often it has to be asked for."""
        key = params.get("key")
        own = f"run-{os.uname().nodename}-{os.getpid()}-{secrets.token_hex(4)}"
        result = self.ask("job.submit", **{**params, "key": key or own})
        if key and not result["created"] and not self.disconnects:
            raise Error("EEXIST", f"the key {key} already names job {result['id']}, which is not run again")
        return int(result["id"])

    def application_code(self) -> int:
        """Return the exit code of the command as a shell gives it, 0 if it never ran."""
        code = os.waitstatus_to_exitcode(self._status or 0)
        return code if code >= 0 else 128 - code

    def close(self) -> None:
        """End the application, should it still run."""
        if self._child is not None:
            self._child.end()
            self._child = None

    def happened(self, event: Event) -> None:
        """Take in one event of the job."""
        super().happened(event)
        if event.name in ("ready", "rerun"):
            self._launch(event.context.get("attempt", 1))
        elif event.name == "exception" and event.context["severity"] == 0 and self._child is not None:
            self._child.stop()

    def signalled(self, number: int) -> None:
        """Take in one signal: most are the application's, while it runs."""
        if number == signal.SIGCHLD:
            self._reap()
        elif self._child is not None and number == signal.SIGTSTP:
            self._child.suspend()
        elif self._child is not None and number in (*ENDING, *USER):
            self._child.signal(number)
        elif number in ENDING and self._attempt == 0 and self.job:
            self.why = f"perilog run got {signal.Signals(number).name}"
            self.cancel_wanted = True
            self._leaving = number
        else:
            super().signalled(number)

    def attend(self) -> None:
        """Ask the broker for what is wanted of it."""
        super().attend()
        if self._leaving is not None:
            raise LeftError(self._leaving)
        if not self._reported and self._child is None:
            self._report()

    def insist(self) -> None:
        """Stop the application without waiting for the broker's word."""
        if self._child is None:
            super().insist()
        else:
            self._child.stop()

    def reconnected(self) -> None:
        """Take the lease again."""
        if not self._reported:
            # Nobody waits for the reply: if the lease is lost, the job's log says so, which ends the
            # application.
            self.client.begin("job.start", id=self.job, attempt=self._attempt, lease=True)

    def tick(self) -> float | None:
        """Kill the application when its time is over."""
        return None if self._child is None else self._child.tick()

    def over(self) -> bool:
        """Tell whether there is nothing left to wait for, or to report."""
        return super().over() and self._reported

    def quiet(self) -> bool:
        """Tell that the terminal is the application's."""
        return self._child is not None

    def _launch(self, attempt: int) -> None:
        """Start the application, unless the job has moved on."""
        try:
            self.ask("job.start", persist=True, id=self.job, attempt=attempt, lease=True)
        except Error as error:
            if error.code != "ESTATE":
                raise
            return  # canceled meanwhile: the events say so
        self._attempt = attempt
        self._reported = False
        job = self.ask("job.get", id=self.job)
        self.display.clear()
        try:
            self._child = Child(self._command, self._environment(job), self._grace)
        except OSError as error:
            self.display.note(f"cannot start {self._command[0]}: {error.strerror}")
            missing = isinstance(error, FileNotFoundError | NotADirectoryError)
            self._status = NOT_FOUND if missing else NOT_EXECUTABLE

    def _environment(self, job: dict[str, Any]) -> dict[str, str]:
        named = {
            "PERILOG_SOCKET": self.client.socket,
            "PERILOG_JOB_ID": str(self.job),
            "PERILOG_JOB_KEY": job.get("key") or "",
            "PERILOG_JOB_NAME": job.get("name") or "",
            "PERILOG_JOB_USERID": str(job["userid"]),
            "PERILOG_JOB_NODES": job.get("nodes") or "",
            "PERILOG_ATTEMPT": str(self._attempt),
        }
        return {**os.environ, **(job.get("environment") or {}), **named}

    def _reap(self) -> None:
        if self._child is not None:
            status = self._child.poll()
            if status is not None:
                self._status = status
                self._child = None

    def _report(self) -> None:
        """Report how the application ended, until the broker has confirmed it."""
        try:
            self.ask("job.exit", persist=True, id=self.job, attempt=self._attempt, status=self._status)
        except Error as error:
            if error.code not in ("ESTATE", "ENOENT"):
                raise
            code = self.application_code()
            self.display.note(f"the application's exit code {code} came too late: {error.text}")
        self._reported = True


def run_command(parser: argparse.ArgumentParser) -> Callable[[argparse.Namespace], int]:
    """Build `perilog run`."""
    parser.usage = "perilog run [OPTION …] -- COMMAND [ARGUMENT …]"
    parser.epilog = (
        "Exits with the job's exit code. ctrl-C twice within two seconds cancels the job. The job's nodes\n"
        "are, without --nodes, this host.\n"
        "example: perilog run --hold completion:drain -- ./simulate input.toml"
    )
    add_options(parser, VERBS["submit"].options)
    parser.add_argument(
        "--wait-event",
        metavar="E",
        help="wait for this event; result: until the result is final (the usual default)",
    )
    parser.add_argument(
        "--kill-timeout",
        metavar="D",
        type=_seconds,
        default=30.0,
        help="time that the command has to end after SIGTERM, before SIGKILL; default: 30s",
    )
    parser.add_argument(
        "command", metavar="COMMAND", nargs="...", help="what is run here when the job is ready"
    )

    def run(arguments: argparse.Namespace) -> int:
        command = arguments.command[1:] if arguments.command[:1] == ["--"] else arguments.command
        if not command:
            parser.error("a COMMAND must be given, behind --")
        if arguments.json:
            parser.error("--json: standard output is the command's")
        arguments.params.setdefault("nodes", os.uname().nodename)
        with connect(arguments.socket) as client, Signals() as signals:
            runner = Runner(
                client,
                signals,
                wait_event=arguments.wait_event,
                command=command,
                grace=arguments.kill_timeout,
            )
            try:
                runner.follow(runner.submit(arguments.params))
                code = runner.code()
                return runner.application_code() if code is None else code
            except LeftError as left:
                runner.display.clear()
                return 128 + left.number
            finally:
                runner.close()

    return run


def _seconds(text: str) -> float | None:
    """Read a duration (RFC 23): return seconds, None for infinity."""
    if not duration(text):
        raise ValueError(text)
    if text == "infinity":
        return None
    number = text.rstrip("mshd")
    return float(number) * {"ms": 0.001, "m": 60.0, "h": 3600.0, "d": 86400.0}.get(text[len(number) :], 1.0)
