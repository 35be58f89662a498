"""Whom a script runs as, and what it may therefore be told."""

from __future__ import annotations

import os
import pwd
from typing import TYPE_CHECKING, Any

import pytest

from exec_bed import ExecBed

if TYPE_CHECKING:
    from exec_bed import Signpost

NOBODY = 65534
ROOT = os.geteuid() == 0
VARIABLES = {"DW_JOB": "dw", "LD_PRELOAD": "/evil.so", "PATH": "/evil", "PERILOG_JOB_ID": "evil"}
OWN = {"MINE": "mine", "PERILOG_REASON": "evil"}

TELL = """printf '%s\\n' "$DW_JOB" "$LD_PRELOAD" "$PATH" "$PERILOG_JOB_ID" "$MINE" \
"${{PERILOG_REASON:-none}}" "$PERILOG_ENV_LD_PRELOAD" "$PERILOG_ENV_PATH" "$PERILOG_ENV_MINE" . > {}"""


def told(signpost: Signpost) -> list[str]:
    """Return what `TELL` tells."""
    lines = []
    while (line := signpost.line()) != ".":
        lines.append(line)
    return lines


def test_a_script_of_somebody_else_gets_variables_under_harmless_names(
    bed: ExecBed, signpost: Signpost
) -> None:
    """Only what matches [executor] environment keeps its name; an owner's own do not come at all."""
    bed.action("a", TELL.format(signpost))
    peer = bed.start()
    run = bed.run(peer, "a", userid=12345, variables=VARIABLES, user_variables=OWN)
    dw, preload, path, job, mine, reason, *prefixed = told(signpost)
    assert (dw, preload, job, mine, reason) == ("dw", "", "1", "", "none")
    assert "/evil" not in path
    assert prefixed == ["/evil.so", "/evil", ""]
    assert peer.record(run)["outcome"] == "ok"


def test_a_script_of_the_jobs_own_user_gets_all_variables(bed: ExecBed, signpost: Signpost) -> None:
    """Who runs as the job's user gets its variables as they are called, but for those that are built."""
    bed.action("a", TELL.format(signpost).replace("$LD_PRELOAD", "$LD_AUDIT"))
    peer = bed.start()
    variables = {**VARIABLES, "LD_AUDIT": "audit"}
    del variables["LD_PRELOAD"]
    bed.run(peer, "a", userid=bed.uid, variables=variables, user_variables=OWN)
    dw, audit, path, job, mine, reason, *prefixed = told(signpost)
    assert (dw, audit, job, mine, reason) == ("dw", "audit", "1", "mine", "none")
    assert "/evil" not in path
    assert prefixed == ["", "", ""]


def test_the_patterns_are_the_configurations(bed: ExecBed, signpost: Signpost) -> None:
    """[executor] environment is a list of shell patterns."""
    bed.table('[executor]\nenvironment = ["A?C", "X*"]')
    bed.action("a", f'echo "$ABC $ABBC $XY $DW_JOB" > {signpost}')
    peer = bed.start()
    bed.run(peer, "a", userid=12345, variables={"ABC": "1", "ABBC": "2", "XY": "3", "DW_JOB": "4"})
    assert signpost.line() == "1  3 "


USER_CASES: list[Any] = (
    [
        ("completion", None, NOBODY),
        ("prolog", "nobody", NOBODY),
        ("epilog", "root", 0),
        ("completion", "root", 0),
    ]
    if ROOT
    else [("completion", None, os.geteuid()), ("prolog", pwd.getpwuid(os.geteuid()).pw_name, os.geteuid())]
)


