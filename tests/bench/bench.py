"""How fast perilogd is, as ratios to what this machine can do (`make bench`).

Measured in one run: (i) how many /bin/true a second can be spawned at all; (ii) complete jobs a second, from
submit to clean, with a prolog and an epilog each, durable; (iii) the same for fewer and for more jobs;
(iv) requests a second; (v) what one `perilog` costs. Only the public protocol is used. Exit status 1 if a
target is missed.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgpack

from perilog.testing import PrivateBroker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PROGRAM = "/bin/true"
CONFIG = f"""
[[action]]
name = "bench"
match = {{ bench = true }}
prolog = ["{PROGRAM}"]
epilog = ["{PROGRAM}"]
"""
#: Jobs in one run: the middle one is held against the limit, the others show whether a job's cost is flat.
SIZES = (500, 2_000, 8_000)
IN_FLIGHT = 256
CLIENTS, PIPELINE = 8, 16

#: Targets: scripts a second by the spawn limit; dearest size by cheapest; a command by bare Python; µs a job.
MIN_SCRIPTS, MAX_SPREAD, MAX_COMMAND, MAX_BROKER = 0.45, 1.25, 1.6, 900.0


class Missed(NamedTuple):
    """A target that was missed, for the closing lines."""

    what: str
    value: float
    target: float


class Client(asyncio.Protocol):
    """A msgpack-RPC client that writes requests without waiting for replies."""

    def __init__(self) -> None:
        self.on_event: Callable[[str, int], None] = lambda _name, _job: None
        self._unpacker = msgpack.Unpacker(raw=False)
        self._replies: dict[int, asyncio.Future[Any] | None] = {}
        self._next = 0
        self._unsent: list[bytes] = []
        self.failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    @classmethod
    async def connect(cls, path: Path) -> Client:
        """Return a client of the broker behind this socket."""
        _, client = await asyncio.get_running_loop().create_unix_connection(cls, str(path))
        return client

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport (called by asyncio)."""
        self._transport: asyncio.WriteTransport = transport  # type: ignore[assignment]

    def connection_lost(self, exc: Exception | None) -> None:
        """Fail whoever still waits (called by asyncio)."""
        for waiting in (self.failed, *self._replies.values()):
            if waiting is not None and not waiting.done():
                waiting.set_exception(exc or ConnectionError("the broker closed the connection"))

    def close(self) -> None:
        """End the connection."""
        self.failed.cancel()
        self._transport.close()

    def send(self, method: str, arguments: dict[str, Any]) -> None:
        """Ask, and only care whether it is refused; what one chunk of input leads to is written at once."""
        self._ask(method, arguments, None)

    async def call(self, method: str, **arguments: Any) -> Any:
        """Ask, and wait for the result."""
        reply = asyncio.get_running_loop().create_future()
        self._ask(method, arguments, reply)
        return await reply

    def _ask(self, method: str, arguments: dict[str, Any], reply: asyncio.Future[Any] | None) -> None:
        self._next += 1
        self._replies[self._next] = reply
        if not self._unsent:
            asyncio.get_running_loop().call_soon(self._flush)
        self._unsent.append(msgpack.packb([0, self._next, method, [arguments]]))

    def _flush(self) -> None:
        self._transport.write(b"".join(self._unsent))
        self._unsent.clear()

    def data_received(self, data: bytes) -> None:
        """Hand out replies and events (called by asyncio)."""
        self._unpacker.feed(data)
        for message in self._unpacker:
            if message[0] == 2:
                if message[1] == "event":
                    event = message[2][0]
                    self.on_event(event["name"], event["job"])
                continue
            _, number, error, result = message
            reply = self._replies.pop(number)
            if error is None:
                if reply is not None:
                    reply.set_result(result)
            elif not (waiting := reply or self.failed).done():
                waiting.set_exception(RuntimeError(f"the broker refused: {error[1]}"))


# -- (i) what the machine can do ----------------------------------------------------------------------


def spawn_rate(at_once: int, total: int = 1500) -> float:
    """Return how many processes a second can be started and reaped, with so many running at once."""
    environment = {"PATH": "/usr/bin:/bin"}
    running = started = 0
    begin = time.perf_counter()
    while started < total or running:
        while running < at_once and started < total:
            os.posix_spawn(PROGRAM, [PROGRAM], environment)
            started += 1
            running += 1
        os.waitpid(-1, 0)
        running -= 1
    return total / (time.perf_counter() - begin)


def best_concurrency() -> int:
    """Return how many running at once give the highest rate here."""
    return max((2, 4, 8, 16, 32), key=spawn_rate)


# -- (ii), (iii) jobs ---------------------------------------------------------------------------------


class Jobs(NamedTuple):
    """What a run of many jobs showed.

    Args:
        jobs: how many.
        seconds: from the first submit to the last clean.
        limit: processes a second that can be spawned, as measured before and after.
        broker: the broker's CPU time in seconds.
    """

    jobs: int
    seconds: float
    limit: float
    broker: float

    @property
    def ratio(self) -> float:
        """Scripts a second by the spawn limit."""
        return 2 * self.jobs / self.seconds / self.limit


