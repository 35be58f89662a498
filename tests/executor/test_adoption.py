"""The executor is killed; its successor finds what there is, and says only what it knows."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgpack
import pytest

from exec_bed import JOURNAL, ExecBed, eventually, wait_for_end
from perilogd.executor import wire
from perilogd.executor.processes import boottime

if TYPE_CHECKING:
    from exec_bed import Peer, Signpost

#: Until what it is told is "go", a script waits; then it exits with 7.
WAITING = "echo up > {0}; read x < {1}; exit 7"


@pytest.fixture
def go(folder: Path) -> Path:
    """A FIFO that lets a waiting script go."""
    path = folder / "go"
    os.mkfifo(path)
    path.chmod(0o666)
    return path


def begin(bed: ExecBed, peer: Peer, signpost: Signpost, action: str = "a", **more: Any) -> tuple[str, int]:
    """Ask for a run, wait until it is up, and return its id and pid."""
    run = bed.run(peer, action, **more)
    assert signpost.line() == "up"
    return run, peer.started(run)[0]


def listed(peer: Peer, run: str) -> dict[str, Any]:
    """Return the run as the hello lists it."""
    entry = peer.listed(run)
    assert entry is not None
    return entry


def cut(bed: ExecBed, run: str, entries: int) -> None:
    """Leave only the first entries of what was written down of a run, and a part of the next."""
    packed = [msgpack.packb(entry) for entry in bed.entries(run)]
    rest = packed[entries][:-1] if len(packed) > entries else b""
    file = bed.runs / f"{run}.run"
    times = file.stat()
    file.write_bytes(b"".join(packed[:entries]) + rest)
    os.utime(file, ns=(times.st_atime_ns, times.st_mtime_ns))


@pytest.mark.parametrize(
    ("guardian", "known"),
    [
        (("reaps",), True),  # PIDFD_GET_INFO tells, since Linux 6.15
        (("zombies", "no-pidfd-info"), True),  # /proc/PID/stat of the zombie tells
        (("reaps", "no-pidfd-info"), False),
    ],
)
def test_a_running_script_is_adopted(
    bed: ExecBed, signpost: Signpost, go: Path, guardian: tuple[str, ...], known: bool
) -> None:
    """A script outlives its executor; its end is told truly if the kernel tells it, and else as lost."""
    if "no-pidfd-info" not in guardian and not kernel_tells_exits():
        known = False
    bed.action("a", WAITING.format(signpost, go), timeout="1h")
    peer = bed.start_below(*guardian)
    run, pid = begin(bed, peer, signpost)
    before = peer.started(run)
    bed.kill()
    peer = bed.start_below()
    entry = listed(peer, run)
    assert (entry["state"], entry["pid"], entry["since"], entry["deadline"]) == ("running", *before)
    assert entry["pid"] == pid
    bed.run(peer, "a")  # asked for again: still the same
    go.write_text("go\n")
    record = peer.record(run)
    expected = ("failed", 7 << 8) if known else ("lost", 255 << 8)
    assert (record["outcome"], record["status"]) == expected
    assert record["max_rss"] is None
    assert ("error" in record) is not known
    assert signpost.silent()


def kernel_tells_exits() -> bool:
    """Tell whether PIDFD_GET_INFO has exit codes, since Linux 6.15."""
    return tuple(map(int, os.uname().release.split(".")[:2])) >= (6, 15)


@pytest.mark.parametrize(
    ("guardian", "result"),
    [("reaps", ("lost", 255 << 8)), ("zombies", ("failed", 7 << 8))],
)
def test_a_script_that_ended_meanwhile(
    bed: ExecBed, signpost: Signpost, go: Path, guardian: str, result: tuple[str, int]
) -> None:
    """Of a script that ended while there was no executor only a zombie can tell; without one it is lost."""
    bed.action("a", WAITING.format(signpost, go))
    peer = bed.start_below(guardian)
    run, pid = begin(bed, peer, signpost)
    pidfd = os.pidfd_open(pid)
    bed.kill()
    go.write_text("go\n")
    wait_for_end(pidfd)
    peer = bed.start_below()
    record = listed(peer, run)["record"] if "record" in listed(peer, run) else peer.record(run)
    assert (record["outcome"], record["status"]) == result
    bed.run(peer, "a")
    peer.barrier()
    assert signpost.silent()


def test_a_script_that_never_began_is_begun(bed: ExecBed, signpost: Signpost, go: Path) -> None:
    """A run that was written down, but has no output file yet, is begun by the successor: once."""
    path = bed.action("a", WAITING.format(signpost, go))
    peer = bed.start()
    with path.open("a"):  # so that it cannot be executed yet
        run = bed.run(peer, "a")
        peer.barrier()
        assert (bed.runs / f"{run}.run").exists()
        bed.kill()
        assert ".out" not in bed.files(run)
    peer = bed.start()
    assert listed(peer, run)["state"] == "running"
    assert signpost.line() == "up"
    go.write_text("go\n")
    assert peer.record(run)["status"] == 7 << 8
    assert signpost.silent()


def test_a_run_that_was_not_written_down_whole_never_was(bed: ExecBed, signpost: Signpost) -> None:
    """Half a request is forgotten: no script was begun with it, and the broker will ask again."""
    bed.action("a", f"echo up > {signpost}")
    peer = bed.start()
    bed.kill()
    order = bed.order("a")
    (bed.runs / f"{order['id']}.run").write_bytes(msgpack.packb(order)[:-20])
    os.chown(bed.runs / f"{order['id']}.run", bed.uid, -1)
    peer = bed.start()
    assert peer.hello["runs"] == []
    assert bed.files(order["id"]) == set()
    peer.say(("run", order))
    assert peer.record(order["id"])["outcome"] == "ok"


@pytest.mark.parametrize("entries", [1, 2])
def test_a_script_whose_pid_was_not_written_down_is_found(
    bed: ExecBed, signpost: Signpost, go: Path, entries: int
) -> None:
    """Without (a whole) note of its beginning a script is found by the run id in its environment."""
    bed.action("a", WAITING.format(signpost, go), timeout="1h", kill_timeout="77s", on_stuck="kill")
    peer = bed.start_below("zombies")
    run, pid = begin(bed, peer, signpost)
    noted = bed.entries(run)[1]
    bed.kill()
    cut(bed, run, entries)
    peer = bed.start_below()
    entry = listed(peer, run)
    assert (entry["state"], entry["pid"]) == ("running", pid)
    assert bed.entries(run)[1][1]["kill_timeout"] == 77
    assert abs(entry["since"] - noted[1]["after"]) < 1
    assert abs(entry["deadline"] - noted[1]["deadline"]) < 1
    go.write_text("go\n")
    assert peer.record(run)["status"] == 7 << 8


def test_what_was_begun_and_cannot_be_found_is_lost(bed: ExecBed, signpost: Signpost, go: Path) -> None:
    """An output file, but neither process nor record: the script was begun, and must not be begun again."""
    bed.action("a", WAITING.format(signpost, go))
    peer = bed.start_below("reaps")
    run, pid = begin(bed, peer, signpost)
    pidfd = os.pidfd_open(pid)
    bed.kill()
    os.kill(pid, signal.SIGKILL)
    wait_for_end(pidfd)
    cut(bed, run, 1)
    peer = bed.start_below()
    record = listed(peer, run)["record"]
    assert (record["outcome"], record["status"], record["pid"]) == ("lost", 255 << 8, None)
    assert "gone" in record["error"]
    bed.run(peer, "a")
    peer.barrier()
    assert signpost.silent()


def test_a_daemon_that_a_script_has_left_is_not_taken_for_the_script(
    bed: ExecBed, signpost: Signpost, go: Path
) -> None:
    """Without a note of its pid, a script that has ended is lost, though a daemon carries its run's id."""
    bed.action("a", f"echo up > {signpost}; read x < {go}; setsid sleep 1000 & exit 0")
    peer = bed.start_below("reaps")
    run, pid = begin(bed, peer, signpost)
    pidfd = os.pidfd_open(pid)
    bed.kill()
    eventually(lambda: boottime() > peer.started(run)[1] + 0.5)
    go.write_text("go\n")
    wait_for_end(pidfd)
    cut(bed, run, 1)
    assert listed(bed.start_below(), run)["record"]["outcome"] == "lost"
    assert [*bed.left()] != []


