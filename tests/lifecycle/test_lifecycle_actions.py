"""Actions: scripts in do/undo pairs, their order, and how they end (DESIGN §4)."""

from __future__ import annotations

import pytest

from lifecycle.life import Life, running
from lifecycle.world import ROOT, action, provider
from perilogd.lifecycle.job import Drain
from perilogd.lifecycle.policy import Policy, matches

_ALL = "prolog completion epilog"


def _chain(count: int, phases: str = "prolog epilog") -> Policy:
    """Return actions a, b, c…, each after the one before."""
    names = "abcdefgh"[:count]
    pairs = zip(names, ("", *names), strict=False)
    return Policy(tuple(action(name, phases, after=(before,) if before else ()) for name, before in pairs))


# -- order


def test_without_after_actions_run_side_by_side() -> None:
    """Actions without an order begin together, in every phase."""
    life = Life(Policy((action("a", _ALL), action("b", _ALL))))
    assert life.active() == ["prolog a", "prolog b"]
    life.end("prolog", "b")
    life.end("prolog", "a")
    life.start()
    assert life.exit() == ["exit", "completion-start a", "completion-start b"]
    life.end("completion", "a")
    life.end("completion", "b")
    assert life.active() == ["epilog a", "epilog b"]


def test_after_orders_prologs_and_completions_and_reversed_the_epilogs() -> None:
    """What comes first is set up first and undone last; starts are in the write that frees them."""
    life = Life(_chain(3, _ALL))
    assert life.active() == ["prolog a"]
    assert life.end("prolog", "a") == ["prolog-finish a", "prolog-start b"]
    life.end("prolog", "b")
    life.end("prolog", "c")
    life.start()
    assert life.exit() == ["exit", "completion-start a"]
    life.end("completion", "a")
    life.end("completion", "b")
    assert life.end("completion", "c") == ["completion-finish c", "finish", "epilog-start c"]
    assert life.end("epilog", "c") == ["epilog-finish c", "epilog-start b"]
    assert life.end("epilog", "b") == ["epilog-finish b", "epilog-start a"]
    assert life.end("epilog", "a") == ["epilog-finish a", "release", "clean"]


def test_if_the_third_of_five_fails_three_epilogs_are_owed_newest_first() -> None:
    """Prologs that were not begun owe nothing; the others are undone in reverse order."""
    life = Life(_chain(5))
    life.end("prolog", "a")
    life.end("prolog", "b")
    assert life.end("prolog", "c", "failed", 256) == ["exception", "epilog-start c", "prolog-finish c"]
    for name in "cba":
        assert life.active() == [f"epilog {name}"]
        life.end("epilog", name)
    assert life.state == "INACTIVE"
    assert not any(entry.endswith((" d", " e")) for entry in life.log)


def test_order_passes_through_those_that_take_no_part() -> None:
    """With b between a and c, c comes after a also where b has no script."""
    policy = Policy(
        (
            action("a", "prolog epilog"),
            action("b", "completion", after=("a",)),
            action("c", "prolog epilog", after=("b",)),
        )
    )
    life = Life(policy)
    assert life.active() == ["prolog a"]
    life.end("prolog", "a")
    life.cancel()
    assert life.active() == ["prolog c", "epilog c"]


def test_order_is_void_where_somebody_does_not_match_the_job() -> None:
    """`after` an action that does not match the job means nothing, and passes nothing on."""
    policy = Policy(
        (
            action("a"),
            action("b", after=("a",), match={"big": True}),
            action("c", after=("b",)),
        )
    )
    assert Life(policy).active() == ["prolog a", "prolog c"]
    assert Life(policy, attributes={"big": "yes"}).active() == ["prolog a"]


