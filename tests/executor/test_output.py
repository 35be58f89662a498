"""What scripts write: bounded, excerpted, kept, and never in anybody's way."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from exec_bed import ExecBed, eventually

if TYPE_CHECKING:
    from pathlib import Path

    from exec_bed import Signpost

KIB, MIB = 1 << 10, 1 << 20

#: Writes 100 MB in lines: the first says "first", the last "last".
WRITER = "echo first; head -c 100000000 /dev/zero | tr '\\0' x; echo; echo last"


def space(path: Path) -> int:
    """Return the bytes that a file takes."""
    return path.stat().st_blocks * 512


def test_of_a_large_output_head_and_tail_are_kept(bed: ExecBed) -> None:
    """100 MB are written; what is kept is within the limit, and begins and ends as the script did."""
    bed.table('[executor]\noutput-limit = "256KiB"')
    bed.action("a", f"{WRITER}; exit 1")
    peer = bed.start()
    run = bed.run(peer, "a")
    output = peer.record(run)["output"]
    assert output.startswith(b"first\nxxx")
    assert output.endswith(b"xxx\nlast\n")
    left_out = 100000012 - 16 * KIB
    assert b"\n[... %d bytes left out ...]\n" % left_out in output
    assert len(output) < 17 * KIB
    peer.send("ack", ids=[run])
    answer = peer.ask("output", tag=7, id=run, limit=MIB)
    assert (answer["tag"], answer["found"], answer["size"]) == (7, True, 100000012)
    assert answer["head"].startswith(b"first\nxxx")
    assert answer["tail"].endswith(b"xxx\nlast\n")
    assert b"\0" not in answer["head"] + answer["tail"]
    assert 200 * KIB < len(answer["head"]) + len(answer["tail"]) <= 256 * KIB
    assert space(bed.runs / f"{run}.out") <= 256 * KIB


def test_an_endless_writer_is_bounded_while_it_runs_and_not_blocked(bed: ExecBed, signpost: Signpost) -> None:
    """The middle is punched out under the writer, who notices nothing and can go on."""
    go = bed.folder / "go"
    os.mkfifo(go)
    bed.table('[executor]\noutput-limit = "64KiB"')
    bed.action("a", f"{WRITER}; echo up > {signpost}; read x < {go}; echo more")
    peer = bed.start()
    run = bed.run(peer, "a")
    assert signpost.line() == "up"
    eventually(lambda: space(bed.runs / f"{run}.out") <= 64 * KIB)
    go.write_text("go\n")
    peer.record(run)
    answer = peer.ask("output", tag=1, id=run, limit=MIB)
    assert answer["size"] == 100000017
    assert answer["tail"].endswith(b"xxx\nlast\nmore\n")


def test_without_punching_the_head_is_kept_and_the_file_cut(bed: ExecBed, signpost: Signpost) -> None:
    """On a file system that cannot punch holes an endless writer is bounded by cutting."""
    go = bed.folder / "go"
    os.mkfifo(go)
    bed.table('[executor]\noutput-limit = "64KiB"')
    bed.action("a", f"{WRITER}; echo up > {signpost}; read x < {go}; echo more; exit 1")
    peer = bed.start_below("reaps", "no-fallocate")
    run = bed.run(peer, "a")
    assert signpost.line() == "up"
    eventually(lambda: space(bed.runs / f"{run}.out") <= 64 * KIB)
    go.write_text("go\n")
    output = peer.record(run)["output"]
    assert output.startswith(b"first\nxxx")
    assert b"\nmore\n" in output
    assert b"\n[... cut here ...]\n" in (bed.runs / f"{run}.out").read_bytes()


def test_small_output_is_kept_as_it_is(bed: ExecBed) -> None:
    """Output within the limit comes back whole, also after the acknowledgement; none is not kept."""
    bed.action("a", "printf 'a\\0b'; echo c >&2")
    bed.action("b", ":")
    peer = bed.start()
    runs = [bed.run(peer, action) for action in "ab"]
    assert ["output" in peer.record(run) for run in runs] == [False, False]
    for _ in range(2):
        answer = peer.ask("output", tag=1, id=runs[0], limit=100)
        assert (answer["size"], answer["head"], answer["tail"]) == (5, b"a\0bc\n", b"")
        peer.send("ack", ids=runs)
    answer = peer.ask("output", tag=1, id=runs[1], limit=100)
    assert (answer["found"], answer["size"], answer["head"]) == (False, 0, b"")
    short = peer.ask("output", tag=1, id=runs[0], limit=3)
    assert (short["size"], short["head"], short["tail"]) == (5, b"a", b"\n")


def test_all_output_together_is_bounded_oldest_first(bed: ExecBed) -> None:
    """When the total is reached, the oldest kept output goes, also what an earlier executor has left."""
    bed.table('[executor]\noutput-limit = "64KiB"\noutput-total = "200KiB"')
    bed.action("a", "head -c 60000 /dev/zero | tr '\\0' x")
    peer = bed.start()
    runs = []
    for job in range(1, 6):
        run = bed.run(peer, "a", job=job)
        peer.record(run)
        peer.send("ack", ids=[run])
        peer.barrier()
        runs.append(run)
        if job == 3:
            bed.kill()
            peer = bed.start()
    eventually(lambda: [run for run in runs if bed.files(run)] == runs[2:])


def test_many_writers_together_stay_within_the_total(bed: ExecBed, signpost: Signpost) -> None:
    """While many run, each may keep the less, so that all together stay within the total."""
    bed.table('[executor]\noutput-limit = "1MiB"\noutput-total = "512KiB"')
    bed.action("a", f"head -c 1000000 /dev/zero | tr '\\0' x; echo up > {signpost}; exec sleep 1000")
    peer = bed.start()
    runs = [bed.run(peer, "a", job=job) for job in range(1, 9)]
    assert [signpost.line() for _ in runs] == ["up"] * 8
    eventually(lambda: sum(space(bed.runs / f"{run}.out") for run in runs) <= 512 * KIB)


def test_what_a_daemon_writes_after_its_run_is_bounded_too(bed: ExecBed, signpost: Signpost) -> None:
    """An output file that somebody still has open keeps its name and its bound."""
    go = bed.folder / "go"
    os.mkfifo(go)
    bed.table('[executor]\noutput-limit = "64KiB"')
    bed.action(
        "a",
        f"(setsid sh -c 'read x < {go}; head -c 10000000 /dev/zero; echo up > {signpost}; read x < {go}' &)",
    )
    peer = bed.start()
    run = bed.run(peer, "a")
    assert peer.record(run)["strays"] == 1
    peer.send("ack", ids=[run])
    peer.barrier()
    go.write_text("go\n")
    assert signpost.line() == "up"
    eventually(lambda: space(bed.runs / f"{run}.out") <= 64 * KIB)
    bed.kill()
    bed.start()
    go.write_text("go\n")
    eventually(lambda: bed.files(run) == {".out"})  # there is something in it


def test_no_file_of_a_run_can_be_filled_unseen(bed: ExecBed, signpost: Signpost) -> None:
    """What a left-over holds open of a run that is forgotten keeps its name and a bound, also later."""
    go = bed.folder / "go"
    os.mkfifo(go)
    fill = f"read x < {go}; head -c 10000000 /dev/zero; echo up > {signpost}; read x < {go}"
    bed.action("a", f"(setsid sh -c '{fill}' > $PERILOG_MESSAGE &)")
    peer = bed.start()
    run = bed.run(peer, "a")
    assert peer.record(run)["strays"] == 1
    peer.send("ack", ids=[run])
    peer.barrier()
    bed.kill()
    bed.start()
    go.write_text("go\n")
    assert signpost.line() == "up"
    eventually(lambda: space(bed.runs / f"{run}.message") <= 128 * KIB)
    go.write_text("go\n")
    eventually(lambda: bed.files(run) == set())


def test_an_empty_output_goes_when_the_last_daemon_lets_go_of_it(bed: ExecBed) -> None:
    """Nothing is left of a run whose left-overs have written nothing and ended."""
    go = bed.folder / "go"
    os.mkfifo(go)
    bed.action("a", f"(setsid sh -c 'read x < {go}' &)")
    peer = bed.start()
    run = bed.run(peer, "a")
    assert peer.record(run)["strays"] == 1
    peer.send("ack", ids=[run])
    peer.barrier()
    assert ".out" in bed.files(run)
    go.write_text("go\n")
    eventually(lambda: bed.files(run) == set())


@pytest.mark.parametrize("kind", ["MESSAGE", "ENVIRONMENT"])
def test_the_other_files_of_a_script_are_bounded_too(bed: ExecBed, signpost: Signpost, kind: str) -> None:
    """A script cannot fill the folder through the files that it hands back."""
    bed.action("a", f"head -c 10000000 /dev/zero > $PERILOG_{kind}; echo up > {signpost}; exec sleep 1000")
    peer = bed.start()
    run = bed.run(peer, "a")
    assert signpost.line() == "up"
    eventually(lambda: space(bed.runs / f"{run}.{kind.lower()}") <= 128 * KIB)
