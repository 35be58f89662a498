"""The methods `script.*`: what runs, what ran, how to end it, what it wrote."""

from __future__ import annotations

import signal as signals
from typing import Any

from perilogd.broker.core import Broker
from perilogd.broker.link import ExecutorLink
from perilogd.broker.runs import Run, Runs
from perilogd.errors import Refusal
from perilogd.lifecycle.job import Job
from perilogd.methods.kinds import PHASE, Kinds
from perilogd.methods.lookup import Lookup
from perilogd.rpc.method import ADMIN, Call, Method
from perilogd.rpc.params import JOB_ID, LIMIT, NAME, Argument, Integer

#: Bytes of head and of tail that `script.output` returns at most.
_OUTPUT = 256 * 1024


class ScriptMethods:
    """Builds the table's entries.

    Args:
        broker: has the journal.
        lookup: finds jobs.
        kinds: argument kinds with the configured bounds.
        runs: knows what runs.
        link: asks the executor.
    """

    def __init__(self, broker: Broker, lookup: Lookup, kinds: Kinds, runs: Runs, link: ExecutorLink) -> None:
        self._broker = broker
        self._lookup = lookup
        self._kinds = kinds
        self._runs = runs
        self._link = link

    def methods(self) -> list[Method]:
        """Return the entries."""
        job = Argument("id", JOB_ID, required=True, doc="the job")
        phase = Argument("phase", PHASE, required=True, doc="the phase")
        action = Argument("action", NAME, required=True, doc="the action")
        return [
            Method(
                "script.list",
                self.list_,
                [
                    Argument("id", JOB_ID, doc="only of this job, and with the runs that have ended"),
                    Argument("limit", LIMIT, doc="at most so many"),
                ],
                roles=ADMIN,
                doc="List the scripts that run, wait for a place or are stuck; or all runs of a job.",
                result="an array of runs",
            ),
            Method(
                "script.kill",
                self.kill,
                [
                    job,
                    phase,
                    action,
                    Argument(
                        "signal", Integer(1, 64), doc="default: SIGTERM, and what follows when it is ignored"
                    ),
                    Argument("nodes", self._kinds.nodes, doc="only there (per-node actions)"),
                ],
                roles=ADMIN,
                doc="End a script, or send a signal to everything that it has started.",
                result="{}",
            ),
            Method(
                "script.output",
                self.output,
                [job, phase, action, Argument("node", NAME, doc="only there (per-node actions)")],
                roles=ADMIN,
                doc="Return what a script wrote: its beginning and its end.",
                result="{head, tail, size}: bytes; all of it if head and tail are as long as size",
            ),
        ]

    def list_(self, call: Call, id: int | None = None, limit: int = 1000) -> object:
        """List runs."""
        if id is not None:
            return self._of_job(call, id)
        now = self._broker.clock.now()
        listed = [run.listed(now.boottime, now.wall) for run in self._runs.runs.values()]
        return ([*self._runs.stuck.values(), *listed])[:limit]

    async def _of_job(self, call: Call, id: int) -> list[dict[str, Any]]:
        job = await self._lookup.any(call, id)
        ended = await self._lookup.read(call, self._broker.journal.runs, id)
        now = self._broker.clock.now()
        stuck = [entry for entry in self._runs.stuck.values() if entry["id"] == id]
        past = [
            {
                "id": run.job,
                "phase": run.phase,
                "action": run.action,
                "attempt": run.attempt,
                "state": "ended",
                "outcome": run.outcome,
                "status": run.status,
                "wall": run.wall_seconds,
                "cpu_user": run.cpu_user,
                "cpu_system": run.cpu_system,
                "max_rss": run.max_rss,
            }
            for run in ended
        ]
        return past + stuck + [run.listed(now.boottime, now.wall) for run in self._runs.of_job(job)]

    def kill(
        self,
        call: Call,
        id: int,
        phase: str,
        action: str,
        signal: int | None = None,
        nodes: str | None = None,
    ) -> dict[str, Any]:
        """End a script."""
        if nodes is not None:
            raise Refusal("EINVAL", "nodes: no script of this version runs on nodes; leave it out")

        del call
        job = self._broker.jobs.get(id)
        run = None if job is None else self._find(job, phase, action)
        what = f"{phase} {action} of job {id}"
        if run is None:
            stuck = self._find_stuck(id, phase, action)
            if stuck is not None:
                if not self._link.up:
                    raise Refusal("EAGAIN", f"{what} cannot be signaled before perilog-exec answers again")
                self._runs.signal(stuck, signals.SIGTERM if signal is None else signal)
                return {}
            if job is None:
                raise Refusal("ENOENT", f"no live job: {id}")
            raise Refusal("ESTATE", f"{what} does not run; the job is in state {job.state.value}")
        if run.pid is None and phase == "epilog":
            raise Refusal(
                "ESTATE", f"{what} is not known to have begun; it is owed, and can be ended only then"
            )
        if signal is None or (signal == signals.SIGTERM and run.pid is None):
            self._runs.cancel(run)
            self._broker.catch_up()
        elif run.pid is None:
            raise Refusal("ESTATE", f"{what} is not known to have begun, nothing is there to be signaled")
        elif not self._link.up:
            raise Refusal("EAGAIN", f"{what} cannot be signaled before perilog-exec answers again")
        else:
            self._runs.signal(run.id, signal)
        return {}

    def _find(self, job: Job, phase: str, action: str) -> Run | None:
        return next(
            (run for run in self._runs.of_job(job) if run.hold.phase == phase and run.hold.name == action),
            None,
        )

    def _find_stuck(self, id: int, phase: str, action: str) -> str | None:
        """Return the name of a run whose job went on without it, and may have ended."""
        where = (id, phase, action)
        return next(
            (
                name
                for name, entry in self._runs.stuck.items()
                if (entry["id"], entry["phase"], entry["action"]) == where
            ),
            None,
        )

    async def output(
        self,
        call: Call,
        id: int,
        phase: str,
        action: str,
        node: str = "",
    ) -> dict[str, Any]:
        """Return what a script wrote: from the executor while it has it, else what the journal kept."""
        job = await self._lookup.any(call, id)
        hold = next(
            (h for h in job.holds.values() if h.phase == phase and h.name == action and h.is_script), None
        )
        if hold is None or hold.since is None:
            raise Refusal("ENOENT", f"job {id} has never run {phase} {action}")
        if self._link.up:
            body = {"id": self._runs.run_id(job, hold), "limit": _OUTPUT}
            answer = await self._link.ask("output", body)
            if answer["found"]:
                return {"head": answer["head"], "tail": answer["tail"], "size": answer["size"]}
        kept = await self._lookup.read(call, self._broker.journal.output, id, phase, action, None, node)
        text = kept.text if kept is not None else b""
        return {"head": text, "tail": b"", "size": len(text)}