def test_providers_take_part_in_the_order() -> None:
    """A provider's holds, all of them, stand in the same order as scripts; in the epilog reversed."""
    policy = Policy(
        (action("a", "prolog"), action("b", "prolog epilog", after=("p",))),
        (provider("p", "prolog:p1", "prolog:p2", "epilog", after=("a",)),),
    )
    life = Life(policy)
    assert life.active() == ["prolog a"]
    assert life.end("prolog", "a") == ["prolog-finish a", "prolog-start p1", "prolog-start p2"]
    assert life.release("prolog", "p2") == ["prolog-finish p2"]
    assert life.release("prolog", "p1") == ["prolog-finish p1", "prolog-start b"]
    assert life.cancel() == ["exception", "epilog-start b"]
    life.end("prolog", "b", "canceled", 15)
    assert life.end("epilog", "b") == ["epilog-finish b", "epilog-start p"]


def test_only_jobs_that_match() -> None:
    """An action is for the jobs that its `match` names."""
    policy = Policy((action("a", match={"dw": True, "kind": "big"}),))
    assert Life(policy).state == "RUN"
    assert Life(policy, attributes={"dw": "#DW", "kind": "big"}).active() == ["prolog a"]


@pytest.mark.parametrize(
    ("match", "attributes", "expected"),
    [
        ({}, {}, True),
        ({"a": True}, {}, False),
        ({"a": True}, {"a": ""}, True),
        ({"a": True}, {"a": 0}, True),
        ({"a": True}, {"a": False}, False),
        ({"a": False}, {"a": False}, True),
        ({"a": False}, {}, False),
        ({"a": "1"}, {"a": 1}, True),
        ({"a": "true"}, {"a": True}, True),
        ({"a": "x", "b": "y"}, {"a": "x"}, False),
        ({"a": "x", "b": "y"}, {"a": "x", "b": "y", "c": "z"}, True),
    ],
)
def test_match(match: dict[str, str | bool], attributes: dict[str, object], expected: bool) -> None:
    """All keys must hold; true means present and not false; anything else is compared as text."""
    assert matches(match, attributes) is expected


def test_order_with_two_ways() -> None:
    """Where d comes after b and c, and both after a, each begins once, when all before it have ended."""
    policy = Policy(
        (
            action("a"),
            action("b", after=("a",)),
            action("c", after=("a",)),
            action("x", "completion", after=("b", "c")),
            action("d", after=("x", "b")),
        )
    )
    life = Life(policy)
    assert life.end("prolog", "a") == ["prolog-finish a", "prolog-start b", "prolog-start c"]
    assert life.end("prolog", "c") == ["prolog-finish c"]
    assert life.end("prolog", "b") == ["prolog-finish b", "prolog-start d"]


def test_names_of_actions_and_providers_are_reserved() -> None:
    """So are the names of providers' holds, but no others."""
    policy = Policy((action("a"),), (provider("p", "prolog:p-setup"),))
    assert [policy.reserved(name) for name in ("a", "p", "p-setup", "b")] == [True, True, True, False]


# -- what is owed


def test_an_action_with_only_an_epilog_is_owed_to_every_job_that_got_nodes() -> None:
    """It is owed after `finish` and after a fatal exception, but not to a job that never got nodes."""
    policy = Policy((action("e", "epilog"), action("ce", "completion epilog")))
    life = running(policy)
    life.exit()
    assert life.end("completion", "ce") == [
        "completion-finish ce",
        "finish",
        "epilog-start e",
        "epilog-start ce",
    ]
    canceled = Life(policy)
    assert canceled.cancel() == ["exception", "epilog-start e", "epilog-start ce"]
    early = Life(policy, nodes="")
    assert early.cancel() == ["exception", "clean"]


def test_a_provider_that_has_begun_something_gets_its_epilog_hold_even_without_nodes() -> None:
    """Depend work of a provider has to be undone, too; a provider that did nothing is not asked."""
    policy = Policy((), (provider("p", "depend", "epilog"), provider("q", "epilog")))
    life = Life(policy, nodes="")
    assert life.cancel() == ["exception", "epilog-start p", "dependency-remove p"]
    assert life.release("epilog", "p") == ["epilog-finish p", "clean"]


