"""Holds: how they come to be, change and end (DESIGN §3)."""

from __future__ import annotations

from typing import Any

import pytest

from lifecycle.life import Life, refused, running
from lifecycle.world import ALICE, ROOT, action, provider
from perilogd.lifecycle import effects, holds
from perilogd.lifecycle.job import Drain, Stamp
from perilogd.lifecycle.policy import PHASES, Phase, Policy

_P = Policy((), (provider("p", *PHASES),))


def _declared(*phases: Phase, **more: Any) -> list[dict[str, Any]]:
    return [{"phase": phase, "name": "d", "owner": ROOT, **more} for phase in phases]


# -- declared at submit


def test_declared_holds_begin_with_their_phase() -> None:
    """A hold declared at submit is begun when its phase is entered, and holds it."""
    life = Life(nodes="", holds=_declared(*PHASES, timeout=60.0, keep="n1", note="mine"))
    assert life.log == ["submit", "dependency-add d"]
    assert life.last("dependency-add") == {"description": "d", "owner": ROOT, "timeout": 60.0, "keep": "n1"}
    assert life.release("depend", "d") == ["dependency-remove d", "depend"]
    assert life.alloc() == ["alloc", "prolog-start d"]
    assert life.release("prolog", "d") == ["prolog-finish d", "ready"]
    life.start()
    assert life.exit() == ["exit", "completion-start d"]
    assert life.hold_of("completion", "d").note == "mine"
    assert life.release("completion", "d") == ["completion-finish d", "finish", "epilog-start d"]
    assert life.release("epilog", "d") == ["epilog-finish d", "release", "clean"]


@pytest.mark.parametrize("phase", PHASES[1:])
def test_a_declared_hold_given_up_early_is_not_due(phase: Phase) -> None:
    """Finished before its phase, a declared hold begins and ends at once, and the phase waits no more."""
    life = Life(nodes="", holds=_declared(phase))
    assert life.release(phase, "d", note="not needed") == [f"{phase}-start d", f"{phase}-finish d"]
    assert life.alloc() == ["alloc", "ready"]
    life.start()
    assert life.exit() == ["exit", "finish", "release", "clean"]


def test_a_declared_hold_that_goes_wrong_early_counts() -> None:
    """Given up early with a bad status: fatal for the prolog, part of the status for the completion."""
    life = Life(nodes="", holds=_declared("prolog"))
    assert life.release("prolog", "d", 256) == ["prolog-start d", "exception", "prolog-finish d", "clean"]
    assert life.exceptions() == [("prolog", 0)]
    other = Life(holds=_declared("completion"))
    other.release("completion", "d", 256)
    other.start()
    other.exit()
    assert (other.job.result, other.job.finish_status) == ("FAILED", 256)


# -- started by a client


def test_a_hold_for_a_later_phase_begins_at_once_and_its_time_with_the_phase() -> None:
    """A client's hold is in the log at once; its deadline counts from the entry of its phase."""
    life = running()
    assert life.hold("completion", "c", timeout=100.0, note="checkpoint") == ["completion-start c"]
    assert life.hold("epilog", "e", ROOT, keep="none") == ["epilog-start e"]
    assert life.last("completion-start")["note"] == "checkpoint"
    life.wait(500)
    assert life.left("completion", "c") is None
    life.exit()
    assert life.left("completion", "c") == 100
    life.wait(30)
    life.restart()
    assert (life.left("completion", "c"), life.left("epilog", "e")) == (70, None)
    life.release("completion", "c")
    assert life.left("epilog", "e") == 600
    assert life.release("epilog", "e") == ["epilog-finish e", "release", "clean"]


def test_a_hold_for_the_present_phase_counts_at_once() -> None:
    """In its own phase a client's hold counts from its start."""
    life = Life(_P)
    life.release("depend", "p")
    assert life.hold("prolog", "c") == ["prolog-start c"]
    assert life.left("prolog", "c") == 600


