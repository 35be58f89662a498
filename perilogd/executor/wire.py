"""What perilogd and perilog-exec say to each other.

Message formats, their checks and the statuses of runs that have none of their own live here; sockets, files
and processes do not. The broker imports this module as well, so it needs nothing but msgpack.

On a Unix stream socket, mode 0600, `exec.sock` in the executor's folder: msgpack arrays `[type, map]`, one
after another, with no length prefix. Keys that a reader does not know are ignored. `?` marks what may be
absent (nil counts as absent). Times are seconds: "wall" is CLOCK_REALTIME, "boot" is CLOCK_BOOTTIME.

From the broker:

=========  ===================================================================================================
hello      protocol: 1, journal: str. Must come first; answered by hello. The newest one wins: an older
           connection is told so in an error and closed; what it sent but was not yet read has no effect.
run        id: str (see `run_id`; must agree with the next four), job: int, phase: prolog|completion|epilog,
           action: str, attempt: int, definition: hash, userid: int, jobname: str, key: str, nodes: str,
           socket: str, variables: {str: str}, user_variables: {str: str}, document: bytes (the job as JSON),
           status?: int, reason?: str, prolog_status?: int.
           Idempotent by id: for a known run the newest of started or exits is sent again.
cancel     id, reason: str. SIGTERM once to all that the script has started, then kill-timeout, then on-stuck.
           A run that is not known, or not yet spawned, never will be: its record (canceled, 15) is sent at
           once, and again if the run is asked for later. A run that is being ended already, or has ended: no
           effect.
signal     id, signal: int. To all that the run has started, without consequence for its outcome.
ack        ids: [str]. Their records are journaled and may be forgotten. A run that is still stuck is kept in
           spite of it until died has been acknowledged too. Unknown ids and runs without a record: no effect.
output     tag: int|str, id, limit: int (bytes, at most 1 MiB). Answered by output.
prepare    tag: int|str. Reads the configuration anew and holds it as candidate. Answered by prepare.
commit     config: hash. The candidate with this hash becomes the configuration in force. Already in force: no
           effect. Neither: error.
keep       definitions: [hash]. All that jobs still owe; stored definitions beyond these, those of the
           configuration and those of known runs are forgotten.
=========  ===================================================================================================

From the executor:

=========  ===================================================================================================
hello      protocol: 1, version: str, epoch: str, pid: int, uid: int, config: hash or "" (none in force),
           faults: [str] (why not), runs: [run]: all runs of this journal that it knows, each
           {id, state, pid, since (boot), deadline (boot), record?, died?}; nil: no process, no deadline.
           State: "running" (also: about to be), "stuck" (record sent, process still there), "ended",
           "refused" (canceled before it was asked for).
           epoch: random, new when the executor's folder was set up anew or the machine rebooted. Same epoch,
           and a run is not listed: it was never begun (or was acknowledged). Another epoch: it may have been.
started    runs: [[id, pid, since (boot), deadline (boot) or nil]]
exits      records: [record]; repeated until acknowledged, whenever the broker says hello or asks for the run.
died       id, status: a stuck run's process has ended at last. After a hello: the run's `died`. A stuck run
           that a hello no longer lists has died, too.
output     tag, found: bool, size: int (bytes written so far), head: bytes, tail: bytes. head + tail is
           everything if they are as long as size.
prepare    tag, config: hash or nil, faults: [str]
error      text: str. What was said was not understood; the connection is then closed, nothing else changes.
=========  ===================================================================================================

A record is a map; what is not known is nil:

=============  ===============================================================================================
id
status         wait(2) status: the script's own if it had one, else that of the outcome
outcome        ok, failed (also: could not be started), timeout, canceled, stuck, lost
pid            nil: it never was a process
started        wall; nil: never
ended          wall; of a lost run: when that was found out
wall           seconds that it ran, by CLOCK_BOOTTIME
cpu_user       seconds; like cpu_system and max_rss nil for what outlived an executor, and while stuck
cpu_system     seconds
max_rss        bytes. Linux counts what the parent had at the time of exec, so small scripts show the
               executor's size
error?         why it could not be started, why it is lost, what was wrong with the lines that it handed back
message?       its line for the user: at most 256 bytes of UTF-8, printable
environment?   {str: str}: variables that it handed back; only if it exited with 0
output?        bytes: its output, or head and tail of it (16 KiB); only if the outcome is not ok
strays?        int: processes that it left behind
reason?        the cancel's
=============  ===============================================================================================
"""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Literal

