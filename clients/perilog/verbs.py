"""The verbs that scripts call: how their words and options become one request.

One table, read by the fast front (`perilog.front`) and by the full command (`perilog.cli.simple`,
which makes help and error messages of it), so that both send the same. Verbs that print tables or
follow a job do not belong here, nor may anything be imported that is not built into Python.
"""

from __future__ import annotations

from perilog.errors import Error

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    Params = dict[str, Any]
    Put = Callable[[Params, str], None]


class Argument:
    """A word or an option of a verb.

    Args:
        metavar: how usage texts call the value; empty for an option that takes none.
        about: what it means, for help.
        put: adds a value to the request's parameters, or raises ValueError with what was expected.
        many: whether it may be given several times.
        optional: whether a word may be left out.
    """

    __slots__ = ("about", "many", "metavar", "optional", "put")

    def __init__(
        self, metavar: str, about: str, put: Put, *, many: bool = False, optional: bool = False
    ) -> None:
        self.metavar = metavar
        self.about = about
        self.put = put
        self.many = many
        self.optional = optional


class Verb:
    """One command that is one request.

    Args:
        method: the broker's method.
        about: one line for help.
        example: a command line for help.
        words: positional arguments, in order.
        options: by their names.
        needed: pairs of a parameter that must be there and the options that give it.
        defaults: parameters that are sent unless the arguments say otherwise.
        prints: the key of the result that is printed; empty: nothing is.
    """

    __slots__ = ("about", "defaults", "example", "method", "needed", "options", "prints", "words")

    def __init__(
        self,
        method: str,
        about: str,
        example: str,
        words: tuple[Argument, ...],
        options: dict[str, Argument],
        *,
        needed: tuple[tuple[str, str], ...] = (),
        defaults: Params | None = None,
        prints: str = "",
    ) -> None:
        self.method = method
        self.about = about
        self.example = example
        self.words = words
        self.options = options
        self.needed = needed
        self.defaults = defaults or {}
        self.prints = prints

    def perform(self, call: Callable[[str, Params], Any], params: Params) -> Any:
        """Make the request, after finding the id of a job that was named by its key.

        Args:
            call: makes one call and returns its result.
            params: what the arguments put together.
        """
        if isinstance(params.get("id"), str):
            params["id"] = call("job.get", {"key": params["id"]})["id"]
        return call(self.method, {**self.defaults, **params})

    def missing(self, params: Params) -> str:
        """Return which options are missing, as text; empty if none is."""
        return ", ".join(names for name, names in self.needed if name not in params)


def job(text: str) -> int | str:
    """Read JOB: return an id as int, or a key (without its `key:`) as str.

    Raises:
        Error: ENOENT, for a number that no job can have.
    """
    if text.isascii() and text.isdigit():
        if len(text) > 18:
            raise Error("ENOENT", f"no such job: {text}")
        return int(text)
    return text.removeprefix("key:")


def duration(text: str) -> bool:
    """Tell whether a text has the form of a duration (RFC 23): `250ms`, `30m`, `1.5h`, `infinity`."""
    if text == "infinity":
        return True
    for unit in ("ms", "s", "m", "h", "d"):
        if text.endswith(unit):
            text = text.removesuffix(unit)
            break
    whole, _, part = text.partition(".")
    return (whole + part).isdigit() and text.isascii()


def pair(text: str) -> tuple[str, str]:
    """Split `NAME=VALUE`."""
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise ValueError(f"expected NAME=VALUE, not {text!r}")
    return name, value


def resources(text: str) -> dict[str, str]:
    """Read `cores=0-3,8,gpus=0`: index sets, of which each may hold commas."""
    found: dict[str, str] = {}
    name = ""
    for part in text.split(","):
        if "=" in part:
            name, value = pair(part)
            found[name] = value
        elif name:
            found[name] += "," + part
        else:
            raise ValueError(f"expected cores=SET,gpus=SET,storage=SET, not {text!r}")
    return found


def uid(text: str) -> int:
    """Read a user: a uid, or a name that this host knows."""
    if text.isascii() and text.isdigit():
        return int(text)
    import pwd  # noqa: PLC0415 - few verbs need it

    try:
        return pwd.getpwnam(text).pw_uid
    except KeyError:
        raise ValueError(f"no such user on this host: {text!r}") from None


