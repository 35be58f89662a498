"""The runs, and everything that happens to them: asked for, spawned, told to end, reaped, acknowledged.

Sockets and the order of work in one turn are the loop's; this module is told what was asked and what time it
is, and collects what the broker is to be told.
"""

from __future__ import annotations

import logging
import math
import os
import signal
import time
from collections import Counter, deque
from typing import TYPE_CHECKING, Any

import msgpack

from perilogd.executor import output, processes, results, spawn, wire
from perilogd.executor.processes import Children, Process, Table, boottime
from perilogd.executor.reports import Reports
from perilogd.executor.run import LIVE, STATUS, Run, State, outcome
from perilogd.executor.spawn import SpawnError

if TYPE_CHECKING:
    import resource
    from collections.abc import Callable, Collection, Iterable, Mapping

    from perilogd.executor.definitions import Definitions
    from perilogd.executor.launcher import Launcher
    from perilogd.executor.output import Outputs
    from perilogd.executor.records import Folder
    from perilogd.executor.wire import Outcome, Spec

    #: Has a function called whenever a descriptor is readable; with None, not any more.
    Watch = Callable[[int, Callable[[], None] | None], None]

logger = logging.getLogger(__name__)

#: Seconds after which a spawn is tried again that failed for a shortage.
_RETRIES = (0.1, 0.3, 1.0, 3.0)

#: Most spawns in one turn, so that a flood of them does not keep deadlines and cancels waiting.
_SPAWNS = 64

#: Seconds after which a record is written again that could not be.
_REWRITE = 1.0


