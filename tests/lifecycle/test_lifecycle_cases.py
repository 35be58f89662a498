"""Situations that happened, as far as the pure core decides them; see tests/cases for the whole daemon."""

from __future__ import annotations

from lifecycle.life import Life, refused, running
from lifecycle.world import ALICE, ROOT, action, provider
from perilogd.lifecycle import commands, view
from perilogd.lifecycle.effects import reason
from perilogd.lifecycle.job import Drain
from perilogd.lifecycle.policy import Policy


def test_c1_canceled_while_the_prolog_runs() -> None:
    """C1: both epilogs start with the cancel, the prolog is told to stop, then its epilog runs."""
    policy = Policy(
        (action("job-manager.prolog"),),
        (provider("cray-pals", "prolog"), provider("dws", "prolog:dws-setup", "epilog:dws-epilog")),
    )
    life = Life(policy)
    life.begin("prolog", "job-manager.prolog")
    life.release("prolog", "cray-pals")
    life.wait(17)
    life.release("prolog", "dws-setup", environment={"DW_JOB": "/mnt"})
    life.wait(2149)
    assert life.cancel() == ["exception", "epilog-start job-manager.prolog", "epilog-start dws-epilog"]
    assert life.want("prolog", "job-manager.prolog") == "cancel"
    assert life.want("epilog", "job-manager.prolog") == "wait"
    for _ in range(3):
        assert life.cancel() == ["exception"]
    assert life.end("prolog", "job-manager.prolog", "canceled", 36608) == ["prolog-finish job-manager.prolog"]
    assert life.want("epilog", "job-manager.prolog") == "run"
    assert life.end("epilog", "job-manager.prolog") == ["epilog-finish job-manager.prolog"]
    assert life.release("epilog", "dws-epilog") == ["epilog-finish dws-epilog", "release", "clean"]
    assert life.last("release")["final"]
    assert not {"ready", "start"} & set(life.log)
    assert (life.drains, life.job.result) == ([], "CANCELED")
    assert life.exceptions() == [("cancel", 0)] * 4


def test_c2_the_prolog_fails_by_itself_and_the_epilog_is_slow() -> None:
    """C2: neither `release` nor `clean` comes before the slow epilog's end."""
    life = Life(Policy((action("a"),)))
    assert life.end("prolog", "a", "failed", 768) == ["exception", "epilog-start a", "prolog-finish a"]
    life.begin("epilog", "a")
    life.wait(3000)
    assert life.state == "EPILOG"
    assert life.job.held == "n[1-4]"
    assert life.end("epilog", "a") == ["epilog-finish a", "release", "clean"]


def test_c3_canceled_with_the_prolog_done_and_another_hold_pending() -> None:
    """C3: the epilog of a prolog that has ended well runs, though the job was canceled in PROLOG."""
    life = Life(Policy((action("a"),), (provider("p", "prolog"),)))
    life.end("prolog", "a")
    assert life.cancel() == ["exception", "epilog-start a", "prolog-finish p"]
    assert life.want("epilog", "a") == "run"


def test_c4_users_are_told_finished_when_the_data_is_there() -> None:
    """C4: a completion hold keeps `finish` and dependents back, and its status makes the job fail."""
    life = running()
    life.hold("completion", "stage-out", note="to /archive")
    life.exit()
    life.hold_of("completion", "stage-out").progress = 30.0
    assert "finish" not in life.log
    assert commands.dependency_verdict(life.job, "afterok") is None
    assert life.waiting_for.startswith("completion hold stage-out: to /archive, 30 %")
    life.release("completion", "stage-out", 5 << 8)
    assert (life.job.result, view.exit_code(life.job)) == ("FAILED", 5)
    assert commands.dependency_verdict(life.job, "afterok") is False


def test_c7_an_unmount_hangs() -> None:
    """C7: at the deadline exactly the silent nodes are drained, with the hold's name in the reason."""
    life = running(Policy((), (provider("rabbit", "epilog", timeout=3600.0),)))
    life.exit()
    life.update("epilog", "rabbit", keep="n[2-4]")
    life.update("epilog", "rabbit", keep="n3")
    assert life.expire("epilog", "rabbit") == ["exception", "epilog-finish rabbit", "release", "clean"]
    assert life.drains == [Drain("n3", "hold epilog/rabbit timed out for job 1")]


