"""Scripts are told to end: by a cancel, at their deadline, or by an administrator's signal."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from exec_bed import JOURNAL, ExecBed, eventually, wait_for_end
from perilogd.executor import wire

if TYPE_CHECKING:
    from exec_bed import Signpost

#: A script that ignores SIGTERM, says so, and goes on for long.
DEAF = "trap '' TERM; echo up > {}; while :; do sleep 1000; done"

#: A script that writes a line for each SIGTERM, and goes on until it is told to stop.
COUNTING = "trap 'echo term > {0}' TERM; echo up > {0}; while :; do sleep 1000 & wait $!; done"


def alive(pid: int) -> bool:
    """Tell whether a process is there and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rsplit(b")", 1)[1].split()[0] != b"Z"
    except FileNotFoundError:
        return False


def test_a_cancel_ends_a_script_with_sigterm(bed: ExecBed, signpost: Signpost) -> None:
    """A canceled script's own status is reported, with the outcome word and the reason beside it."""
    bed.action("a", f"echo up > {signpost}; sleep 1000")
    peer = bed.start()
    run = bed.run(peer, "a")
    assert signpost.line() == "up"
    peer.send("cancel", id=run, reason="cancel")
    record = peer.record(run)
    assert (record["outcome"], record["status"], record["reason"]) == ("canceled", 15, "cancel")
    assert record["pid"] == peer.started(run)[0]


def test_a_script_that_cleans_up_and_exits_with_zero_was_canceled_all_the_same(
    bed: ExecBed, signpost: Signpost
) -> None:
    """The outcome is the reason why it ended, the status is its own: canceled, 0."""
    bed.action("a", f"trap 'exit 0' TERM; echo up > {signpost}; sleep 1000 & wait")
    peer = bed.start()
    run = bed.run(peer, "a")
    assert signpost.line() == "up"
    peer.send("cancel", id=run, reason="cancel")
    record = peer.record(run)
    assert (record["outcome"], record["status"]) == ("canceled", 0)


def test_sigterm_comes_once_however_often_a_run_is_canceled(bed: ExecBed, signpost: Signpost) -> None:
    """Further cancels of a run that is being ended change nothing."""
    bed.action("a", COUNTING.format(signpost), kill_timeout="1h")
    peer = bed.start()
    run = bed.run(peer, "a")
    assert signpost.line() == "up"
    for _ in range(5):
        peer.send("cancel", id=run, reason="cancel")
        peer.barrier()
    assert signpost.line() == "term"
    peer.send("signal", id=run, signal=int(signal.SIGKILL))
    record = peer.record(run)
    assert (record["outcome"], record["status"]) == ("canceled", 9)
    assert signpost.silent()


def test_a_script_is_ended_at_its_deadline_with_no_broker_there(bed: ExecBed, signpost: Signpost) -> None:
    """Deadlines are enforced while the broker is away, and the next one learns the truth."""
    bed.action("a", f"echo up > {signpost}; trap 'echo ended > {signpost}; exit 4' TERM; sleep 1000 & wait",
               timeout="100ms")  # fmt: skip
    peer = bed.start()
    run = bed.run(peer, "a")
    assert signpost.line() == "up"
    pid = peer.started(run)[0]
    peer.close()
    assert signpost.line() == "ended"
    entry = None
    while entry is None or "record" not in entry:
        entry = bed.connect().greet().listed(run)
    assert (entry["state"], entry["pid"]) == ("ended", pid)
    assert (entry["record"]["outcome"], entry["record"]["status"]) == ("timeout", 4 << 8)


def test_the_first_reason_counts(bed: ExecBed, signpost: Signpost) -> None:
    """A cancel of a run that has timed out does not turn it into a canceled one, nor the other way round."""
    body = "trap 'echo term > {0}; read x < {1}; exit 0' TERM; echo up > {0}; sleep 1000 & wait"
    go = bed.folder / "go"
    os.mkfifo(go)
    bed.action("late", body.format(signpost, go), timeout="50ms", kill_timeout="1h")
    bed.action("early", body.format(signpost, go), timeout="500ms", kill_timeout="1h")
    peer = bed.start()
    late = bed.run(peer, "late")
    assert [signpost.line(), signpost.line()] == ["up", "term"]
    peer.send("cancel", id=late, reason="cancel")
    peer.barrier()
    go.write_text("go\n")
    assert peer.record(late)["outcome"] == "timeout"
    early = bed.run(peer, "early")
    assert signpost.line() == "up"
    peer.send("cancel", id=early, reason="cancel")
    assert signpost.line() == "term"
    go.write_text("go\n")
    assert peer.record(early)["outcome"] == "canceled"


def test_a_cancel_in_the_same_breath_prevents_the_spawn(bed: ExecBed) -> None:
    """Run and cancel that arrive together: the script never begins (C21)."""
    bed.action("a", f"touch {bed.folder}/begun")
    peer = bed.start()
    order = bed.order("a")
    peer.say(("run", order), ("cancel", {"id": order["id"], "reason": "cancel"}))
    record = peer.record(order["id"])
    assert (record["outcome"], record["status"], record["pid"]) == ("canceled", 15, None)
    assert record["started"] is None
    assert not (bed.folder / "begun").exists()