@pytest.mark.parametrize("phase", PHASES)
def test_a_phase_that_has_passed_can_be_held_no_more(phase: Phase) -> None:
    """Starting a hold in a phase that has passed is an error that says where the job is."""
    life = running()
    life.exit()
    text = refused(lambda: life.hold(phase, "late"))
    assert text == f"ESTATE: the {phase} phase of job 1 has passed; the job is in state INACTIVE"


def test_only_so_many_holds() -> None:
    """`[limits] holds-per-job` bounds all holds of a job."""
    life = running(Policy(holds_per_job=2))
    life.hold("completion", "one")
    life.hold("completion", "two")
    assert refused(lambda: life.hold("completion", "three")).startswith("EAGAIN: job 1 has 2 holds")
    assert life.hold("completion", "one") == []


def test_starting_and_finishing_twice_changes_nothing() -> None:
    """A name is used once: starting again returns the stored hold, finished or not; so does finishing."""
    life = running(_P)
    life.hold("completion", "c", note="first")
    assert life.hold("completion", "c", owner=ROOT, note="second") == []
    assert life.hold_of("completion", "c").note == "first"
    life.exit()
    life.release("completion", "c", 256)
    assert life.release("completion", "c", 0) == []
    assert life.hold("completion", "c") == []
    assert (life.hold_of("completion", "c").status, life.hold_of("completion", "c").outcome) == (
        256,
        "failed",
    )


def test_a_name_that_was_never_held() -> None:
    """Finishing a name that was never held is an error, also if it is held in another phase."""
    life = Life(holds=_declared("completion"))
    assert refused(lambda: life.hold_of("epilog", "d")).startswith("ENOENT: ")
    assert holds.find(life.job, "epilog", "d") is None


# -- standing


def test_standing_holds_are_taken_in_every_phase_whether_or_not_the_provider_is_there() -> None:
    """The broker takes a provider's holds in its name, with the provider's timeout."""
    life = Life(Policy((), (provider("p", "prolog:p-setup", "epilog", timeout=90.0),)))
    assert life.last("prolog-start") == {"description": "p-setup", "owner": "provider:p", "timeout": 90.0}
    life.release("prolog", "p-setup")
    life.start()
    assert life.exit() == ["exit", "finish", "epilog-start p"]
    assert life.left("epilog", "p") == 90


def test_a_provider_that_does_not_care_takes_nothing() -> None:
    """`match` says which jobs a provider cares about."""
    policy = Policy((), (provider("p", "prolog", match={"dw": True}),))
    assert Life(policy).state == "RUN"
    assert Life(policy, attributes={"dw": "#DW"}).state == "PROLOG"


def test_a_standing_hold_whose_turn_has_not_come() -> None:
    """It cannot be finished but by force: then it begins and ends at once; the others' order stays."""
    life = Life(
        Policy(
            (action("a", "prolog"), action("b", "prolog", after=("p",))),
            (provider("p", "prolog", after=("a",)),),
        )
    )
    text = refused(lambda: life.release("prolog", "p"))
    assert text == "ESTATE: the turn of prolog hold 'p' of job 1 has not come; the job is in state PROLOG"
    assert life.force("prolog", "p", 0) == ["prolog-start p", "prolog-finish p"]
    assert life.end("prolog", "a") == ["prolog-finish a", "prolog-start b"]


def test_a_standing_hold_of_a_phase_to_come() -> None:
    """It is told from a name that never will be held, as far as the configuration of the moment goes."""
    policy = Policy((), (provider("p", "prolog", "epilog"),))
    life = Life(policy)
    text = refused(lambda: holds.require(life.job, "epilog", "p", policy))
    assert text.startswith(
        "ESTATE: the turn of epilog hold 'p' of job 1 has not come; provider p takes it then"
    )
    assert refused(lambda: holds.require(life.job, "epilog", "q", policy)).startswith("ENOENT: ")
    assert refused(lambda: holds.require(life.job, "depend", "p", policy)).startswith("ENOENT: ")
    assert refused(lambda: holds.require(life.job, "epilog", "p", Policy())).startswith("ENOENT: ")


