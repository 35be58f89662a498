"""The files of etc/: the example says what is true, and the scripts do and undo what they promise."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from config_site import Site
from perilogd.config import schema

ETC = Path(__file__).resolve().parents[2] / "etc"
EXAMPLE = (ETC / "perilogd.toml").read_text()
#: The example as it is when every line that is a key or a table is brought to life.
LIVE = re.sub(r"(?m)^#(?=\[\[|[a-z-]+ = )", "", EXAMPLE)


@pytest.fixture
def site(folder: Path) -> Site:
    """An empty configuration folder."""
    return Site(folder)


@pytest.fixture
def installed(site: Site) -> Site:
    """The files of etc/, as an administrator installs them."""
    shutil.copytree(ETC, site.folder, dirs_exist_ok=True)
    for path in site.folder.rglob("*"):
        path.chmod(0o755 if path.is_dir() or os.access(path, os.X_OK) else 0o644)
    return site


def test_example_changes_nothing(installed: Site) -> None:
    """The example is the default configuration, with the one example action."""
    table = installed.load().as_table()
    (action,) = table.pop("action")
    assert action["name"] == "scratch"
    assert set(action) > {"prolog", "completion", "epilog"}
    for script in installed.folder.glob("*.d/*"):
        script.unlink()
    installed.write("")
    default = installed.load().as_table()
    assert default.pop("action") == []
    assert table == default


def test_example_lists_every_key_with_its_default(site: Site) -> None:
    """Each key that there is stands in the example, with the value that it has where it is not written."""
    tables = tomllib.loads(LIVE)
    (action,), (provider,) = tables.pop("action"), tables.pop("provider")
    site.write("")
    defaults = site.load().as_table()
    defaults["broker"]["guest-nodes"] = "n[1-16]"  # in truth this host, whose name the example cannot know
    assert tables == {name: defaults[name] for name in schema.SECTIONS}
    assert action.keys() == schema.ACTION.keys.keys()
    assert provider.keys() == schema.PROVIDER.keys.keys()
    assert_defaults(action, schema.ACTION, defaults["holds"]["timeout"])
    assert_defaults(provider, schema.PROVIDER, defaults["holds"]["timeout"])


def assert_defaults(written: dict[str, Any], table: schema.Table, timeouts: dict[str, str]) -> None:
    """Compare what the example says of an action or a provider with what is true."""
    for key, default in table.defaults().items():
        if key == "timeout":
            timeout = table.keys[key].kind
            assert isinstance(timeout, schema.Table)
            assert written[key] == {phase: timeouts[phase] for phase in timeout.keys}
        else:
            assert written[key] == default


def test_example_can_be_brought_to_life(site: Site) -> None:
    """With every line in force, nothing is wrong but that the example's scripts are not installed."""
    site.write(LIVE)
    missing = ("/usr/local/sbin/job-mount", "/usr/local/bin/job-drain", "/usr/local/sbin/job-mount")
    assert site.faults(uid=0 if os.geteuid() == 0 else None)[: len(missing)] == [
        f'SITE/perilogd.toml: [[action]] "mount" {phase}: found "{script}", but {script} cannot be examined: '
        "No such file or directory; expected an executable file"
        for phase, script in zip(schema.SCRIPT_PHASES, missing, strict=True)
    ]


@dataclass
class Job:
    """A job whose example scripts can be run, as perilog-exec runs them.

    Args:
        folder: an empty folder.
        userid: the uid of the job's user.
    """

    folder: Path
    userid: int

    def __post_init__(self) -> None:
        """Name what lies in the folder."""
        self.base = self.folder / "base"
        self.scratch = self.base / "job-17"
        self.message = self.folder / "message"
        self.environment = self.folder / "environment"
        self.home = self.folder / "home"
        self.home.mkdir()
        os.chown(self.home, self.userid, -1)

    def run(self, phase: str, *, user: int | None = None, **variables: str) -> int:
        """Run the script of a phase and return its exit code."""
        self.message.write_text("")
        self.message.chmod(0o666)
        return subprocess.run(
            [ETC / f"{phase}.d/scratch", self.base],
            stdin=subprocess.DEVNULL,
            cwd="/",
            user=user,
            env={
                "PATH": "/usr/bin:/bin",
                "HOME": str(self.home),
                "PERILOG_JOB_ID": "17",
                "PERILOG_JOB_USERID": str(self.userid),
                "PERILOG_MESSAGE": str(self.message),
                "PERILOG_ENVIRONMENT": str(self.environment),
                **variables,
            },
            check=False,
        ).returncode


