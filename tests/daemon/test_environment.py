"""What scripts get and give: variables, files and messages, to later scripts and the application."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from bed import Bed

#: Whose jobs these are: nobody that scripts here run as.
SOMEBODY = 20001


def told(bed: Bed, name: str) -> dict[str, str]:
    """Return the variables that a script has printed into a file of the bed's folder."""
    lines = (bed.folder / name).read_text().splitlines()
    return dict(line.split("=", 1) for line in lines)


def test_a_script_gets_what_it_was_promised_and_nothing_else(bed: Bed) -> None:
    """The environment holds the documented variables and no more; directory, stdin, umask and session fit."""
    facts = 'echo "$(pwd) $(umask) $(wc -c) $(cut -d" " -f6 /proc/$$/stat) $$"'
    script = f"env -i true; env > {bed.folder}/$PERILOG_PHASE; {facts} > {bed.folder}/facts"
    bed.action("a", prolog=script, epilog=script, timeout={"prolog": "1h", "epilog": "infinity"})
    bed.start()
    job = bed.submit(userid=SOMEBODY, key="k-1", name="a name", nodes="n[1-3]")
    bed.wait(job, "ready")
    bed.call("job.start", id=job)
    bed.call("job.exit", id=job, status=768)
    bed.wait(job, "clean")
    prolog, epilog = told(bed, "prolog"), told(bed, "epilog")
    common = {
        "LANG": "C.UTF-8",
        "PERILOG_SOCKET": str(bed.socket),
        "PERILOG_JOB_ID": str(job),
        "PERILOG_JOB_KEY": "k-1",
        "PERILOG_JOB_USERID": str(SOMEBODY),
        "PERILOG_JOB_NAME": "a name",
        "PERILOG_JOB_NODES": "n[1-3]",
        "PERILOG_ACTION": "a",
        "PERILOG_ATTEMPT": "1",
    }
    assert common.items() <= prolog.items()
    files = {"PERILOG_JOB", "PERILOG_MESSAGE", "PERILOG_ENVIRONMENT"}
    shell = {"PWD", "OLDPWD", "SHLVL", "_"}
    expected = {*common, *files, "PATH", "HOME", "PERILOG_PHASE", "PERILOG_RUN_ID"}
    assert set(prolog) - shell == expected | {"PERILOG_DEADLINE"}
    told_later = {"PERILOG_JOB_STATUS": "768", "PERILOG_REASON": "finish", "PERILOG_PROLOG_STATUS": "0"}
    assert told_later.items() <= epilog.items()
    assert set(epilog) - shell == expected | set(told_later)
    deadline = bed.event(job, "prolog-start")["timestamp"] + 3600
    assert int(prolog["PERILOG_DEADLINE"]) == pytest.approx(deadline, abs=30)
    directory, umask, size, session, pid = (bed.folder / "facts").read_text().split()
    assert (directory, umask, size) == ("/", "0022", "0")
    assert session == pid


def test_variables_reach_later_scripts_and_the_application(bed: Bed) -> None:
    """What a prolog writes is in later scripts, under its own name where that is harmless, and in the job."""
    writes = 'printf "DW_JOB=/mnt/x\\nBASH_ENV=/tmp/evil\\nEMPTY=\\nA=1=2\\n" >> "$PERILOG_ENVIRONMENT"'
    bed.action("a", prolog=writes, epilog=f"env > {bed.folder}/epilog")
    bed.start()
    job = bed.submit(userid=SOMEBODY)
    bed.wait(job, "ready")
    written = {"DW_JOB": "/mnt/x", "BASH_ENV": "/tmp/evil", "EMPTY": "", "A": "1=2"}
    assert bed.job(job)["environment"] == written
    assert bed.event(job, "environment")["context"] == {"description": "a", "variables": written}
    names = bed.names(job)
    assert names.index("environment a") + 1 == names.index("prolog-finish a")
    bed.kill9()
    bed.start()
    bed.call("job.cancel", id=job)
    bed.wait(job, "clean")
    environment = told(bed, "epilog")
    assert environment["DW_JOB"] == "/mnt/x"
    assert environment["PERILOG_ENV_BASH_ENV"] == "/tmp/evil"
    assert environment["PERILOG_ENV_A"] == "1=2"
    assert not {"BASH_ENV", "EMPTY", "A"} & set(environment)


def test_a_holders_variables_reach_scripts_too(bed: Bed) -> None:
    """Variables of a hold.finish are in later scripts; [executor] environment decides under which name."""
    bed.table("[executor]", environment=["DW_*", "SITE_?"])
    bed.action("a", epilog=f"env > {bed.folder}/epilog")
    bed.start()
    job = bed.submit(userid=SOMEBODY, holds=[{"phase": "prolog", "name": "dws"}])
    variables = {"SITE_A": "1", "SITE_AB": "2", "PATH": "/evil", "PERILOG_JOB_ID": "7"}
    bed.call("hold.finish", id=job, phase="prolog", name="dws", environment=variables)
    bed.wait(job, "ready")
    bed.call("job.cancel", id=job)
    bed.wait(job, "clean")
    environment = told(bed, "epilog")
    assert (environment["SITE_A"], environment["PERILOG_ENV_SITE_AB"]) == ("1", "2")
    assert "/evil" not in environment["PATH"]
    assert environment["PERILOG_JOB_ID"] == str(job)