def test_a_provider_may_come_early() -> None:
    """A standing hold taken ahead is what the plan asks for; finished ahead, it is not due."""
    life = running(Policy((), (provider("p", "completion", "epilog"),)))
    life.hold("completion", "p", "provider:p")
    life.hold("epilog", "p", "provider:p")
    life.release("epilog", "p")
    assert life.exit() == ["exit"]
    assert life.active() == ["completion p"]
    assert life.release("completion", "p") == ["completion-finish p", "finish", "release", "clean"]


def test_order_holds_for_those_after_one_that_came_early() -> None:
    """What comes after an early provider still waits for what comes before it."""
    policy = Policy(
        (action("a", "completion"), action("b", "completion", after=("p",))),
        (provider("p", "completion", after=("a",)),),
    )
    life = running(policy)
    life.hold("completion", "p", "provider:p")
    life.release("completion", "p")
    assert life.exit() == ["exit", "completion-start a"]
    assert life.end("completion", "a") == ["completion-finish a", "completion-start b"]


def test_a_name_that_a_reload_gives_to_somebody_else() -> None:
    """A client's hold, and the action or provider that gets its name by a reload, are both waited for."""
    life = running(holds=[{"phase": "completion", "name": "x", "owner": ALICE}])
    life.hold("completion", "y")
    life.hold("epilog", "z", ROOT)
    life.reload(Policy((action("x", "completion"), action("z", "epilog")), (provider("y", "completion"),)))
    assert life.exit() == ["exit", "completion-start x"]
    assert life.release("completion", "x") == ["completion-finish x", "completion-start x"]
    assert life.end("completion", "x") == ["completion-finish x"]
    assert life.release("completion", "y") == ["completion-finish y", "completion-start y"]
    assert life.release("completion", "y") == ["completion-finish y", "finish"]
    assert life.release("epilog", "z") == ["epilog-finish z", "epilog-start z"]
    assert life.end("epilog", "z") == ["epilog-finish z", "release", "clean"]


def test_a_successor_is_not_begun_when_its_phase_is_over() -> None:
    """What was to follow a client's hold in the prolog lapses with the prolog."""
    life = Life(Policy((action("x"),)), nodes="")
    life.reload(Policy())
    life.hold("prolog", "x", ROOT)
    life.reload(Policy((action("x"),)))
    assert life.alloc() == ["alloc"]
    assert life.cancel() == ["exception", "prolog-finish x", "release", "clean"]


# -- how holds end


@pytest.mark.parametrize(
    ("phase", "exceptions"),
    [
        ("depend", [("dependency", 0)]),
        ("prolog", [("prolog", 0)]),
        ("completion", []),
        ("epilog", [("epilog", 2)]),
    ],
)
def test_a_bad_status_counts_by_phase(phase: Phase, exceptions: list[tuple[str, int]]) -> None:
    """Fatal in depend and prolog, the job's status in completion, severity 2 in the epilog; no drain."""
    life = _at(phase)
    life.release(phase, "p", 3 << 8, note="no space")
    assert life.exceptions() == exceptions
    assert life.drains == []
    if exceptions:
        note = f"{phase} p failed for job 1: exit code 3: no space"
        assert [item.note for item in life.job.exceptions] == [note]
    if phase == "completion":
        assert life.job.completion_status == 3 << 8


def _at(phase: Phase) -> Life:
    """Return a job in a phase, which a provider holds."""
    life = Life(Policy((), (provider("p", phase),)))
    if phase in ("completion", "epilog"):
        life.start()
        life.exit()
    return life


