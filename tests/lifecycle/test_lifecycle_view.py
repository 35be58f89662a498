"""How a job is shown, what it waits for, and dependencies on it."""

from __future__ import annotations

import pytest

from lifecycle.life import Life, refused, running
from lifecycle.world import ALICE, ROOT, action, provider
from perilogd.lifecycle import commands, view
from perilogd.lifecycle.job import Job
from perilogd.lifecycle.keep import kept_nodes, narrow
from perilogd.lifecycle.policy import Policy

# -- waiting_for


def test_waiting_for_others() -> None:
    """Each state says who has to act."""
    life = Life(Policy((), (provider("p", "completion"),)), nodes="", dependencies=["afterok:7"])
    assert life.waiting_for == "dependency afterok:7"
    life.judge("afterok:7", met=True)
    assert life.waiting_for == "nodes from the workload manager"
    life.alloc()
    assert life.waiting_for == "the workload manager to start the application"
    life.start()
    assert life.waiting_for == "the application to end"
    life.exit()
    assert life.waiting_for == "completion hold p: for 0 s, deadline in 10 min"
    life.release("completion", "p")
    assert life.waiting_for == ""


def test_waiting_for_says_what_for_since_when_and_how_far() -> None:
    """Note, progress, age and deadline of a hold are in the sentence."""
    life = running()
    life.hold("completion", "out", note="moving 3 TB", timeout=7200.0)
    life.exit()
    life.wait(3725)
    life.hold_of("completion", "out").progress = 62.5
    assert life.waiting_for == (
        "completion hold out: moving 3 TB, 62.5 %, for 1 h 2 min, deadline in 57 min 55 s"
    )
    life.wait(7200)
    assert life.waiting_for.endswith("deadline passed")


def test_waiting_for_many() -> None:
    """Of many, three are named."""
    life = Life(Policy(tuple(action(name) for name in "abcde")))
    assert life.waiting_for == (
        "prolog script a: for 0 s; prolog script b: for 0 s; prolog script c: for 0 s; and 2 more"
    )


def test_waiting_for_names_nobody_whose_phase_has_not_come() -> None:
    """Holds taken ahead are not waited for yet."""
    life = Life(Policy((action("a"),)))
    life.hold("completion", "c")
    life.hold("epilog", "e", ROOT, timeout=None)
    assert life.waiting_for == "prolog script a: for 0 s"
    life.cancel()
    assert life.waiting_for == "prolog script a: for 0 s; epilog hold e: for 0 s"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-5, "0 s"),
        (0.4, "0 s"),
        (59, "59 s"),
        (60, "1 min"),
        (3600, "1 h"),
        (3661, "1 h 1 min"),
        (90061, "1 d 1 h"),
    ],
)
def test_span(seconds: float, text: str) -> None:
    """A length of time has its two largest units."""
    assert view.span(seconds) == text


# -- maps


def test_the_job_map_has_all_that_clients_are_promised() -> None:
    """`job.get` shows every key of PROTOCOL §2, with times in seconds since the epoch."""
    life = Life(Policy((action("a"),)), key="k", name="n", attributes={"x": 1})
    life.throw("own", 3)
    shown = view.job_map(life.job, life.world.now)
    promised = (
        *("id", "key", "name", "userid", "state", "nodes", "held", "holds", "exceptions", "attempt"),
        *("exit_status", "status", "result", "exit_code", "waiting_for"),
    )
    of_hold = {"phase", "name", "owner", "since", "deadline", "keep", "progress", "note"}
    assert set(promised) <= set(shown)
    assert (shown["key"], shown["nodes"], shown["held"], shown["state"]) == (
        "k",
        "n[1-4]",
        "n[1-4]",
        "PROLOG",
    )
    (hold,) = shown["holds"]
    assert of_hold <= set(hold)
    assert hold["deadline"] == pytest.approx(hold["since"] + 600)
    assert shown["exceptions"][0]["severity"] == 3