def _once(params: Params, name: str, value: object) -> None:
    if name in params:
        raise ValueError(f"{name} is given twice")
    params[name] = value


def _text(name: str) -> Put:
    return lambda params, text: _once(params, name, text)


def _integer(name: str, least: int, most: int = 2**31 - 1, *, shift: int = 0) -> Put:
    def put(params: Params, text: str) -> None:
        if not (text.isascii() and text.isdigit() and len(text) < 11 and least <= int(text) <= most):
            raise ValueError(f"expected a whole number from {least} to {most}, not {text!r}")
        _once(params, name, int(text) << shift)

    return put


def _flag(name: str, value: object = True) -> Put:
    return lambda params, _text: _once(params, name, value)


def _job(params: Params, text: str) -> None:
    _once(params, "id", job(text))


def _user(params: Params, text: str) -> None:
    _once(params, "userid", uid(text))


def _percent(params: Params, text: str) -> None:
    try:
        _once(params, "progress", float(text.removesuffix("%")))
    except ValueError:
        raise ValueError(f"expected a number from 0 to 100, not {text!r}") from None


def _attribute(params: Params, text: str) -> None:
    name, value = pair(text) if "=" in text else (text, "true")
    params.setdefault("attributes", {})[name] = {"true": True, "false": False}.get(value, value)


def _variable(name: str) -> Put:
    def put(params: Params, text: str) -> None:
        key, value = pair(text)
        params.setdefault(name, {})[key] = value

    return put


def _dependency(params: Params, text: str) -> None:
    params.setdefault("dependencies", []).append(text)


def _hold(params: Params, text: str) -> None:
    phase, _, name = text.partition(":")
    name, colon, timeout = name.rpartition(":") if duration(text.rpartition(":")[2]) else (name, "", "")
    if not name:
        raise ValueError(f"expected PHASE:NAME or PHASE:NAME:TIMEOUT, not {text!r}")
    hold = {"phase": phase, "name": name}
    if colon:
        hold["timeout"] = timeout
    params.setdefault("holds", []).append(hold)


def _keep(params: Params, text: str) -> None:
    nodes, _, parts = text.rpartition(":")
    _once(params, "keep", {"nodes": nodes, **resources(parts)} if nodes and "=" in parts else text)


def _resources(params: Params, text: str) -> None:
    _once(params, "resources", resources(text))


def _lost(params: Params, _text: str) -> None:
    _once(params, "status", 65280)  # the wait status that stands for "lost": nobody saw the end
    params["outcome"] = "lost"


_JOB = Argument("JOB", "a job's id or key (key:K where ambiguous)", _job)
_PHASE = Argument("PHASE", "depend, prolog, completion or epilog", _text("phase"))
_NAME = Argument("NAME", "the hold's name", _text("name"))
_HOLD = (_JOB, _PHASE, _NAME)

_TIMEOUT = Argument("D", "end the hold after this long: 30m, 1.5h, infinity", _text("timeout"))
_KEEP = Argument(
    "KEEP",
    "what it keeps from release: all, none, a node set, or NODES:cores=SET,gpus=SET,storage=SET",
    _keep,
)
_NOTE = Argument("TEXT", "a note for people", _text("note"))
_ATTEMPT = Argument("N", "which attempt is meant; default: the current one", _integer("attempt", 1))
_STATUS = Argument("N", "a wait status: 256 times the exit code, or the signal", _integer("status", 0, 65535))
_CODE = Argument("N", "an exit code", _integer("status", 0, 255, shift=8))
_ABANDON = Argument("", "also end the completion phase's work", _flag("abandon"))

