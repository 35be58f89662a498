"""Anything at all, thrown at a live broker: it goes on, and so does a bystander's job.

Hypothesis makes it up: bytes, msgpack values, and requests that come close to right. It is seeded, so
a run is like the one before.
"""

from __future__ import annotations

import os
import socket
import string
from contextlib import closing
from typing import TYPE_CHECKING, Any

import msgpack
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from bed import PATIENCE, Bed
from raw import IS_ROOT, NOBODY, Raw

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

bounded = settings(
    max_examples=200,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)

#: These end the broker, close it to others, or need an executor to answer: not what is tried here.
LEFT_OUT = {"broker.shutdown", "broker.drain", "broker.reload"}

scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.text(max_size=40)
    | st.binary(max_size=40)
)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=10), inner, max_size=5),
    max_leaves=15,
)
#: With extensions and keys that are no text.
wild = st.recursive(
    scalars | st.builds(msgpack.ExtType, st.integers(0, 127), st.binary(max_size=9)),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(scalars, inner, max_size=5),
    max_leaves=15,
)
names = st.sampled_from(["a", "b", "undo", "nnf"])
nodes = st.sampled_from(["n1", "n[1-4]", "n[2-3]", "n[1-3000]", "r[1-4]i[0-3]", "n[01-10]"])
durations = st.sampled_from(["10ms", "1s", "1.5h", "infinity", "0", 0, 0.01, 1e300])
phases = st.sampled_from(["depend", "prolog", "completion", "epilog"])
index_sets = st.sampled_from(["0-3", "1", "0-3,8", "3-0"])
keeps = (
    st.sampled_from(["all", "none"])
    | nodes
    | st.fixed_dictionaries({"nodes": nodes}, optional={"cores": index_sets, "gpus": index_sets})
)
#: By the type that `broker.methods` gives.
RIGHT: dict[str, st.SearchStrategy[Any]] = {
    "integer": st.integers(1, 20) | st.sampled_from([0, 256, 65_535, 2**31, 2**62, 2**63 - 1]),
    "number": st.floats(0, 100),
    "boolean": st.booleans(),
    "text": st.text(string.printable, max_size=20),
    "name": names,
    "key": st.sampled_from(["k", "l", "key:k"]),
    "duration": durations,
    "node set": nodes,
    "map": st.dictionaries(st.sampled_from(["a", "dw", "A_B"]), values, max_size=3),
    "word or node set or map": keeps,
    "integer or name": st.integers(0, 9) | names,
}
#: By the argument's name, where the type says too little to come close.
NAMED: dict[str, st.SearchStrategy[Any]] = {
    "id": st.integers(2, 6),  # jobs that are there, mostly, and that anything may be done to
    "phase": phases,
    "outcome": st.sampled_from(["exited", "lost", "unknown"]),
    "state": st.sampled_from(["DEPEND", "SCHED", "RUN", "EPILOG", "INACTIVE"]),
    "event": st.sampled_from(["clean", "start", "memo", "no-such-event"]),
    "timeout": st.sampled_from(["1ms", "10ms", 0.01, "1h"]),
    "userid": st.sampled_from([0, NOBODY, os.geteuid()]),
    "type": st.sampled_from(["cancel", "x", "timelimit", "node"]),
    "severity": st.integers(0, 7),
    "attempt": st.integers(1, 3),
    "status": st.sampled_from([0, 1, 15, 256, 65_280, 65_535]),
    "max_reruns": st.integers(0, 3),
    "signal": st.sampled_from([1, 15, 64]),
    "environment": st.dictionaries(st.sampled_from(["A", "DW_X", "PATH"]), st.text(max_size=9), max_size=2),
    "resources": st.dictionaries(st.sampled_from(["cores", "gpus"]), index_sets, max_size=2),
    "names": st.lists(st.sampled_from(["clean", "exception", "memo"]), max_size=2),
    "dependencies": st.lists(
        st.sampled_from(["after:2", "afterok:3", "afterany:k", "afterclean:4"]), max_size=2
    ),
    "holds": st.lists(
        st.fixed_dictionaries(
            {"phase": phases, "name": names},
            optional={"timeout": durations, "keep": keeps, "note": st.text(max_size=9)},
        ),
        max_size=3,
    ),
}