def test_memos_add_up() -> None:
    """A memo's keys are kept until written again, over a restart as well."""
    life = Life(Policy((action("a"),)))
    assert life.take(commands.memo(life.job, {"a": 1, "b": 2})) == ["memo"]
    life.take(commands.memo(life.job, {"b": 3}))
    life.restart()
    assert view.job_map(life.job, life.world.now)["memo"] == {"a": 1, "b": 3}


def test_an_ended_hold_says_how_it_ended() -> None:
    """Status and outcome are shown once a hold has ended, also when it lapsed without having begun."""
    life = Life(
        Policy((), (provider("p", "prolog"),)), holds=[{"phase": "completion", "name": "d", "owner": ALICE}]
    )
    life.cancel()
    shown = {hold["name"]: hold for hold in view.job_map(life.job, life.world.now)["holds"]}
    assert (shown["p"]["outcome"], shown["p"]["status"]) == ("canceled", 15)
    assert (shown["d"]["outcome"], shown["d"]["status"], shown["d"]["since"]) == ("skipped", 65280, None)
    assert shown["p"]["deadline"] is None


def test_a_deadline_is_shown_as_the_clock_runs_now() -> None:
    """After the wall clock was stepped, the shown deadline is the moment at which the broker will act."""
    life = Life(Policy((), (provider("p", "prolog"),)))
    life.world.now = life.world.now._replace(wall=life.world.now.wall + 5000)
    (hold,) = view.job_map(life.job, life.world.now)["holds"]
    assert hold["deadline"] == pytest.approx(life.world.now.wall + 600)


# -- dependencies


def _ended(kind: str) -> Job:
    life = running(Policy((action("e", "epilog"),)))
    if kind == "cancel":
        life.cancel()
    life.exit(256 if kind == "bad" else 0)
    life.end("epilog", "e")
    return life.job


def _in_epilog() -> Job:
    life = running(Policy((action("e", "epilog"),)))
    life.exit()
    return life.job


def _never_started() -> Job:
    life = Life(Policy((action("a"),)))
    life.cancel()
    return life.job


_VERDICTS = {
    #                    after  afterany afterok afternotok afterclean
    "waiting": (None, None, None, None, None),
    "running": (True, None, None, None, None),
    "running, canceled": (True, None, None, None, None),
    "data moves": (True, None, None, None, None),
    "in epilog": (True, True, True, False, None),
    "ended well": (True, True, True, False, True),
    "ended badly": (True, True, False, True, True),
    "ended canceled": (True, True, False, True, True),
    "canceled before start": (False, True, False, True, None),
}


@pytest.mark.parametrize("name", _VERDICTS)
def test_dependency_verdicts(name: str) -> None:
    """`after` is met at start, most at `finish` or where none will come, `afterclean` at the end."""
    data_moves = running(Policy((), (provider("p", "completion"),)))
    data_moves.exit()
    canceled = running()
    canceled.cancel()
    target = {
        "waiting": Life(Policy((action("a"),))).job,
        "running": running().job,
        "running, canceled": canceled.job,
        "data moves": data_moves.job,
        "in epilog": _in_epilog(),
        "ended well": _ended("good"),
        "ended badly": _ended("bad"),
        "ended canceled": _ended("cancel"),
        "canceled before start": _never_started(),
    }[name]
    kinds = ("after", "afterany", "afterok", "afternotok", "afterclean")
    assert tuple(commands.dependency_verdict(target, kind) for kind in kinds) == _VERDICTS[name]


def test_a_dependency_is_met() -> None:
    """It is removed, and the job goes on when the last one is."""
    life = Life(dependencies=["afterok:7", "afterany:8"])
    assert life.log == ["submit", "dependency-add afterok:7", "dependency-add afterany:8"]
    assert life.last("dependency-add") == {"description": "afterany:8", "owner": "job:8"}
    assert life.judge("afterok:7", met=True) == ["dependency-remove afterok:7"]
    assert life.judge("afterok:7", met=True) == []
    assert life.judge("afterany:8", met=True) == ["dependency-remove afterany:8", "depend", "alloc", "ready"]