@pytest.mark.parametrize(("phase", "user", "uid"), USER_CASES)
def test_a_script_runs_as_whom_it_should(
    own_bed: ExecBed, signpost: Signpost, phase: Any, user: str | None, uid: int
) -> None:
    """Completion scripts run as the job's user, if the action names nobody, with all of his groups."""
    keys = {} if user is None else {"user": user}
    own_bed.action(
        "a",
        f'echo "$(id -u) $(id -g) $HOME $(stat -c %u:%a "$PERILOG_JOB") $(cat "$PERILOG_JOB")" > {signpost}\n'
        f"id -G > {signpost}; pwd > {signpost}; umask > {signpost}; ps -o sid= -p $$ > {signpost}\n"
        'echo visible > "$PERILOG_MESSAGE"; echo A=1 > "$PERILOG_ENVIRONMENT"; echo out > /dev/stdout',
        phase,
        timeout="1h",
        **keys,
    )
    peer = own_bed.start()
    run = own_bed.run(peer, "a", phase, userid=uid or 12345)
    who = pwd.getpwuid(uid)
    assert signpost.line() == f'{uid} {who.pw_gid} {who.pw_dir} {uid}:600 {{"id":1}}'
    if uid != own_bed.uid:
        groups = os.getgrouplist(who.pw_name, who.pw_gid)
        assert {int(group) for group in signpost.line().split()} == set(groups)
    else:
        signpost.line()
    assert [signpost.line(), signpost.line()] == ["/", "0022"]
    record = peer.record(run)
    assert int(signpost.line()) == record["pid"] == peer.started(run)[0]
    assert (record["outcome"], record["message"], record["environment"]) == ("ok", "visible", {"A": "1"})
    assert record["max_rss"] > 0
    answer = peer.ask("output", tag=1, id=run, limit=100)
    assert answer["head"] == b"out\n"
    peer.send("ack", ids=[run])
    peer.barrier()
    assert own_bed.files(run) == {".out"}


FAILING: list[Any] = (
    [({}, 54321, "exit 0", "no such user on this host: 54321"),
     ({}, NOBODY, None, "there is no such file"),
     ({}, NOBODY, "no first line", "has no '#!' line")]
    if ROOT
    else [({}, 54321, "exit 0", "is to run as 54321, which needs root")]
)  # fmt: skip


@pytest.mark.parametrize(("keys", "userid", "body", "text"), FAILING)
def test_what_cannot_be_started_as_its_user_says_why(
    own_bed: ExecBed, keys: dict[str, Any], userid: int, body: str | None, text: str
) -> None:
    """Failures on the way to another user are outcomes like any other."""
    path = own_bed.action("a", "exit 0", "completion", **keys)
    peer = own_bed.start()
    definition = own_bed.definition("a")
    if body is None:
        path.unlink()
    elif "first line" in body:
        path.write_text("echo no first line\n")
    record = peer.record(own_bed.run(peer, "a", "completion", userid=userid, definition=definition))
    assert (record["outcome"], record["pid"]) == ("failed", None)
    assert record["status"] in {126 << 8, 127 << 8}
    assert text in record["error"]


def test_a_plain_executor_runs_nobody_elses_scripts(plain_bed: ExecBed) -> None:
    """Without privileges a completion of another user's job fails, and says what it needs."""
    plain_bed.action("a", "exit 0", "completion")
    peer = plain_bed.start()
    record = peer.record(plain_bed.run(peer, "a", "completion", userid=plain_bed.uid + 1))
    assert (record["outcome"], record["status"]) == ("failed", 126 << 8)
    assert f"is to run as {plain_bed.uid + 1}, which needs root" in record["error"]
    record = peer.record(plain_bed.run(peer, "a", "completion", job=2))
    assert record["outcome"] == "ok"


def test_scripts_of_other_users_are_ended_and_found_like_all_others(
    own_bed: ExecBed, signpost: Signpost
) -> None:
    """Retry, deadline, adoption and cancel do not depend on whom a script runs as."""
    body = f"trap 'exit 3' TERM; echo up > {signpost}; sleep 1000 & wait"
    path = own_bed.action("a", body, "completion")
    own_bed.action("b", body, "completion", timeout="500ms")
    user = NOBODY if ROOT else own_bed.uid
    peer = own_bed.start_below("zombies")
    with path.open("a"):  # so that it cannot be executed yet
        run = own_bed.run(peer, "a", "completion", userid=user)
        peer.barrier()
    assert signpost.line() == "up"
    late = own_bed.run(peer, "b", "completion", userid=user)
    assert signpost.line() == "up"
    assert (peer.record(late)["outcome"], peer.record(late)["status"]) == ("timeout", 3 << 8)
    own_bed.kill()
    peer = own_bed.start_below()
    peer.send("cancel", id=run, reason="abandon")
    assert (peer.record(run)["outcome"], peer.record(run)["status"]) == ("canceled", 3 << 8)
