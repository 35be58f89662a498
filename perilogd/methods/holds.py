"""The methods `hold.*`: start, update, finish, list."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from perilogd.broker.core import Broker
from perilogd.errors import Refusal
from perilogd.lifecycle import holds
from perilogd.lifecycle.job import Hold, Job, Stage
from perilogd.lifecycle.keep import named_nodes, narrow
from perilogd.lifecycle.policy import Phase
from perilogd.lifecycle.view import hold_map
from perilogd.methods import authority
from perilogd.methods.jobs import check_owner_nodes
from perilogd.methods.kinds import DURATION, PHASE, Kinds, require_together
from perilogd.methods.lookup import Lookup
from perilogd.rpc.method import USERS, Call, Method
from perilogd.rpc.params import (
    JOB_ID,
    LIMIT,
    NAME,
    NOTE,
    PERCENT,
    WAIT_STATUS,
    Argument,
    Boolean,
    Either,
    Integer,
)
from perilogd.rpc.watch import Watches

_UNSET = holds.Unchanged


class HoldMethods:
    """Builds the table's entries.

    Args:
        broker: does the work.
        lookup: finds jobs.
        kinds: argument kinds with the configured bounds.
        watches: told of progress.
    """

    def __init__(self, broker: Broker, lookup: Lookup, kinds: Kinds, watches: Watches) -> None:
        self._broker = broker
        self._lookup = lookup
        self._kinds = kinds
        self._watches = watches

    def methods(self) -> list[Method]:
        """Return the entries."""
        job = Argument("id", JOB_ID, required=True, doc="the job")
        phase = Argument("phase", PHASE, required=True, doc="the phase that is held")
        name = Argument("name", NAME, required=True, doc="the hold's name")
        keep = Argument("keep", self._kinds.keep, doc="what it keeps")
        note = Argument("note", NOTE, doc="for people")
        return [
            Method(
                "hold.start",
                self.start,
                [job, phase, name, Argument("timeout", DURATION, doc="from now to its deadline"), keep, note],
                roles=USERS,
                doc="Hold a phase of a job, by name; again: the same hold.",
                result="the hold",
            ),
            Method(
                "hold.update",
                self.update,
                [
                    job,
                    phase,
                    name,
                    Argument("progress", PERCENT, doc="percent done; shown, not journaled"),
                    note,
                    Argument("timeout", DURATION, doc="from now to its deadline"),
                    keep,
                ],
                roles=USERS,
                doc="Report progress, move the deadline, or keep less.",
                result="the hold",
            ),
            Method(
                "hold.finish",
                self.finish,
                [
                    job,
                    phase,
                    name,
                    Argument("status", WAIT_STATUS, doc="wait(2) status; default 0"),
                    note,
                    Argument(
                        "environment", self._kinds.variables, doc="for later scripts and the application"
                    ),
                    Argument("force", Boolean(), doc="end another's hold (administrators)"),
                ],
                roles=USERS,
                doc="Give a hold up; again: the first outcome.",
                result="{status, outcome, forced?}",
            ),
            Method(
                "hold.list",
                self.list_,
                [
                    Argument("phase", PHASE, doc="only of this phase"),
                    Argument("name", NAME, doc="only of this name"),
                    Argument(
                        "owner", Either(Integer(0, 1 << 32), NAME), doc="only of this uid, or provider:NAME"
                    ),
                    Argument("limit", LIMIT, doc="at most so many"),
                    Argument("after", Integer(0, 1 << 63), doc="only of jobs with a greater id"),
                ],
                roles=USERS,
                doc="List holds that have not ended; a job's stay together, so that `after` can resume.",
                result="an array of holds, each with its job's id",
            ),
        ]

    def start(
        self,
        call: Call,
        id: int,
        phase: Phase,
        name: str,
        timeout: Any = _UNSET,
        keep: Any = "all",
        note: str = "",
    ) -> object:
        """Take a hold."""

        def do(job: Job) -> dict[str, Any]:
            known = holds.find(job, phase, name)
            if known is not None:
                return hold_map(known, self._broker.clock.now())
            self._broker.require_room()
            steps = self._start(call, job, phase, name, timeout, keep, note)
            self._broker.transact(job, steps)
            return hold_map(holds.require(job, phase, name), self._broker.clock.now())

        return self._lookup.on(call, id, do)

    def _start(
        self, call: Call, job: Job, phase: Phase, name: str, timeout: Any, keep: Any, note: str
    ) -> Iterator[Any]:
        policy = self._broker.policy
        provider = self._provider_of(call, name)
        admin = authority.is_admin(call)
        owner = job.userid == call.uid and phase in authority.OWNER_STARTS
        if provider is None and policy.reserved(name):
            raise Refusal(
                "EPERM", f"name: {name!r} belongs to an action or a provider that uid {call.uid} is not"
            )
        if provider is None and not admin and not owner:
            raise Refusal(
                "EPERM",
                f"uid {call.uid} may not hold the {phase} phase of job {job.id}: owners hold completion,"
                " providers what is named for them, administrators everything",
            )
        as_owner = owner and provider is None and not admin
        where = f"{phase} hold {name!r} of job {job.id}"
        if as_owner:
            own = sum(
                hold.owner == call.uid and hold.phase == phase and hold.stage is not Stage.ENDED
                for hold in job.holds.values()
            )
            if own >= policy.owner.holds:
                raise Refusal(
                    "EPERM",
                    f"{where}: you hold {own} already, [holds] owner.holds allows {policy.owner.holds}",
                )
            check_owner_nodes(call, self._broker.config, where, keep, job.held or job.wanted)
        asked = policy.timeout.get(phase) if timeout is _UNSET else timeout
        return holds.start(
            job,
            policy,
            phase,
            name,
            owner=call.uid if provider is None else f"provider:{provider}",
            timeout=authority.cap(call, policy, phase, asked, owner=as_owner),
            keep=narrow("all", keep, job.held or job.wanted),
            note=note,
            drain=not as_owner,
        )

    def _provider_of(self, call: Call, name: str) -> str | None:
        """Return the provider whose name this is, if the caller may speak for it."""
        for provider in self._broker.policy.providers:
            if provider.name in call.providers and (
                provider.name == name or any(name == own for _, own in provider.holds)
            ):
                return provider.name
        return None

    def update(
        self,
        call: Call,
        id: int,
        phase: Phase,
        name: str,
        progress: float | None = None,
        note: str | None = None,
        timeout: Any = _UNSET,
        keep: Any = _UNSET,
    ) -> object:
        """Update a hold."""

        def do(job: Job) -> dict[str, Any]:
            hold = holds.require(job, phase, name, self._broker.policy)
            if not authority.is_admin(call):
                authority.require_holder(call, job, hold, "update")
            now = self._broker.clock.now()
            if timeout is not _UNSET or keep is not _UNSET:
                authority.require_short(call, job)
                self._broker.require_room()
            capped = not authority.is_admin(call)
            as_owner = capped and hold.owner == call.uid == job.userid
            if capped and timeout is not _UNSET:
                longest = authority.cap(call, self._broker.policy, phase, timeout, owner=as_owner)
            else:
                longest = timeout
            if keep is not _UNSET:
                named = named_nodes(keep)
                authority.require_few(call, self._broker.config, "keep", named, job.alloc or job.wanted)
            steps = holds.update(
                job,
                self._broker.policy,
                hold,
                now,
                call.uid,
                timeout=longest,
                keep=keep,
                capped=capped,
                by_owner=as_owner,
            )
            self._broker.transact(job, steps)
            self._report(job, hold, progress, note)
            return hold_map(hold, now)

        return self._lookup.on(call, id, do)

    def _report(self, job: Job, hold: Hold, progress: float | None, note: str | None) -> None:
        if progress is None and note is None:
            return
        if progress is not None:
            hold.progress = progress
        if note is not None:
            hold.note = note
        report = {"phase": hold.phase, "name": hold.name, "progress": hold.progress, "note": hold.note}
        self._broker.writer.after(partial(self._watches.tell_progress, job.id, job.userid, report))

    def finish(
        self,
        call: Call,
        id: int,
        phase: Phase,
        name: str,
        status: int | None = None,
        note: str = "",
        environment: dict[str, str] | None = None,
        force: bool = False,
    ) -> object:
        """Give a hold up."""

        def do(job: Job) -> dict[str, Any]:
            hold = holds.require(job, phase, name, self._broker.policy)
            if force and not authority.is_admin(call):
                raise Refusal("EPERM", f"force: is for administrators; uid {call.uid} is {call.role}")
            if not force and not hold.is_script:
                authority.require_holder(call, job, hold, "finish")
            forced = force and not authority.is_holder(call, job, hold)
            if hold.stage is not Stage.ENDED:
                self._broker.require_room()
                if environment:
                    together = {**job.environment, **job.owner_environment, **environment}
                    require_together(self._kinds.variables, "environment", together)
                steps = holds.finish(
                    job,
                    self._broker.policy,
                    hold,
                    call.uid,
                    status=status,
                    note=note,
                    environment=environment,
                    by_owner=hold.owner == job.userid and not authority.is_admin(call),
                    force=forced,
                )
                self._broker.transact(job, steps)
            result: dict[str, Any] = {"status": hold.status, "outcome": hold.outcome}
            if hold.forced is not None:
                result["forced"] = hold.forced
            return result

        return self._lookup.on(call, id, do)

    def list_(
        self,
        call: Call,
        phase: Phase | None = None,
        name: str | None = None,
        owner: int | str | None = None,
        limit: int = 1000,
        after: int = 0,
    ) -> list[dict[str, Any]]:
        """List holds."""
        now = self._broker.clock.now()
        found: list[dict[str, Any]] = []
        jobs = self._broker.jobs if authority.sees_all(call) else self._broker.jobs_of.get(call.uid, {})
        for job_id, job in jobs.items():
            if job_id <= after:
                continue
            wanted = [
                {"id": job_id, **hold_map(hold, now)}
                for hold in job.holds.values()
                if hold.stage is not Stage.ENDED
                and (phase is None or hold.phase == phase)
                and (name is None or hold.name == name)
                and (owner is None or hold.owner == owner)
            ]
            if found and len(found) + len(wanted) > limit:
                break
            found += wanted
        return found
