"""Who may do what to a job or a hold, beyond what a method's roles say.

Nothing is changed here; a request that may not be made is refused with EPERM.
"""

from __future__ import annotations

from collections.abc import Callable

from perilogd import nodeset
from perilogd.config import Config
from perilogd.errors import Refusal
from perilogd.lifecycle.job import Hold, Job, Origin
from perilogd.lifecycle.policy import Phase, Policy, Seconds
from perilogd.rpc.connection import Standing
from perilogd.rpc.method import Call, Role

#: Phases in which a job's owner may have holds: declared at submit, and later.
OWNER_DECLARES: frozenset[Phase] = frozenset({"depend", "completion"})
OWNER_STARTS: frozenset[Phase] = frozenset({"completion"})

#: Who may read every job.
SEE_ALL: frozenset[Role] = frozenset({"admin", "provider"})

#: Nodes that anybody may name in one request.
_FEW = 1000

#: Events of a job's log beyond which its owner can add nothing at will.
_LONG = 10_000


def standing(config: Config, own_uid: int) -> Callable[[int], Standing]:
    """Return the function that tells what a uid is.

    Args:
        config: the configuration in force.
        own_uid: the broker's; it is an administrator, as is root.
    """
    admins = {0, own_uid, *config.broker.admins}
    providers: dict[int, frozenset[str]] = {}
    for provider in config.providers:
        for uid in provider.users:
            providers[uid] = providers.get(uid, frozenset()) | {provider.name}
    others: dict[str, Role] = {"submit": "guest", "read": "owner", "none": "none"}

    def of(uid: int) -> Standing:
        names = providers.get(uid, frozenset())
        if uid in admins:
            return Standing("admin", names)
        if names:
            return Standing("provider", names)
        return Standing(others[config.broker.guests])

    return of


def is_admin(call: Call) -> bool:
    """Whether the caller is an administrator."""
    return call.role == "admin"


def sees_all(call: Call) -> bool:
    """Whether the caller may read every job."""
    return call.role in SEE_ALL


def require_sight(call: Call, job: Job) -> None:
    """Refuse a caller who may not read a job."""
    if not sees_all(call) and job.userid != call.uid:
        raise Refusal("EPERM", f"job {job.id} belongs to {user(job.userid)}, not to {user(call.uid)}")


def require_owner(call: Call, job: Job, doing: str) -> None:
    """Refuse a caller who is neither the job's owner nor an administrator."""
    if not is_admin(call) and job.userid != call.uid:
        raise Refusal(
            "EPERM",
            f"only {user(job.userid)} and administrators may {doing} job {job.id}, not {user(call.uid)}",
        )


def require_runner(call: Call, job: Job, doing: str) -> None:
    """Refuse a caller who does not run the job: an administrator, or the owner if he submitted it himself."""
    require_owner(call, job, doing)
    if not is_admin(call) and job.submitter != call.uid:
        raise Refusal(
            "EPERM",
            f"job {job.id} was submitted by {user(job.submitter)}, who runs it; its owner may not {doing} it",
        )


def is_holder(call: Call, job: Job, hold: Hold) -> bool:
    """Whether the caller took a hold: by his uid, or for a provider that he may speak for."""
    if isinstance(hold.owner, int):
        declared = hold.origin is Origin.DECLARED and call.uid == job.submitter
        return call.uid == hold.owner or declared
    kind, _, name = hold.owner.partition(":")
    if kind == "action":  # a completion script runs as the job's owner, and reports progress as him
        return hold.phase == "completion" and call.uid == job.userid
    return kind == "provider" and name in call.providers


def require_holder(call: Call, job: Job, hold: Hold, doing: str) -> None:
    """Refuse a caller who has not taken the hold."""
    if not is_holder(call, job, hold):
        owner = user(hold.owner) if isinstance(hold.owner, int) else hold.owner
        hint = "; an administrator can use force" if doing == "finish" else ""
        raise Refusal(
            "EPERM",
            f"{hold.phase} hold {hold.name!r} of job {job.id} is {owner}'s, not for {user(call.uid)}{hint}",
        )


def cap(call: Call, policy: Policy, phase: Phase, timeout: Seconds, *, owner: bool) -> Seconds:
    """Return how long a hold may last.

    Args:
        call: who asks; an administrator is not capped: "infinity" is his to write.
        policy: the configuration.
        phase: the hold's phase.
        timeout: what he asks for in seconds, None for no deadline.
        owner: whether he holds his own job.
    """
    if is_admin(call):
        return timeout
    bounds = [policy.maximum.get(phase), policy.owner.timeout if owner else None, timeout]
    given = [bound for bound in bounds if bound is not None]
    return min(given) if given else policy.timeout.get(phase)


def require_short(call: Call, job: Job) -> None:
    """Refuse what lengthens a log for ever: it is kept in memory in parts, and replayed as a whole."""
    if job.length >= _LONG and not sees_all(call):
        raise Refusal(
            "EAGAIN",
            f"the log of job {job.id} has {job.length} events; only what the job's life needs is added now",
        )


def require_few(call: Call, config: Config, argument: str, nodes: str, enough: str = "") -> None:
    """Refuse a user's set of nodes that is far larger than any of his jobs: to work with it takes long.

    Args:
        call: the request; administrators and providers may name as many as `[limits] nodes` allows.
        config: the configuration in force.
        argument: the argument's name.
        nodes: the set.
        enough: the nodes of the job that it is about, if there is one: so many may be named in any case.
    """
    most = max(_FEW, nodeset.count(config.broker.guest_nodes), nodeset.count(enough))
    if not sees_all(call) and nodeset.count(nodes) > most:
        raise Refusal(
            "EPERM",
            f"argument {argument}: uid {call.uid} may name at most {most} nodes; administrators, more",
        )


def user(uid: int) -> str:
    """Return a user for people; looking up the name could ask a directory service, and block."""
    return f"uid {uid}"