def test_a_dependency_that_can_no_longer_be_met_ends_the_job() -> None:
    """Exception `dependency` says so; the dependencies are canceled with all else."""
    life = Life(dependencies=["afterok:7", "after:8"])
    assert life.judge("afterok:7", met=False, why="job 7 is FAILED") == [
        "exception",
        "dependency-remove afterok:7",
        "dependency-remove after:8",
        "clean",
    ]
    note = "dependency afterok:7 of job 1 can never be met: job 7 is FAILED"
    assert (life.exceptions(), life.job.exceptions[0].note) == ([("dependency", 0)], note)
    assert life.judge("after:8", met=False, why="it is too late") == []


# -- keep


@pytest.mark.parametrize(
    ("old", "new", "held", "expected"),
    [
        ("all", "none", "n[1-4]", "none"),
        ("all", "all", "", "all"),
        ("all", "n2", "n[1-4]", "n2"),
        ("all", "n2", "", "n2"),
        ("n[1-4]", "n[2-3]", "n[1-4]", "n[2-3]"),
        ("n[1-4]", "n[2-9]", "n[3-4]", "n[3-4]"),
        ("n[1-2]", "n[7-8]", "n[1-2]", "none"),
        ("n[1-2]", "all", "n[1-2]", "n[1-2]"),
        ("n1", {"nodes": "n1", "storage": "0"}, "n1", {"nodes": "n1", "storage": "0"}),
        ({"nodes": "n1", "cores": "0-3"}, {"nodes": "n1", "cores": "0"}, "n1", {"nodes": "n1", "cores": "0"}),
        ({"nodes": "n[1-2]", "cores": "0"}, "n1", "n[1-2]", {"nodes": "n1", "cores": "0"}),
        ({"nodes": "n1", "cores": "0"}, "none", "n1", "none"),
    ],
)
def test_keep_shrinks(old: object, new: object, held: str, expected: object) -> None:
    """A hold keeps fewer nodes, or less of them; nodes that were released already are ignored."""
    assert narrow(old, new, held) == expected  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("old", "new", "held", "text"),
    [
        ("n1", "n[1-2]", "n[1-4]", "n2 is not among the nodes that it keeps (n1)"),
        ("none", "n1", "n[1-4]", "n1 is not among the nodes that it keeps (none)"),
        ("none", "all", "n[1-4]", "n[1-4] is not among the nodes that it keeps (none)"),
        ("n1", "all", "", "can only shrink, from 'n1', not to 'all'"),
        ("n1", "n2", "", "n2 is not among the nodes that it keeps (n1)"),
        (
            {"nodes": "n1", "cores": "0"},
            {"nodes": "n1", "cores": "0-1"},
            "n1",
            "cores can only shrink, from '0', not to '0-1'",
        ),
        (
            {"nodes": "n1", "cores": "0"},
            {"nodes": "n1", "gpus": "0"},
            "n1",
            "gpus can only shrink, from 'none'",
        ),
    ],
)
def test_keep_never_grows(old: object, new: object, held: str, text: str) -> None:
    """A hold cannot keep what it did not keep before, and the text says what is too much."""
    assert text in refused(lambda: narrow(old, new, held))  # type: ignore[arg-type]


def test_kept_nodes() -> None:
    """What a hold keeps is counted among the nodes still held."""
    assert kept_nodes("all", "n[1-4]") == "n[1-4]"
    assert kept_nodes("none", "n[1-4]") == ""
    assert kept_nodes("n[3-9]", "n[1-4]") == "n[3-4]"
    assert kept_nodes({"nodes": "n1", "storage": "0"}, "n[1-4]") == "n1"
