"""Which configuration and scripts are believed: those that nobody else could have written or put there."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from raw import ALICE, IS_ROOT, NOBODY

if TYPE_CHECKING:
    from collections.abc import Callable

    from bed import Bed

    Spoil = Callable[[Bed, Path], str]


def writable_script(bed: Bed, script: Path) -> str:
    """Let the group write the script."""
    del bed
    script.chmod(0o775)
    return f"{script} can be written by its group (mode 0775)"


def writable_folder(bed: Bed, script: Path) -> str:
    """Let others write the script's folder."""
    del bed
    script.parent.chmod(0o777)
    return f"{script.parent} can be written by its group and others (mode 0777)"


def sticky_folder(bed: Bed, script: Path) -> str:
    """Let others write the script's folder, sticky but not root's; where we are root, sticky helps."""
    del bed
    script.parent.chmod(0o1777)
    return "" if IS_ROOT else f"{script.parent} can be written by its group and others (mode 1777)"


def writable_config(bed: Bed, script: Path) -> str:
    """Let others write the configuration file."""
    del script
    bed.config.chmod(0o646)
    return f"{bed.config}\n  can be written by others (mode 0646)"


def writable_parent(bed: Bed, script: Path) -> str:
    """Let others write the folder that all is in."""
    del script
    bed.folder.chmod(0o757)
    return f"{bed.folder}\n  can be written by others (mode 0757)"


def linked_elsewhere(bed: Bed, script: Path) -> str:
    """Make the script a link to a good one in a folder that others can write."""
    loose = bed.folder / "loose"
    loose.mkdir()
    loose.chmod(0o777)
    script.rename(loose / script.name)
    script.symlink_to(loose / script.name)
    return f"{loose} can be written by its group and others (mode 0777)"


def linked_through(bed: Bed, script: Path) -> str:
    """Reach the script through a link to a folder, in a folder that others can write."""
    loose = bed.folder / "loose"
    loose.mkdir()
    loose.chmod(0o777)
    (loose / "link").symlink_to(script.parent)
    away = script.with_name("away")
    script.rename(away)
    script.symlink_to(loose / "link" / "away")
    return f"{loose} can be written by its group and others (mode 0777)"


def of_somebody_else(bed: Bed, script: Path) -> str:
    """Give the script to somebody else."""
    del bed
    os.chown(script, ALICE, -1)
    return f"{script} belongs to uid {ALICE}"


def folder_of_somebody_else(bed: Bed, script: Path) -> str:
    """Give the script's folder to somebody else."""
    del bed
    os.chown(script.parent, ALICE, -1)
    return f"{script.parent} belongs to uid {ALICE}"


def link_of_somebody_else(bed: Bed, script: Path) -> str:
    """Make the script a link that somebody else has made, to a good script, in a sticky folder of root's."""
    sticky = bed.folder / "sticky"
    sticky.mkdir()
    sticky.chmod(0o1777)
    good = script.with_name("good")
    script.rename(good)
    (sticky / "link").symlink_to(good)
    os.chown(sticky / "link", ALICE, -1, follow_symlinks=False)
    script.symlink_to(sticky / "link")
    return f"{sticky / 'link'} belongs to uid {ALICE}"


ANYBODY: list[Spoil] = [
    writable_script,
    writable_folder,
    sticky_folder,
    writable_config,
    writable_parent,
    linked_elsewhere,
    linked_through,
]
ROOT: list[Spoil] = [of_somebody_else, folder_of_somebody_else, link_of_somebody_else]
SPOILS = [*ANYBODY, *(ROOT if IS_ROOT else [])]


def check(bed: Bed) -> subprocess.CompletedProcess[str]:
    """Run `perilogd --check` on the bed's configuration."""
    program = Path(sys.executable).with_name("perilogd")
    command: list[str | Path] = [program, "--config", bed.config, "--check"]
    return subprocess.run(command, check=False, capture_output=True, text=True)