class Supervisor:
    """All runs of an executor.

    Args:
        folder: the executor's.
        definitions: what may be run.
        outputs: the output files.
        launcher: starts them.
        watch: the loop's.
    """

    def __init__(
        self, folder: Folder, definitions: Definitions, outputs: Outputs, launcher: Launcher, watch: Watch
    ) -> None:
        self._folder = folder
        self._definitions = definitions
        self._outputs = outputs
        self._launcher = launcher
        self._watch = watch
        self._runs: dict[str, Run] = {}
        self._active: dict[str, Run] = {}  # those that have not ended
        self._waiting: deque[Run] = deque()  # those to be spawned now
        self._children: dict[int, Run] = {}  # by pid: those whose process is our unreaped child
        self._orphans: dict[int, str] = {}  # other unreaped children, and the run that each was left by
        self._family = Children()
        self._signals: dict[int, dict[str, Run]] = {}  # to be delivered: by number, runs by id
        self._unwritten: list[tuple[Run, bytes]] = []  # records that could not be written
        self._next_due = self._next_write = math.inf
        self._next_look = 0.0 if outputs.watched else math.inf
        self.reports = Reports()

    # -- what was left ------------------------------------------------------------------------------

    def adopt(self, found: Iterable[tuple[Run, Process | None]]) -> None:
        """Go on with what another executor has left.

        Args:
            found: see `adopt.Found`.
        """
        for run, process in found:
            self._runs[run.id] = run
            if run.state is State.ENDED:
                continue
            self._active[run.id] = run
            if run.state is State.WAITING:
                self._waiting.append(run)
            elif process is not None and self._take_over(run, process):
                logger.info("run %s: found again, pid %d", run.id, process.pid)
                self._next_look = boottime()
            else:
                self._lost(run, "its process was gone when perilog-exec came back")

    def _take_over(self, run: Run, process: Process) -> bool:
        if process.parent == os.getpid():  # left by this very process, before a re-exec
            self._children[process.pid] = run
        elif (pidfd := processes.open_again(process)) is not None:
            run.fd, run.adopted = pidfd, process
            self._watch(pidfd, lambda: self._adopted_ended(run))
        else:
            return False
        if run.started is None and run.spec is not None:  # that it had begun was not written down
            run.started = time.time() - (boottime() - run.since)
            self._launcher.apply(run, run.spec)
            run.due = run.deadline
            self._note(run, "begun", **self._launcher.begun(run, run.since))
        self._set_due(run, run.due)
        return True

    # -- what the broker asks -----------------------------------------------------------------------

    def begin(self, spec: Spec) -> None:
        """Run a script, or say again what has become of it."""
        run = self._runs.get(spec.id)
        if run is not None:
            self._repeat(run)
            return
        run = Run(spec.id, spec=spec)
        self._runs[run.id] = self._active[run.id] = run
        self._waiting.append(run)

    def cancel(self, run_id: str, reason: str) -> None:
        """Have a script end, or never begin."""
        run = self._runs.get(run_id)
        if run is None:
            run = self._runs[run_id] = Run(run_id, refused=True)
        if run.state is State.WAITING:
            run.reason = reason
            self._conclude_without(run, "canceled")
        elif run.state in {State.STARTING, State.RUNNING}:
            self._end(run, "canceled", reason)

    def signal(self, run_id: str, number: int) -> None:
        """Send a signal to everything that a run has started."""
        run = self._runs.get(run_id)
        if run is not None and run.state in LIVE:
            self._signals.setdefault(number, {})[run.id] = run

    def acknowledge(self, run_ids: Iterable[str]) -> None:
        """Forget runs whose end has been journaled."""
        for run_id in run_ids:
            run = self._runs.get(run_id)
            if run is not None and run.state is State.ENDED and run.record is not None:
                del self._runs[run_id]
                self._folder.forget(run_id, strays=run.strays)
                if run.output or run.strays:
                    self._outputs.retain(run_id, strays=run.strays, total=self._definitions.output_total)
                    if run.strays:
                        self._next_look = min(self._next_look, boottime() + output.INTERVAL)
                else:
                    self._folder.remove(f"{run_id}.out")

    def listed(self, journal: str) -> list[dict[str, Any]]:
        """Return all runs of a journal as a hello lists them."""
        return [run.listed() for run in self._runs.values() if run.journal == journal]

    def keep(self, owed: Collection[str]) -> None:
        """Forget definitions that nobody needs any more."""
        needed = {run.spec.definition for run in self._active.values() if run.spec is not None}
        self._definitions.keep(needed.union(owed))

    def _repeat(self, run: Run) -> None:
        if run.record is not None:
            self.reports.ended.append(run)
        elif run.pid is not None:
            self.reports.started.append(run)
        if run.died is not None:
            self.reports.died.append(run)

    # -- turns --------------------------------------------------------------------------------------

    @property
    def settled(self) -> bool:
        """Whether all that counts is written down: not while a child is on its way to its exec."""
        return not self._unwritten and not any(self._has_pipe(run) for run in self._children.values())

    @property
    def crowd(self) -> int:
        """How many runs are known."""
        return len(self._runs)

    def take_reports(self) -> Reports:
        """Return what has happened since the last call."""
        reports, self.reports = self.reports, Reports()
        return reports

    def timeout(self) -> float:
        """Return the seconds until `advance` has something to do; 0 if it has now."""
        if self._waiting or self._signals:
            return 0.0
        return max(0.0, min(self._next_due, self._next_look, self._next_write) - boottime())

    def advance(self) -> None:
        """Do what is due: deadlines, signals, spawns, bounds. `reap` comes before, to know what has ended."""
        now = boottime()
        if now >= self._next_due:
            self._expire(now)
        if self._signals:
            self._deliver()
        for _ in range(min(_SPAWNS, len(self._waiting))):
            run = self._waiting.popleft()
            if run.state is State.WAITING:
                self._spawn(run)
        if now >= self._next_look:
            self._look(now)
        if now >= self._next_write:
            self._rewrite()

    def _expire(self, now: float) -> None:
        self._next_due = math.inf
        for run in [*self._active.values()]:
            if run.due is None:
                continue
            if run.due > now:
                self._next_due = min(self._next_due, run.due)
                continue
            run.due = None
            if run.state is State.WAITING:
                self._waiting.append(run)
            elif run.state is State.ENDING and run.on_stuck == "kill":
                self._kill(run, now)
            elif run.state in {State.ENDING, State.KILLING}:
                self._conclude(run, State.STUCK, "stuck", wire.STUCK, {})
            else:
                self._end(run, "timeout", None)

    def _set_due(self, run: Run, due: float | None) -> None:
        run.due = due
        if due is not None:
            self._next_due = min(self._next_due, due)

    # -- ending -------------------------------------------------------------------------------------

    def _end(self, run: Run, why: Any, reason: str | None) -> None:
        """Send SIGTERM, in this turn. Written down before: a successor must not send it again."""
        run.ending, run.reason, run.state = why, reason, State.ENDING
        run.due = None  # set when it is delivered
        self._note(run, "term", ending=why, reason=reason, due=boottime() + run.kill_timeout)
        self._signals.setdefault(signal.SIGTERM, {})[run.id] = run

    def _kill(self, run: Run, now: float) -> None:
        run.state = State.KILLING
        self._set_due(run, now + run.kill_timeout)
        self._note(run, "kill", due=run.due)
        self._signals.setdefault(signal.SIGKILL, {})[run.id] = run

    def _deliver(self) -> None:
        signals, self._signals = self._signals, {}
        for number, runs in signals.items():
            live = [run for run in runs.values() if run.state in LIVE]
            if live:
                processes.deliver([run.script for run in live], number)
            for run in live:
                if run.state is State.ENDING and run.due is None and number == signal.SIGTERM:
                    self._set_due(run, boottime() + run.kill_timeout)

    def _note(self, run: Run, word: str, **entry: object) -> None:
        """Write down what has become of a run; if that fails, only a successor will miss it."""
        try:
            self._folder.append(run.id + (".run" if run.record is None else ".exit"), word, entry)
        except OSError as error:
            logger.error("run %s: cannot write down %r: %s", run.id, word, error)  # noqa: TRY400 - no traceback

    # -- spawning -----------------------------------------------------------------------------------

    def _spawn(self, run: Run) -> None:
        assert run.spec is not None  # noqa: S101 - for the type checker; a waiting run has it
        try:
            self._launcher.start(run, run.spec)
        except SpawnError as error:
            self._not_spawned(run, error)
            return
        assert run.pid is not None  # noqa: S101 - for the type checker
        self._children[run.pid] = run
        self._set_due(run, run.deadline)
        self._next_look = min(self._next_look, run.since + output.INTERVAL)
        if run.fd is not None:
            self._watch(run.fd, lambda: self._read_pipe(run))
        else:
            self.reports.started.append(run)

    @staticmethod
    def _has_pipe(run: Run) -> bool:
        return run.fd is not None and run.adopted is None

    def _read_pipe(self, run: Run) -> None:
        """Find out what became of a fork: the pipe has an error, or its end."""
        assert run.fd is not None  # noqa: S101 - for the type checker
        assert run.pid is not None  # noqa: S101
        self._watch(run.fd, None)
        error = spawn.outcome(run.fd)
        run.fd = None
        if error is not None:
            del self._children[run.pid]
            self._not_spawned(run, error)
            return
        if run.state is State.STARTING:
            run.state = State.RUNNING
        self.reports.started.append(run)

    def _not_spawned(self, run: Run, error: SpawnError) -> None:
        run.pid, run.started, run.deadline, run.due = None, None, None, None
        if run.ending is not None:
            self._conclude_without(run, run.ending)
        elif error.transient and run.tries < len(_RETRIES):
            self._folder.remove(f"{run.id}.out")
            run.state = State.WAITING
            self._set_due(run, boottime() + _RETRIES[run.tries])
            run.tries += 1
        else:
            self._conclude_without(run, "failed", error.status, str(error))

    # -- ends ---------------------------------------------------------------------------------------

    def reap(self) -> None:
        """Take note of all processes that have ended."""
        ended: dict[int, tuple[Run, int, resource.struct_rusage]] = {}
        while True:
            try:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if pid == 0:
                break
            self._orphans.pop(pid, None)
            run = self._children.get(pid)
            if run is not None and self._has_pipe(run):
                self._read_pipe(run)
            if self._children.pop(pid, None) is not None and run is not None:
                ended[pid] = run, status, usage
        if ended:
            left = self._left_behind({pid: run for pid, (run, _, _) in ended.items()})
            for run, status, usage in ended.values():
                used = {
                    "cpu_user": usage.ru_utime,
                    "cpu_system": usage.ru_stime,
                    "max_rss": usage.ru_maxrss * 1024,
                }
                self._ended(run, status, left[run.id], used)

    def _left_behind(self, ended: Mapping[int, Run]) -> Counter[str]:
        """Count what runs have left behind: what has lost its parent has become our child."""
        for pid in self._family.pids() - self._children.keys() - self._orphans.keys():
            process = processes.look(pid)
            if process is None or process.dying:
                continue
            run = ended.get(process.session) or self._children.get(process.session)
            self._orphans[pid] = run.id if run else processes.run_of(pid) or ""
        return Counter(self._orphans.values())

    def _adopted_ended(self, run: Run) -> None:
        assert run.adopted is not None  # noqa: S101 - for the type checker
        assert run.fd is not None  # noqa: S101
        self._watch(run.fd, None)
        status = processes.exit_status(run.adopted, run.fd)
        os.close(run.fd)
        run.fd = None
        strays = sum(not process.dying for process in Table().marked.get(run.id, ()))
        run.strays = True  # those that do not carry its id are not seen
        if status is None:
            self._lost(run, "it ended while it was not this process's child, and the kernel did not say how")
        else:
            self._ended(run, status, strays, {})

    def _ended(self, run: Run, status: int, strays: int, used: dict[str, Any]) -> None:
        run.strays = run.strays or strays > 0
        if run.state is State.STUCK:
            self._died(run, status)
        else:
            self._conclude(run, State.ENDED, outcome(run, status), status, {"strays": strays, **used})

    def _lost(self, run: Run, why: str) -> None:
        if run.state is State.STUCK:
            self._died(run, wire.LOST)
        else:
            self._conclude(run, State.ENDED, "lost", wire.LOST, {"error": why, "wall": None})

    def _died(self, run: Run, status: int) -> None:
        run.state, run.died = State.ENDED, status
        del self._active[run.id]
        self._note(run, "died", status=status)
        run.output = self._outputs.trim(run.id, self._definitions.output_limit) > 0
        if run.record is not None:
            self.reports.died.append(run)

    def _conclude_without(
        self, run: Run, word: Outcome, status: int | None = None, error: str | None = None
    ) -> None:
        """Write the record of a run that never was a process."""
        self._conclude(
            run, State.ENDED, word, STATUS[word] if status is None else status, {"error": error, "wall": 0.0}
        )

    def _conclude(self, run: Run, state: State, word: Outcome, status: int, found: dict[str, Any]) -> None:
        """Write a run's record, and report it once it is written."""
        run.state, run.due, run.spec = state, None, None
        if state is State.ENDED:
            self._active.pop(run.id, None)
        record = results.record(
            self._folder, self._outputs, self._definitions.output_limit, run, word, status
        )
        record |= {key: value for key, value in found.items() if value or key not in {"strays", "error"}}
        self._write_record(run, msgpack.packb(record))

    def _write_record(self, run: Run, record: bytes) -> None:
        try:
            self._folder.write_record(run.id, record)
        except OSError as error:
            logger.error("run %s: cannot write its record, will try again: %s", run.id, error)  # noqa: TRY400
            self._unwritten.append((run, record))
            self._next_write = boottime() + _REWRITE
        else:
            run.record = record
            self._repeat(run)

    def _rewrite(self) -> None:
        self._next_write = math.inf
        unwritten, self._unwritten = self._unwritten, []
        for run, record in unwritten:
            self._write_record(run, record)

    def _look(self, now: float) -> None:
        live = [run.id for run in self._active.values() if run.pid is not None]
        self._next_look = math.inf
        if live or self._outputs.watched:
            self._next_look = now + self._outputs.look(
                live, limit=self._definitions.output_limit, total=self._definitions.output_total
            )
