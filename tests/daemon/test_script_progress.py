"""Progress that a script reports about itself, while people wait for it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from bed import Bed

if TYPE_CHECKING:
    from pathlib import Path


def test_a_completion_script_reports_as_the_jobs_user(other_user_venv: Path, folder: Path) -> None:
    """A completion script, which runs as the job's user, tells how far it is, and others see it."""
    user = 65534 if os.geteuid() == 0 else os.geteuid()
    with Bed(folder, programs=other_user_venv) as bed:
        report = 'perilog progress "$PERILOG_JOB_ID" completion copy 40 "12 of 30 files"'
        memo = 'perilog memo "$PERILOG_JOB_ID" copy=told'
        bed.action("copy", completion=f"set -e\n{report}\n{memo}\nexec sleep 600")
        bed.start()
        job = bed.submit(userid=user)
        bed.wait(job, "ready")
        bed.call("job.start", id=job)
        bed.call("job.exit", id=job, status=0)
        bed.wait(job, "memo", copy="told")
        (hold,) = [hold for hold in bed.call("job.get", id=job)["holds"] if hold["name"] == "copy"]
        assert (hold["progress"], hold["note"]) == (40, "12 of 30 files")
