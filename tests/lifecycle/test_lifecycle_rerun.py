"""Reruns: the application is started again in the same allocation (DESIGN §2)."""

from __future__ import annotations

from lifecycle.life import Life, refused, running
from lifecycle.world import ALICE, ROOT, action, provider
from perilogd.lifecycle.policy import Policy

_A = Policy((action("a", "prolog completion epilog"),))


def test_rerun_starts_the_application_again_in_the_same_allocation() -> None:
    """Prologs are not repeated; the new attempt has the nodes still held, and finish speaks of it."""
    life = running(_A, max_reruns=1)
    life.exit(256)
    assert life.rerun() == ["rerun"]
    assert life.last("rerun") == {"attempt": 2, "userid": ALICE, "nodes": "n[1-4]"}
    assert life.state == "RUN"
    assert life.want("completion", "a") == "cancel"
    assert life.end("completion", "a", "canceled", 15) == ["completion-finish a"]
    assert life.start(2) == ["start"]
    assert life.exit(0, 2) == ["exit", "completion-start a"]
    life.end("completion", "a")
    life.end("epilog", "a")
    assert (life.job.result, life.job.finish_status, life.job.exits) == ("COMPLETED", 0, {1: 256, 2: 0})
    assert life.log.count("prolog-start a") == 1


def test_rerun_is_refused_when_it_makes_no_sense() -> None:
    """Outside COMPLETION, beyond `max_reruns`, without nodes, out of turn, and after a fatal exception."""
    life = running(_A, max_reruns=1)
    assert "is in state RUN; it can run again only while" in refused(life.rerun)
    life.exit()
    assert "the next is 2, not 3" in refused(lambda: life.rerun(3))
    assert "the next is 2, not 1" in refused(lambda: life.rerun(1))
    nodes, life.job.nodes = life.job.nodes, ""
    assert "has no node left" in refused(life.rerun)
    life.job.nodes = nodes
    life.rerun(2)
    assert life.rerun(2) == []
    life.start()
    assert life.rerun(2) == []
    life.end("completion", "a", "canceled", 15)
    life.exit()
    assert "has used all of its reruns (max_reruns 1)" in refused(life.rerun)
    life.cancel()
    assert "has a fatal exception (cancel)" in refused(life.rerun)
    life.end("completion", "a")
    assert "is in state EPILOG" in refused(life.rerun)


def test_rerun_keeps_clients_holds_and_counts_their_time_anew() -> None:
    """A client's hold stays over a rerun, its deadline counted from the next COMPLETION."""
    life = running(max_reruns=1)
    life.hold("completion", "scr", timeout=100.0)
    life.exit()
    life.wait(60)
    assert life.left("completion", "scr") == 40
    assert life.rerun() == ["rerun"]
    assert life.left("completion", "scr") is None
    life.start()
    life.wait(1000)
    life.exit()
    assert life.left("completion", "scr") == 100


def test_rerun_ends_standing_and_declared_holds_which_come_again() -> None:
    """Standing and declared holds end as canceled and are due again; what they were is declared anew."""
    life = running(
        Policy((), (provider("p", "completion"),)),
        max_reruns=1,
        holds=[{"phase": "completion", "name": "d", "owner": ALICE, "timeout": 50.0, "keep": "n[1-2]"}],
    )
    life.exit()
    life.update("completion", "d", keep="n1", timeout=5.0)
    assert life.rerun() == ["rerun", "completion-finish d", "completion-finish p"]
    assert life.last("completion-finish")["outcome"] == "canceled"
    assert (life.hold_of("completion", "d").keep, life.hold_of("completion", "d").timeout) == ("n[1-2]", 50.0)
    life.start()
    assert life.exit() == ["exit", "completion-start d", "completion-start p"]
    life.release("completion", "d")
    life.release("completion", "p")
    assert (life.state, life.job.result) == ("INACTIVE", "COMPLETED")