@pytest.mark.parametrize("what", ["pid", "time", "boot"])
def test_another_process_with_the_same_pid_is_not_taken_for_the_script(
    own_bed: ExecBed, signpost: Signpost, go: Path, what: str
) -> None:
    """A pid that was given to somebody else since, or before a reboot, names nobody; nobody gets a signal."""
    own_bed.action("a", WAITING.format(signpost, go))
    peer = own_bed.start_below("reaps")
    run, pid = begin(own_bed, peer, signpost)
    own_bed.kill()
    request, (word, noted) = own_bed.entries(run)
    eventually(lambda: boottime() > noted["before"] + 0.05)  # start times are hundredths of a second
    stranger = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    try:
        changed = {
            "pid": {"pid": stranger.pid},
            "time": {"after": noted["after"] - 10, "before": noted["before"] - 10},
            "boot": {"boot": "another"},
        }
        (own_bed.runs / f"{run}.run").write_bytes(
            msgpack.packb(request) + msgpack.packb((word, {**noted, **changed[what]}))
        )
        peer = own_bed.start_below()
        assert listed(peer, run)["record"]["outcome"] == "lost"
        peer.send("cancel", id=run, reason="cancel")
        peer.send("signal", id=run, signal=9)
        peer.barrier()
        assert stranger.poll() is None
        os.kill(pid, 0)
    finally:
        stranger.kill()
        stranger.wait()


