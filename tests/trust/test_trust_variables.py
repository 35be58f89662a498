"""Variables as an attack: what a job's owner can put into the environment of root's scripts, and what not."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from raw import ALICE, CAROL

if TYPE_CHECKING:
    from bed import Bed
    from trust.conftest import As

pytestmark = pytest.mark.other_users

#: What would make a shell, a dynamic linker, Python or Perl run code of whoever sets it, and other traps.
TRAPS = re.findall(
    r"\w+",
    "BASH_ENV ENV SHELLOPTS BASHOPTS PS4 IFS CDPATH LD_PRELOAD LD_LIBRARY_PATH LD_AUDIT GCONV_PATH PYTHONPATH"
    " PYTHONSTARTUP PYTHONINSPECT PERL5OPT PERL5LIB PATH HOME SHELL EDITOR PAGER GIT_SSH TMPDIR"
    " PERILOG_SOCKET PERILOG_JOB_ID PERILOG_REASON PERILOG_ENVIRONMENT PERILOG_JOB PERILOG_JOB_USERID",
)

#: Writes the environment as the process has it, before any shell has changed it.
TELL = "#!/usr/bin/python3 -ISs\nimport os\nopen({!r}, 'w').write(open('/proc/self/environ').read())\n"


def told(path: Path) -> dict[str, str]:
    """Return the environment that a `TELL` script was started with."""
    return dict(entry.split("=", 1) for entry in path.read_text().split("\0") if entry)


def trap(bed: Bed) -> tuple[dict[str, str], Path]:
    """Return variables each of which would have something run that makes a file, and that file's path."""
    sprung = bed.folder / "sprung"
    evil = bed.folder / "evil"
    evil.write_text(f"touch {sprung}\n")
    evil.chmod(0o755)
    return dict.fromkeys(TRAPS, str(evil)), sprung


def test_owners_variables_do_not_reach_scripts_of_root(bed: Bed, connect_as: As) -> None:
    """What an owner's hold brings is in no script of root's, under no name, and nothing of it is run."""
    bed.action("env", epilog=TELL.format(str(bed.folder / "epilog")))
    bed.action("bash", epilog="#!/bin/bash\nls / | sort > /dev/null\nexit 0\n")
    bed.start()
    variables, sprung = trap(bed)
    alice = connect_as(ALICE)
    job = alice.ok("job.submit", holds=[{"phase": "completion", "name": "mine"}])["id"]
    bed.call("job.alloc", id=job, nodes="n1")
    bed.wait(job, "ready")
    alice.ok("job.start", id=job)
    alice.ok("job.exit", id=job, status=0)
    given = variables | {"DW_JOB": "evil", "HARMLESS": "evil"}
    alice.ok("hold.finish", id=job, phase="completion", name="mine", environment=given)
    bed.wait(job, "clean")
    assert bed.job(job)["result"] == "COMPLETED"
    environment = told(bed.folder / "epilog")
    assert [name for name, value in environment.items() if "evil" in value] == []
    assert not sprung.exists()
    assert bed.job(job)["environment"] == given  # the application's


def test_variables_from_others_have_another_name_for_root(bed: Bed, connect_as: As) -> None:
    """A provider's variables reach root's scripts as PERILOG_ENV_NAME, harmless ones as NAME."""
    bed.table("[[provider]]", name="dws", users=[CAROL], holds=["prolog"])
    bed.action("env", after=["dws"], prolog=TELL.format(str(bed.folder / "prolog")))
    bed.action("bash", after=["dws"], prolog="#!/bin/bash\nls / | sort > /dev/null\nexit 0\n")
    bed.start()
    variables, sprung = trap(bed)
    carol = connect_as(CAROL)
    job = bed.submit(userid=ALICE)
    bed.wait(job, "prolog-start", description="dws")
    given = variables | {"DW_JOB": "mine"}
    carol.ok("hold.finish", id=job, phase="prolog", name="dws", environment=given)
    bed.wait(job, "ready")
    environment = told(bed.folder / "prolog")
    assert environment["DW_JOB"] == "mine"
    evil = str(bed.folder / "evil")
    assert {name for name, value in environment.items() if value == evil} == {
        f"PERILOG_ENV_{name}" for name in TRAPS
    }
    assert not sprung.exists()
    assert environment["PERILOG_JOB_ID"] == str(job)
    assert environment["PERILOG_JOB_USERID"] == str(ALICE)


def test_owners_variables_reach_what_runs_as_him(bed: Bed, connect_as: As) -> None:
    """A completion script run as the job's user has its owner's variables under their own names."""
    out = bed.folder / "out"
    out.mkdir()
    out.chmod(0o1777)
    bed.action("env", completion=TELL.format(str(out / "completion")))
    bed.start()
    alice = connect_as(ALICE)
    job = alice.ok("job.submit")["id"]
    bed.call("job.alloc", id=job, nodes="n1")
    bed.wait(job, "ready")
    alice.ok("hold.start", id=job, phase="completion", name="mine")
    given = {"LD_LIBRARY_PATH": "/home/alice/lib", "MINE": "1", "PATH": "/evil", "PERILOG_JOB_ID": "7"}
    alice.ok("hold.finish", id=job, phase="completion", name="mine", environment=given)
    alice.ok("job.start", id=job)
    alice.ok("job.exit", id=job, status=0)
    finish = bed.wait(job, "finish")["context"]
    if finish["status"] == 0:
        environment = told(out / "completion")
        assert (out / "completion").stat().st_uid == ALICE
        assert (environment["MINE"], environment["LD_LIBRARY_PATH"]) == ("1", "/home/alice/lib")
        assert environment["PERILOG_JOB_ID"] == str(job)
        assert environment["PATH"] != "/evil"
    else:  # this uid has no name here, so it cannot be run as
        assert "no such user" in bed.event(job, "completion-finish", description="env")["context"]["note"]


def test_the_job_file_holds_variables_as_data(bed: Bed, connect_as: As) -> None:
    """$PERILOG_JOB is JSON whatever the job's owner wrote, readable by the script's user alone."""
    copy = bed.folder / "copy"
    bed.action("job", prolog=f'cat "$PERILOG_JOB" > {copy}; stat -c "%a %u" "$PERILOG_JOB" > {copy}.mode')
    bed.start()
    alice = connect_as(ALICE)
    attributes = {
        "a": b"\xff\x00",
        "b": "\x00\x1b[2J\u202e",
        "n": 2**64 - 1,
        "deep": {"x": [[[{}]]]},
        "'$(reboot)'": 1,
    }
    job = alice.ok("job.submit", name="$(reboot) `reboot`", attributes=attributes)["id"]
    bed.call("job.alloc", id=job, nodes="n1")
    bed.wait(job, "ready")
    shown = json.loads(copy.read_text())
    assert shown["name"] == "$(reboot) `reboot`"
    assert (shown["attributes"]["n"], shown["attributes"]["b"]) == (2**64 - 1, "\x00\x1b[2J\u202e")
    assert (copy.parent / "copy.mode").read_text().endswith("00 0\n")