import msgpack

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

PROTOCOL = 1
SOCKET = "exec.sock"

#: Statuses of runs that have no wait status of their own.
NOT_FOUND = 127 << 8
NOT_EXECUTABLE = 126 << 8
TIMED_OUT = STUCK = 124 << 8
LOST = 255 << 8
CANCELED = 15

#: Bytes of output that a record carries, and that one `output` answer may hold.
RECORD_OUTPUT = 16 << 10
OUTPUT_LIMIT = 1 << 20
MESSAGE_LIMIT = 256
VARIABLES_LIMIT = 64 << 10

#: The longest message that the executor reads; what it sends is bounded by what it was asked to run.
REQUEST_LIMIT = 8 << 20
REPLY_LIMIT = 1 << 30

Outcome = Literal["ok", "failed", "timeout", "canceled", "stuck", "lost"]
ScriptPhase = Literal["prolog", "completion", "epilog"]

VARIABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_RUN_ID = re.compile(
    r"(?P<journal>[0-9A-Za-z]{1,32}),(?P<job>[0-9]{1,19}),(?P<phase>prolog|completion|epilog),"
    r"(?P<attempt>[0-9]{1,9}),(?P<action>[A-Za-z0-9._:@+-]{1,64})(?:,(?P<node>[A-Za-z0-9._-]{1,100}))?"
)
_JOURNAL = re.compile(r"[0-9A-Za-z]{1,32}")
_HASH = re.compile(r"[0-9a-f]{64}")


class WireError(Exception):
    """The other side said what is not in the tables above. The text says what, and what was expected."""


def run_id(journal: str, job: int, phase: ScriptPhase, attempt: int, action: str, node: str = "") -> str:
    """Return the name of a run, which is also the name of its files.

    Args:
        journal: the journal's id.
        job: the job's id.
        phase: the phase.
        attempt: the attempt of the run, from 1.
        action: the action's name.
        node: the node, for a run that is one of several.
    """
    name = f"{journal},{job},{phase},{attempt},{action}"
    return f"{name},{node}" if node else name


def is_run_id(text: str) -> bool:
    """Tell whether `run_id` can have made this text."""
    return _RUN_ID.fullmatch(text) is not None


def encode(kind: str, body: Mapping[str, Any]) -> bytes:
    """Return one message as it is sent."""
    packed: bytes = msgpack.packb((kind, body))
    return packed


def encode_exits(records: Iterable[bytes]) -> bytes:
    """Return an `exits` message of records that are encoded already."""
    packed = list(records)
    head = encode("exits", {"records": []})[:-1]  # the last byte is the empty array
    count: bytes = msgpack.Packer().pack_array_header(len(packed))
    return b"".join([head, count, *packed])


class Decoder:
    """Takes a byte stream apart into messages.

    Args:
        limit: the longest message in bytes. It also bounds the memory that a decoder can be made to use.
    """

    def __init__(self, limit: int) -> None:
        self._unpacker = msgpack.Unpacker(max_buffer_size=limit, max_array_len=min(limit, 1 << 16))

    def feed(self, data: bytes) -> Iterator[tuple[str, dict[str, Any]]]:
        """Take more of the stream and yield the messages that are now complete.

        Args:
            data: the next bytes, in pieces of any size up to the limit.

        Yields:
            The type and the map of each message. Only their shape has been checked.

        Raises:
            WireError: the stream cannot be understood from here on.
        """
        try:
            self._unpacker.feed(data)
            for message in self._unpacker:
                match message:
                    case [str() as kind, dict() as body]:
                        yield kind, body
                    case _:
                        raise WireError(f"expected a message [type, map], got {_short(message)}")
        except msgpack.BufferFull:
            raise WireError("a message is longer than this side reads") from None
        except (msgpack.FormatError, msgpack.StackError, ValueError) as error:
            raise WireError(f"not a msgpack stream: {error or type(error).__name__}") from None


@dataclass(slots=True)
class Spec:
    """A checked `run` request: what is to be run, and what the script is told. Keys as in the table."""

    id: str
    job: int
    phase: ScriptPhase
    action: str
    attempt: int
    definition: str
    userid: int
    jobname: str
    key: str
    nodes: str
    socket: str
    variables: dict[str, str]
    user_variables: dict[str, str]
    document: bytes
    status: int | None = None
    reason: str | None = None
    prolog_status: int | None = None

    def to_wire(self) -> dict[str, Any]:
        """Return the map that `check_request` would take."""
        return {name: getattr(self, name) for name in _SPEC_FIELDS}