def test_a_deadline_goes_on_and_acts_though_nobody_is_connected(
    bed: ExecBed, signpost: Signpost, go: Path
) -> None:
    """The successor ends a script at the deadline that its predecessor had set, which passed meanwhile."""
    bed.action("a", f"trap 'echo term > {signpost}; exit 3' TERM; echo up > {signpost}; read x < {go}",
               timeout="300ms")  # fmt: skip
    peer = bed.start_below("zombies")
    run, _ = begin(bed, peer, signpost)
    bed.kill()
    bed.start_below().close()
    assert signpost.line() == "term"
    record = None
    while record is None:
        record = listed(bed.connect().greet(), run).get("record")
    assert (record["outcome"], record["status"]) == ("timeout", 3 << 8)


def test_sigterm_is_not_repeated_by_a_successor(bed: ExecBed, signpost: Signpost) -> None:
    """A run that was told to end stays told; kill-timeout and on-stuck go on where they were."""
    loop = "while :; do sleep 1000 & wait; done"
    body = f"trap 'echo term > {signpost}' TERM; echo up > {signpost}; {loop}"
    bed.action("a", body, kill_timeout="1s", on_stuck="kill")
    peer = bed.start_below("zombies")
    run, _ = begin(bed, peer, signpost)
    peer.send("cancel", id=run, reason="the first")
    assert signpost.line() == "term"
    peer.barrier()
    bed.kill()
    peer = bed.start_below()
    peer.send("cancel", id=run, reason="the second")
    record = peer.record(run)
    assert (record["outcome"], record["status"], record["reason"]) == ("canceled", 9, "the first")
    assert signpost.silent()


