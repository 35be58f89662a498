"""States, results and attempts: DESIGN §2."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from lifecycle.life import Life, refused, running
from lifecycle.world import ALICE, ROOT, action, provider
from perilogd.lifecycle import commands, effects, view
from perilogd.lifecycle.job import Job, State
from perilogd.lifecycle.policy import Policy

_ALL = "prolog completion epilog"
_A = Policy((action("a", _ALL),))


# -- the way through


def test_a_job_without_anything_to_do_waits_only_for_others() -> None:
    """Without actions and holds a job needs nodes, start and exit from others, and nothing else."""
    life = Life(nodes="")
    assert life.log == ["submit", "depend"]
    assert life.alloc() == ["alloc", "ready"]
    assert life.start() == ["start"]
    assert life.exit() == ["exit", "finish", "release", "clean"]


def test_nodes_given_with_submit_are_allocated_at_once() -> None:
    """`submit` with nodes goes on to PROLOG in the same write, and its `alloc` carries the nodes."""
    life = Life(Policy((action("a"),)), resources={"cores": "0-3"})
    assert life.log == ["submit", "depend", "alloc", "prolog-start a"]
    assert life.last("alloc") == {
        "nodes": "n[1-4]",
        "resources": {"cores": "0-3"},
        "plan": [{"name": "a", "owner": "action:a", "definition": "a-1", "timeout": 600.0, "undo": 600.0}],
    }


def test_a_whole_life() -> None:
    """Each phase waits for its scripts, and `release` comes with the last epilog."""
    life = Life(_A)
    assert life.end("prolog", "a") == ["prolog-finish a", "ready"]
    assert life.start() == ["start"]
    assert life.exit() == ["exit", "completion-start a"]
    assert life.end("completion", "a") == ["completion-finish a", "finish", "epilog-start a"]
    assert life.end("epilog", "a") == ["epilog-finish a", "release", "clean"]
    assert life.last("release") == {"nodes": "n[1-4]", "final": True}


# -- result and exit code


def _just(status: int) -> Callable[[Life], object]:
    return lambda life: life.exit(status)


def _stage_out(exit_status: int, *statuses: int) -> Callable[[Life], object]:
    def go(life: Life) -> None:
        for number, _ in enumerate(statuses):
            life.hold("completion", f"out{number}")
        life.exit(exit_status)
        for number, status in enumerate(statuses):
            life.release("completion", f"out{number}", status)

    return go


def _raised(*kinds: str, exit_status: int = 0) -> Callable[[Life], object]:
    def go(life: Life) -> None:
        for kind in kinds:
            life.throw(kind)
        life.exit(exit_status)

    return go


@pytest.mark.parametrize(
    ("end", "result", "status", "code"),
    [
        (_just(0), "COMPLETED", 0, 0),
        (_just(3 << 8), "FAILED", 3 << 8, 3),
        (_just(9), "FAILED", 9, 137),
        (_just(139), "FAILED", 139, 139),  # SIGSEGV with a core
        (_just(65280), "FAILED", 65280, 255),
        (_stage_out(0, 2 << 8), "FAILED", 2 << 8, 2),
        (_stage_out(0, 0, 9, 2 << 8), "FAILED", 9, 137),
        (_stage_out(3 << 8, 2 << 8), "FAILED", 3 << 8, 3),
        (_raised("cancel"), "CANCELED", 0, 1),
        (_raised("cancel", exit_status=15), "CANCELED", 15, 143),
        (_raised("timelimit", exit_status=15), "TIMEOUT", 15, 143),
        (_raised("own"), "FAILED", 0, 1),
        (_raised("exec", "cancel"), "FAILED", 0, 1),
        (_raised("cancel", "timelimit"), "CANCELED", 0, 1),
    ],
)
def test_result_and_exit_code(end: Callable[[Life], object], result: str, status: int, code: int) -> None:
    """The first fatal exception or `finish` decides; the status is the application's or a hold's."""
    life = running()
    end(life)
    assert life.state == "INACTIVE"
    assert (life.job.result, life.job.finish_status, view.exit_code(life.job)) == (result, status, code)


def test_a_job_that_never_finished_has_no_status_and_exit_code_1() -> None:
    """After a fatal exception before `start` there is no `finish`, no status, and exit code 1."""
    life = Life(_A)
    life.cancel()
    assert view.exit_code(life.job) == 1
    assert "finish" not in life.log
    assert life.job.finish_status is None


def test_no_exit_code_before_it_is_certain() -> None:
    """While completion work can still change the status, there is no exit code to show."""
    life = running(_A)
    life.exit()
    assert view.exit_code(life.job) is None
    life.end("completion", "a", "failed", 256)
    assert view.exit_code(life.job) == 1


def test_the_result_never_changes() -> None:
    """What comes after the first fatal exception, or after `finish`, leaves result and reason as they are."""
    life = running(_A)
    life.exit()
    life.end("completion", "a")
    assert life.job.result == "COMPLETED"
    for kind in ("cancel", "timelimit", "exec"):
        assert life.throw(kind) == ["exception"]
    assert life.job.result == "COMPLETED"
    assert effects.reason(life.job) == "finish"
    life.end("epilog", "a")
    assert view.exit_code(life.job) == 0


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("cancel", "cancel"),
        ("timelimit", "timelimit"),
        ("prolog", "prolog-failed"),
        ("hold", "timeout"),
        ("node", "node"),
        ("exec", "exec"),
        ("dependency", "dependency"),
        ("own", "own"),
    ],
)
def test_the_reason_that_scripts_are_told(kind: str, reason: str) -> None:
    """PERILOG_REASON follows from the first fatal exception, not from later ones."""
    life = Life(_A)
    life.throw(kind)
    life.cancel()
    assert effects.reason(life.job) == reason


# -- fatal exceptions


def test_fatal_in_depend_ends_the_job_at_once() -> None:
    """A job that never got nodes owes no epilog and releases nothing."""
    life = Life(
        Policy((action("a"), action("e", "epilog")), (provider("p", "epilog"),)),
        nodes="",
        holds=[{"phase": "depend", "name": "h", "owner": ROOT}],
    )
    assert life.cancel() == ["exception", "dependency-remove h", "clean"]


def test_fatal_in_sched_ends_the_job_at_once() -> None:
    """In SCHED, too, nothing is owed."""
    life = Life(_A, nodes="")
    assert life.cancel() == ["exception", "clean"]


def test_fatal_before_start_ends_holds_and_lapses_what_was_to_come() -> None:
    """Prolog holds that are no scripts are canceled, completion holds skipped, what had not begun lapses."""
    life = Life(
        Policy((action("a"), action("late", after=("p",))), (provider("p", "prolog", "completion"),)),
        holds=[{"phase": "completion", "name": "declared", "owner": ALICE}],
    )
    life.hold("completion", "client")
    assert life.cancel() == [
        "exception",
        "epilog-start a",
        "prolog-finish p",
        "completion-finish client",
    ]
    assert life.hold_of("prolog", "p").outcome == "canceled"
    assert life.hold_of("completion", "client").outcome == "skipped"
    assert life.hold_of("completion", "declared").outcome == "skipped"
    assert life.hold_of("prolog", "late").outcome == "skipped"
    assert life.end("prolog", "a", "canceled", 15) == ["prolog-finish a"]
    assert life.end("epilog", "a") == ["epilog-finish a", "release", "clean"]


def test_fatal_in_run_before_start_needs_no_exit() -> None:
    """A job that is ready but not started goes to EPILOG; starting it then is refused, and says why."""
    life = Life(_A)
    life.end("prolog", "a")
    assert life.cancel() == ["exception", "epilog-start a"]
    assert refused(life.start) == (
        "ESTATE: job 1 is in state EPILOG (fatal exception: cancel), it can start only in RUN"
    )


def test_fatal_while_the_application_runs_waits_for_its_exit() -> None:
    """The log never claims that an application has stopped when it has not; completion work then goes on."""
    life = running(_A)
    assert life.cancel() == ["exception"]
    assert life.state == "RUN"
    assert life.waiting_for == "the application to end, told to stop (cancel)"
    assert life.exit(15) == ["exit", "completion-start a"]
    assert life.want("completion", "a") == "run"


def test_fatal_after_exit_is_recorded_only() -> None:
    """After `exit` a fatal exception does not end the completion phase."""
    life = running(_A)
    life.exit()
    assert life.cancel() == ["exception"]
    assert life.want("completion", "a") == "run"
    assert life.end("completion", "a") == ["completion-finish a", "finish", "epilog-start a"]
    assert (life.job.result, life.job.finish_status) == ("CANCELED", 0)


def test_other_severities_move_nothing() -> None:
    """Only severity 0 is fatal."""
    life = Life(_A)
    assert life.throw("own", 1) == ["exception"]
    assert life.state == "PROLOG"
    assert life.job.result is None


def test_what_cannot_be_raised() -> None:
    """Nothing is raised on an ended job; abandon needs severity 0 and never goes with a time limit."""
    life = running()
    assert refused(lambda: life.throw("timelimit", abandon=True)).startswith("EINVAL: abandon: a time limit")
    assert refused(lambda: life.throw("cancel", 2, abandon=True)).startswith("EINVAL: abandon: goes with")
    life.exit()
    assert refused(life.cancel).startswith("ESTATE: job 1 is INACTIVE")
    assert refused(lambda: life.take(commands.memo(life.job, {"a": 1}))).startswith(
        "ESTATE: job 1 is INACTIVE"
    )


# -- abandon


def test_cancel_lets_completion_go_on_and_abandon_ends_it() -> None:
    """Abandon stops completion scripts, lapses what has not begun, and gives a provider `abandon-grace`."""
    life = running(
        Policy(
            (action("a", "completion"), action("b", "completion", after=("a",))),
            (provider("p", "completion", timeout=None),),
            abandon_grace=60.0,
        ),
    )
    life.exit()
    life.cancel()
    assert (life.want("completion", "a"), life.left("completion", "p")) == ("run", None)
    assert life.cancel(abandon=True) == ["exception"]
    assert (life.want("completion", "a"), life.left("completion", "p")) == ("cancel", 60)
    assert life.hold_of("completion", "b").outcome == "skipped"
    assert life.end("completion", "a", "canceled", 15) == ["completion-finish a"]
    assert life.expire("completion", "p") == ["completion-finish p", "finish", "release", "clean"]
    assert life.hold_of("completion", "p").outcome == "canceled"
    assert life.exceptions() == [("cancel", 0), ("cancel", 0)]
    assert [item.abandon for item in life.job.exceptions] == [False, True]


def test_abandon_before_exit_sticks() -> None:
    """Given before `exit`, completion scripts, standing and declared holds never begin; clients get grace."""
    life = running(
        Policy((action("a", "completion"),), (provider("p", "completion"),)),
        holds=[{"phase": "completion", "name": "declared", "owner": ALICE}],
    )
    life.hold("completion", "client", timeout=None)
    life.cancel(abandon=True)
    assert life.exit(15) == ["exit"]
    assert "plan" not in life.last("exit")
    assert life.active() == ["completion client"]
    assert life.left("completion", "client") == 60
    assert life.release("completion", "client") == ["completion-finish client", "finish", "release", "clean"]


def test_an_abandoned_hold_cannot_be_prolonged_nor_a_new_one_be_taken() -> None:
    """No holder can undo an abandon, not even one whose deadline came before the grace."""
    life = running()
    life.hold("completion", "slow")
    life.hold("completion", "soon", timeout=10.0)
    life.exit()
    life.cancel(abandon=True)
    assert (life.left("completion", "slow"), life.left("completion", "soon")) == (60, 10)
    for name in ("slow", "soon"):
        assert "was abandoned" in refused(lambda name=name: life.update("completion", name, timeout=9e9))  # type: ignore[misc]
        assert life.update("completion", name, keep="n1") == [f"hold-update {name}"]
    assert "was abandoned" in refused(lambda: life.hold("completion", "new"))
    life.cancel(abandon=True)
    assert life.left("completion", "slow") == 60
    assert life.expire("completion", "soon") == ["completion-finish soon"]
    assert life.hold_of("completion", "soon").outcome == "canceled"


def test_abandon_has_no_effect_in_the_epilog() -> None:
    """Nothing of the epilog is stopped or cut short."""
    life = running(Policy((action("a"),), (provider("p", "epilog"),)))
    life.exit()
    assert life.cancel(abandon=True) == ["exception"]
    assert (life.want("epilog", "a"), life.left("epilog", "p")) == ("run", 600)
    assert not life.job.abandoned


# -- start and exit


def test_start_and_exit_happen_once_an_attempt() -> None:
    """Repeating `start`, or `exit` with the same status, gives no event; another status is refused."""
    life = running(Policy((), (provider("p", "completion"),)))
    assert life.start() == []
    assert life.start(1) == []
    life.exit(256)
    assert life.exit(256) == []
    assert life.exit(256, 1) == []
    assert "has ended with status 256, not 0" in refused(lambda: life.exit(0))
    assert "attempt 1 of job 1 has ended" in refused(life.start)
    assert "not yet at 2" in refused(lambda: life.start(2))
    assert "not yet at 2" in refused(lambda: life.exit(0, 2))


def test_start_and_exit_too_early() -> None:
    """`start` before `ready` and `exit` before `start` are refused with the job's state."""
    life = Life(_A)
    assert refused(life.start) == "ESTATE: job 1 is in state PROLOG, it can start only in RUN"
    assert "has not started; the job is in state PROLOG" in refused(life.exit)
    life.end("prolog", "a")
    assert "has not started; the job is in state RUN" in refused(life.exit)


