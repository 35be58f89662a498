"""Following one job from a terminal: its events, what it waits for, and the person at the keyboard.

`perilog attach` is this and little more; `perilog run` adds the application. How the application is
started and stopped does not belong here.
"""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import time
from typing import TYPE_CHECKING, Any, Self, TextIO

from perilog.cli import text
from perilog.cli.child import stop_here
from perilog.errors import Error, Unreachable

if TYPE_CHECKING:
    from perilog.client import Client, Event, Watch

#: Seconds within which a second ctrl-C cancels.
TWICE = 2.0
#: Signals that end whoever only looks on.
ENDING = (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
#: Signals that mean something to applications only.
USER = (signal.SIGUSR1, signal.SIGUSR2)
#: Codes of what a broker cannot do just now and will be able to do later.
PASSING = ("EAGAIN", "ENOSPC", "ESHUTDOWN")


class LeftError(Exception):
    """The person does not want to wait any longer.

    Args:
        number: the signal that said so.
    """

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


class Signals:
    """Signals as numbers that can be waited for together with other things (signal.set_wakeup_fd)."""

    def __init__(self) -> None:
        self._read, self._write = os.pipe()
        os.set_blocking(self._read, False)
        os.set_blocking(self._write, False)

    def __enter__(self) -> Self:
        """Take the signals over, but for those that the caller had us ignore, as nohup does."""
        wanted = {signal.SIGINT, signal.SIGTSTP, *ENDING, *USER}
        wanted = {number for number in wanted if signal.getsignal(number) != signal.SIG_IGN}
        self._before = {
            number: signal.signal(number, lambda *_: None) for number in wanted | {signal.SIGCHLD}
        }
        signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        return self

    def __exit__(self, *_: object) -> None:
        """Give the signals back."""
        signal.set_wakeup_fd(-1)
        for number, handler in self._before.items():
            signal.signal(number, handler)
        os.close(self._read)
        os.close(self._write)

    def fileno(self) -> int:
        """Return the descriptor that is readable when signals have come."""
        return self._read

    def take(self) -> bytes:
        """Return the numbers of the signals that have come."""
        try:
            return os.read(self._read, 4096)
        except BlockingIOError:
            return b""


class Display:
    """One line that says how things stand, rewritten on a terminal; and notes, which stay.

    Args:
        stream: where that line goes: on anything but a terminal, now and then, each as a line of its own.
    """

    #: Seconds between two such lines that say the same but for the time.
    REPEAT = 60.0

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._shown = False
        self._last = ("", 0.0)
        self.rewrites = stream.isatty()

    def status(self, state: str, line: str) -> None:
        """Show how things stand.

        Args:
            state: what is repeated only now and then.
            line: what to show.
        """
        if self.rewrites:
            width = shutil.get_terminal_size().columns - 1
            self._stream.write(f"\r{text.safe(line)[:width]}\x1b[K")
            self._shown = True
        else:
            last, when = self._last
            if state == last and time.monotonic() < when + self.REPEAT:
                return
            self._last = (state, time.monotonic())
            self._stream.write(text.safe(line) + "\n")
        self._stream.flush()

    def note(self, line: str) -> None:
        """Tell the person something that stays."""
        self.clear()
        text.say(line)

    def clear(self) -> None:
        """Take the status line away."""
        if self._shown:
            self._stream.write("\r\x1b[K")
            self._stream.flush()
            self._shown = False


class Follower:
    """Follows one job until an event.

    Args:
        client: a connection.
        signals: the person's signals.
        wait_event: the event that ends it, or "result"; None: what the job's attribute or the broker says.
        stream: where status lines go.
        delay: seconds before the first status line.
    """

    def __init__(
        self, client: Client, signals: Signals, *, wait_event: str | None, stream: TextIO, delay: float
    ) -> None:
        self.client = client
        self.display = Display(stream)
        self.job = 0
        self.cancel_wanted = False
        self.why = "interrupted by ctrl-C"
        self.disconnects = 0
        self._signals = signals
        self._wait_event = wait_event
        self._reached = False
        self._clean = False
        self._interrupted = -TWICE
        self._pause = 0.1
        self._back_at = 0.0
        self._refresh_at = time.monotonic() + delay

    # --- what a job with an application adds to

    def happened(self, event: Event) -> None:
        """Take in one event of the job."""
        if event.name == "submit" and self._wait_event is None:
            attribute = event.context.get("attributes", {}).get("wait-event")
            self._wait_event = attribute or self.ask("broker.ping").get("wait_event") or "result"
        elif event.name == "exception":
            told = [event.context["type"], event.context.get("note")]
            self.display.note(f"job {self.job}: {': '.join(filter(None, told))}")
        if event.context.get("message"):
            self.display.note(f"job {self.job}: {event.context['description']}: {event.context['message']}")
        ends = ("finish", "clean") if self._wait_event == "result" else (self._wait_event,)
        self._reached = self._reached or event.name in ends
        self._clean = event.name == "clean"

    def signalled(self, number: int) -> None:
        """Take in one signal."""
        if number == signal.SIGINT:
            self._interrupt()
        elif number == signal.SIGTSTP:
            self.display.clear()
            stop_here()
        elif number in ENDING:
            raise LeftError(number)

    def attend(self) -> None:
        """Ask the broker for what is wanted of it."""
        if self.cancel_wanted:
            try:
                self.ask("job.cancel", persist=True, id=self.job, note=self.why)
            except Error as error:
                self.display.note(f"job {self.job} is not cancelled: {error}")
            self.cancel_wanted = False

    def insist(self) -> None:
        """Do what can be done without the broker: it has not confirmed a cancel that is wanted again."""
        raise LeftError(signal.SIGINT)

    def reconnected(self) -> None:
        """Say again what must be said once on each connection."""

    def tick(self) -> float | None:
        """Do what time has come for; return the seconds until the next time, None if there is none."""
        return None

    def over(self) -> bool:
        """Tell whether there is nothing left to wait for."""
        return self._reached or self._clean

    def quiet(self) -> bool:
        """Tell whether the terminal is somebody else's at the moment."""
        return False

    # --- the loop

    def follow(self, job: int) -> None:
        """Follow a job until its event."""
        self.job = job
        while (watch := self._begin()) is None:
            pass
        while not self.over():
            try:
                self._step(watch)
            except Unreachable:
                self._reconnect()
        self.display.clear()

    def _begin(self) -> Watch | None:
        try:
            return self.client.watch(self.job, progress=self.display.rewrites)
        except Unreachable:
            self._reconnect()
            return None

    def _step(self, watch: Watch) -> None:
        self.attend()
        events = watch.take()  # last: whatever asks the broker may let events in, and waiting would miss them
        for event in events:
            if event.name in ("progress", "gap"):
                self._refresh_at = min(self._refresh_at, time.monotonic() + 0.2)
            else:
                self.happened(event)
            if self.over():
                break
        if events or self.over():
            return
        left = self._refresh_at - time.monotonic()
        if self.quiet():
            self._pump(None)
        elif left > 0:
            self._pump(left)
        else:
            self._refresh()

    def _refresh(self) -> None:
        job = self.ask("job.get", id=self.job)
        waiting = f": waiting for {job['waiting_for']}" if job.get("waiting_for") else ""
        if not self.quiet() and not self.over():
            self.display.status(job["state"], f"job {self.job}: {job['state']}{waiting}")
        self._refresh_at = time.monotonic() + (1.0 if self.display.rewrites else 10.0)

    def ask(self, method: str, *, persist: bool = False, **arguments: Any) -> Any:
        """Ask the broker until it answers: over a broken connection, again over a new one.

        Only for requests that may be repeated. Signals are taken in meanwhile.

        Args:
            method: the method.
            persist: ask again also while the broker is not able to (its disk is full, it is going down).
            arguments: the method's arguments.

        Raises:
            Error: the broker refused.
        """
        while True:
            try:
                reply = self.client.begin(method, **arguments)
                while not reply.done:
                    self._pump(None)
                return reply.result()
            except Unreachable:
                self._reconnect()
            except Error as error:
                if not persist or error.code not in PASSING:
                    raise
                self.display.note(f"{error}; trying again")
                self._sleep(1.0)

    def _reconnect(self) -> None:
        self.disconnects += 1
        self.display.note(f"the broker at {self.client.socket} went away; trying until it is back")
        if time.monotonic() - self._back_at > 10.0:
            self._pause = 0.1  # else it broke again soon: go on slowing down
        connected = False
        while not connected:
            self._sleep(self._pause)
            self._pause = min(2 * self._pause, 1.0)
            with contextlib.suppress(Unreachable):
                self.client.reconnect(0.0)
                self.reconnected()
                connected = True
        self._back_at = time.monotonic()
        self.display.note("the broker is back")

    def _pump(self, timeout: float | None) -> None:
        """Wait until something comes from the broker or the person, and take that in."""
        if self._wait(timeout, self._signals.fileno(), self.client.fileno()):
            self.client.receive()

    def _sleep(self, seconds: float) -> None:
        """Let time pass, and take signals in meanwhile."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            self._wait(left, self._signals.fileno())

    def _wait(self, timeout: float | None, *descriptors: int) -> bool:
        """Wait for one of the descriptors; tell whether it was another than that of the signals."""
        ticks = self.tick()
        timeouts = [seconds for seconds in (timeout, ticks) if seconds is not None]
        poll = select.poll()
        for descriptor in descriptors:
            poll.register(descriptor, select.POLLIN)
        ready = poll.poll(min(timeouts) * 1000 if timeouts else None)
        for number in self._signals.take():
            self.signalled(number)
        return any(descriptor != self._signals.fileno() for descriptor, _ in ready)

    def _interrupt(self) -> None:
        now = time.monotonic()
        if now - self._interrupted > TWICE:
            self._interrupted = now
            self.display.note(f"press ctrl-C again within {TWICE:g} s to cancel job {self.job or ''}")
            return
        self._interrupted = -TWICE
        if self.cancel_wanted or not self.job:
            self.insist()
        else:
            self.cancel_wanted = True
            self.display.note(f"cancelling job {self.job}")

    # --- the end

    def code(self) -> int | None:
        """Return the job's exit code, telling its result if that is bad; None while it is open."""
        job = self.ask("job.get", id=self.job)
        code: int | None = job.get("exit_code")
        if code:
            self.display.note(f"job {self.job}: {job['result']}, exit code {code}")
        if not self._reached:
            self.display.note(f"job {self.job} ended without the event {self._wait_event}")
            return code or 1
        return code