def test_an_adopted_script_is_ended_with_all_that_it_has_started(bed: ExecBed, signpost: Signpost) -> None:
    """A cancel reaches an adopted script, its group, its children and what has left them."""
    told = bed.script(
        "told", f'trap "echo $1 > {signpost}; exit" TERM; sleep 1000 & echo up > {signpost}; wait'
    )
    bed.action(
        "a",
        f"(setsid {told} daemon &)\nenv -i setsid {told} child &\n"
        f"trap 'echo self > {signpost}; exit 2' TERM; echo up > {signpost}; wait",
    )
    peer = bed.start_below("zombies")
    run, _ = begin(bed, peer, signpost)
    assert [signpost.line(), signpost.line()] == ["up", "up"]
    bed.kill()
    peer = bed.start_below()
    peer.send("cancel", id=run, reason="cancel")
    record = peer.record(run)
    assert (record["outcome"], record["status"]) == ("canceled", 2 << 8)
    assert {signpost.line() for _ in range(3)} == {"daemon", "child", "self"}


def test_a_stuck_script_is_still_watched_by_a_successor(bed: ExecBed, signpost: Signpost) -> None:
    """Its record stands, its death is told; one that died unseen is told as died, too."""
    bed.action("a", f"trap '' TERM; echo up > {signpost}; while :; do sleep 1000; done", kill_timeout="20ms")
    peer = bed.start_below("zombies")
    runs = [begin(bed, peer, signpost, job=job) for job in (1, 2)]
    for run, _ in runs:
        peer.send("cancel", id=run, reason="cancel")
    records = [peer.record(run) for run, _ in runs]
    bed.kill()
    (first, first_pid), (second, second_pid) = runs
    os.kill(second_pid, signal.SIGKILL)
    peer = bed.start_below()
    assert listed(peer, first)["record"] == records[0]
    assert listed(peer, first)["state"] == "stuck"
    assert listed(peer, second)["record"] == records[1]
    assert listed(peer, second).get("died") == 9 or peer.died(second) == 9
    os.kill(first_pid, signal.SIGKILL)
    assert peer.died(first) == 9
    bed.kill()
    peer = bed.start_below()
    assert [listed(peer, run)["died"] for run in (first, second)] == [9, 9]
    assert [listed(peer, run)["state"] for run in (first, second)] == ["ended", "ended"]


def test_records_survive_until_they_are_acknowledged(bed: ExecBed) -> None:
    """What was reported, but perhaps not journaled, is told again; what was acknowledged is not."""
    bed.action("a", "exit 3")
    peer = bed.start()
    kept, acknowledged = bed.run(peer, "a", job=1), bed.run(peer, "a", job=2)
    records = {run: peer.record(run) for run in (kept, acknowledged)}
    peer.send("ack", ids=[acknowledged])
    peer.barrier()
    epoch = peer.hello["epoch"]
    bed.kill()
    peer = bed.start()
    assert peer.hello["epoch"] == epoch
    assert [entry["record"] for entry in peer.hello["runs"]] == [records[kept]]
    bed.run(peer, "a", job=1)
    peer.barrier()
    assert peer.records() == [records[kept]]


def test_runs_of_another_journal_are_its_own_affair(bed: ExecBed) -> None:
    """A broker is told of its own journal's runs only, and cannot touch others'."""
    bed.action("a", "exit 0")
    peer = bed.start()
    run = bed.run(peer, "a")
    peer.record(run)
    other = bed.connect().greet("other0journal")
    assert other.hello["runs"] == []
    other.send("ack", ids=[run])
    assert "not a run of journal" in str(other.closing_words())
    assert listed(bed.connect().greet(), run)["record"]["outcome"] == "ok"


@pytest.mark.parametrize("how", ["wipe", "reboot"])
def test_a_new_folder_or_a_reboot_makes_a_new_epoch(bed: ExecBed, how: str) -> None:
    """The epoch tells the broker that runs may have been begun of which the executor knows nothing."""
    bed.write_config()
    epoch = bed.start().hello["epoch"]
    bed.stop()
    if how == "wipe":
        (bed.exec_dir / "epoch").unlink()
    else:
        (bed.exec_dir / "epoch").write_text(f"another-boot {epoch}\n")
    assert bed.start().hello["epoch"] != epoch


