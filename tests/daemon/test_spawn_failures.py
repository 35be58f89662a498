"""Scripts that cannot be started: each reason is told apart, in log, exception and job."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from bed import Bed

Harm = Callable[[Path], object]

HARMS: dict[str, tuple[Harm, int, str]] = {
    "script missing": (Path.unlink, 127, "there is no such file"),
    "interpreter missing": (
        lambda path: path.write_text("#!/no/such/sh\n"),
        127,
        "its interpreter /no/such/sh is missing",
    ),
    "interpreter not UTF-8": (
        lambda path: path.write_bytes(b"#!/no/caf\xe9/sh\n"),
        127,
        r"its interpreter /no/caf\xe9/sh is missing",
    ),
    "not executable": (lambda path: path.chmod(0o644), 126, "it may not be executed"),
    "no shebang": (lambda path: path.write_text("true\n"), 126, "it is no program, and has no '#!' line"),
}


@pytest.mark.parametrize("name", HARMS)
@pytest.mark.parametrize("phase", ["prolog", "epilog"])
def test_a_script_that_cannot_be_started(bed: Bed, name: str, phase: str) -> None:
    """The run fails with 127 or 126; note and exception say what is wrong with which file."""
    harm, code, text = HARMS[name]
    bed.action("a", **{phase: "exit 0"})
    bed.start()
    bed.executor_answers()
    script = bed.scripts / f"a.{phase}"
    harm(script)
    job = bed.submit()
    if phase == "epilog":
        bed.wait(job, "ready")
        bed.call("job.start", id=job)
        bed.call("job.exit", id=job, status=0)
    bed.wait(job, "clean")
    finish = bed.event(job, f"{phase}-finish")["context"]
    assert (finish["outcome"], finish["status"]) == ("failed", code << 8)
    why = f"cannot start {script}: {text}"
    assert finish["note"].startswith(why)
    exception = bed.event(job, "exception")["context"]
    assert exception["note"].startswith(f"{phase} a failed for job {job}: exit code {code}: {why}")
    assert exception["severity"] == (0 if phase == "prolog" else 2)
    assert bed.drained() == {}
    assert bed.job(job)["result"] == ("FAILED" if phase == "prolog" else "COMPLETED")
