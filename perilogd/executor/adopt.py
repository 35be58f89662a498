"""What an executor finds when it starts: runs that another one, or itself before a re-exec, has left.

Only reading and judging is done here; what follows from it is the supervisor's. The rule, for a run without a
record:

    no output file                                      never begun (the child makes it right before its exec)
    the process is there                                adopt it
    neither                                             lost: it was begun, and nobody knows how it ended

The process is the one with the recorded pid, if it is a session leader that was started just when the record
says; where the pid was not written down any more, the session leader that carries the run's id in its
environment and was started when the request was written.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import msgpack

from perilogd.executor import processes, wire
from perilogd.executor.processes import TICKS, Process, Table, boottime
from perilogd.executor.run import Run, State

if TYPE_CHECKING:
    from perilogd.executor.records import Folder

logger = logging.getLogger(__name__)

#: Seconds within which a request is followed by its spawn.
_PROMPT = 0.25

#: Seconds for the rounding of clock readings.
_ROUNDING = 0.001


@dataclass(slots=True)
class Found:
    """What was left.

    Args:
        runs: all runs, and the process of each, None where there is none. Their states: WAITING, never begun;
            STUCK, if its process is still there; ENDED, with record; else what it was in, and lost without
            process.
        kept: runs of which nothing but the output is left, oldest first.
    """

    runs: list[tuple[Run, Process | None]] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)


class Recovery:
    """One look at what is left in a folder.

    Args:
        folder: the executor's; its lock is held.
        boot_id: the kernel's.
    """

    def __init__(self, folder: Folder, boot_id: str) -> None:
        self._folder = folder
        self._boot_id = boot_id

    def find(self) -> Found:
        """Return what is left. Files without use are removed."""
        found = Found()
        outputs: list[tuple[float, str]] = []
        for run_id, kinds in self._folder.ids().items():
            if not wire.is_run_id(run_id):
                logger.warning("runs/%s.*: not a run's files, ignored", run_id)
                continue
            known = self._restore(run_id, kinds)
            if known is not None:
                found.runs.append(known)
                continue
            self._folder.remove(f"{run_id}.run")
            self._folder.forget(run_id, strays=".out" in kinds)
            if ".out" in kinds:
                outputs.append((self._folder.changed(f"{run_id}.out"), run_id))
        found.kept = [run_id for _, run_id in sorted(outputs)]
        return found

    @cached_property
    def _table(self) -> Table:
        return Table()

    def _restore(self, run_id: str, kinds: set[str]) -> tuple[Run, Process | None] | None:
        name = f"{run_id}.exit" if ".exit" in kinds else f"{run_id}.run"
        if not kinds & {".run", ".exit"}:
            return None
        asked = self._folder.changed(name)  # before it is mended
        request, log = self._folder.read_run(name)
        run = Run(run_id, output=".out" in kinds, strays=".out" in kinds)
        if (record := log.get("exit")) is not None:
            self._folder.rename(name, f"{run_id}.exit")
            run.record = msgpack.packb(record)
            run.state = State.ENDED
            run.refused = request is None and record["outcome"] == "canceled"
            run.died = log.get("died", {}).get("status")
            if record["outcome"] != "stuck" or run.died is not None:
                return run, None
        else:
            self._folder.rename(name, f"{run_id}.run")  # a record that a crash of the machine has taken
            if ".out" not in kinds:
                run.spec = _spec(request)
                return (run, None) if run.spec else None
        begun = log.get("begun")
        process = self._recorded(begun) if begun else self._marked(run_id, asked)
        if begun:
            run.pid, run.since, run.started = begun["pid"], begun["after"], begun["started"]
            run.deadline, run.kill_timeout, run.on_stuck = (
                begun["deadline"],
                begun["kill_timeout"],
                begun["on_stuck"],
            )
        elif process:
            run.pid, run.since = process.pid, process.start / TICKS
        run.spec = _spec(request)
        run.state, run.due = State.RUNNING, run.deadline
        if term := log.get("term"):
            run.state, run.due = State.ENDING, term["due"]
            run.ending, run.reason = term["ending"], term["reason"]
        if kill := log.get("kill"):
            run.state, run.due = State.KILLING, kill["due"]
        if run.record is not None:
            run.state, run.due = State.STUCK, None
        return run, process

    def _recorded(self, begun: dict[str, Any]) -> Process | None:
        if begun["boot"] != self._boot_id:
            return None
        process = processes.look(begun["pid"])
        if (
            process is not None
            and process.session == process.pid
            and int((begun["after"] - _ROUNDING) * TICKS) <= process.start
            and process.start <= int((begun["before"] + _ROUNDING) * TICKS)
        ):
            return process
        return None

    def _marked(self, run_id: str, asked: float) -> Process | None:
        """Return the session leader that carries a run's id, and was started when the request was written.

        A daemon that the script has left carries it, too, but was started later.
        """
        asked += boottime() - time.time()
        leaders = [
            process
            for process in self._table.marked.get(run_id, ())
            if process.session == process.pid and abs(process.start / TICKS - asked) < _PROMPT
        ]
        return min(leaders, key=lambda process: process.start, default=None)


def _spec(request: dict[str, Any] | None) -> wire.Spec | None:
    """Return a request as data, None if it is not whole or another version's: then the broker asks again."""
    try:
        return wire.check_run(request or {})
    except wire.WireError as error:
        logger.warning("a run's request cannot be read: %s", error)
        return None