def test_c8_a_timer_that_started_too_early() -> None:
    """C8: an epilog hold's deadline, be it standing or taken ahead, counts from the epilog's entry."""
    life = running(Policy((action("slow", "completion"),), (provider("unmount", "epilog", timeout=600.0),)))
    life.hold("epilog", "mine", ROOT)
    life.cancel()
    life.exit(15)
    life.wait(1200)
    assert "epilog-start unmount" not in life.log
    assert life.left("epilog", "mine") is None
    assert life.end("completion", "slow") == ["completion-finish slow", "finish", "epilog-start unmount"]
    assert (life.left("epilog", "unmount"), life.left("epilog", "mine")) == (600, 600)
    never = Life(Policy((action("a"),), (provider("unmount", "epilog", timeout=600.0),)))
    never.wait(1200)
    never.cancel()
    assert never.left("epilog", "unmount") == 600


def test_c9_cancel_in_a_prolog_or_an_epilog_drains_nothing() -> None:
    """C9: a cancelled prolog that ends in time drains nothing; an epilog is not stopped by a cancel."""
    life = Life(Policy((action("a"),)))
    life.begin("prolog", "a")
    life.cancel()
    life.end("prolog", "a", "canceled", 15)
    life.begin("epilog", "a")
    life.cancel()
    assert life.want("epilog", "a") == "run"
    life.end("epilog", "a")
    assert (life.drains, life.state) == ([], "INACTIVE")


def test_c10_canceled_after_a_successful_run() -> None:
    """C10: COMPLETED and exit code 0 everywhere, the late exception listed; scripts hear "finish"."""
    life = running(Policy((action("a"),)))
    life.exit()
    life.cancel()
    assert reason(life.job) == "finish"
    life.end("epilog", "a")
    shown = view.job_map(life.job, life.world.now)
    assert (shown["result"], shown["exit_code"], shown["status"]) == ("COMPLETED", 0, 0)
    assert [item["type"] for item in shown["exceptions"]] == ["cancel"]
    assert commands.dependency_verdict(life.job, "afterok") is True


def test_c13_levels_of_cancel_and_a_time_limit_that_keeps_the_data() -> None:
    """C13: one cancel lets completion work go on, abandon ends it at once, a time limit never does."""
    policy = Policy((action("drain", "completion"),))
    life = running(policy)
    life.throw("timelimit")
    life.exit(15)
    assert life.want("completion", "drain") == "run"
    assert life.cancel() == ["exception"]
    assert life.want("completion", "drain") == "run"
    assert refused(lambda: life.throw("timelimit", abandon=True)).startswith("EINVAL: ")
    life.cancel(abandon=True)
    assert life.want("completion", "drain") == "cancel"
    life.end("completion", "drain", "canceled", 15)
    assert life.job.result == "TIMEOUT"
    at_once = running(policy)
    at_once.cancel(abandon=True)
    assert at_once.exit(15) == ["exit", "finish", "release", "clean"]


def test_c14_a_second_copy_of_a_request() -> None:
    """C14: everything asked twice happens once, and nothing is raised."""
    life = Life(nodes="", max_reruns=1, holds=[{"phase": "prolog", "name": "h", "owner": ROOT}])
    life.alloc()
    assert life.alloc() == []
    life.release("prolog", "h")
    assert life.release("prolog", "h") == []
    life.start()
    assert life.start() == []
    life.hold("completion", "c", ALICE)
    assert life.hold("completion", "c", ALICE) == []
    life.exit(256)
    assert life.exit(256) == []
    life.rerun(2)
    assert life.rerun(2) == []
    life.start(2)
    life.exit(0, 2)
    assert life.exit(256, 1) == []
    life.release("completion", "c")
    assert life.release("completion", "c") == []
    assert life.exit(0, 2) == []
    assert life.exceptions() == []


def test_c21_the_cancel_arrives_before_the_spawn() -> None:
    """C21: a prolog that was journaled but not begun is to be cancelled, never run; its epilog is owed."""
    life = Life(Policy((action("a"),)))
    assert life.want("prolog", "a") == "run"
    life.cancel()
    assert life.want("prolog", "a") == "cancel"
    assert life.prevent("prolog", "a") == ["prolog-finish a"]
    assert life.last("prolog-finish") == {"description": "a", "status": 15, "outcome": "canceled"}
    assert life.want("epilog", "a") == "run"