def test_a_declared_hold_can_be_finished_early_in_every_attempt() -> None:
    """After a rerun a declared hold is declared again, so it can be given up before the next COMPLETION."""
    life = running(
        Policy((), (provider("p", "completion"),)),
        max_reruns=1,
        holds=[{"phase": "completion", "name": "d", "owner": ALICE}],
    )
    life.exit()
    life.rerun()
    assert life.release("completion", "d") == ["completion-start d", "completion-finish d"]
    life.start()
    assert life.exit() == ["exit", "completion-start p"]


def test_what_went_wrong_in_an_earlier_attempt_does_not_count() -> None:
    """A completion hold's failure counts for its own attempt, even if it ends only in the next one."""
    life = running(Policy((action("a", "completion"),)), max_reruns=1)
    life.hold("completion", "c")
    life.exit()
    life.release("completion", "c", 256)
    life.rerun()
    life.start()
    life.end("completion", "a", "failed", 256)
    assert life.exit() == ["exit", "completion-start a"]
    life.end("completion", "a")
    assert (life.job.result, life.job.finish_status) == ("COMPLETED", 0)


def test_names_are_free_again_in_a_new_attempt() -> None:
    """A completion name that has ended can be taken again after a rerun; asking how it ended still works."""
    life = running(Policy((), (provider("p", "completion"),)), max_reruns=1)
    life.hold("completion", "c")
    life.exit()
    life.release("completion", "c", 256)
    life.rerun()
    assert life.release("completion", "c") == []
    assert life.hold_of("completion", "c").status == 256
    assert life.hold("completion", "c") == ["completion-start c"]
    assert life.hold("completion", "c") == []


def test_other_phases_know_no_attempts() -> None:
    """After a rerun, a prolog hold is still ended, and an epilog hold given up early is still not due."""
    life = Life(
        Policy((), (provider("p", "completion", "epilog"),)),
        max_reruns=1,
        holds=[{"phase": phase, "name": "d", "owner": ROOT} for phase in ("prolog", "epilog")],
    )
    life.release("prolog", "d")
    life.start()
    life.release("epilog", "d")
    life.hold("epilog", "p", "provider:p")
    life.release("epilog", "p")
    life.exit()
    life.rerun()
    assert life.release("prolog", "d") == []
    assert "the prolog phase of job 1 has passed" in refused(lambda: life.hold("prolog", "new"))
    assert life.hold("prolog", "d") == []
    life.start()
    life.exit()
    assert life.release("completion", "p") == ["completion-finish p", "finish", "release", "clean"]


def test_a_script_that_outlives_its_attempt_is_followed_by_a_new_one() -> None:
    """It keeps the definition that it started with; the next one has the definition of the next `exit`."""
    life = running(Policy((action("a", "completion"),)), max_reruns=1)
    life.exit()
    life.rerun()
    life.start()
    life.reload(Policy((action("a", "completion", definition="a-2", timeout={"completion": 5.0}),)))
    assert life.exit() == ["exit"]
    old = life.hold_of("completion", "a")
    assert (old.definition, old.attempt, life.want("completion", "a")) == ("a-1", 1, "cancel")
    assert life.end("completion", "a", "canceled", 15) == ["completion-finish a", "completion-start a"]
    new = life.hold_of("completion", "a")
    assert (new.definition, new.attempt, new.timeout) == ("a-2", 2, 5.0)


def test_abandon_while_a_script_outlives_its_attempt() -> None:
    """Nothing follows a script of an earlier attempt when the job is abandoned meanwhile."""
    life = running(Policy((action("a", "completion"),)), max_reruns=1)
    life.exit()
    life.rerun()
    life.start()
    life.exit()
    life.cancel(abandon=True)
    assert life.end("completion", "a", "canceled", 15) == [
        "completion-finish a",
        "finish",
        "release",
        "clean",
    ]


def test_fatal_between_attempts_goes_back_to_completion() -> None:
    """Before a rerun's start, a fatal exception leads to COMPLETION: the earlier attempt's data waits."""
    life = running(_A, max_reruns=1)
    life.exit(256)
    life.rerun()
    life.end("completion", "a", "canceled", 15)
    assert life.cancel() == ["exception", "completion-start a"]
    assert life.state == "COMPLETION"
    assert "has not started" in refused(life.exit)
    life.end("completion", "a")
    assert (life.job.result, life.job.finish_status) == ("CANCELED", 256)
