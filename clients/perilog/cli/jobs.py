"""Commands that look at jobs: list, show, eventlog, events, holds."""

from __future__ import annotations

import select
from typing import TYPE_CHECKING, Any

from perilog.cli import text
from perilog.client import connect
from perilog.verbs import uid

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterable, Iterator

    from perilog.client import Client, Event, Watch

    Run = Callable[[argparse.Namespace], int]

#: States of a job that is still to be done with, in the order in which jobs pass through them.
ACTIVE = ("DEPEND", "SCHED", "PROLOG", "RUN", "COMPLETION", "EPILOG")


def list_command(parser: argparse.ArgumentParser) -> Run:
    """Build `perilog list`."""
    parser.epilog = "example: perilog list --state COMPLETION --user alice"
    parser.add_argument("-a", "--all", action="store_true", help="also jobs that are INACTIVE")
    parser.add_argument("--state", choices=(*ACTIVE, "INACTIVE"), help="only jobs in this state")
    parser.add_argument("--user", metavar="U", help="only jobs of this user (name or uid)")
    parser.add_argument("--node", metavar="NODE", help="only jobs that hold this node")
    parser.add_argument("--held-by", metavar="OWNER", help="only jobs with a hold of this name or owner")

    def run(arguments: argparse.Namespace) -> int:
        held_by = _owner(arguments.held_by)
        try:
            userid = None if arguments.user is None else uid(arguments.user)
        except ValueError as error:
            parser.error(str(error))
        states = [arguments.state] if arguments.state else [None] if arguments.all else ACTIVE
        found: dict[int, dict[str, Any]] = {}
        with connect(arguments.socket) as client:
            for state in states:
                pages = client.pages(
                    "job.list",
                    "id",
                    state=state,
                    userid=userid,
                    node=arguments.node,
                    held_by=held_by,
                )
                found.update((job["id"], job) for job in pages)  # one that moves on meanwhile may come twice
        jobs = [found[number] for number in sorted(found)]
        if arguments.json:
            text.print_json(jobs)
        elif jobs:
            print(brief(jobs))
        return 0

    return run


def brief(jobs: Iterable[dict[str, Any]]) -> str:
    """Return a table of jobs, one line each."""
    return text.table(("JOB", "USER", "NAME", "STATE", "SINCE", "NODES", "WAITING FOR"), map(_row, jobs))


def _row(job: dict[str, Any]) -> tuple[object, ...]:
    last = job.get("waiting_for") or _ended(job)
    since = text.since(job.get("since"))
    return (job["id"], text.user(job["userid"]), job.get("name"), job["state"], since, job.get("nodes"), last)


def _ended(job: dict[str, Any]) -> str:
    if not job.get("result"):
        return "-"
    code = job.get("exit_code")
    return str(job["result"]) if not code else f"{job['result']}, exit code {code}"


def show_command(parser: argparse.ArgumentParser) -> Run:
    """Build `perilog show`."""
    parser.epilog = "example: perilog show 17"
    parser.add_argument("job", metavar="JOB", help="a job's id or key")

    def run(arguments: argparse.Namespace) -> int:
        with connect(arguments.socket) as client:
            job = client.call("job.get", id=client.find(arguments.job))
        if arguments.json:
            text.print_json(job)
        else:
            print("\n".join(_describe(job)))
        return 0

    return run


def _describe(job: dict[str, Any]) -> Iterator[str]:
    fields = {
        "job": job["id"],
        "key": job.get("key"),
        "name": job.get("name"),
        "user": text.user(job["userid"]),
        "submitted": text.clock(job.get("submitted")),
        "state": f"{job['state']} since {text.clock(job.get('since'))}",
        "waiting for": job.get("waiting_for"),
        "result": _ended(job),
        "nodes": job.get("nodes"),
        "allocated": job.get("alloc") if job.get("alloc") != job.get("nodes") else None,
        "still held": job.get("held") if job.get("held") != job.get("nodes") else None,
        "attempt": job.get("attempt"),
        "application": text.status(job["exit_status"]) if job.get("exit_status") is not None else None,
    }
    for name in ("resources", "attributes", "environment", "memo"):
        fields[name] = " ".join(f"{key}={value}" for key, value in (job.get(name) or {}).items())
    yield from (
        f"{name:12} {text.safe(value)}" for name, value in fields.items() if value not in (None, "", "-")
    )
    if job.get("exceptions"):
        yield ""
        rows = [
            (text.clock(item.get("timestamp")), item["type"], item["severity"], item.get("note"))
            for item in job["exceptions"]
        ]
        yield text.table(("EXCEPTION", "TYPE", "SEVERITY", "NOTE"), rows)
    if job.get("holds"):
        yield ""
        yield text.table(HOLD_HEADINGS, map(hold_row, job["holds"]))
    if job.get("scripts"):
        yield ""
        yield text.table(SCRIPT_HEADINGS, map(script_row, job["scripts"]))


def _owner(text: str | None) -> int | str | None:
    """Read the owner of a hold: a uid, or action:NAME or provider:NAME."""
    return int(text) if text is not None and text.isascii() and text.isdigit() else text


HOLD_HEADINGS = ("PHASE", "HOLD", "OWNER", "SINCE", "DEADLINE", "KEEP", "PROGRESS", "STATE", "NOTE")


def hold_row(hold: dict[str, Any]) -> tuple[object, ...]:
    """Return a hold as a row of a table."""
    ended = hold.get("outcome")
    progress = hold.get("progress")
    return (
        hold["phase"],
        hold["name"],
        hold.get("owner"),
        text.since(hold.get("since")),
        "-" if ended else text.until(hold.get("deadline")),
        text.keep(hold.get("keep", "all")),
        None if progress is None else f"{progress:g}%",
        f"{ended} ({text.status(hold.get('status'))})" if ended else hold.get("stage"),
        hold.get("note"),
    )