def test_left_overs_of_half_a_removal_or_half_a_record_do_no_harm(bed: ExecBed) -> None:
    """Whatever an executor was doing when it was killed, its successor cleans up or goes on."""
    bed.action("a", "echo x; exit 3")
    peer = bed.start()
    run = bed.run(peer, "a")
    record = peer.record(run)
    bed.kill()
    (bed.runs / f"{run}.exit").rename(bed.runs / f"{run}.run")  # the record was there, but did not count
    (bed.runs / "no run id.txt").write_bytes(b"")
    gone = wire.run_id(JOURNAL, 3, "epilog", 1, "a")
    for kind in (".job", ".message", ".environment", ".out"):  # forgetting it had begun
        (bed.runs / f"{gone}{kind}").write_bytes(b"x")
    peer = bed.start()
    assert [entry["record"] for entry in peer.hello["runs"]] == [record]
    assert bed.files(run) == {".exit", ".job", ".message", ".environment", ".out"}
    eventually(lambda: bed.files(gone) == {".out"})
    peer.send("ack", ids=[run])
    peer.barrier()
    eventually(lambda: bed.files(run) == {".out"})


@pytest.mark.parametrize("kept", ["nothing", "the request", "half the record"])
def test_a_record_that_cannot_be_read_leaves_a_run_lost(bed: ExecBed, kept: str) -> None:
    """Where a crash of the machine has taken the record, nothing is claimed, and nothing is begun again."""
    bed.action("a", "exit 3")
    peer = bed.start()
    run = bed.run(peer, "a")
    peer.record(run)
    bed.kill()
    file = bed.runs / f"{run}.exit"
    data = file.read_bytes()
    whole = len(msgpack.packb(bed.entries(run)[0]))
    file.write_bytes({"nothing": b"", "the request": data[:whole], "half the record": data[:-9]}[kept])
    peer = bed.start()
    assert listed(peer, run)["record"]["outcome"] == "lost"
    bed.kill()
    assert listed(bed.start(), run)["record"]["outcome"] == "lost"


def test_a_successor_waits_for_a_spawn_that_is_half_way(bed: ExecBed) -> None:
    """The lock is shared by a child until its exec: whoever gets it knows that no spawn is half way."""
    bed.action("a", "exit 0")
    bed.start()
    bed.stop()
    holder = subprocess.Popen(
        ["flock", str(bed.exec_dir / "lock"), "sh", "-c", "echo; read x"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert holder.stdin is not None
    assert holder.stdout is not None
    with holder:
        holder.stdout.readline()
        refused = subprocess.run(bed.command, cwd=Path(__file__).parents[2], capture_output=True, check=False)
        holder.stdin.write(b"\n")
    assert refused.returncode == (1 if bed.uid == os.geteuid() else 2)
    assert bed.start().hello["runs"] == []


def test_no_script_is_begun_twice_whenever_the_executor_dies(own_bed: ExecBed) -> None:
    """Killed again and again, with everything asked for again: each at most once, and told truly."""
    bed = own_bed
    begun = bed.folder / "begun"
    bed.action("a", f'echo "$PERILOG_JOB_ID" >> {begun}; exit 0')
    begun.touch()
    peer = bed.start_below("reaps")
    definition = bed.definition("a")
    orders = [("run", bed.order("a", job=job, definition=definition)) for job in range(1, 241)]
    for turn in range(12):
        peer.say(*orders[: 20 * (turn + 1)])
        for _ in range(turn % 4):
            peer.barrier()
        bed.kill()
        peer = bed.start_below()
    peer.say(*orders)
    outcomes = {body["job"]: peer.record(body["id"])["outcome"] for _, body in orders}
    lines = [int(line) for line in begun.read_text().split()]
    assert len(lines) == len(set(lines))
    assert {job for job, outcome in outcomes.items() if outcome == "ok"} <= set(lines)
    assert set(outcomes.values()) <= {"ok", "lost"}
    assert sorted(outcomes) == sorted(
        {*lines, *(job for job, outcome in outcomes.items() if outcome == "lost")}
    )