def test_a_cancel_that_comes_before_its_run_stands(bed: ExecBed) -> None:
    """A run that was canceled before it was asked for is refused, also by the next executor."""
    bed.action("a", f"touch {bed.folder}/begun")
    peer = bed.start()
    order = bed.order("a")
    peer.send("cancel", id=order["id"], reason="cancel")
    assert peer.record(order["id"])["outcome"] == "canceled"
    peer.say(("run", order))
    peer.barrier()
    assert [record["status"] for record in peer.records()] == [15, 15]
    bed.kill()
    peer = bed.start()
    entry = peer.listed(order["id"])
    assert entry is not None
    assert (entry["state"], entry["pid"], entry["record"]["status"]) == ("refused", None, 15)
    peer.say(("run", order))
    assert peer.record(order["id"])["outcome"] == "canceled"
    assert not (bed.folder / "begun").exists()
    peer.send("ack", ids=[order["id"]])
    assert bed.connect().greet().hello["runs"] == []


def test_a_cancel_reaches_a_run_that_waits_for_its_next_attempt(bed: ExecBed) -> None:
    """A run whose spawn is to be tried again is canceled like one that was never tried."""
    path = bed.action("a", f"touch {bed.folder}/begun")
    peer = bed.start()
    with path.open("a"):
        run = bed.run(peer, "a")
        peer.barrier()
        peer.send("cancel", id=run, reason="cancel")
        record = peer.record(run)
    assert (record["outcome"], record["status"]) == ("canceled", 15)
    assert not (bed.folder / "begun").exists()


def test_a_cancel_after_the_end_changes_nothing(bed: ExecBed) -> None:
    """A run that has ended keeps its record."""
    bed.action("a", "exit 0")
    peer = bed.start()
    run = bed.run(peer, "a")
    record = peer.record(run)
    peer.send("cancel", id=run, reason="cancel")
    peer.barrier()
    assert peer.records() == [record]
    listed = bed.connect().greet().listed(run)
    assert listed is not None
    assert listed["record"] == record


@pytest.mark.parametrize("words", [(), ("no-group-signal",)], ids=["linux6.9", "older"])
def test_all_that_a_script_has_started_gets_sigterm(
    bed: ExecBed, signpost: Signpost, words: tuple[str, ...]
) -> None:
    """Children, other sessions, daemons, other environments get it, once; bystanders do not."""
    counting = bed.script(
        "counting",
        f'trap "echo $1 term > {signpost}; exit 0" TERM; sleep 1000 & echo $1 up > {signpost}; wait',
    )
    kinds = {
        "child": f"{counting} child &",
        "session": f"setsid {counting} session &",
        "daemon": f"(setsid {counting} daemon &)",
        "bare": f"env -i setsid {counting} bare &",
        "grandchild": f"(setsid sh -c 'env -i {counting} grandchild & wait' &)",
    }
    bed.action("a", "\n".join(["trap 'exit 3' TERM", *kinds.values(), "wait"]), kill_timeout="1h")
    bed.action("b", f"{counting} bystander")
    peer = bed.start_below("zombies", *words)
    bystander = bed.run(peer, "b")
    assert signpost.line() == "bystander up"
    run = bed.run(peer, "a")
    assert {signpost.line() for _ in kinds} == {f"{kind} up" for kind in kinds}
    peer.send("cancel", id=run, reason="cancel")
    assert sorted(signpost.line() for _ in kinds) == sorted(f"{kind} term" for kind in kinds)
    assert (peer.record(run)["outcome"], peer.record(run)["status"]) == ("canceled", 3 << 8)
    peer.barrier()
    assert signpost.silent()
    assert alive(peer.started(bystander)[0])


def test_what_a_script_starts_in_order_to_clean_up_is_left_alone(bed: ExecBed, signpost: Signpost) -> None:
    """SIGTERM goes to what is there when it is sent, not to the commands of the script's own trap."""
    bed.action(
        "a",
        f"trap 'sleep 0.2 && echo cleaned > {signpost}; exit 0' TERM; echo up > {signpost}; "
        "while :; do sleep 1000 & wait $!; done",
        kill_timeout="1h",
    )
    peer = bed.start()
    run = bed.run(peer, "a")
    assert signpost.line() == "up"
    peer.send("cancel", id=run, reason="cancel")
    assert signpost.line() == "cleaned"
    assert peer.record(run)["status"] == 0