def test_an_epilog_waits_for_every_prolog_script() -> None:
    """`epilog-start` may come earlier; the script waits until all prolog scripts of the job have ended."""
    life = Life(Policy((action("a", cancel_on_exception=False), action("b"))))
    life.begin("prolog", "a", "b")
    life.cancel()
    assert (life.want("prolog", "a"), life.want("prolog", "b")) == ("run", "cancel")
    assert (life.want("epilog", "a"), life.want("epilog", "b")) == ("wait", "wait")
    assert life.waiting_for == "prolog script a: for 0 s; prolog script b: for 0 s"
    life.end("prolog", "b", "canceled", 15)
    assert life.want("epilog", "b") == "wait"
    life.end("prolog", "a", "stuck", 31744, pid=7)
    assert (life.want("epilog", "a"), life.want("epilog", "b")) == ("run", "run")


def test_an_epilog_is_never_stopped() -> None:
    """No exception, whatever its type, stops an epilog."""
    life = running(Policy((action("a"),)))
    life.exit()
    life.cancel(abandon=True)
    life.throw("timelimit")
    assert life.want("epilog", "a") == "run"


# -- a reload while an epilog is owed


def test_an_owed_epilog_uses_the_definition_of_the_moment() -> None:
    """An action that still exists is undone by its present definition, also if it now means other jobs."""
    life = Life(Policy((action("a"),)))
    life.reload(
        Policy((action("a", definition="a-2", timeout={"epilog": 5.0}, match={"other": True}),)),
    )
    life.cancel()
    hold = life.hold_of("epilog", "a")
    assert (hold.definition, hold.timeout) == ("a-2", 5.0)


@pytest.mark.parametrize("after", [Policy(), Policy((action("a", "prolog"),))])
def test_an_owed_epilog_of_a_removed_action_uses_the_stored_definition(after: Policy) -> None:
    """If the action, or its epilog, is gone, its epilog as of the prolog is run, with the timeout of then."""
    life = Life(Policy((action("a", timeout={"epilog": 77.0}),)))
    life.reload(after)
    life.restart()
    assert life.cancel() == ["exception", "epilog-start a"]
    hold = life.hold_of("epilog", "a")
    assert (hold.definition, hold.timeout, hold.owner) == ("a-1", 77.0, "action:a")


def test_an_owed_epilog_is_run_though_a_provider_has_its_name_now() -> None:
    """A reload that gives an action's name to a provider loses neither the epilog nor the provider's hold."""
    life = Life(Policy((action("x"), action("y"))))
    life.reload(Policy((), (provider("x", "epilog"), provider("z", "epilog:y"))))
    assert life.cancel() == ["exception", "epilog-start x", "epilog-start y"]
    life.end("prolog", "x", "canceled", 15)
    life.end("prolog", "y", "canceled", 15)
    assert life.end("epilog", "x") == ["epilog-finish x", "epilog-start x"]
    assert life.end("epilog", "y") == ["epilog-finish y", "epilog-start y"]
    life.release("epilog", "x")
    assert life.release("epilog", "y") == ["epilog-finish y", "release", "clean"]


def test_a_new_epilog_is_owed_for_a_prolog_that_had_none() -> None:
    """P1 asks for the epilog of every prolog that was begun, if there is one now."""
    life = Life(Policy((action("a", "prolog"),)))
    life.reload(Policy((action("a", "prolog epilog", definition="a-2"),)))
    assert life.cancel() == ["exception", "epilog-start a"]


def test_a_new_action_owes_nothing_to_a_job_that_it_did_nothing_to() -> None:
    """An action with a prolog that this job has not seen is not undone."""
    life = running(Policy())
    life.reload(Policy((action("a"), action("e", "epilog"))))
    assert life.exit() == ["exit", "finish", "epilog-start e"]


def test_removed_actions_are_undone_in_the_order_in_which_they_were_set_up() -> None:
    """The order of the prologs is kept with them; today's order counts first."""
    life = Life(_chain(3))
    for name in "abc":
        life.end("prolog", name)
    life.reload(Policy((action("b"),)))
    life.cancel()
    for name in "cba":
        assert life.active() == [f"epilog {name}"]
        life.end("epilog", name)


