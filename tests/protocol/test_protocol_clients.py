"""Clients that are none of ours: a MessagePack-RPC library from the shelf, and a few lines by hand."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import msgpack

if TYPE_CHECKING:
    from bed import Bed

#: Takes a job through its life with pynvim, and prints what it has seen. A program of its own, since
#: pynvim leaves closing its connection to the end of the process.
PYNVIM = """
import json, sys
from pynvim.msgpack_rpc import socket_session

session = socket_session(sys.argv[1])

def refused(method, *params):
    try:
        return session.request(method, *params)
    except Exception as error:
        return str(error)

found = {"ping": session.request("broker.ping"), "hello": session.request("hello", {"client": "pynvim"})}
job = session.request("job.submit", {"nodes": "n1", "key": "k"})["id"]
found["again"] = session.request("job.submit", {"key": "k"})
found["watch"] = session.request("job.watch", {"id": job})["watch"]
found["events"] = []
while not found["events"] or found["events"][-1]["name"] != "clean":
    message = session.next_message()
    assert (message.type, message.name) == ("notification", "event")
    found["events"] += message.args
    if message.args[0]["name"] == "ready":
        session.request("job.start", {"id": job})
        session.request("job.exit", {"id": job, "status": 768})
found["job"] = session.request("job.get", {"id": job})
session.request("nvim_ui_attach", 80, 24, async_=True)  # a notification that we do not know
found["refused"] = [
    refused("job.get", {"id": 999}),
    refused("job.got"),
    refused("job.get", 17),
    refused("job.cancel", {"id": job}),
]
print(json.dumps(found))
"""


def test_pynvim_takes_a_job_through_its_life(bed: Bed) -> None:
    """The package pynvim submits a job, watches it to its end, and shows our error texts as its own."""
    bed.action("a", prolog="true", epilog="true")
    bed.start()
    done = subprocess.run(
        [sys.executable, "-c", PYNVIM, str(bed.socket)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert set(found["ping"]) >= {"version", "time"}
    assert found["hello"]["protocol"] == 1
    assert found["again"] == {"id": 1, "created": False}
    assert {event["watch"] for event in found["events"]} == {found["watch"]}
    assert [event["name"] for event in found["events"]] == [event["name"] for event in bed.events(1)]
    assert (found["job"]["result"], found["job"]["exit_code"]) == ("FAILED", 3)
    nobody, no_method, positional, too_late = found["refused"]
    assert nobody == "ENOENT: no such job: 999"
    assert no_method == "EINVAL: no such method: job.got; broker.methods lists them"
    assert positional.startswith("EINVAL: job.get: params must hold one map of named arguments")
    assert too_late.startswith("ESTATE: ")


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