async def drive(path: Path, count: int) -> float:
    """Take jobs through their whole lives and return how many seconds that took."""
    client = await Client.connect(path)
    submitted = cleaned = 0
    everything_clean: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def submit() -> None:
        nonlocal submitted
        submitted += 1
        client.send("job.submit", {"nodes": "n1", "attributes": {"bench": True}})

    def react(name: str, job: int) -> None:
        nonlocal cleaned
        if name == "ready":
            client.send("job.start", {"id": job})
        elif name == "start":
            client.send("job.exit", {"id": job, "status": 0})
        elif name == "clean":
            cleaned += 1
            if submitted < count:
                submit()
            elif cleaned == count:
                everything_clean.set_result(None)

    client.on_event = react
    await client.call("job.watch")
    begin = time.perf_counter()
    for _ in range(min(IN_FLIGHT, count)):
        submit()
    await asyncio.wait([everything_clean, client.failed], return_when=asyncio.FIRST_COMPLETED)
    if client.failed.done():
        await client.failed  # raises
    seconds = time.perf_counter() - begin
    client.close()
    return seconds


def cpu_seconds(pid: int) -> float:
    """Return the CPU time that a process has used (proc(5): utime and stime)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def run_jobs(broker: PrivateBroker, count: int, at_once: int) -> Jobs:
    """Measure one size, and the spawn limit right before and right after it."""
    assert broker.process is not None
    before = spawn_rate(at_once)
    cpu = cpu_seconds(broker.process.pid)
    seconds = asyncio.run(drive(broker.socket, count))
    cpu = cpu_seconds(broker.process.pid) - cpu
    return Jobs(count, seconds, (before + spawn_rate(at_once)) / 2, cpu)


# -- (iv) requests ------------------------------------------------------------------------------------


async def quiet_job(client: Client) -> int:
    """Return a job that runs no script and waits in COMPLETION for the hold `copy`."""
    hold = {"phase": "completion", "name": "copy"}
    job = int((await client.call("job.submit", nodes="n1", holds=[hold]))["id"])
    await client.call("job.wait", id=job, event="ready")
    await client.call("job.start", id=job)
    await client.call("job.exit", id=job, status=0)
    await client.call("job.wait", id=job, event="completion-start")
    return job


async def request_rate(path: Path, method: str, clients: int, pipeline: int, total: int) -> float:
    """Return requests a second, from so many clients with so many unanswered requests each."""
    connections = [await Client.connect(path) for _ in range(clients)]
    job = await quiet_job(connections[0])
    left = iter(range(total))

    async def ask(client: Client) -> None:
        for number in left:
            arguments = {"memo": {"bench": number}} if method == "job.memo" else {}
            await client.call(method, id=job, **arguments)

    begin = time.perf_counter()
    await asyncio.gather(*(ask(client) for client in connections for _ in range(pipeline)))
    seconds = time.perf_counter() - begin
    for client in connections:
        client.close()
    return total / seconds


# -- (v) the command ----------------------------------------------------------------------------------


def command_costs(broker: PrivateBroker, rounds: int = 40) -> dict[str, float]:
    """Return the median wall time in seconds of each verb that scripts call, and of bare Python (first)."""

    async def prepare() -> tuple[str, str]:
        client = await Client.connect(broker.socket)
        jobs = str(await quiet_job(client)), str(await quiet_job(client))
        client.close()
        return jobs

    job, released = asyncio.run(prepare())
    programs = Path(sys.executable).parent
    hold = [job, "completion", "copy"]
    front = [str(programs / "perilog"), "-s", str(broker.socket)]
    commands = {
        "python3 -I -S -c pass": [str(programs / "python3"), "-I", "-S", "-c", "pass"],
        "hold": [*front, "hold", *hold],
        "progress": [*front, "progress", *hold, "50", "half"],
        "update": [*front, "update", *hold, "--note", "half"],
        "memo": [*front, "memo", job, "bench=1"],
        "wait": [*front, "wait", job, "exit"],
        "release": [*front, "release", released, *hold[1:]],  # the first time, then again and again
    }
    times: dict[str, list[float]] = {name: [] for name in commands}
    for _ in range(rounds):  # turn by turn, so that a disturbance meets all alike
        for name, command in commands.items():
            begin = time.perf_counter()
            pid = os.posix_spawn(command[0], command, os.environ, file_actions=_QUIET)
            _, status = os.waitpid(pid, 0)
            times[name].append(time.perf_counter() - begin)
            if status != 0:
                raise RuntimeError(f"{command} failed with wait status {status}")
    return {name: statistics.median(values) for name, values in times.items()}


_QUIET = [(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)]


# -- putting it together ------------------------------------------------------------------------------


def fast_folder() -> str | None:
    """Return a folder on tmpfs, as /run is on a real host, for files of running scripts; None if none."""
    mounts = [line.split() for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    memory = {fields[4] for fields in mounts if fields[fields.index("-") + 1] == "tmpfs"}
    for candidate in ("/run", f"/run/user/{os.getuid()}", "/dev/shm"):
        if candidate in memory and os.access(candidate, os.W_OK):
            return candidate
    return None


@contextlib.contextmanager
def fresh_broker(disk: str) -> Iterator[PrivateBroker]:
    """Give a broker with an empty journal, warm; at the end it is ended and removed."""
    with (
        tempfile.TemporaryDirectory(prefix="perilog-bench-", dir=disk) as folder,
        tempfile.TemporaryDirectory(prefix="perilog-bench-", dir=fast_folder()) as run_dir,
        PrivateBroker(Path(folder), run_dir=Path(run_dir, "run")) as broker,
    ):
        broker.config.write_text(CONFIG)
        broker.start()
        asyncio.run(drive(broker.socket, 50))
        yield broker


class Bench:
    """One run: measures, prints, and remembers which targets were missed.

    Args:
        disk: a folder on a real disk, for the journals.
    """

    def __init__(self, disk: str) -> None:
        self._disk = disk
        self.missed: list[Missed] = []

    def check(self, what: str, value: float, target: float, *, most: bool) -> str:
        """Note a missed target and return what stands beside the figure."""
        good = value <= target if most else value >= target
        if not good:
            self.missed.append(Missed(what, value, target))
        return f"{'at most' if most else 'at least'} {target:g}: {'met' if good else 'MISSED'}"

    def run(self) -> None:
        """Measure everything and print it as it comes."""
        kind = subprocess.check_output(["stat", "-f", "-c", "%T", self._disk], text=True).strip()
        print(f"journal on {self._disk} ({kind}), running scripts' files on {fast_folder()}")
        at_once = best_concurrency()
        limit = spawn_rate(at_once)
        print(f"(i)   spawn limit: {limit:,.0f} {PROGRAM} a second, {at_once} at once, by os.posix_spawn\n")
        self._jobs(at_once)
        with fresh_broker(self._disk) as broker:
            self._requests(broker)
            self._commands(broker)

    def _jobs(self, at_once: int) -> None:
        print("(ii), (iii)  jobs   jobs/s  scripts/s  limit/s  ratio  broker µs/job")
        runs = []
        for count in SIZES:
            with fresh_broker(self._disk) as broker:
                run = run_jobs(broker, count, at_once)
            runs.append(run)
            rate = run.jobs / run.seconds
            print(
                f"{run.jobs:17,} {rate:8,.0f} {2 * rate:10,.0f} {run.limit:8,.0f} {run.ratio:6.2f}"
                f" {run.broker / run.jobs * 1e6:14,.0f}"
            )
        middle = runs[len(runs) // 2]
        ratios = [run.ratio for run in runs]
        for what, value, target, most in (
            (f"(ii) scripts a second by the limit, {middle.jobs:,} jobs", middle.ratio, MIN_SCRIPTS, False),
            ("(iii) cheapest size by dearest", max(ratios) / min(ratios), MAX_SPREAD, True),
            ("broker CPU µs a job", middle.broker / middle.jobs * 1e6, MAX_BROKER, True),
        ):
            print(f"      {what}: {value:.2f}  {self.check(what, value, target, most=most)}")

    def _requests(self, broker: PrivateBroker) -> None:
        print("\n(iv)  requests a second     one client, one by one    eight clients, pipelined")
        for method, label, total in (("job.get", "read", 4_000), ("job.memo", "durable write", 1_000)):
            one = asyncio.run(request_rate(broker.socket, method, 1, 1, total))
            eight = asyncio.run(request_rate(broker.socket, method, CLIENTS, PIPELINE, 4 * total))
            print(f"      {label:13} {method:8} {one:22,.0f} {eight:27,.0f}   x {eight / one:.1f}")

    def _commands(self, broker: PrivateBroker) -> None:
        bare, *verbs = command_costs(broker).items()
        print(f"\n(v)   one command, by {bare[0]} ({bare[1] * 1e3:.1f} ms)")
        for verb, seconds in verbs:
            ratio = seconds / bare[1]
            verdict = self.check(f"(v) perilog {verb}", ratio, MAX_COMMAND, most=True)
            print(f"      perilog {verb:9} {seconds * 1e3:6.1f} ms  {ratio:.2f}  {verdict}")


def main() -> int:
    """Run the bench; see the module's text."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--disk", default="/var/tmp", help="a folder on a real disk, for the journal")
    bench = Bench(parser.parse_args().disk)
    bench.run()
    for missed in bench.missed:
        print(f"MISSED: {missed.what} is {missed.value:.2f}, target {missed.target:g}")
    return 1 if bench.missed else 0


if __name__ == "__main__":
    sys.exit(main())