def test_todays_order_counts_where_it_knows_both() -> None:
    """Between actions that are still configured, only the present order counts, be it reversed or none."""
    life = Life(_chain(2))
    life.end("prolog", "a")
    life.end("prolog", "b")
    life.reload(Policy((action("a", after=("b",)), action("b"))))
    life.cancel()
    assert life.active() == ["epilog a"]
    other = Life(_chain(2))
    other.end("prolog", "a")
    other.end("prolog", "b")
    other.reload(Policy((action("a"), action("b"))))
    other.cancel()
    assert other.active() == ["epilog a", "epilog b"]


def test_a_remembered_order_that_contradicts_todays_is_left_out() -> None:
    """a, b, c were set up in this order and b is gone; today says that a comes after c: no circle arises."""
    life = Life(_chain(3))
    for name in "abc":
        life.end("prolog", name)
    life.reload(Policy((action("a", after=("c",)), action("c"))))
    life.cancel()
    ended = []
    while life.state == "EPILOG":
        name = life.active()[0].removeprefix("epilog ")
        life.end("epilog", name)
        ended.append(name)
    assert sorted(ended) == ["a", "b", "c"]
    assert ended.index("a") < ended.index("c")


# -- how scripts end


def test_a_failed_prolog_ends_the_job_before_its_finish() -> None:
    """Exception `prolog`, severity 0, then the epilogs' start, then the finish; no node is drained."""
    life = Life(Policy((action("a"), action("b"))))
    life.begin("prolog", "a", "b")
    assert life.end(
        "prolog", "a", "failed", 3 << 8, message="no licence", detail="it left 1 process running"
    ) == [
        "exception",
        "epilog-start a",
        "epilog-start b",
        "prolog-finish a",
    ]
    assert life.last("exception")["note"] == (
        "prolog a failed for job 1: exit code 3: no licence; it left 1 process running"
    )
    assert life.last("prolog-finish") == {
        "description": "a",
        "status": 768,
        "outcome": "failed",
        "message": "no licence",
        "note": "it left 1 process running",
    }
    assert life.drains == []
    assert life.want("prolog", "b") == "cancel"
    assert life.end("prolog", "b", "failed", 256) == ["prolog-finish b"]
    assert life.exceptions() == [("prolog", 0)]


@pytest.mark.parametrize(
    ("outcome", "status", "text"),
    [
        ("failed", 3 << 8, "a failed for job 1: exit code 3"),
        ("failed", 127 << 8, "a failed for job 1: exit code 127"),
        ("failed", 9, "a killed by signal 9 for job 1"),
        ("timeout", 31744, "a timed out for job 1"),
        ("stuck", 31744, "a stuck for job 1: pid 4242 is still running"),
        ("lost", 65280, "a lost for job 1: its end cannot be known"),
    ],
)
@pytest.mark.parametrize("phase", ["prolog", "completion", "epilog"])
def test_texts_and_severities_of_scripts_that_end_badly(
    phase: str, outcome: str, status: int, text: str
) -> None:
    """The same text is note and drain reason; only what is stuck or lost drains, and then all nodes."""
    policy = Policy((action("a", phase),))
    life = Life(policy) if phase == "prolog" else running(policy)
    if phase != "prolog":
        life.exit()
    life.end(phase, "a", outcome, status, pid=4242)  # type: ignore[arg-type]
    reason = f"{phase} {text}"
    drained = outcome in ("stuck", "lost")
    assert life.exceptions() == [(phase, 0 if phase == "prolog" else 2)]
    assert life.job.exceptions[0].note == (f"{reason} on n[1-4]" if drained else reason)
    assert life.drains == ([Drain("n[1-4]", reason)] if drained else [])
    expected = {"prolog": "FAILED", "completion": "FAILED", "epilog": "COMPLETED"}
    assert (life.state, life.job.result) == ("INACTIVE", expected[phase])