@pytest.mark.parametrize("spoil", SPOILS, ids=lambda spoil: spoil.__name__)
def test_what_others_could_have_written_is_refused(bed: Bed, spoil: Spoil) -> None:
    """The daemon does not start, `--check` says the same, and a reload leaves the old configuration."""
    bed.action("a", prolog="true")
    bed.start()
    bed.executor_answers()
    before = bed.call("broker.config")
    bed.table("[limits]", requests=7)
    bed.write_config()
    expected = spoil(bed, bed.scripts / "a.prolog")
    if not expected:
        bed.call("broker.reload")
        assert bed.call("broker.config")["limits"]["requests"] == 7
        return
    told = bed.refusal("broker.reload")
    assert told.startswith("EINVAL: the configuration stays as it was: ")
    assert expected in told
    assert bed.call("broker.config") == before
    job = bed.submit()
    bed.wait(job, "ready")
    bed.stop()
    checked = check(bed)
    assert (checked.returncode, checked.stderr) == (2, "")
    assert expected in checked.stdout
    assert bed_refuses_to_start(bed, expected)


def bed_refuses_to_start(bed: Bed, expected: str) -> bool:
    """Tell whether perilogd, started on the bed's configuration, ends at once and says what is expected."""
    program = Path(sys.executable).with_name("perilogd")
    command: list[str | Path] = [program, "--config", bed.config, "--state-dir", bed.state_dir]
    command += ["--run-dir", bed.run_dir]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    return done.returncode == 2 and expected in done.stderr


@pytest.mark.other_users
def test_completion_runs_as_the_jobs_user(bed: Bed) -> None:
    """The completion script has the job's uid, groups and home, and cannot read what is another's."""
    private = bed.folder / "private"
    private.write_text("secret")
    private.chmod(0o600)
    out = bed.folder / "out"
    out.mkdir()
    out.chmod(0o1777)
    bed.action(
        "a",
        prolog="true",
        completion=f"id -u > {out}/id; id -G >> {out}/id; cat {private} > {out}/stolen 2>&1;"
        f' ls "$(dirname "$PERILOG_JOB")" >> {out}/stolen 2>&1; kill -0 $PPID 2>> {out}/stolen; true',
    )
    bed.start()
    job = bed.run_job(userid=NOBODY)
    assert bed.event(job, "completion-finish")["context"]["outcome"] == "ok"
    uid, groups = (out / "id").read_text().splitlines()
    assert (uid, groups.split()) == (str(NOBODY), [str(NOBODY)])
    stolen = (out / "stolen").read_text()
    assert "secret" not in stolen
    assert stolen.count("ermission denied") + stolen.count("not permitted") == 3, stolen


@pytest.mark.other_users
def test_an_action_can_be_run_as_a_user_of_its_own(bed: Bed) -> None:
    """`user` says whom all of an action's scripts run as, whoever the job belongs to."""
    out = bed.folder / "out"
    out.mkdir()
    out.chmod(0o1777)
    script = f"id -u > {out}/$PERILOG_PHASE"
    bed.action("a", user="nobody", prolog=script, completion=script, epilog=script)
    bed.start()
    bed.run_job(userid=0)
    assert [(out / phase).read_text() for phase in ("prolog", "completion", "epilog")] == [f"{NOBODY}\n"] * 3


@pytest.mark.other_users
def test_a_jobs_user_that_does_not_exist_is_an_outcome(bed: Bed) -> None:
    """Where nobody has the job's uid, its completion script fails and says so; root's scripts run as ever."""
    bed.action("a", prolog="true", completion="true", epilog="true")
    bed.start()
    job = bed.run_job(userid=61_999)
    ended = bed.event(job, "completion-finish")["context"]
    assert (ended["outcome"], ended["status"]) == ("failed", 126 << 8)
    assert "no such user on this host: 61999" in ended["note"]
    assert bed.event(job, "epilog-finish")["context"]["outcome"] == "ok"
