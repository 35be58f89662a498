"""Clients that are none of ours: a MessagePack-RPC library from the shelf, and a few lines by hand."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Any

import msgpack
import pytest
from pynvim.msgpack_rpc import socket_session

if TYPE_CHECKING:
    from bed import Bed


def test_pynvim_takes_a_job_through_its_life(bed: Bed) -> None:
    """The package pynvim submits a job, watches it to its end, and shows our error texts as its own."""
    bed.action("a", prolog="true", epilog="true")
    bed.start()
    session = socket_session(str(bed.socket))
    try:
        assert set(session.request("broker.ping")) >= {"version", "time"}
        assert session.request("hello", {"client": "pynvim"})["protocol"] == 1
        job = session.request("job.submit", {"nodes": "n1", "key": "k"})["id"]
        assert session.request("job.submit", {"key": "k"}) == {"id": job, "created": False}
        watch = session.request("job.watch", {"id": job})["watch"]
        names: list[str] = []
        while not names or names[-1] != "clean":
            message = session.next_message()
            assert message is not None
            (event,) = message.args
            assert (message.type, message.name, event["watch"]) == ("notification", "event", watch)
            names.append(event["name"])
            if event["name"] == "ready":
                session.request("job.start", {"id": job})
                session.request("job.exit", {"id": job, "status": 768})
        assert names == [event["name"] for event in bed.events(job)]
        shown = session.request("job.get", {"id": job})
        assert (shown["result"], shown["exit_code"]) == ("FAILED", 3)
        for method, arguments, text in (
            ("job.get", [{"id": 999}], "ENOENT: no such job: 999"),
            ("job.got", [], "EINVAL: no such method: job.got; broker.methods lists them"),
            ("job.get", [17], "EINVAL: job.get: params must hold one map of named arguments"),
            ("job.cancel", [{"id": job}], "ESTATE: "),
        ):
            with pytest.raises(Exception, match=text):
                session.request(method, *arguments)
        session.request("nvim_ui_attach", 80, 24, async_=True)  # its notifications do no harm
        assert session.request("broker.ping")
    finally:
        session.close()


def test_a_client_in_ten_lines(bed: Bed) -> None:
    """Nothing but a socket and msgpack is needed to call the broker, in any order and many at a time."""
    bed.start()
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(bed.socket))
        for msgid, (method, arguments) in enumerate(
            [("job.submit", {"nodes": "n1"}), ("job.get", {"id": 1}), ("job.get", {"id": 2})]
        ):
            connection.sendall(msgpack.packb([0, msgid, method, [arguments]]))
        unpacker = msgpack.Unpacker()
        replies: dict[int, Any] = {}
        while len(replies) < 3:
            unpacker.feed(connection.recv(4096))
            replies |= {msgid: (error, result) for _, msgid, error, result in unpacker}
    assert replies[0] == (None, {"id": 1, "created": True})
    assert replies[1][1]["state"] == "RUN"
    assert replies[2] == ([1, "ENOENT: no such job: 2"], None)