def test_a_cancelled_script_is_not_to_blame() -> None:
    """One that ends in time after it was told to drains and raises nothing; its own status is reported."""
    life = Life(Policy((action("a", "prolog"), action("b", "prolog"))))
    life.cancel()
    assert life.end("prolog", "a", "canceled", 143 << 8) == ["prolog-finish a"]
    assert life.last("prolog-finish") == {"description": "a", "status": 143 << 8, "outcome": "canceled"}
    life.end("prolog", "b", "stuck", 31744, pid=7)
    assert life.drains == [Drain("n[1-4]", "prolog b stuck for job 1: pid 7 is still running")]
    assert life.exceptions() == [("cancel", 0)]


def test_a_script_that_a_person_stopped_is_to_blame() -> None:
    """Nobody but the person wanted it to end: the prolog failed, also if it managed to exit 0."""
    life = Life(Policy((action("a"),)))
    life.end("prolog", "a", "canceled", 15)
    assert life.job.exceptions[0].note == "prolog a killed by signal 15 for job 1"
    other = Life(Policy((action("a"),)))
    other.end("prolog", "a", "canceled", 0)
    assert other.job.exceptions[0].note == "prolog a was canceled for job 1"


def test_a_script_that_was_told_to_stop_and_is_lost_is_reported_as_lost() -> None:
    """Being cancelled hides nothing: a prolog whose end cannot be known drains the nodes."""
    life = Life(Policy((action("a"),)))
    life.cancel()
    life.end("prolog", "a", "lost", 65280)
    assert life.last("prolog-finish")["outcome"] == "lost"
    assert life.drains == [Drain("n[1-4]", "prolog a lost for job 1: its end cannot be known")]


def test_a_failed_completion_script_makes_the_job_fail_and_no_more() -> None:
    """Severity 2, nobody drained, the status carries it; other completion work goes on."""
    life = running(Policy((action("a", "completion"), action("b", "completion"))))
    life.exit()
    life.begin("completion", "a", "b")
    assert life.end("completion", "a", "failed", 5 << 8) == ["exception", "completion-finish a"]
    assert life.want("completion", "b") == "run"
    life.end("completion", "b")
    assert (life.job.result, life.job.finish_status) == ("FAILED", 5 << 8)


def test_a_failed_epilog_keeps_the_result() -> None:
    """Exception `epilog`, severity 2, before the finish; the next epilog in order is run all the same."""
    life = running(_chain(2))
    life.exit()
    assert life.end("epilog", "b", "failed", 256) == ["exception", "epilog-finish b", "epilog-start a"]
    life.end("epilog", "a")
    assert life.job.result == "COMPLETED"


def test_variables_of_scripts() -> None:
    """A completion script's variables are the owner's; those of other scripts are the administrator's."""
    life = running(Policy((action("a", "completion epilog"),)))
    life.exit()
    log = life.end("completion", "a", environment={"OUT": "x"})
    assert log[:2] == ["environment a", "completion-finish a"]
    life.end("epilog", "a", environment={"DW": "y"})
    assert (life.job.environment, life.job.owner_environment) == ({"DW": "y"}, {"OUT": "x"})


def test_what_was_never_begun_is_not_ok() -> None:
    """A script that could not be started fails like any other, and its epilog is owed all the same."""
    life = Life(Policy((action("a"),)))
    assert life.end("prolog", "a", "failed", 127 << 8, detail="no such file") == [
        "exception",
        "epilog-start a",
        "prolog-finish a",
    ]
    assert life.job.exceptions[0].note == "prolog a failed for job 1: exit code 127: no such file"


def test_holds_taken_by_people_do_not_delay_scripts() -> None:
    """What clients hold has no order: scripts run beside it."""
    life = Life(Policy((action("a"),)), holds=[{"phase": "prolog", "name": "h", "owner": ROOT}])
    assert life.active() == ["prolog h", "prolog a"]
    assert life.want("prolog", "a") == "run"