def test_a_script_that_ignores_sigterm_is_stuck_and_watched_until_it_dies(
    bed: ExecBed, signpost: Signpost
) -> None:
    """on-stuck = drain: never SIGKILL; the record says stuck, and its death is told when it comes."""
    bed.action("a", DEAF.format(signpost), kill_timeout="50ms")
    peer = bed.start()
    run = bed.run(peer, "a")
    assert signpost.line() == "up"
    peer.send("cancel", id=run, reason="cancel")
    record = peer.record(run)
    pid = peer.started(run)[0]
    assert (record["outcome"], record["status"], record["pid"]) == ("stuck", 124 << 8, pid)
    assert record["cpu_user"] is None
    peer.send("ack", ids=[run])
    peer.send("cancel", id=run, reason="cancel")
    peer.barrier()
    assert alive(pid)
    listed = bed.connect().greet().listed(run)
    assert listed is not None
    assert (listed["state"], listed["pid"], listed["record"]) == ("stuck", pid, record)
    peer = bed.connect().greet()
    peer.send("signal", id=run, signal=int(signal.SIGKILL))
    assert peer.died(run) == 9
    again = bed.connect().greet()
    listed = again.listed(run)
    assert listed is not None
    assert (listed["state"], listed["died"], listed["record"]) == ("ended", 9, record)
    again.send("ack", ids=[run])
    assert bed.connect().greet().hello["runs"] == []
    eventually(lambda: bed.files(run) == set())  # what the script had started may still be dying


def test_a_script_that_ignores_sigterm_is_killed_where_that_is_wanted(
    bed: ExecBed, signpost: Signpost
) -> None:
    """on-stuck = kill: SIGKILL to all of it, and the outcome stays the reason why it had to end."""
    bed.action(
        "a",
        f'setsid sh -c "{DEAF.format(signpost)}" & {DEAF.format(signpost)}',
        timeout="300ms",
        kill_timeout="100ms",
        on_stuck="kill",
    )
    peer = bed.start()
    run = bed.run(peer, "a")
    assert [signpost.line(), signpost.line()] == ["up", "up"]
    record = peer.record(run)
    assert (record["outcome"], record["status"]) == ("timeout", 9)
    while pids := [*bed.left()]:
        wait_for_end(os.pidfd_open(pids[0]))


def test_what_survives_sigkill_is_stuck(bed: ExecBed, signpost: Signpost) -> None:
    """If SIGKILL does not help either (here: it never arrives), a run is stuck after a kill-timeout."""
    bed.action("a", DEAF.format(signpost), kill_timeout="50ms", on_stuck="kill")
    peer = bed.start_below("reaps", "no-sigkill")
    run = bed.run(peer, "a")
    assert signpost.line() == "up"
    peer.send("cancel", id=run, reason="cancel")
    assert peer.record(run)["outcome"] == "stuck"
    assert [entry[0] for entry in bed.entries(run)[1:]] == ["begun", "term", "kill", "exit"]
    os.kill(peer.started(run)[0], signal.SIGKILL)
    assert peer.died(run) == 9


def test_a_signal_goes_to_all_of_a_run_and_says_nothing_about_its_outcome(
    bed: ExecBed, signpost: Signpost
) -> None:
    """An administrator's signal is no cancel: the script is judged by how it ends."""
    bed.action("a", f"trap 'exit 0' USR1; setsid sh -c 'echo up > {signpost}; exec sleep 1000' & wait")
    peer = bed.start()
    run = bed.run(peer, "a")
    assert signpost.line() == "up"
    peer.send("signal", id=run, signal=int(signal.SIGUSR1))
    record = peer.record(run)
    assert (record["outcome"], record["status"]) == ("ok", 0)
    while pids := [*bed.left()]:
        wait_for_end(os.pidfd_open(pids[0]))


@pytest.mark.parametrize("kind", ["cancel", "signal", "ack"])
def test_what_is_said_of_unknown_runs_does_no_harm(bed: ExecBed, kind: str) -> None:
    """Runs that were never asked for can be canceled, signaled and acknowledged."""
    bed.action("a", "exit 0")
    peer = bed.start()
    run = wire.run_id(JOURNAL, 99, "epilog", 1, "a")
    peer.send(kind, id=run, ids=[run], reason="cancel", signal=9)
    peer.barrier()
    assert [record["outcome"] for record in peer.records()] == (["canceled"] if kind == "cancel" else [])
    assert peer.record(bed.run(peer, "a"))["outcome"] == "ok"


def test_a_process_that_only_looks_like_a_runs_is_not_signaled(bed: ExecBed, signpost: Signpost) -> None:
    """A process with a longer or shorter id in its environment is somebody else's."""
    bed.action("a", f"echo up > {signpost}; sleep 1000")
    peer = bed.start()
    run = bed.run(peer, "a")
    assert signpost.line() == "up"
    others = [
        subprocess.Popen(["sleep", "1000"], env={"PERILOG_RUN_ID": name, "X_PERILOG_RUN_ID": run})
        for name in (run + "x", run[:-1])
    ]
    try:
        peer.send("cancel", id=run, reason="cancel")
        assert peer.record(run)["outcome"] == "canceled"
        assert [other.poll() for other in others] == [None, None]
    finally:
        for other in others:
            other.kill()
            other.wait()