_SPEC_FIELDS = tuple(field.name for field in fields(Spec))


def check_request(kind: str, body: dict[str, Any]) -> dict[str, Any]:
    """Check a message from the broker.

    Args:
        kind: its type.
        body: its map.

    Returns:
        The keys of the table above; those that may be absent are None then.

    Raises:
        WireError: the type is not known, or a value is absent or not what it must be.
    """
    rules = _REQUESTS.get(kind)
    if rules is None:
        raise WireError(f"unknown message type {_short(kind)}; known are {', '.join(_REQUESTS)}")
    checked = {}
    for key, (expected, right) in rules.items():
        value = body.get(key)
        if not right(value):
            raise WireError(f"{kind}: {key}: expected {expected}, got {_short(value)}")
        checked[key] = value
    return checked


def check_run(body: dict[str, Any]) -> Spec:
    """Check the map of a `run` message and return it as data.

    Raises:
        WireError: as `check_request`, or the id does not agree with the rest.
    """
    spec = Spec(**check_request("run", body))
    named = _RUN_ID.fullmatch(spec.id)
    if named is None or named.group("job", "phase", "attempt", "action") != (
        str(spec.job),
        spec.phase,
        str(spec.attempt),
        spec.action,
    ):
        raise WireError(f"run: id {spec.id!r} does not agree with job, phase, attempt and action")
    return spec


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def _is_int(low: int, high: int) -> Callable[[Any], bool]:
    return lambda value: type(value) is int and low <= value <= high


def _or_none(right: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: value is None or right(value)


def _is_str(value: Any) -> bool:
    return type(value) is str


def _is_id(value: Any) -> bool:
    return type(value) is str and is_run_id(value)


def _is_hash(value: Any) -> bool:
    return type(value) is str and _HASH.fullmatch(value) is not None


def _is_variables(value: Any) -> bool:
    return type(value) is dict and all(
        type(name) is str and VARIABLE_NAME.fullmatch(name) and type(text) is str
        for name, text in value.items()
    )


_STR = ("a string", _is_str)
_ID = ("a run id", _is_id)
_DIGEST = ("a hash of 64 hexadecimal digits", _is_hash)
_COUNT = ("a number from 0", _is_int(0, 2**63 - 1))
_UID = ("a uid", _is_int(0, 2**32 - 2))
_STATUS = ("a wait status or nil", _or_none(_is_int(0, 2**31 - 1)))
_MAP = ("a map of variables", _is_variables)
_TAG = ("a number or a string", lambda value: type(value) in {int, str})

#: For each type: what each key must be, in words and as a test.
_REQUESTS: dict[str, dict[str, tuple[str, Callable[[Any], bool]]]] = {
    "hello": {
        "protocol": (f"{PROTOCOL}, the version that this executor speaks", lambda value: value == PROTOCOL),
        "journal": (
            "a journal id",
            lambda value: type(value) is str and _JOURNAL.fullmatch(value) is not None,
        ),
    },
    "run": {
        "id": _ID,
        "job": _COUNT,
        "phase": _STR,
        "action": _STR,
        "attempt": _COUNT,
        "definition": _DIGEST,
        "userid": _UID,
        "jobname": _STR,
        "key": _STR,
        "nodes": _STR,
        "socket": _STR,
        "variables": _MAP,
        "user_variables": _MAP,
        "document": ("bytes", lambda value: type(value) is bytes),
        "status": _STATUS,
        "reason": ("a string or nil", _or_none(_is_str)),
        "prolog_status": _STATUS,
    },
    "cancel": {"id": _ID, "reason": _STR},
    "signal": {"id": _ID, "signal": ("a signal number from 1 to 64", _is_int(1, 64))},
    "ack": {"ids": ("a list of run ids", lambda value: type(value) is list and all(map(_is_id, value)))},
    "output": {"tag": _TAG, "id": _ID, "limit": (f"0 to {OUTPUT_LIMIT} bytes", _is_int(0, OUTPUT_LIMIT))},
    "prepare": {"tag": _TAG},
    "commit": {"config": _DIGEST},
    "keep": {
        "definitions": ("a list of hashes", lambda value: type(value) is list and all(map(_is_hash, value)))
    },
}