@pytest.mark.parametrize(
    ("phase", "severity"), [("depend", 0), ("prolog", 0), ("completion", 0), ("epilog", 2)]
)
def test_a_deadline_ends_a_hold(phase: Phase, severity: int) -> None:
    """The broker finishes it, raises `hold`, and drains the nodes that it still kept."""
    life = _at(phase)
    assert life.left(phase, "p") == 600
    life.expire(phase, "p")
    hold = life.hold_of(phase, "p")
    assert (hold.outcome, hold.status) == ("timeout", 31744)
    assert life.exceptions() == [("hold", severity)]
    reason = f"hold {phase}/p timed out for job 1"
    held = phase != "depend"
    assert life.job.exceptions[0].note == (f"{reason} on n[1-4]" if held else reason)
    assert life.drains == ([Drain("n[1-4]", reason)] if held else [])


def test_a_deadline_drains_only_what_was_still_kept() -> None:
    """Nodes taken out of `keep` go free; a hold that keeps none, and an owner's hold, drain nothing."""
    life = running(Policy((), (provider("p", "epilog"),)))
    life.hold("epilog", "none", ROOT, keep="none")
    life.hold("completion", "mine")
    life.exit()
    life.expire("completion", "mine")
    assert life.update("epilog", "p", keep="n[3-4]") == ["hold-update p"]
    assert life.update("epilog", "p", keep={"nodes": "n3", "storage": "0"}) == ["hold-update p"]
    life.expire("epilog", "none")
    life.expire("epilog", "p")
    assert life.drains == [Drain("n3", "hold epilog/p timed out for job 1")]
    assert [item.note for item in life.job.exceptions][-1] == "hold epilog/p timed out for job 1 on n3"


def test_force() -> None:
    """An administrator ends any hold but a script's; without a status as canceled; the log says who."""
    life = Life(Policy((action("a"),), (provider("p", "prolog"), provider("q", "prolog"))))
    life.force("prolog", "p", 0, note="dead since noon")
    assert life.last("prolog-finish") == {
        "description": "p",
        "status": 0,
        "outcome": "ok",
        "userid": ROOT,
        "forced": ROOT,
        "note": "dead since noon",
    }
    assert life.hold_of("prolog", "p").forced == ROOT
    assert life.state == "PROLOG"
    assert life.force("prolog", "q") == ["exception", "epilog-start a", "prolog-finish q"]
    assert (life.hold_of("prolog", "q").status, life.hold_of("prolog", "q").outcome) == (15, "canceled")
    assert life.job.exceptions[0].note == "hold prolog/q canceled for job 1 by uid 0"
    assert refused(lambda: life.force("epilog", "a", 0)).startswith(
        "EPERM: epilog 'a' of job 1 is a script; kill the script instead"
    )


def test_variables_come_just_before_the_finish() -> None:
    """`environment` comes right before the finish that brought it; an owner's variables are kept apart."""
    life = running(_P)
    life.hold("completion", "mine")
    life.exit()
    log = life.release("completion", "mine", 256, environment={"A": "1"}, by_owner=True)
    assert log == ["environment mine", "completion-finish mine"]
    life.release("completion", "p", environment={"B": "2"})
    life.release("epilog", "p", 256, environment={"C": "3"})
    assert life.log[-5:] == ["exception", "environment p", "epilog-finish p", "release", "clean"]
    assert (life.job.environment, life.job.owner_environment) == ({"B": "2", "C": "3"}, {"A": "1"})


# -- updates


def test_updates_move_the_deadline_from_now() -> None:
    """A holder extends, shortens or, where no maximum forbids it, lifts its deadline, by an event."""
    life = _at("prolog")
    life.wait(500)
    assert life.update("prolog", "p", timeout=300.0) == ["hold-update p"]
    assert life.last("hold-update") == {
        "phase": "prolog",
        "description": "p",
        "userid": ALICE,
        "timeout": 300.0,
    }
    assert life.left("prolog", "p") == 300
    life.update("prolog", "p", timeout=None)
    assert life.left("prolog", "p") is None
    assert not effects.expires(life.hold_of("prolog", "p"))
    assert life.update("prolog", "p") == []