def test_variables_of_a_script_that_fails_are_not_read(bed: Bed) -> None:
    """Only a script that exits 0 hands variables over; wrong lines are left out and told."""
    write = 'echo "X=1" >> "$PERILOG_ENVIRONMENT"'
    bed.action("good", prolog=f'{write}; echo "no variable" >> "$PERILOG_ENVIRONMENT"')
    bed.action("bad", after=["good"], prolog='echo "Y=1" >> "$PERILOG_ENVIRONMENT"; exit 1')
    bed.start()
    job = bed.submit()
    bed.wait(job, "clean")
    assert bed.job(job)["environment"] == {"X": "1"}
    note = bed.event(job, "prolog-finish", description="good")["context"]["note"]
    assert note == "PERILOG_ENVIRONMENT: expected NAME=value, ignored line 2"


@pytest.mark.parametrize(
    ("variables", "refused"),
    [({"A-B": "1"}, "A-B"), ({"1A": "1"}, "1A"), ({"A": "x\0y"}, "NUL"), ({"A": "x" * 70000}, "bytes")],
)
def test_bad_variables_are_refused(bed: Bed, variables: dict[str, str], refused: str) -> None:
    """A name that is none, a NUL, or too much in all is EINVAL, and the hold stays."""
    bed.start()
    job = bed.submit(holds=[{"phase": "prolog", "name": "dws"}])
    text = bed.refusal("hold.finish", id=job, phase="prolog", name="dws", environment=variables)
    assert text.startswith("EINVAL: ")
    assert refused in text
    assert bed.hold(job, "prolog", "dws")["stage"] == "active"


def test_one_line_is_shown_to_the_user(bed: Bed) -> None:
    """The first line of $PERILOG_MESSAGE is in finish and exception, cut to 256 bytes, made printable."""
    bed.action("a", prolog='printf "no \\033[31mspace\\007 left\\nsecret" > "$PERILOG_MESSAGE"; exit 1')
    bed.action("long", epilog='head -c 3000 /dev/zero | tr "\\0" x > "$PERILOG_MESSAGE"')
    bed.start()
    job = bed.submit()
    bed.wait(job, "clean")
    message = bed.event(job, "prolog-finish")["context"]["message"]
    assert message == "no ?[31mspace? left"
    note = bed.event(job, "exception")["context"]["note"]
    assert note == f"prolog a failed for job {job}: exit code 1: {message}"
    assert bed.event(job, "epilog-finish", description="long")["context"]["message"] == "x" * 256


def test_the_job_is_there_as_a_file(bed: Bed) -> None:
    """$PERILOG_JOB names a file with the job as JSON, as it is when the script begins."""
    copy = f'cat "$PERILOG_JOB" > {bed.folder}/$PERILOG_PHASE'
    bed.action("a", prolog=copy, epilog=copy)
    bed.start()
    job = bed.submit(
        attributes={"dw": "10GB", "n": [1, 2]}, name="x", nodes="n[1-2]", resources={"cores": "0-3"}
    )
    bed.wait(job, "ready")
    bed.call("job.start", id=job)
    bed.call("job.exit", id=job, status=256)
    bed.wait(job, "clean")
    prolog = json.loads((bed.folder / "prolog").read_text())
    epilog = json.loads((bed.folder / "epilog").read_text())
    assert prolog["id"] == job
    assert prolog["attributes"] == {"dw": "10GB", "n": [1, 2]}
    assert (prolog["nodes"], prolog["resources"]) == ("n[1-2]", {"cores": "0-3"})
    assert (prolog["state"], prolog["exit_status"], prolog["result"]) == ("PROLOG", None, None)
    assert (epilog["state"], epilog["exit_status"], epilog["result"]) == ("EPILOG", 256, "FAILED")


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ("finish", "finish"),
        ("cancel", "cancel"),
        ("timelimit", "timelimit"),
        ("prolog", "prolog-failed"),
        ("hold", "timeout"),
        ("licence", "licence"),
    ],
)
def test_an_epilog_is_told_why_it_came(bed: Bed, how: str, reason: str) -> None:
    """PERILOG_REASON is the documented word for each way in which a job can end."""
    bed.action("a", epilog=f'echo "$PERILOG_REASON" > {bed.folder}/reason')
    bed.start()
    job = bed.submit(holds=[{"phase": "prolog", "name": "x"}])
    if how == "hold":
        bed.call("hold.update", id=job, phase="prolog", name="x", timeout="10ms")
    elif how == "prolog":
        bed.call("hold.finish", id=job, phase="prolog", name="x", status=256)
    else:
        bed.call("hold.finish", id=job, phase="prolog", name="x")
        bed.wait(job, "ready")
        bed.call("job.start", id=job)
        if how != "finish":
            bed.call("job.raise", id=job, type=how, severity=0)
        bed.call("job.exit", id=job, status=0)
    bed.wait(job, "clean")
    assert Path(bed.folder / "reason").read_text() == f"{reason}\n"


def test_the_application_of_perilog_run_gets_the_variables(bed: Bed) -> None:
    """`perilog run` gives its command what prologs and holders handed over, on top of its own environment."""
    bed.action("a", prolog='echo "SCRATCH=/mnt/x" >> "$PERILOG_ENVIRONMENT"')
    bed.start()
    done = bed.command("run", "--", "sh", "-c", 'echo "$SCRATCH $HOME"; exit 3')
    assert done.returncode == 3, done.stderr
    assert done.stdout == f"/mnt/x {os.environ['HOME']}\n"
