"""Requests whose form is right and whose content is not: jobs, names and moments that are not there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from raw import Raw

if TYPE_CHECKING:
    from collections.abc import Callable

    from protocol.target import Target

NO_JOB = [999_999, 2**31, 2**32 + 1, 2**63 - 1]


@pytest.mark.parametrize("id_", NO_JOB)
def test_jobs_that_do_not_exist(target: Target, client: Raw, id_: int) -> None:
    """Every method that takes a job's id answers ENOENT with that id, and waits for nothing."""
    with target.unharmed():
        for name, method in target.methods.items():
            if any(
                argument["name"] == "id" and argument["type"] == "integer" for argument in method["arguments"]
            ):
                text = client.refused(name, **{**target.required(name), "id": id_})
                assert text.startswith("ENOENT: no ")
                assert text.endswith(f"job: {id_}")


def test_ids_that_are_none(target: Target, client: Raw) -> None:
    """Zero, negative and too large numbers are EINVAL, not a job that cannot be found."""
    with target.unharmed():
        for id_ in (0, -1, 2**63, 2**64 - 1, 1.0):
            assert client.refused("job.get", id=id_).startswith("EINVAL: job.get: argument id is ")


def test_keys_that_do_not_exist(target: Target, client: Raw) -> None:
    """A key that nobody gave is ENOENT and named, whatever is in it."""
    with target.unharmed():
        for key in ("no-such-key", "key:1", "'; DROP TABLE jobs; --", "%", "ä" * 255, "1\u00b2"):
            assert client.refused("job.get", key=key) == f"ENOENT: no job with key {key!r}"
        assert client.refused("job.get").startswith("EINVAL: job.get: give either id or key")
        assert client.refused("job.get", id=1, key="k").startswith("EINVAL: job.get: give either id or key")


def test_dependencies_that_are_none(target: Target, client: Raw) -> None:
    """A dependency of another form is EINVAL, one on a job that is not there ENOENT; no job is made."""
    with target.unharmed():
        for text in ("17", "after", "after:", "before:1", "afterok 1", ":1", "AFTEROK:1", "afterok:\n", ""):
            refused = client.refused("job.submit", dependencies=[text])
            assert refused.startswith(("EINVAL: dependencies: ", "ENOENT: no job with key"))
            assert refused.isprintable()
        for target_id in NO_JOB:
            text = client.refused("job.submit", dependencies=[f"afterok:{target_id}"])
            assert text.startswith("ENOENT: ")
            assert str(target_id) in text
        for key in ("no-such-key", "key:no-such-key"):
            text = client.refused("job.submit", dependencies=[f"afterok:{key}"])
            assert text == "ENOENT: no job with key 'no-such-key'"


def test_finish_of_what_was_never_started(target: Target, client: Raw) -> None:
    """Finishing or updating a hold that never was is ENOENT and names it, by force too."""
    job = client.ok("job.submit", nodes="n1")["id"]
    target.bed.wait(job, "ready")
    with target.unharmed():
        for phase in ("depend", "prolog", "completion", "epilog"):
            for name in ("never", "undo2"):
                hold = {"id": job, "phase": phase, "name": name}
                for method, more in (
                    ("hold.finish", {}),
                    ("hold.finish", {"force": True}),
                    ("hold.update", {"progress": 1}),
                    ("hold.update", {"timeout": "1h"}),
                ):
                    text = client.refused(method, **hold, **more)
                    assert text.startswith(f"ENOENT: job {job} has never had a hold {phase}/{name}")
    client.ok("job.cancel", id=job)
    target.bed.wait(job, "clean")


def test_holds_on_phases_that_have_passed(target: Target, client: Raw) -> None:
    """A hold on a phase that is over is ESTATE with the job's state, at every point of its life."""
    passed: list[str] = []
    # The state, the phase that has just passed, and what brings the job there.
    states: list[tuple[str, str, str, dict[str, Any]]] = [
        ("SCHED", "depend", "job.get", {}),
        ("RUN", "prolog", "job.alloc", {"nodes": "n1"}),
        ("EPILOG", "completion", "job.cancel", {}),
        ("INACTIVE", "epilog", "hold.finish", {"phase": "epilog", "name": "stay"}),
    ]
    job = client.ok("job.submit", holds=[{"phase": "epilog", "name": "stay"}])["id"]
    for state, phase, method, arguments in states:
        client.ok(method, id=job, **arguments)
        if state == "EPILOG":
            target.bed.wait(job, "epilog-finish", description="undo")
        if state == "INACTIVE":
            target.bed.wait(job, "clean")
        passed.append(phase)
        with target.unharmed():
            for over in passed:
                text = client.refused("hold.start", id=job, phase=over, name="late")
                assert text.startswith(
                    f"ESTATE: the {over} phase of job {job} has passed; the job is in state "
                )
                assert text.endswith(state)