SCRIPT_HEADINGS = (
    "PHASE",
    "ACTION",
    "STATE",
    "STATUS",
    "PID",
    "SINCE",
    "DEADLINE",
    "SECONDS",
    "CPU",
    "MEMORY",
)


def script_row(script: dict[str, Any]) -> tuple[object, ...]:
    """Return a run of a script as a row of a table."""
    running = script.get("outcome") is None
    seconds = script.get("wall")
    cpu = [script[name] for name in ("cpu_user", "cpu_system") if script.get(name) is not None]
    memory = script.get("max_rss")
    return (
        script.get("phase"),
        script.get("action"),
        script.get("state") if running else script.get("outcome"),
        None if running else text.status(script.get("status")),
        script.get("pid"),
        text.since(script.get("since")),
        text.until(script.get("deadline")) if running else None,
        None if seconds is None else f"{seconds:.3f}",
        f"{sum(cpu):.3f}" if cpu else None,
        None if memory is None else f"{memory / 2**20:.1f}MiB",
    )


def eventlog_command(parser: argparse.ArgumentParser) -> Run:
    """Build `perilog eventlog`."""
    parser.epilog = "example: perilog eventlog 17 --follow"
    parser.add_argument("job", metavar="JOB", help="a job's id or key")
    parser.add_argument("-f", "--follow", action="store_true", help="go on until the job's last event, clean")
    parser.add_argument(
        "--format",
        choices=("text", "json"),
        help="text: seconds since the first event, name, context; json: Flux RFC 18, one object a line",
    )

    def run(arguments: argparse.Namespace) -> int:
        json = arguments.json if arguments.format is None else arguments.format == "json"
        zero: float | None = None
        with connect(arguments.socket, patience=3600.0 if arguments.follow else 0.0) as client:
            for event in _log(client, client.find(arguments.job), follow=arguments.follow):
                zero = event["timestamp"] if zero is None else zero
                if json:
                    print(text.compact({key: event[key] for key in text.RFC18}, ascii_only=True), flush=True)
                else:
                    shown = text.event_text(event["name"], event["context"])
                    print(f"{event['timestamp'] - zero:12.6f} {shown}", flush=arguments.follow)
        return 0

    return run


def _log(client: Client, job: int, *, follow: bool) -> Iterator[dict[str, Any]]:
    if follow:
        return (event._asdict() for event in _followed(client.watch(job)) if event.name != "gap")
    return client.pages("job.events", "seq", id=job)


def _followed(watch: Watch) -> Iterator[Event]:
    """Yield a watch's events until its end, or until nobody reads what is printed.

    Raises:
        BrokenPipeError: the reader has gone, as in `perilog events | head -1`: no write would tell until
            the next event comes.
    """
    output = select.poll()
    output.register(1, 0)  # errors and hang-ups are always reported
    while True:
        event = watch.next(1.0)
        if event is not None:
            yield event
        elif watch.ended:
            return
        elif output.poll(0):
            raise BrokenPipeError


def events_command(parser: argparse.ArgumentParser) -> Run:
    """Build `perilog events`."""
    parser.epilog = (
        "Each line begins with the event's sequence number; --from with the next number goes on there.\n"
        "example: perilog events --from 4711 --json"
    )
    parser.add_argument(
        "--all", action="store_true", help="begin with the oldest event that is kept, not now"
    )
    parser.add_argument(
        "--from", dest="start", metavar="SEQ", type=int, help="begin with this sequence number"
    )

    def run(arguments: argparse.Namespace) -> int:
        start = 0 if arguments.all and arguments.start is None else arguments.start
        with connect(arguments.socket, patience=3600.0) as client:
            for event in _followed(client.watch(start=start)):
                if arguments.json:
                    text.print_json(event._asdict(), flush=True)
                else:
                    shown = text.event_text(event.name, event.context)
                    print(f"{event.seq} {text.clock(event.timestamp)} {event.job} {shown}", flush=True)
        return 0

    return run


def holds_command(parser: argparse.ArgumentParser) -> Run:
    """Build `perilog holds`."""
    parser.epilog = "example: perilog holds --phase completion"
    parser.add_argument("job", metavar="JOB", nargs="?", help="a job's id or key; default: all jobs")
    parser.add_argument(
        "--phase", choices=("depend", "prolog", "completion", "epilog"), help="only this phase"
    )
    parser.add_argument("--name", metavar="NAME", help="only holds of this name")
    parser.add_argument(
        "--owner", metavar="OWNER", help="only of this owner: a uid, action:NAME or provider:NAME"
    )

    def run(arguments: argparse.Namespace) -> int:
        wanted = {"phase": arguments.phase, "name": arguments.name, "owner": _owner(arguments.owner)}
        with connect(arguments.socket) as client:
            if arguments.job is not None:
                job = client.call("job.get", id=client.find(arguments.job))
                holds = [{"id": job["id"], **hold} for hold in job["holds"]]
                holds = [
                    hold for hold in holds if all(v is None or hold.get(k) == v for k, v in wanted.items())
                ]
            else:
                holds = list(client.pages("hold.list", "id", **wanted))
        if arguments.json:
            text.print_json(holds)
        elif holds:
            print(text.table(("JOB", *HOLD_HEADINGS), ((hold["id"], *hold_row(hold)) for hold in holds)))
        return 0

    return run
