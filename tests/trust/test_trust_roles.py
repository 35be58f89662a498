"""Who may call what: every method, for every kind of user, on jobs that are his and on others'."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from bed import until
from raw import ALICE, BOB, CAROL, NOBODY, Raw

if TYPE_CHECKING:
    from bed import Bed
    from trust.conftest import As

pytestmark = pytest.mark.other_users

#: Who calls: uid, and on which job.
#:   admin     root
#:   operator  a uid in [broker] admins
#:   service   a uid in [[provider]] users
#:   owner     on a job that he has submitted
#:   assigned  on a job that an administrator has submitted for him
#:   stranger  on somebody else's job
CALLERS = {
    "admin": (0, "owner"),
    "operator": (BOB, "owner"),
    "service": (CAROL, "owner"),
    "owner": (ALICE, "owner"),
    "assigned": (ALICE, "assigned"),
    "stranger": (NOBODY, "owner"),
}
ADMIN = {"admin", "operator"}
HOLDERS = {*ADMIN, "owner", "assigned"}
READERS = {*HOLDERS, "service"}
ALL = {*READERS, "stranger"}

#: For each method: arguments, and who may call it with them. `id` is filled in where it is None.
#: The job runs (but is not started), is held in completion by its owner, and may be rerun.
TABLE: list[tuple[str, dict[str, Any], set[str]]] = [
    ("broker.config", {}, ADMIN),
    ("broker.drain", {"on": False}, ADMIN),
    ("broker.methods", {}, ALL),
    ("broker.ping", {}, ALL),
    ("broker.reload", {}, ADMIN),
    ("broker.stats", {}, ADMIN),
    ("hello", {"client": "test"}, ALL),
    ("hello", {"client": "test", "provider": "nnf"}, {"service"}),
    ("hold.start", {"id": None, "phase": "completion", "name": "more"}, HOLDERS),
    ("hold.start", {"id": None, "phase": "epilog", "name": "more"}, ADMIN),
    ("hold.start", {"id": None, "phase": "epilog", "name": "nnf"}, {"service"}),
    ("hold.start", {"id": None, "phase": "completion", "name": "nnf-out"}, {"service"}),
    ("hold.start", {"id": None, "phase": "epilog", "name": "undo"}, set()),
    ("hold.update", {"id": None, "phase": "completion", "name": "out", "progress": 5}, HOLDERS),
    ("hold.update", {"id": None, "phase": "completion", "name": "out", "timeout": "1h"}, HOLDERS),
    ("hold.finish", {"id": None, "phase": "completion", "name": "out"}, {"owner", "assigned"}),
    ("hold.finish", {"id": None, "phase": "completion", "name": "out", "force": True}, ADMIN),
    ("hold.list", {}, ALL),
    ("job.alloc", {"id": None, "nodes": "n1"}, ADMIN),
    ("job.cancel", {"id": None}, HOLDERS),
    ("job.events", {"id": None}, READERS),
    ("job.exit", {"id": None, "status": 0}, {*ADMIN, "owner"}),
    ("job.get", {"id": None}, READERS),
    ("job.list", {}, ALL),
    ("job.list", {"userid": ALICE}, READERS),
    ("job.memo", {"id": None, "memo": {"a": 1}}, HOLDERS),
    ("job.raise", {"id": None, "type": "cancel", "severity": 0}, HOLDERS),
    ("job.raise", {"id": None, "type": "mine", "severity": 3}, HOLDERS),
    *(
        ("job.raise", {"id": None, "type": reserved, "severity": 3}, ADMIN)
        for reserved in (
            "timelimit",
            "prolog",
            "completion",
            "epilog",
            "hold",
            "dependency",
            "node",
            "exec",
        )
    ),
    ("job.rerun", {"id": None}, HOLDERS),
    ("job.start", {"id": None}, {*ADMIN, "owner"}),
    ("job.submit", {}, ALL),
    ("job.submit", {"userid": 4711}, ADMIN),
    ("job.submit", {"userid": 0}, ADMIN),
    ("job.submit", {"holds": [{"phase": "depend", "name": "d"}]}, ALL),
    ("job.submit", {"holds": [{"phase": "prolog", "name": "p"}]}, ADMIN),
    ("job.submit", {"holds": [{"phase": "epilog", "name": "e"}]}, ADMIN),
    ("job.wait", {"id": None, "event": "submit"}, READERS),
    ("job.watch", {}, ALL),
    ("job.watch", {"id": None}, READERS),
    ("node.drain", {"nodes": "n9"}, ADMIN),
    ("node.list", {}, ALL),
    ("node.undrain", {"nodes": "n9"}, ADMIN),
    ("script.kill", {"id": None, "phase": "epilog", "action": "undo"}, ADMIN),
    ("script.list", {}, ADMIN),
    ("script.list", {"id": None}, ADMIN),
    ("script.output", {"id": None, "phase": "epilog", "action": "undo"}, ADMIN),
    ("watch.cancel", {"watch": 999}, ALL),
    ("broker.shutdown", {}, ADMIN),
]


def configure(bed: Bed) -> None:
    """Configure an operator, a provider and an action, and start."""
    bed.table("[broker]", admins=["root", BOB])
    bed.table("[[provider]]", name="nnf", users=[CAROL], holds=["completion:nnf-out"], match={"dw": True})
    bed.action("undo", epilog="true")
    bed.start()


def state(bed: Bed) -> Any:
    """Return all that a call can change, once the scripts that earlier calls have set off are done."""
    until(lambda: bed.call("script.list") == [])
    stats = bed.call("broker.stats")
    return stats["events"], stats["watches"], stats["draining"], bed.call("node.list")


def test_every_method_is_in_the_table(bed: Bed) -> None:
    """A method that is added has to say here who may call it."""
    bed.start()
    assert {method["name"] for method in bed.call("broker.methods")} == {row[0] for row in TABLE}


@pytest.mark.parametrize("caller", CALLERS)
def test_who_may_call_what(bed: Bed, connect_as: As, caller: str) -> None:
    """Each method is for those in the table; all others get EPERM, and nothing has changed."""
    configure(bed)
    bed.executor_answers()
    uid, whose = CALLERS[caller]
    client = connect_as(uid)
    owner = connect_as(ALICE)
    for method, arguments, allowed in TABLE:
        job = prepared(bed, owner, whose)
        given = {name: job if name == "id" and value is None else value for name, value in arguments.items()}
        before = state(bed)
        if caller in allowed:
            error, _ = client.call(method, given)
            # The right caller at the wrong moment is told of the moment.
            assert error is None or error[1].startswith(("ESTATE: ", "ENOENT: ")), (method, given, error)
            assert method != "hold.finish" or error is None
        else:
            text = client.refused(method, **given)
            assert text.startswith("EPERM: "), (method, given, text)
            assert state(bed) == before, (method, given)


def prepared(bed: Bed, owner: Raw, whose: str) -> int:
    """Return a job of Alice's that runs and is held; submitted by herself or for her."""
    arguments: dict[str, Any] = {
        "holds": [{"phase": "completion", "name": "out"}],
        "max_reruns": 1,
    }
    if whose == "owner":
        job = owner.ok("job.submit", **arguments)["id"]
    else:
        job = bed.call("job.submit", userid=ALICE, **arguments)["id"]
    bed.call("job.alloc", id=job, nodes="n1")
    bed.wait(job, "ready")
    return int(job)