def nearly_right(method: str, arguments: list[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
    """Return arguments for a method, described as `broker.methods` does."""
    must, may = {}, {}
    for argument in arguments:
        name = argument["name"]
        sample = NAMED[name] if name in NAMED else RIGHT[argument["type"]]
        if (method, name) == ("job.wait", "timeout"):
            must[name] = st.just("5ms")  # or it could be for ever
        elif argument["required"]:
            must[name] = sample
        else:
            may[name] = sample
    return st.fixed_dictionaries(must, optional=may)


@pytest.fixture(params=["admin", "guest"] if IS_ROOT else ["admin"])
def bed_and_uid(request: pytest.FixtureRequest, bed: Bed) -> Iterator[tuple[Bed, int]]:
    """A running broker with some jobs, and a bystander's job that has to get to its end; and who attacks."""
    bed.table("[broker]", guest_nodes="n[1-9],r[1-9]i[0-9]")
    bed.table("[[provider]]", name="nnf", holds=["epilog"], match={"dw": True}, timeout={"epilog": "1s"})
    bed.action("undo", prolog="true", completion="true", epilog="true")
    bed.start()
    bed.executor_answers()
    bystander = bed.submit(holds=[{"phase": "prolog", "name": "wait"}])
    assert bystander == 1
    yield bed, os.geteuid() if request.param == "admin" else NOBODY
    bed.call("hold.finish", id=1, phase="prolog", name="wait")
    bed.wait(1, "ready")
    bed.call("job.start", id=1)
    bed.call("job.exit", id=1, status=0)
    bed.wait(1, "clean")
    assert bed.names(1).count("exception") == 0
    assert bed.job(1)["result"] == "COMPLETED"
    assert "Traceback" not in bed.log_tail()


def throw(bed: Bed, sock: socket.socket, data: bytes) -> list[Any]:
    """Send bytes, say that this was all, and return every message that comes until the broker closes."""
    with closing(sock):
        sock.settimeout(PATIENCE)
        try:
            sock.sendall(data)
            sock.shutdown(socket.SHUT_WR)
        except OSError:  # it has been closed on us
            pass
        unpacker = msgpack.Unpacker(max_buffer_size=1 << 28)
        try:
            while data := sock.recv(1 << 16):
                unpacker.feed(data)
        except ConnectionResetError:
            pass
    assert bed.call("broker.ping")
    return list(unpacker)


def connected(path: Path) -> socket.socket:
    """Connect to the broker."""
    sock = socket.socket(socket.AF_UNIX)
    sock.connect(str(path))
    return sock


def require_sound(replies: list[Any]) -> None:
    """Check that replies have the documented form, whatever they are about."""
    for message in replies:
        if message[0] == 2:
            continue
        kind, _, error, result = message
        assert kind == 1
        if error is not None:
            assert result is None
            assert error[0] == 1
            code, colon, text = error[1].partition(": ")
            assert colon
            assert code in {"EPROTO", "EINVAL", "ENOENT", "EEXIST", "EPERM", "EAGAIN", "ESTATE", "ETIMEDOUT"}
            assert text.isprintable()


def require_answers(client: Raw, msgids: set[int]) -> None:
    """Read until each of these requests was answered, once, in the documented form."""
    while msgids:
        message = client.message()
        assert message is not None
        if message[0] == 1:
            msgids.remove(message[1])
        require_sound([message])


def test_any_bytes(bed: Bed) -> None:
    """Whatever bytes come in, alone or behind a good request, end that connection at most."""
    bed.start()
    ping = msgpack.packb([0, 1, "broker.ping", []])

    @bounded
    @given(st.binary(max_size=300), st.booleans())
    def attack(data: bytes, behind: bool) -> None:
        replies = throw(bed, connected(bed.socket), ping + data if behind else data)
        require_sound(replies)
        if behind:
            assert replies[0][:3] == [1, 1, None]

    attack()


def test_any_messages(bed: Bed) -> None:
    """Whatever messages come in, whole, cut or with bytes changed, end that connection at most."""
    bed.start()

    @bounded
    @given(st.lists(wild, max_size=4), st.integers(0, 300), st.binary(min_size=1, max_size=1))
    def attack(messages: list[Any], where: int, byte: bytes) -> None:
        data = b"".join(map(msgpack.packb, messages))
        require_sound(throw(bed, connected(bed.socket), data))
        require_sound(throw(bed, connected(bed.socket), data[:where]))
        require_sound(throw(bed, connected(bed.socket), data[:where] + byte + data[where + 1 :]))

    attack()


def test_any_params(bed: Bed) -> None:
    """Whatever a method is given, it answers in the documented form."""
    bed.start()
    methods = sorted({method["name"] for method in bed.call("broker.methods")} - LEFT_OUT)

    @bounded
    @given(st.lists(st.tuples(st.sampled_from(methods), st.lists(values, max_size=2)), max_size=4))
    def attack(requests: list[tuple[str, list[Any]]]) -> None:
        with Raw.at(bed.socket) as client:
            require_answers(client, {client.request(method, *params) for method, params in requests})
        assert bed.call("broker.ping")

    attack()


def test_requests_that_come_close(bed_and_uid: tuple[Bed, int], other_user_venv: Path) -> None:
    """Sequences of nearly right requests, about a few jobs, leave a log that a restart reads as it was."""
    bed, uid = bed_and_uid
    methods = {method["name"]: method["arguments"] for method in bed.call("broker.methods")}

    request = st.sampled_from(sorted(set(methods) - LEFT_OUT)).flatmap(
        lambda name: st.tuples(st.just(name), nearly_right(name, methods[name]))
    )

    with Raw.of(uid, bed.socket, other_user_venv / "python3") as client:

        @bounded
        @given(st.lists(request, min_size=1, max_size=12))
        def attack(requests: list[tuple[str, dict[str, Any]]]) -> None:
            require_answers(client, {client.request(name, given) for name, given in requests})
            assert bed.call("broker.ping")

        attack()
        jobs = {job["id"]: job["state"] for job in client.ok("job.list")}
    assert len(jobs) > 5
    assert bed.process is not None
    assert bed.process.poll() is None
    bed.stop()
    bed.start()
    assert bed.call("broker.stats")["damaged"] == []
