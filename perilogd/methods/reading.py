"""The methods that show jobs: `job.get`, `job.list`. Reading only."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import Any, NamedTuple

import msgpack

from perilogd.broker.core import Broker
from perilogd.broker.runs import Runs
from perilogd.errors import Refusal
from perilogd.lifecycle.job import Job, State
from perilogd.lifecycle.keep import intersection
from perilogd.lifecycle.view import job_map
from perilogd.methods import authority
from perilogd.methods.kinds import STATES, Kinds
from perilogd.methods.lookup import Lookup
from perilogd.rpc.method import USERS, Call, Method
from perilogd.rpc.params import JOB_ID, KEY, LIMIT, NAME, UID, Argument, Either, Integer

#: Ended jobs that are read from the journal at a time.
_PAGE = 200

#: Bytes of jobs after which a list is not made longer: whoever wants more asks for it with `after`.
_MOST_BYTES = 4 << 20


class _Part(NamedTuple):
    """Some jobs of a longer list, and how far they go.

    Args:
        jobs: their maps.
        size: their bytes.
        last: up to which id these are all; None: these are all that there are.
    """

    jobs: list[dict[str, Any]]
    size: int
    last: int | None


class ReadingMethods:
    """Builds the table's entries.

    Args:
        broker: has the live jobs.
        lookup: finds jobs.
        kinds: argument kinds with the configured bounds.
        runs: knows which scripts run.
    """

    def __init__(self, broker: Broker, lookup: Lookup, kinds: Kinds, runs: Runs) -> None:
        self._broker = broker
        self._lookup = lookup
        self._kinds = kinds
        self._runs = runs

    def methods(self) -> list[Method]:
        """Return the entries."""
        return [
            Method(
                "job.get",
                self.get,
                [Argument("id", JOB_ID, doc="the job"), Argument("key", KEY, doc="or its key")],
                roles=USERS,
                doc="Show a job.",
                result="the job",
            ),
            Method(
                "job.list",
                self.list_,
                [
                    Argument("state", STATES, doc="only in this state"),
                    Argument("userid", UID, doc="only of this uid"),
                    Argument(
                        "held_by",
                        Either(Integer(0, 1 << 32), NAME),
                        doc="only with an open hold of this name or owner",
                    ),
                    Argument("node", self._kinds.nodes, doc="only with one of these nodes in the allocation"),
                    Argument("limit", LIMIT, doc="at most so many"),
                    Argument("after", Integer(0, 1 << 62), doc="only with a greater id"),
                ],
                roles=USERS,
                doc="List jobs by ascending id, live and ended.",
                result="an array of jobs",
            ),
        ]

    def shown(self, job: Job) -> dict[str, Any]:
        """Return a job's map, with the scripts that run."""
        now = self._broker.clock.now()
        shown = job_map(job, now)
        shown["scripts"] = [run.listed(now.boottime, now.wall) for run in self._runs.of_job(job)]
        return shown

    def get(self, call: Call, id: int | None = None, key: str | None = None) -> object:
        """Show a job."""
        if (id is None) == (key is None):
            raise Refusal("EINVAL", "job.get: give either id or key")
        if id is not None:
            return self._lookup.on(call, id, self.shown)
        return self._get_by_key(call, str(key))

    async def _get_by_key(self, call: Call, key: str) -> dict[str, Any]:
        return self.shown(await self._lookup.any(call, await self._lookup.by_key(call, key)))

    def list_(
        self,
        call: Call,
        state: str | None = None,
        userid: int | None = None,
        held_by: int | str | None = None,
        node: str | None = None,
        limit: int = 1000,
        after: int = 0,
    ) -> list[dict[str, Any]] | Awaitable[list[dict[str, Any]]]:
        """List jobs."""
        if not authority.sees_all(call):
            if userid not in (None, call.uid):
                raise Refusal("EPERM", f"userid: uid {call.uid} may list only its own jobs")
            userid = call.uid
        jobs = self._broker.jobs if userid is None else self._broker.jobs_of.get(userid, {})
        live = [job for id, job in jobs.items() if id > after]

        def wanted(job: Job) -> bool:
            return (state is None or job.state.value == state) and (held_by is None or _held_by(job, held_by))

        if node is not None:
            authority.require_few(call, self._broker.config, "node", node)
            return self._on_nodes(call, node, live, wanted, limit, after, userid)
        part = self._part(filter(wanted, live), limit)
        if held_by is not None or state not in (None, State.INACTIVE.value):
            return part.jobs
        return self._with_ended(call, part, wanted, limit, after, userid)

    async def _on_nodes(
        self,
        call: Call,
        nodes: str,
        live: list[Job],
        wanted: Callable[[Job], bool],
        limit: int,
        after: int,
        userid: int | None,
    ) -> list[dict[str, Any]]:
        """List the jobs with some of these nodes; to compare the sets of many jobs takes its time."""
        allocations = [(job.id, job.alloc) for job in live if wanted(job)]
        ids = await call.connection.slowly(_with_nodes, allocations, nodes)
        part = self._part((job for job in live if job.id in ids and wanted(job)), limit)

        def wanted_there(job: Job) -> bool:
            return wanted(job) and bool(intersection(job.alloc, nodes))

        return await self._with_ended(call, part, wanted_there, limit, after, userid)

    def _part(self, jobs: Iterable[Job], limit: int) -> _Part:
        """Show jobs: at most so many, and not more than is good for one reply."""
        maps: list[dict[str, Any]] = []
        size = 0
        for job in jobs:
            maps.append(self.shown(job))
            size += len(msgpack.packb(maps[-1]))
            if len(maps) == limit or size > _MOST_BYTES:
                return _Part(maps, size, job.id)
        return _Part(maps, size, None)

    async def _with_ended(
        self,
        call: Call,
        live: _Part,
        wanted: Callable[[Job], bool],
        limit: int,
        after: int,
        userid: int | None,
    ) -> list[dict[str, Any]]:
        """Merge live jobs with those of the journal, by id, as far as both are known."""
        ids = {job["id"] for job in live.jobs}  # one that ends while we read comes twice
        found: list[dict[str, Any]] = []
        size = 0
        last: int | None = after
        while last is not None and len(found) < limit and size <= _MOST_BYTES:
            ended = await self._lookup.read(call, self._ended, last, limit - len(found), wanted, userid)
            found += [job for job in ended.jobs if job["id"] not in ids]
            size += ended.size
            last = ended.last
        ends = [end for end in (live.last, last) if end is not None]
        known = [job for job in (*live.jobs, *found) if not ends or job["id"] <= min(ends)]
        return sorted(known, key=lambda job: job["id"])[:limit]

    def _ended(self, after: int, limit: int, wanted: Callable[[Job], bool], userid: int | None) -> _Part:
        """Show ended jobs (blocking): of the next few that there are, those that are wanted."""
        ids = self._broker.journal.ended_jobs(after, _PAGE, userid)
        jobs = (job for job in map(self._lookup.from_journal, ids) if job is not None and wanted(job))
        part = self._part(jobs, limit)
        return part._replace(last=ids[-1]) if part.last is None and len(ids) == _PAGE else part


def _with_nodes(allocations: list[tuple[int, str]], nodes: str) -> set[int]:
    return {id for id, alloc in allocations if intersection(alloc, nodes)}


def _held_by(job: Job, wanted: int | str) -> bool:
    return any(
        hold.open and (wanted in (hold.name, hold.owner) or f"provider:{wanted}" == hold.owner)
        for hold in job.holds.values()
    )
