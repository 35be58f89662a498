"""The client library against a broker that refuses, breaks off, floods and comes back."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import perilog
from client.fake_broker import PATIENCE, FakeBroker, FakeLife, Refused
from perilog import connect

if TYPE_CHECKING:
    from client.command import Command


def test_three_lines(life: FakeLife) -> None:
    """Connect, submit, call: three lines, and the connection is closed at the end."""
    with perilog.connect(str(life.path)) as broker:
        job = broker.submit(nodes="n1")
        assert broker.call("job.get", id=job)["nodes"] == "n1"
    with pytest.raises(perilog.Unreachable, match="closed"):
        broker.call("job.get", id=job)


def test_the_socket_of_the_environment(life: FakeLife, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a socket named, $PERILOG_SOCKET is it."""
    monkeypatch.setenv("PERILOG_SOCKET", str(life.path))
    with perilog.connect() as broker:
        assert broker.call("broker.ping") == {"version": "0"}


def test_importing_the_package_loads_nothing() -> None:
    """`import perilog` costs next to nothing; its names are loaded when they are used."""
    program = (
        "import sys; sys.path.append(sys.argv[1]); before = set(sys.modules); import perilog;"
        "assert set(sys.modules) - before <= {'perilog', '__future__'}, set(sys.modules) - before;"
        "perilog.Error; assert 'perilog.client' not in sys.modules;"
        "print(sorted(perilog.__all__) == sorted(n for n in perilog.__all__ if getattr(perilog, n)))"
    )
    clients = str(Path(perilog.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-c", program, clients], capture_output=True, text=True, check=True
    )
    assert done.stdout == "True\n"
    with pytest.raises(AttributeError, match="nothing"):
        getattr(perilog, "nothing")  # noqa: B009 - mypy knows that it is not there


@pytest.mark.parametrize(
    ("text", "kind", "code"),
    [
        ("ENOENT: no such job: 17", perilog.Error, "ENOENT"),
        ("ETIMEDOUT: too late", perilog.TimedOut, "ETIMEDOUT"),
        ("it broke", perilog.Error, "EPROTO"),
    ],
)
def test_a_refusal_has_its_code(text: str, kind: type[perilog.Error], code: str, fake: FakeBroker) -> None:
    """A refusal is an exception with the broker's code and text; the connection stays usable."""
    fake.answers = {"job.get": Refused(text), "broker.ping": {}}
    with perilog.connect(str(fake.path)) as broker:
        with pytest.raises(kind) as caught:
            broker.call("job.get", id=17)
        assert caught.value.code == code
        assert broker.call("broker.ping") == {}


def test_what_is_none_is_left_out(fake: FakeBroker) -> None:
    """An argument that is None is not sent, so that options can be passed on as they are."""
    fake.answers = {"job.list": []}
    with perilog.connect(str(fake.path)) as broker:
        broker.call("job.list", state=None, userid=0)
    assert fake.requests == [("job.list", {"userid": 0})]


def test_requests_on_their_way_at_once(fake: FakeBroker) -> None:
    """Requests can be sent without waiting; replies in any order reach the one that they belong to."""
    fake.answers = {"job.get": lambda _, **given: given}
    with perilog.connect(str(fake.path)) as broker:
        replies = [broker.begin("job.get", id=number) for number in range(100)]
        assert [reply.result()["id"] for reply in reversed(replies)] == list(range(99, -1, -1))


def test_a_reply_that_does_not_come(fake: FakeBroker) -> None:
    """After the client's timeout a call raises TimedOut; the late reply disturbs nothing."""
    fake.before = lambda _connection, method, _arguments: method != "job.get"
    fake.answers = {"broker.ping": {"version": "0"}}
    with perilog.connect(str(fake.path), timeout=0.05) as broker:
        with pytest.raises(perilog.TimedOut, match=r"job\.get within 0\.05 s"):
            broker.call("job.get", id=17)
        broker.timeout = PATIENCE
        fake.connections[0].send([1, 1, None, {"id": 17}])
        assert broker.call("broker.ping") == {"version": "0"}


def test_a_broken_connection(fake: FakeBroker) -> None:
    """When the connection breaks, all that was expected fails, and so does what is asked then."""
    fake.before = lambda *_: False
    with perilog.connect(str(fake.path)) as broker:
        replies = [broker.begin("job.get", id=number) for number in range(3)]
        fake.until("job.get", 3)
        fake.connections[0].cut()
        for reply in replies:
            with pytest.raises(perilog.Unreachable) as caught:
                reply.result()
            assert caught.value.code == "ENOTCONN"
        with pytest.raises(perilog.Unreachable):
            broker.call("broker.ping")
        fake.before = lambda *_: True
        fake.answers = {"broker.ping": {}}
        broker.reconnect()
        assert broker.call("broker.ping") == {}


def test_nonsense_on_the_wire(fake: FakeBroker) -> None:
    """What is no MessagePack-RPC ends the connection with an error that says so."""
    fake.answers = {"broker.ping": lambda connection: connection.send(["what", "is", "this"])}
    with (
        perilog.connect(str(fake.path)) as broker,
        pytest.raises(perilog.Unreachable, match="does not speak"),
    ):
        broker.call("broker.ping")


def test_a_watch_ends_with_the_job(life: FakeLife) -> None:
    """A job's events come in order from its beginning, each once, and end after `clean`."""
    with perilog.connect(str(life.path)) as broker:
        job = broker.submit(nodes="n1")
        watch = broker.watch(job)
        assert watch.next() is not None
        life.post("start", attempt=1)
        broker.call("job.exit", id=job, status=0, attempt=1)
        assert [event.name for event in watch] == [
            "depend",
            "alloc",
            "ready",
            "start",
            "exit",
            "finish",
            "clean",
        ]
        assert watch.ended
        assert watch.next() is None
        assert life.until("watch.cancel") == [{"watch": 1}], "the broker need not keep it"


def test_a_watch_waits_no_longer_than_it_is_told(life: FakeLife) -> None:
    """`next` with a timeout returns None when nothing comes, and the watch goes on."""
    life.ready = False
    with perilog.connect(str(life.path)) as broker:
        watch = broker.watch(broker.submit())
        assert [event.name for event in (watch.next(), watch.next(), watch.next()) if event] == life.names()
        assert watch.next(timeout=0.01) is None
        assert not watch.ended
        life.post("ready")
        assert [event.name for event in [watch.next()] if event] == ["ready"]


def test_a_watch_that_is_refused(life: FakeLife) -> None:
    """A watch on a job that does not exist raises the broker's refusal when it is read."""
    with perilog.connect(str(life.path)) as broker:
        watch = broker.watch(4711)
        with pytest.raises(perilog.Error, match="ENOENT: no such job: 4711"):
            list(watch)


def test_gap_and_progress(life: FakeLife) -> None:
    """A watch tells what was purged and, where asked for, progress, as events of their own kind."""
    life.ready = False
    with perilog.connect(str(life.path)) as broker:
        watch = broker.watch(broker.submit(), progress=True)
        assert [event.name for event in (watch.next(), watch.next(), watch.next()) if event] == life.names()
        life.notify("gap", watch=watch.id, **{"from": 4, "to": 6})
        life.notify("progress", watch=watch.id, job=17, phase="prolog", name="x", progress=40, note="n")
        life.notify("other", watch=watch.id)
        life.notify("event", watch=4711, job=1, seq=1, timestamp=0.0, name="x", context={})
        life.notify("event", watch=watch.id, job=17, seq=7, timestamp=0.0, name="ready", context={})
        found = [event for event in (watch.next(), watch.next(), watch.next()) if event]
    assert [event.name for event in found] == ["gap", "progress", "ready"]
    assert found[0].context == {"from": 4, "to": 6}
    assert found[1].context == {"phase": "prolog", "name": "x", "progress": 40, "note": "n"}
    assert life.named("job.watch") == [{"id": 17, "progress": True}]


@pytest.mark.parametrize("patience", [0.0, PATIENCE])
def test_a_watch_goes_on_after_a_restart(patience: float, life: FakeLife) -> None:
    """After the broker's death a watch goes on behind the last event that came, none missed, none twice."""
    with perilog.connect(str(life.path), patience=patience) as broker:
        watch = broker.watch(broker.submit())
        names = [event.name for event in (watch.next() for _ in range(4)) if event]
        life.stop()
        life.post("start", attempt=1)
        if patience:
            threading.Timer(0.1, life.start).start()
        else:
            with pytest.raises(perilog.Unreachable):
                watch.next()
            life.start()
            broker.reconnect()
        life.finish(0)
        names += [event.name for event in watch]
    assert names == ["submit", "depend", "alloc", "ready", "start", "finish", "clean"]
    assert life.named("job.watch")[-1]["from"] == 5


def test_a_canceled_watch_is_not_resumed(life: FakeLife) -> None:
    """`cancel` ends a watch at the broker too, and a reconnect leaves it alone."""
    with perilog.connect(str(life.path)) as broker:
        watch = broker.watch(broker.submit())
        assert watch.next() is not None
        watch.cancel()
        life.until("watch.cancel")
        broker.reconnect()
        broker.call("broker.ping")
        assert len(life.named("job.watch")) == 1
        assert all(event.name != "finish" for event in watch)


def test_a_client_that_writes_also_reads(fake: FakeBroker) -> None:
    """Sending cannot deadlock with a broker that stops reading until its own output was taken."""
    fake.answers = {"job.memo": {"x": "y" * 100_000}}
    with perilog.connect(str(fake.path)) as broker:
        replies = [broker.begin("job.memo", id=1, memo={"x": "y" * 100_000}) for _ in range(50)]
        assert all(reply.result()["x"] for reply in replies)


def test_patience_at_the_start(life: FakeLife) -> None:
    """With patience, connecting waits for a broker that is not there yet; without, it fails at once."""
    life.stop()
    with pytest.raises(perilog.Unreachable, match="No such file"):
        perilog.connect(str(life.path))
    threading.Timer(0.1, life.start).start()
    with perilog.connect(str(life.path), patience=PATIENCE) as broker:
        assert broker.call("broker.ping") == {"version": "0"}


def test_a_provider_says_hello_on_every_connection(fake: FakeBroker) -> None:
    """A connection made for a provider is bound to it, and bound again after a reconnect."""
    fake.answers = {"hello": {"protocol": 1}}
    with perilog.connect(str(fake.path), provider="dws") as broker:
        broker.reconnect()
    assert fake.requests == [("hello", {"client": "perilog", "provider": "dws"})] * 2
    fake.answers = {"hello": Refused("EPERM: not for you")}
    with pytest.raises(perilog.Error, match="EPERM"):
        perilog.connect(str(fake.path), provider="dws")


def test_lists_come_page_by_page(fake: FakeBroker) -> None:
    """All pages of a list are fetched, even if one is short, by last id or by sequence number."""
    pages: dict[Any, list[dict[str, int]]] = {0: [{"id": 1}, {"id": 2}], 2: [{"id": 7}], 7: []}
    events: dict[Any, list[dict[str, int]]] = {0: [{"seq": 3}], 4: [{"seq": 9}], 10: []}
    fake.answers = {
        "job.list": lambda _, after=0, **__: pages[after],
        "job.events": lambda _, **given: events[given.get("from", 0)],
    }
    with perilog.connect(str(fake.path)) as broker:
        assert [job["id"] for job in broker.pages("job.list", "id", state="RUN")] == [1, 2, 7]
        assert [event["seq"] for event in broker.pages("job.events", "seq", id=17)] == [3, 9]
    assert all(arguments["state"] == "RUN" for arguments in fake.named("job.list"))


@pytest.mark.parametrize(("name", "asked"), [("17", []), ("k", [{"key": "k"}]), ("key:17", [{"key": "17"}])])
def test_jobs_are_found_by_id_or_key(name: str, asked: list[dict[str, str]], fake: FakeBroker) -> None:
    """What people call a job becomes its id; only a key needs the broker."""
    fake.answers = {"job.get": {"id": 17}}
    with perilog.connect(str(fake.path)) as broker:
        assert broker.find(name) == 17
    assert fake.named("job.get") == asked


def test_no_job_has_such_a_number(fake: FakeBroker) -> None:
    """A number beyond all ids is no such job, and needs no broker to say so."""
    with perilog.connect(str(fake.path)) as broker, pytest.raises(perilog.Error, match="ENOENT"):
        broker.find("9" * 4301)


def stub_ssh(folder: Path, perilog: Command) -> str:
    """Write an `ssh` that runs its command here, and return a PATH that finds it."""
    (folder / "bin").mkdir()
    ssh = folder / "bin" / "ssh"
    ssh.write_text(
        f"#!/bin/sh\nunset PERILOG_SOCKET\necho \"$@\" > '{folder}/ssh-arguments'\n"
        f"exec '{perilog.program}' -s '{folder}/s' relay\n"
    )
    ssh.chmod(0o755)
    return f"{folder}/bin:{os.environ['PATH']}"


def test_through_ssh(life: FakeLife, folder: Path, perilog: Command) -> None:
    """PERILOG_SOCKET=ssh:HOST speaks through `ssh HOST perilog relay`, from command and library alike."""
    path = stub_ssh(folder, perilog)
    assert perilog("submit", "--nodes", "n1", PATH=path, PERILOG_SOCKET="ssh:far").stdout == "17\n"
    assert (folder / "ssh-arguments").read_text() == "-T -o BatchMode=yes -- far perilog relay\n"
    done = perilog("-s", "ssh:far", "run", "--", "sh", "-c", "echo $PERILOG_SOCKET", PATH=path)
    assert done.stdout == "ssh:far\n"
    assert life.names()[-1] == "clean"


def test_ssh_that_fails(folder: Path, perilog: Command) -> None:
    """Where ssh fails, its own words are shown and the status says that the broker cannot be reached."""
    (folder / "bin").mkdir()
    ssh = folder / "bin" / "ssh"
    ssh.write_text("#!/bin/sh\necho 'ssh: no route to far' >&2\nexit 255\n")
    ssh.chmod(0o755)
    path = f"{folder}/bin:{os.environ['PATH']}"
    assert "no route to far" in perilog("start", "17", PATH=path, PERILOG_SOCKET="ssh:far", status=3).stderr
    ssh.unlink()
    assert (
        "ssh cannot be started"
        in perilog("list", PATH=f"{folder}/bin", PERILOG_SOCKET="ssh:far", status=3).stderr
    )


def test_no_process_is_left_of_ssh(
    life: FakeLife, folder: Path, perilog: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Closing a connection through ssh ends ssh, and the far end with it."""
    monkeypatch.setenv("PATH", stub_ssh(folder, perilog))
    with connect("ssh:far") as broker:
        broker.call("broker.ping")
        (pid,) = [connection.pid for connection in life.connections]
    assert not Path(f"/proc/{pid}").exists()