def test_the_maximum_counts_from_the_start() -> None:
    """`[holds] maximum` bounds a hold's whole life, extensions included; an administrator may go beyond."""
    life = Life(Policy((), (provider("p", "prolog"),), maximum={"prolog": 1000.0}))
    life.wait(500)
    life.update("prolog", "p", timeout=900.0)
    assert life.left("prolog", "p") == 500
    life.update("prolog", "p", timeout=None)
    assert life.left("prolog", "p") == 500
    life.wait(600)
    life.update("prolog", "p", timeout=10.0)
    assert life.left("prolog", "p") == 0
    life.update("prolog", "p", timeout=5000.0, capped=False)
    assert life.left("prolog", "p") == 5000


def test_the_maximum_does_not_count_time_before_the_phase() -> None:
    """A hold taken while the application runs for days has its whole time when the completion comes."""
    life = running(Policy(maximum={"completion": 1000.0}))
    life.hold("completion", "c")
    life.wait(1e6)
    life.update("completion", "c", timeout=900.0)
    life.exit()
    assert life.left("completion", "c") == 900
    life.wait(300)
    life.update("completion", "c", timeout=900.0)
    assert life.left("completion", "c") == 700


def test_what_cannot_be_updated() -> None:
    """A hold that has ended, and a script's."""
    life = Life(Policy((action("a"),), (provider("p", "prolog"),)))
    assert refused(lambda: life.update("prolog", "a", timeout=1.0)).startswith("EPERM: ")
    life.release("prolog", "p")
    text = refused(lambda: life.update("prolog", "p", timeout=1.0))
    assert text == "ESTATE: prolog hold 'p' of job 1 has ended (ok)"
    assert refused(lambda: life.update("prolog", "p", keep="none")) == text


def test_declared_holds_can_be_updated_before_their_phase() -> None:
    """What is updated before the phase counts from its entry."""
    life = running(holds=_declared("completion", timeout=60.0))
    life.update("completion", "d", timeout=90.0, keep="n1")
    life.wait(50)
    life.exit()
    assert life.left("completion", "d") == 90
    assert life.last("completion-start")["keep"] == "n1"


# -- deadlines as data


def test_deadlines_count_by_boot_time_within_a_boot_and_by_wall_time_after_a_reboot() -> None:
    """A stepped clock moves nothing; a reboot counts the time that the machine was off."""
    life = _at("prolog")
    hold = life.hold_of("prolog", "p")
    armed = hold.armed
    assert armed is not None
    wall, boottime, boot = armed
    assert hold.remaining(Stamp(wall - 1e6, boottime + 100, boot)) == pytest.approx(500)
    assert hold.remaining(Stamp(wall + 100, 3.0, boot + 1)) == pytest.approx(500)
    assert hold.remaining(Stamp(wall + 700, 3.0, boot + 1)) == pytest.approx(-100)


def test_only_active_holds_with_a_time_expire() -> None:
    """The broker keeps deadlines of active holds; a script's is the executor's, "infinity" nobody's."""
    life = running(
        Policy((action("a", "completion"),), (provider("p", "completion", timeout=None),)),
        holds=_declared("completion", timeout=60.0),
    )
    life.hold("completion", "c")
    job = life.job
    assert not any(effects.expires(hold) for hold in job.holds.values())
    life.exit()
    assert [hold.name for hold in job.holds.values() if effects.expires(hold)] == ["d", "c"]
    life.release("completion", "d")
    assert [hold.name for hold in job.holds.values() if effects.expires(hold)] == ["c"]


def test_progress_is_shown_and_not_journaled() -> None:
    """Progress lives with the hold and is gone after a restart; all else is the same."""
    life = _at("prolog")
    life.hold_of("prolog", "p").progress = 42.0
    assert life.waiting_for == "prolog hold p: 42 %, for 0 s, deadline in 10 min"
    life.restart()
    assert life.hold_of("prolog", "p").progress is None