def test_right_requests_at_the_wrong_moment(target: Target, client: Raw) -> None:
    """What cannot be done in the job's state is ESTATE with that state, and nothing is written."""
    held: Any = [{"phase": "depend", "name": "wait"}]
    job = client.ok("job.submit", holds=held)["id"]
    ended = client.ok("job.submit")["id"]
    client.ok("job.cancel", id=ended)
    target.bed.wait(ended, "clean")
    early: list[tuple[str, dict[str, Any]]] = [
        ("job.alloc", {"nodes": "n1"}),
        ("job.start", {}),
        ("job.start", {"attempt": 7}),
        ("job.exit", {"status": 0}),
        ("job.exit", {"status": 0, "attempt": 2}),
        ("job.rerun", {}),
        ("script.kill", {"phase": "epilog", "action": "undo"}),
    ]
    late: list[tuple[str, dict[str, Any]]] = [
        *early[:-1],
        ("job.raise", {"type": "x", "severity": 0}),
        ("job.cancel", {}),
        ("job.memo", {"memo": {"a": 1}}),
        ("job.wait", {"event": "start"}),
        ("job.wait", {"event": "no-such-event"}),
    ]
    with target.unharmed():
        for id_, state, requests in ((job, "DEPEND", early), (ended, "INACTIVE", late)):
            for method, arguments in requests:
                text = client.refused(method, id=id_, **arguments)
                assert text.startswith("ESTATE: "), (method, text)
                assert state in text
        assert client.refused("job.raise", id=job, type="x", severity=1, abandon=True).startswith("EINVAL: ")
        assert client.refused("job.raise", id=job, type="timelimit", severity=0, abandon=True).startswith(
            "EINVAL: abandon: "
        )
    client.ok("job.cancel", id=job)
    target.bed.wait(job, "clean")


@pytest.mark.parametrize("status", [127, 255, 4991, 65_535])
def test_statuses_that_no_process_ends_with(target: Target, client: Raw, status: int) -> None:
    """A wait status that says "stopped" or "continued" is EINVAL: nobody could show it as an exit code."""
    job = client.ok("job.submit", nodes="n1", holds=[{"phase": "completion", "name": "a"}])["id"]
    target.bed.wait(job, "ready")
    client.ok("job.start", id=job)
    with target.unharmed():
        text = client.refused("job.exit", id=job, status=status)
        assert text.startswith(f"EINVAL: job.exit: argument status is {status}, expected")
        hold = {"id": job, "phase": "completion", "name": "a"}
        text = client.refused("hold.finish", **hold, status=status)
        assert text.startswith(f"EINVAL: hold.finish: argument status is {status}, expected")
    client.ok("hold.finish", **hold, status=65_280)
    client.ok("job.exit", id=job, status=139)  # a core was dumped
    target.bed.wait(job, "clean")
    assert client.ok("job.get", id=job)["exit_code"] == 128 + 11


def test_names_of_what_is_not_there(target: Target, client: Raw) -> None:
    """Scripts, outputs, nodes and watches that are not there are named in the refusal."""
    job = client.ok("job.submit")["id"]
    with target.unharmed():
        for phase, action in (("prolog", "undo"), ("epilog", "undo"), ("epilog", "no-such-action")):
            text = client.refused("script.output", id=job, phase=phase, action=action)
            assert text == f"ENOENT: job {job} has never run {phase} {action}"
            text = client.refused("script.kill", id=job, phase=phase, action=action)
            assert text.startswith(f"ESTATE: {phase} {action} of job {job} does not run")
        assert client.refused("watch.cancel", watch=12_345) == "ENOENT: this connection has no watch 12345"
        assert client.refused("hello", client="x", provider="no-such").startswith("EPERM: ")
        client.ok("node.undrain", nodes="never-drained")
        assert client.ok("node.list", nodes="never-drained") == []
    client.ok("job.cancel", id=job)
    target.bed.wait(job, "clean")


def test_a_watch_of_another_connection_is_not_there(target: Target, connect: Callable[[], Raw]) -> None:
    """A watch is cancelled by the connection that has it, and by no other."""
    one, other = connect(), connect()
    watch = one.ok("job.watch")["watch"]
    with target.unharmed():
        assert other.refused("watch.cancel", watch=watch).startswith("ENOENT: ")
    one.ok("watch.cancel", watch=watch)


@pytest.mark.parametrize(
    "text", ["a\nb", "a\0b", "\x1b[31m", "\u202e", "x" * 10_000, "a\tb", "\x7f", "\u2028"]
)
def test_texts_that_a_terminal_would_obey(target: Target, client: Raw, text: str) -> None:
    """Where a text may be anything it comes back as it was; elsewhere it is refused, in printable words."""
    for arguments in ({"name": text}, {"key": text}, {"dependencies": [text]}):
        with target.unharmed():
            refused = client.refused("job.submit", **arguments)
            assert refused.startswith("EINVAL: ")
            assert refused.isprintable()
            assert len(refused) < 500
    if len(text) > 1024:
        return
    job = client.ok("job.submit", attributes={text: text})["id"]
    client.ok("job.raise", id=job, type="x", severity=3, note=text)
    client.ok("job.memo", id=job, memo={text: text})
    shown = client.ok("job.get", id=job)
    assert (shown["attributes"], shown["memo"]) == ({text: text}, {text: text})
    assert shown["exceptions"][0]["note"] == text
    for words in (
        ["show", str(job)],
        ["eventlog", str(job)],
        ["list"],
        ["eventlog", "--format", "json", str(job)],
    ):
        said = target.bed.command(*words)
        assert said.returncode == 0
        assert all(line.isprintable() for line in said.stdout.split("\n")), said.stdout
    assert text not in target.bed.log_tail()
    client.ok("job.cancel", id=job, note=text)
    target.bed.wait(job, "clean")