@pytest.fixture(params=["own", "other"] if os.geteuid() == 0 else ["own"])
def job(request: pytest.FixtureRequest, folder: Path) -> Job:
    """A job of ours and, where we are root, one of somebody else."""
    return Job(folder, 54321 if request.param == "other" else os.geteuid())


def test_do_and_undo(job: Job) -> None:
    """The prolog makes a folder for the user alone and says where; the epilog removes it with its content."""
    assert job.run("prolog") == 0
    status = job.scratch.stat()
    assert (status.st_uid, status.st_mode & 0o7777) == (job.userid, 0o700)
    assert job.environment.read_text() == f"JOB_SCRATCH={job.scratch}\n"
    precious = job.folder / "precious"
    precious.mkdir()
    (precious / "file").write_text("")
    (job.scratch / "below").mkdir()
    (job.scratch / "below/link").symlink_to(precious)
    assert job.run("epilog") == 0
    assert list(job.base.iterdir()) == []
    assert (precious / "file").exists()


def test_undo_of_nothing(job: Job) -> None:
    """The epilog bears a prolog that did nothing, and being run again."""
    assert job.run("epilog") == 0
    assert job.run("prolog") == 0
    assert job.run("epilog") == 0
    assert job.run("epilog") == 0


def test_folder_is_there_already(job: Job) -> None:
    """A folder that somebody left under the job's name is not handed out, and the user is told."""
    job.base.mkdir(mode=0o711)
    job.scratch.mkdir()
    assert job.run("prolog") == 1
    assert job.message.read_text() == "no scratch folder for job 17: see perilog output\n"
    assert not job.environment.exists()


def test_writable_base_is_refused(job: Job) -> None:
    """Where others can write, neither script follows what they may have put there."""
    job.base.mkdir()
    job.base.chmod(0o777)
    assert job.run("prolog") == 1
    assert "nobody else may write it" in job.message.read_text()
    job.scratch.symlink_to(job.home)
    assert job.run("epilog") == 1
    assert job.home.stat().st_uid == job.userid


def test_strange_job_id(job: Job) -> None:
    """The epilog removes nothing for an id that is no number."""
    job.base.mkdir(mode=0o711)
    assert job.run("epilog", PERILOG_JOB_ID="../home") == 1
    assert job.home.exists()


def test_completion_keeps_data(job: Job) -> None:
    """What the job left in keep/ is in the user's home before the epilog removes it, however often run."""
    assert job.run("prolog") == 0
    keep = job.scratch / "keep"
    keep.mkdir()
    (keep / "result").write_text("42")
    for path in (keep, keep / "result"):
        os.chown(path, job.userid, -1)
    user = job.userid if os.geteuid() == 0 else None
    for _ in range(2):
        assert job.run("completion", user=user, JOB_SCRATCH=str(job.scratch)) == 0
        assert job.message.read_text() == f"kept in {job.home}/job-17\n"
    assert job.run("epilog") == 0
    assert (job.home / "job-17/result").read_text() == "42"


def test_completion_fails(job: Job) -> None:
    """Data that could not be copied makes the script fail, with a sentence for the user."""
    assert job.run("prolog") == 0
    (job.scratch / "keep").mkdir()
    assert job.run("completion", JOB_SCRATCH=str(job.scratch), HOME="/nosuch") == 1
    assert job.message.read_text() == f"could not copy all of {job.scratch}/keep to /nosuch/job-17\n"


def test_completion_of_nothing(job: Job) -> None:
    """Without a scratch folder, or with nothing to keep in it, there is nothing to do."""
    assert job.run("completion") == 0
    assert job.run("prolog") == 0
    assert job.run("completion", JOB_SCRATCH=str(job.scratch)) == 0
    assert list(job.home.iterdir()) == []