def test_alloc_again() -> None:
    """The same nodes again: no event; other nodes, or not in SCHED: refused."""
    life = Life(_A, nodes="", holds=[{"phase": "depend", "name": "h", "owner": ROOT}])
    assert "is in state DEPEND, nodes are given in SCHED" in refused(life.alloc)
    life.release("depend", "h")
    life.alloc()
    assert life.alloc() == []
    assert "already has other nodes (n[1-4])" in refused(lambda: life.alloc("m1"))


def test_a_lost_lease_ends_the_application() -> None:
    """When the lease ends: exception `exec`, severity 0, then `exit` with outcome `lost`; once."""
    life = running()
    assert life.take(commands.lose(Job(2), Policy(), "nobody there")) == []
    steps = commands.lose(life.job, life.world.policy, "the client went away")
    assert life.take(steps) == ["exception", "exit", "finish", "release", "clean"]
    assert life.last("exit") == {"status": 65280, "attempt": 1, "outcome": "lost"}
    assert life.exceptions() == [("exec", 0)]
    assert (life.job.result, view.exit_code(life.job)) == ("FAILED", 255)


def test_a_lease_lasts_as_long_as_the_application() -> None:
    """A job with a lease gets a note of a broker's restart while its application runs, and not after."""
    life = Life(Policy((), (provider("p", "completion"),)))
    assert not effects.needs_restart_note(life.job)
    life.start(lease=True)
    assert life.last("start") == {"attempt": 1, "lease": True}
    assert effects.needs_restart_note(life.job)
    life.exit()
    assert not effects.needs_restart_note(life.job)


def test_jobs_with_a_running_script_are_told_of_a_restart() -> None:
    """`broker-restart` goes to jobs with an active script, not to those that only wait."""
    assert effects.needs_restart_note(Life(_A).job)
    assert not effects.needs_restart_note(Life(Policy((), (provider("p", "prolog"),))).job)
    ended = Life(Policy())
    ended.cancel()
    assert ended.job.state is State.INACTIVE
    assert not effects.needs_restart_note(ended.job)
