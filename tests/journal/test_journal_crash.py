"""A process that is killed with SIGKILL while it writes: what it had confirmed is there, and all is whole."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from journal.helpers import no_damage, opened

_ROOT = Path(__file__).parents[2]

#: Commits jobs of five events each, as fast as it can, and prints each one's id when `commit` has returned.
_WRITER = """
import sys
from pathlib import Path
from journal.helpers import entry
from perilogd.journal import Batch, Journal, NewJob
journal = Journal.open(Path(sys.argv[1]), boot_id="child")
keep = int(sys.argv[2])
while True:
    job, seq = journal.next_job, journal.next_seq
    journal.commit(Batch(
        jobs=[NewJob(job, 0, 0, f"k{job}", 0.0)],
        entries=[entry(seq + at, job, text="x" * (job % 50 * 40)) for at in range(5)],
        ended=[(job, float(job))] if keep else [],
        meta={"newest": str(job)},
    ))
    print(job, flush=True)
    if keep:
        journal.purge(older_than_wall=0.0, keep_newest=keep)
"""


def _killed(path: Path, lines: int, keep: int = 0) -> int:
    """Run the writer, kill it after so many confirmations, and return the last id that it had confirmed."""
    with subprocess.Popen(
        [sys.executable, "-c", _WRITER, str(path), str(keep)],
        stdout=subprocess.PIPE,
        env={"PYTHONPATH": f"{_ROOT}:{_ROOT / 'tests'}"},
        text=True,
    ) as child:
        assert child.stdout is not None
        for _ in range(lines):
            last = child.stdout.readline()
        child.kill()
        rest = child.stdout.read().splitlines(keepends=True)
    return int(next(line for line in reversed([last, *rest]) if line.endswith("\n")))


@pytest.mark.parametrize("lines", [1, 20, 333])
def test_killed_writer(path: Path, lines: int) -> None:
    """Every batch that was confirmed is there; the one under way is there whole or not; it can go on."""
    confirmed = 0
    for _ in range(2):
        confirmed = _killed(path, lines)
        with opened(path) as journal:
            jobs = dict(journal.active(no_damage))
            assert len(jobs) in {confirmed, confirmed + 1}
            assert journal.meta("newest") == str(len(jobs))
            assert (journal.next_job, journal.next_seq) == (len(jobs) + 1, 5 * len(jobs) + 1)
            for job, rows in jobs.items():
                assert [row.seq for row in rows] == [5 * job - 4 + at for at in range(5)]
                assert journal.job_of_key(0, f"k{job}") == job


def test_killed_purge(path: Path) -> None:
    """A purge that is cut short leaves each job whole or gone, and numbers still go on."""
    confirmed = _killed(path, 100, keep=3)
    with opened(path) as journal:
        kept = journal.ended_jobs()
        assert {3, 4} >= {len(kept)}
        assert kept[-1] in {confirmed, confirmed + 1}
        assert Counter(row.job for row in journal.events_since(0)) == dict.fromkeys(kept, 5)
        assert journal.next_job == kept[-1] + 1
        assert journal.next_seq == 5 * kept[-1] + 1
        assert journal.purged_through() == 5 * kept[0] - 5