VERBS = {
    "submit": Verb(
        "job.submit",
        "register a job; prints its id",
        "perilog submit --key slurm.4711 --nodes n[1-4] --hold completion:drain:2h",
        (),
        {
            "--key": Argument("K", "submit at most once: the same key again gives the same id", _text("key")),
            "--nodes": Argument("NODES", "the nodes that the job has got already", _text("nodes")),
            "--name": Argument("NAME", "the job's name", _text("name")),
            "--attr": Argument("K=V", "an attribute; K alone means true", _attribute, many=True),
            "--hold": Argument("PHASE:NAME[:D]", "declare a hold, with a timeout", _hold, many=True),
            "--depends": Argument(
                "SPEC",
                "after, afterok, afternotok, afterany or afterclean, colon, JOB",
                _dependency,
                many=True,
            ),
            "--max-reruns": Argument(
                "N", "how often the application may be run again", _integer("max_reruns", 0)
            ),
            "--user": Argument("U", "submit for this user (name or uid)", _user),
            "--resources": Argument("R", "index sets alike on all nodes: cores=0-3,gpus=0", _resources),
        },
        prints="id",
    ),
    "alloc": Verb(
        "job.alloc",
        "tell that a job has got its nodes",
        "perilog alloc 17 n[1-4]",
        (_JOB, Argument("NODES", "the node set", _text("nodes"))),
        {"--resources": Argument("R", "index sets alike on all nodes: cores=0-3,gpus=0", _resources)},
    ),
    "start": Verb(
        "job.start", "tell that the application starts", "perilog start 17", (_JOB,), {"--attempt": _ATTEMPT}
    ),
    "exit": Verb(
        "job.exit",
        "tell how the application ended",
        "perilog exit 17 --code $?",
        (_JOB,),
        {
            "--status": _STATUS,
            "--code": _CODE,
            "--lost": Argument("", "nobody knows how it ended", _lost),
            "--attempt": _ATTEMPT,
        },
        needed=(("status", "--status, --code or --lost"),),
    ),
    "rerun": Verb(
        "job.rerun",
        "ask for the application to be started again in the same allocation",
        "perilog rerun 17",
        (_JOB,),
        {"--attempt": _ATTEMPT},
    ),
    "cancel": Verb(
        "job.cancel",
        "cancel a job: the application is stopped, what was set up is undone",
        "perilog cancel 17 --note 'wrong input'",
        (_JOB,),
        {"--note": _NOTE, "--abandon": _ABANDON},
    ),
    "raise": Verb(
        "job.raise",
        "raise an exception on a job",
        "perilog raise 17 quota --severity 2 --note 'scratch is nearly full'",
        (_JOB, Argument("TYPE", "the exception's type", _text("type"))),
        {
            "--severity": Argument("N", "0 (fatal; the default) to 7", _integer("severity", 0, 7)),
            "--note": _NOTE,
            "--abandon": _ABANDON,
        },
        defaults={"severity": 0},
    ),
    "memo": Verb(
        "job.memo",
        "attach notes to a job",
        "perilog memo 17 dataset=climate-2031",
        (_JOB, Argument("K=V", "a note", _variable("memo"), many=True)),
        {},
        needed=(("memo", "K=V"),),
    ),
    "hold": Verb(
        "hold.start",
        "hold a job in a phase until release",
        "perilog hold 17 completion drain --timeout 2h --keep n[1-4]:storage=0",
        _HOLD,
        {"--timeout": _TIMEOUT, "--keep": _KEEP, "--note": _NOTE},
    ),
    "update": Verb(
        "hold.update",
        "give a hold more time, let go of nodes, change its note",
        "perilog update 17 completion drain --keep n4 --timeout 1h",
        _HOLD,
        {
            "--timeout": Argument("D", "end the hold this long from now", _text("timeout")),
            "--keep": _KEEP,
            "--note": _NOTE,
        },
    ),
    "progress": Verb(
        "hold.update",
        "tell how far a hold is; whoever waits for the job sees it",
        "perilog progress 17 completion drain 40 '12 of 30 files'",
        (
            *_HOLD,
            Argument("PERCENT", "0 to 100", _percent),
            Argument("NOTE", "a note for people", _NOTE.put, optional=True),
        ),
        {},
    ),
    "release": Verb(
        "hold.finish",
        "end a hold",
        "perilog release 17 completion drain --code $?",
        _HOLD,
        {
            "--code": _CODE,
            "--status": _STATUS,
            "--note": _NOTE,
            "--env": Argument(
                "K=V", "a variable for later scripts and the application", _variable("environment"), many=True
            ),
            "--force": Argument("", "end somebody else's hold (administrators)", _flag("force")),
        },
    ),
    "wait": Verb(
        "job.wait",
        "wait until a job's log has an event",
        "perilog wait 17 finish --timeout 1h",
        (_JOB, Argument("EVENT", "the event's name, such as start, finish or clean", _text("event"))),
        {"--timeout": Argument("D", "give up after this long, with exit status 124", _text("timeout"))},
    ),
}
