"""`perilog run` at a terminal: whose ctrl-C it is, who may read, what ctrl-Z stops."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import struct
import sys
import termios
from typing import TYPE_CHECKING, Self

import pytest

from client.fake_broker import PATIENCE

if TYPE_CHECKING:
    from client.command import Command
    from client.fake_broker import FakeLife

CTRL_C = "\x03"
CTRL_Z = "\x1a"

#: Plays the interactive shell: starts its arguments as a job in the foreground, and tells each change of it.
SHELL = """
import os, signal, sys
signal.signal(signal.SIGTTOU, signal.SIG_IGN)
pid = os.fork()
if not pid:
    os.setpgid(0, 0)
    os.tcsetpgrp(0, os.getpid())
    signal.signal(signal.SIGTTOU, signal.SIG_DFL)
    os.execv(sys.argv[1], sys.argv[1:])
while True:
    _, status = os.waitpid(pid, os.WUNTRACED)
    os.tcsetpgrp(0, os.getpgrp())
    if not os.WIFSTOPPED(status):
        print("shell: ended", os.waitstatus_to_exitcode(status), flush=True)
        break
    print("shell: stopped", flush=True)
    sys.stdin.readline()
    os.tcsetpgrp(0, pid)
    os.killpg(pid, signal.SIGCONT)
"""


class Terminal:
    """A terminal with a person at it.

    Args:
        command: the command `perilog` with its environment.
        words: its arguments.
    """

    def __init__(self, command: Command, *words: str) -> None:
        self._seen = ""
        self._pid, self._master = pty.fork()
        if self._pid == 0:
            arguments = [sys.executable, "-c", SHELL, str(command.program), *words]
            os.execve(sys.executable, arguments, command.environment)  # noqa: S606
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("4H", 24, 80, 0, 0))

    def __enter__(self) -> Self:
        """Sit down."""
        return self

    def __exit__(self, *_: object) -> None:
        """Hang up, and see that all is gone."""
        os.close(self._master)
        os.waitpid(self._pid, 0)

    def type(self, keys: str) -> None:
        """Press keys."""
        os.write(self._master, keys.encode())

    def sees(self, text: str) -> str:
        """Wait until a text appears; return what was shown before it, since the last time."""
        while text not in self._seen:
            ready = select.select([self._master], [], [], PATIENCE)[0]
            assert ready, f"{text!r} did not come, but {self._seen!r}"
            try:
                self._seen += os.read(self._master, 4096).decode()
            except OSError:
                raise AssertionError(f"{text!r} did not come before the end, but {self._seen!r}") from None
        before, _, self._seen = self._seen.partition(text)
        return before


def test_ctrl_c_belongs_to_run_while_the_command_reads_nothing(perilog: Command, life: FakeLife) -> None:
    """The first ctrl-C only warns, and does not reach the command; the second cancels the job."""
    script = "trap 'echo hit by SIGINT' INT; echo running; while :; do sleep 0.01; done"
    with Terminal(perilog, "run", "--", "sh", "-c", script) as terminal:
        terminal.sees("running")
        terminal.type(CTRL_C)
        terminal.sees("press ctrl-C again within 2 s to cancel job 17")
        assert "exception" not in life.names()
        terminal.type(CTRL_C)
        assert "SIGINT" not in terminal.sees("shell: ended 143")
    assert life.event("exception")["type"] == "cancel"


def test_a_command_that_reads_gets_the_terminal(perilog: Command, life: FakeLife) -> None:
    """A command that reads from the terminal becomes its foreground: it gets the input, and ctrl-C too."""
    script = "trap 'echo hit; exit 7' INT; echo name?; read name; echo hello $name; read more; echo never"
    with Terminal(perilog, "run", "--", "sh", "-c", script) as terminal:
        terminal.sees("name?")
        terminal.type("ann\n")
        terminal.sees("hello ann")
        terminal.type(CTRL_C)
        terminal.sees("hit")
        terminal.sees("shell: ended 7")
    assert "exception" not in life.names()
    assert life.event("exit")["status"] == 7 << 8


def test_a_command_that_sets_the_terminal_gets_it(perilog: Command, life: FakeLife) -> None:
    """A command that changes the terminal's modes, as editors do, gets it, and run has it back afterwards."""
    life.finishing = False
    script = "stty -echo; stty echo; echo done"
    with Terminal(perilog, "run", "--", "sh", "-c", script) as terminal:
        terminal.sees("done")
        life.until("job.exit")
        terminal.type(CTRL_C)
        terminal.sees("press ctrl-C again")
        life.finish(0)
        terminal.sees("shell: ended 0")


@pytest.mark.parametrize("reading", [False, True])
def test_ctrl_z_stops_run_and_command_together(reading: bool, perilog: Command, life: FakeLife) -> None:
    """ctrl-Z stops run and the command, whoever has the terminal; continued, both go on as they were."""
    first = "read name" if reading else "while ! test -e $GO; do sleep 0.01; done; name=bob"
    script = f"echo name?; {first}; echo hello $name; read name; echo again $name"
    go = life.path.with_name("go")
    with Terminal(perilog, "run", "--", "env", f"GO={go}", "sh", "-c", script) as terminal:
        terminal.sees("name?")
        if reading:
            terminal.type("bob\n")
            terminal.sees("hello bob")
        terminal.type(CTRL_Z)
        terminal.sees("shell: stopped")
        go.touch()
        terminal.type("\n")
        if not reading:
            terminal.sees("hello bob")
        terminal.type("ann\n")
        terminal.sees("again ann")
        terminal.sees("shell: ended 0")


def test_ctrl_z_before_the_command(perilog: Command, life: FakeLife) -> None:
    """ctrl-Z stops run as well while the job is not ready, and the job goes on when it is continued."""
    life.ready = False
    with Terminal(perilog, "run", "--", "echo", "hello") as terminal:
        terminal.sees("waiting for prolog script scratch")
        terminal.type(CTRL_Z)
        terminal.sees("shell: stopped")
        life.post("ready")
        terminal.type("\n")
        terminal.sees("hello")
        terminal.sees("shell: ended 0")


def test_one_status_line_is_rewritten(perilog: Command, life: FakeLife) -> None:
    """At a terminal attach keeps one line that says what the job waits for, and takes it away at the end."""
    life.ready = False
    perilog("submit")
    with Terminal(perilog, "attach", "17") as terminal:
        terminal.sees("\rjob 17: PROLOG: waiting for prolog script scratch: for 3 s\x1b[K")
        life.post("exception", type="quota", severity=2, note="nearly full")
        terminal.sees("\r\x1b[Kperilog: job 17: quota: nearly full\r\n")
        terminal.sees("for 3 s\x1b[K")
        life.finish(0)
        terminal.sees("\r\x1b[K")
        terminal.sees("shell: ended 0")
    assert life.named("job.watch") == [{"id": 17, "progress": True}]


def test_a_hangup_reaches_the_command(perilog: Command, life: FakeLife) -> None:
    """When the terminal goes away, the command gets SIGHUP, and what it makes of it is reported."""
    script = "trap 'exit 8' HUP; echo running; while :; do sleep 0.01; done"
    with Terminal(perilog, "run", "--", "sh", "-c", script) as terminal:
        terminal.sees("running")
    life.until("job.exit")
    assert life.event("exit")["status"] == 8 << 8
