"""The methods `job.*` that change a job: submit, alloc, start, exit, rerun, raise, cancel, memo.

Each checks who asks, hands the lifecycle's command to the broker, and says what became of it.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Mapping
from typing import Any
from weakref import WeakValueDictionary

import trio

from perilogd import nodeset
from perilogd.broker.core import Broker
from perilogd.broker.leases import Leases
from perilogd.config import Config
from perilogd.errors import Refusal
from perilogd.lifecycle import commands
from perilogd.lifecycle.job import Job, Keep, State
from perilogd.lifecycle.keep import difference, kept_nodes, named_nodes
from perilogd.methods import authority
from perilogd.methods.kinds import EXCEPTION_TYPE, OUTCOME, RESOURCES, Kinds, require_together
from perilogd.methods.lookup import Lookup
from perilogd.rpc.method import ADMIN, USERS, Call, Method
from perilogd.rpc.params import (
    JOB_ID,
    KEY,
    NOTE,
    UID,
    WAIT_STATUS,
    Argument,
    Boolean,
    Integer,
    ListOf,
    printable_up_to,
    shown,
    text_up_to,
)

_NOT_FOR_OWNERS = (commands.RESERVED_TYPES - {"cancel"}) | commands.REASON_WORDS

_DEPENDENCY = re.compile(r"(after|afterany|afterok|afternotok|afterclean):(.+)", re.DOTALL)
_MOST_DEPENDENCIES = 1000

#: One user may have this part of `[limits] jobs`, so that he cannot keep everybody else out.
_SHARE = 10


class JobMethods:
    """Builds the table's entries.

    Args:
        broker: does the work.
        lookup: finds jobs.
        kinds: argument kinds with the configured bounds.
        leases: ties applications to connections.
    """

    def __init__(self, broker: Broker, lookup: Lookup, kinds: Kinds, leases: Leases) -> None:
        self._broker = broker
        self._lookup = lookup
        self._kinds = kinds
        self._leases = leases
        self._submitting: WeakValueDictionary[tuple[int, str], trio.Lock] = WeakValueDictionary()

    def methods(self) -> list[Method]:
        """Return the entries."""
        kinds = self._kinds
        job = Argument("id", JOB_ID, required=True, doc="the job")
        attempt = Argument("attempt", Integer(1, 1 << 31), doc="which attempt; default: the present one")
        return [
            Method(
                "job.submit",
                self.submit,
                [
                    Argument("key", KEY, doc="the submitter's own name for the job; again: the same job"),
                    Argument("userid", UID, doc="whose job it is; default: the caller's"),
                    Argument("name", printable_up_to(255), doc="for people"),
                    Argument("nodes", kinds.nodes, doc="its nodes, where they are known already"),
                    Argument("resources", RESOURCES, doc="parts of each node"),
                    Argument(
                        "attributes", kinds.attributes, doc="what actions and providers are matched with"
                    ),
                    Argument(
                        "holds", ListOf(kinds.hold, 1000), doc="holds declared for this or later phases"
                    ),
                    Argument(
                        "dependencies",
                        ListOf(text_up_to(300), _MOST_DEPENDENCIES),
                        doc='such as "afterok:17"',
                    ),
                    Argument("max_reruns", Integer(0, 1 << 31), doc="how often it may be started again"),
                ],
                roles=USERS,
                doc="Bring a job to life.",
                result="{id, created}",
            ),
            Method(
                "job.alloc",
                self.alloc,
                [
                    job,
                    Argument("nodes", kinds.nodes, required=True, doc="its nodes"),
                    Argument("resources", RESOURCES, doc="parts of each node"),
                ],
                roles=ADMIN,
                doc="Give a job its nodes.",
                result="{}",
            ),
            Method(
                "job.start",
                self.start,
                [
                    job,
                    attempt,
                    Argument("lease", Boolean(), doc="the application lives as long as this connection"),
                ],
                roles=USERS,
                doc="Say that the application has started.",
                result="{attempt}",
            ),
            Method(
                "job.exit",
                self.exit,
                [
                    job,
                    Argument("status", WAIT_STATUS, required=True, doc="wait(2) status"),
                    attempt,
                    Argument("outcome", OUTCOME, doc="how the status is known"),
                ],
                roles=USERS,
                doc="Say that the application has ended.",
                result="{attempt}",
            ),
            Method(
                "job.rerun",
                self.rerun,
                [job, Argument("attempt", Integer(2, 1 << 31), doc="the attempt that is to come")],
                roles=USERS,
                doc="Have the application started again in the same allocation.",
                result="{attempt}",
            ),
            Method(
                "job.raise",
                self.raise_,
                [
                    job,
                    Argument("type", EXCEPTION_TYPE, required=True, doc="the exception's type"),
                    Argument("severity", Integer(0, 7), required=True, doc="0 is fatal"),
                    Argument("note", NOTE, doc="for people"),
                    Argument("abandon", Boolean(), doc="give up completion work too"),
                ],
                roles=USERS,
                doc="Raise an exception on a job.",
                result="{}",
            ),
            Method(
                "job.cancel",
                self.cancel,
                [
                    job,
                    Argument("note", NOTE, doc="for people"),
                    Argument("abandon", Boolean(), doc="give up completion work too"),
                ],
                roles=USERS,
                doc="Cancel a job: raise type cancel, severity 0.",
                result="{}",
            ),
            Method(
                "job.memo",
                self.memo,
                [job, Argument("memo", kinds.memo, required=True, doc="keys and values for the log")],
                roles=USERS,
                doc="Write something that others may read into a job's log.",
                result="{}",
            ),
        ]

    # -- submit

    def submit(self, call: Call, **given: Any) -> dict[str, Any] | Awaitable[dict[str, Any]]:
        """Submit a job; what must be looked up in the journal first takes the slow way."""
        key = given.get("key")
        if key is not None:
            known = self._broker.keys.get((call.uid, key))
            if known is not None:
                return {"id": known, "created": False}
        if key is None and not given.get("dependencies"):
            return self._submit(call, given, [])
        return self._submit_slowly(call, given)

    async def _submit_slowly(self, call: Call, given: dict[str, Any]) -> dict[str, Any]:
        key = given.get("key")
        if key is None:
            return await self._submit_dependent(call, given)
        # One at a time for a key: between the look into the journal and the submit nobody else may use it.
        async with self._submitting.setdefault((call.uid, key), trio.Lock()):
            known = await self._lookup.own_key(call, key)
            if known is not None:
                return {"id": known, "created": False}
            return await self._submit_dependent(call, given)

    async def _submit_dependent(self, call: Call, given: dict[str, Any]) -> dict[str, Any]:
        userid = given.get("userid", call.uid)
        texts = given.get("dependencies", ())
        return self._submit(call, given, [await self._dependency(call, text, userid) for text in texts])

    def _submit(self, call: Call, given: Mapping[str, Any], dependencies: list[str]) -> dict[str, Any]:
        broker, limits = self._broker, self._broker.config.limits
        if broker.draining:
            raise Refusal("ESHUTDOWN", "the broker is being drained and takes no new jobs; try again later")
        broker.require_room()
        userid: int = given.get("userid", call.uid)
        self._require_submitter(call, userid, given.get("nodes"))
        if len(broker.jobs) >= limits.jobs:
            raise Refusal("EAGAIN", f"{len(broker.jobs)} jobs are active, as many as [limits] jobs allows")
        most = max(1, limits.jobs // _SHARE)
        if not authority.is_admin(call) and len(broker.jobs_of.get(userid, ())) >= most:
            raise Refusal(
                "EAGAIN",
                f"uid {userid} has {most} active jobs, the part of [limits] jobs that one user may have",
            )
        reruns: int = given.get("max_reruns", 0)
        if reruns > limits.reruns:
            raise Refusal("EINVAL", f"max_reruns: is {reruns}, [limits] reruns allows {limits.reruns}")
        context: dict[str, Any] = {"userid": userid, "submitter": call.uid}
        for name in ("key", "name", "nodes", "resources", "attributes", "max_reruns"):
            if given.get(name):
                context[name] = given[name]
        holds = self._declared(call, userid, given.get("holds", ()), given.get("nodes", ""))
        if len(holds) + len(dependencies) > limits.holds_per_job:
            raise Refusal(
                "EINVAL", f"holds: more than [limits] holds-per-job allows ({limits.holds_per_job})"
            )
        if holds:
            context["holds"] = holds
        if dependencies:
            context["dependencies"] = list(dict.fromkeys(dependencies))
        return {"id": broker.submit(context).id, "created": True}

    def _require_submitter(self, call: Call, userid: int, nodes: str | None) -> None:
        if authority.is_admin(call):
            return
        config = self._broker.config.broker
        if config.guests != "submit":
            raise Refusal(
                "EPERM", f'uid {call.uid} may not submit jobs here ([broker] guests = "{config.guests}")'
            )
        if userid != call.uid:
            raise Refusal(
                "EPERM", f"uid {call.uid} may not submit a job for uid {userid}; administrators may"
            )
        if nodes is not None:
            authority.require_few(call, self._broker.config, "nodes", nodes)
            outside = difference(nodes, config.guest_nodes) if config.guest_nodes else nodes
            if outside:
                raise Refusal(
                    "EPERM",
                    f"nodes: {shown(outside)} is not among [broker] guest-nodes"
                    f" ({config.guest_nodes or 'none'}); administrators may use any",
                )

    def _declared(
        self, call: Call, userid: int, holds: list[dict[str, Any]] | tuple[()], nodes: str
    ) -> list[dict[str, Any]]:
        """Return declared holds as the `submit` event has them: with owner and final timeout."""
        policy = self._broker.policy
        admin = authority.is_admin(call)
        declared: list[dict[str, Any]] = []
        seen: set[tuple[str, str]] = set()
        for given in holds:
            phase, name = given["phase"], given["name"]
            where = f"holds: {phase}:{name}"
            if (phase, name) in seen:
                raise Refusal("EINVAL", f"{where} is declared twice")
            seen.add((phase, name))
            if policy.reserved(name):
                raise Refusal("EINVAL", f"{where}: the name belongs to an action or a provider")
            if phase == "depend" and _DEPENDENCY.fullmatch(name):
                raise Refusal("EINVAL", f"{where}: the name looks like a dependency; give it as one")
            owner = phase in authority.OWNER_DECLARES
            if not admin and not owner:
                raise Refusal("EPERM", f"{where}: only administrators declare holds of the {phase} phase")
            timeout = given["timeout"] if "timeout" in given else policy.timeout.get(phase)
            entry: dict[str, Any] = {"phase": phase, "name": name, "owner": userid if owner else call.uid}
            timeout = authority.cap(call, policy, phase, timeout, owner=owner)
            if timeout is not None:
                entry["timeout"] = timeout
            if given.get("keep", "all") != "all":
                entry["keep"] = given["keep"]
            if given.get("note"):
                entry["note"] = given["note"]
            if not owner:
                entry["drain"] = True
            if not admin and phase == "completion":
                check_owner_nodes(call, self._broker.config, where, given.get("keep", "all"), nodes)
            declared.append(entry)
        own = sum(1 for entry in declared if entry["phase"] == "completion")
        if not admin and own > policy.owner.holds:
            raise Refusal("EPERM", f"holds: {own} of yours, [holds] owner.holds allows {policy.owner.holds}")
        return declared

    async def _dependency(self, call: Call, text: str, userid: int) -> str:
        """Return a dependency with its job's id, having made sure that it may be had."""
        match = _DEPENDENCY.fullmatch(text)
        if match is None:
            raise Refusal(
                "EINVAL",
                f"dependencies: {text!r}, expected after, afterany, afterok, afternotok or afterclean,"
                " a colon and a job's id or key",
            )
        kind, target = match.groups()
        if target.isdecimal() and len(target) < 19:
            id = int(target)
        else:
            id = await self._lookup.by_key(call, target.removeprefix("key:"))
        job = await self._lookup.any_or_none(call, id)
        if job is None:
            raise Refusal("ENOENT", f"dependencies: {text}: no such job: {id}")
        if job.userid != userid and not authority.is_admin(call):
            raise Refusal(
                "EPERM", f"dependencies: {text}: job {id} belongs to uid {job.userid}, not to uid {userid}"
            )
        return f"{kind}:{id}"

    # -- the rest of its life

    def alloc(
        self,
        call: Call,
        id: int,
        nodes: str,
        resources: dict[str, str] | None = None,
    ) -> object:
        """Give a job its nodes."""

        def do(job: Job) -> dict[str, Any]:
            self._broker.require_room()
            self._broker.transact(job, commands.alloc(job, self._broker.policy, nodes, resources))
            return {}

        return self._lookup.on(call, id, do)

    def start(self, call: Call, id: int, attempt: int | None = None, lease: bool = False) -> object:
        """Note the application's start."""

        def do(job: Job) -> dict[str, Any]:
            authority.require_runner(call, job, "start")
            self._broker.require_room()
            self._broker.transact(job, commands.start(job, attempt, lease=lease))
            if lease and job.lease:
                self._leases.take(job, call.connection)
            return {"attempt": job.attempt}

        return self._lookup.on(call, id, do)

    def exit(
        self,
        call: Call,
        id: int,
        status: int,
        attempt: int | None = None,
        outcome: str | None = None,
    ) -> object:
        """Note the application's end."""

        def do(job: Job) -> dict[str, Any]:
            authority.require_runner(call, job, "end")
            self._broker.require_room()
            number = commands.check_attempt(job, attempt)
            self._broker.transact(job, commands.exit_(job, self._broker.policy, status, attempt, outcome))
            self._leases.drop(job.id)
            return {"attempt": number}

        return self._lookup.on(call, id, do)

    def rerun(self, call: Call, id: int, attempt: int | None = None) -> object:
        """Have the application started again."""

        def do(job: Job) -> dict[str, Any]:
            authority.require_owner(call, job, "rerun")
            self._broker.require_room()
            self._broker.transact(job, commands.rerun(job, call.uid, attempt))
            return {"attempt": job.attempt}

        return self._lookup.on(call, id, do)

    def raise_(
        self,
        call: Call,
        id: int,
        type: str,
        severity: int,
        note: str = "",
        abandon: bool = False,
    ) -> object:
        """Raise an exception."""

        def do(job: Job) -> dict[str, Any]:
            authority.require_owner(call, job, "raise an exception on")
            if type in _NOT_FOR_OWNERS and not authority.is_admin(call):
                raise Refusal(
                    "EPERM", f"type: {type!r} is reserved; owners may raise cancel and types of their own"
                )
            decides = severity == 0 and job.result is None
            gives_up = abandon and not job.abandoned and job.state is not State.EPILOG
            if not (decides or gives_up):
                authority.require_short(call, job)
            self._broker.require_room()
            steps = commands.raise_(
                job, self._broker.policy, type, severity, note, userid=call.uid, abandon=abandon
            )
            self._broker.transact(job, steps)
            return {}

        return self._lookup.on(call, id, do)

    def cancel(self, call: Call, id: int, note: str = "", abandon: bool = False) -> object:
        """Cancel."""
        return self.raise_(call, id, "cancel", 0, note, abandon)

    def memo(self, call: Call, id: int, memo: dict[str, Any]) -> object:
        """Write a memo."""

        def do(job: Job) -> dict[str, Any]:
            authority.require_owner(call, job, "write a memo for")
            authority.require_short(call, job)
            require_together(self._kinds.memo, "memo", {**job.memo, **memo})
            self._broker.require_room()
            self._broker.transact(job, commands.memo(job, memo))
            return {}

        return self._lookup.on(call, id, do)


def check_owner_nodes(call: Call, config: Config, where: str, keep: Keep, nodes: str) -> None:
    """Refuse an owner's hold that keeps more nodes than `[holds] owner.nodes` allows.

    Args:
        call: the owner's request.
        config: the configuration in force.
        where: which hold, for the error text.
        keep: what it keeps.
        nodes: the nodes that the job has, or asks for; "" if it has not said so yet.
    """
    named = named_nodes(keep)
    authority.require_few(call, config, "keep", named, nodes)
    most = config.policy.owner.nodes
    kept = nodeset.count(kept_nodes(keep, nodes) if nodes else named)
    if most is not None and kept > most:
        raise Refusal("EPERM", f"{where} would keep {kept} nodes, [holds] owner.nodes allows {most}")
