"""The methods `broker.*`: about the broker itself, and its reload, drain and shutdown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from perilogd import __version__
from perilogd.broker.core import Broker
from perilogd.broker.link import ExecutorLink
from perilogd.broker.runs import Runs
from perilogd.lifecycle.job import Stage
from perilogd.rpc.method import ADMIN, EVERYONE, Call, Method
from perilogd.rpc.params import Argument, Boolean


class Control(Protocol):
    """What the daemon does when asked."""

    async def reload(self) -> None:
        """Put the configuration in the files in force, whole or not at all; raises Refusal."""

    def stop(self) -> None:
        """End the broker; scripts go on."""


class AdminMethods:
    """Builds the table's entries.

    Args:
        broker: whose state is told.
        runs: which scripts run.
        link: what the executor said of itself.
        control: reloads and stops.
        connections: returns the number of clients and of watches.
    """

    def __init__(
        self,
        broker: Broker,
        runs: Runs,
        link: ExecutorLink,
        control: Control,
        connections: Callable[[], tuple[int, int]],
    ) -> None:
        self._broker = broker
        self._runs = runs
        self._link = link
        self._control = control
        self._connections = connections
        self.table: Mapping[str, Method] = {}  # the whole table, set when it is complete

    def methods(self) -> list[Method]:
        """Return the entries."""
        return [
            Method(
                "broker.ping", self.ping, roles=EVERYONE, doc="Answer.", result="{version, time, wait_event}"
            ),
            Method(
                "broker.methods",
                self.list_,
                roles=EVERYONE,
                doc="List every method, with arguments, types and roles.",
                result="an array of methods",
            ),
            Method("broker.stats", self.stats, roles=ADMIN, doc="Return counters.", result="a map"),
            Method(
                "broker.config",
                self.config,
                roles=ADMIN,
                doc="Return the configuration in force, defaults filled in.",
                result="tables and keys as in the file",
            ),
            Method(
                "broker.reload",
                self.reload,
                roles=ADMIN,
                doc="Read the configuration anew; it is taken whole or not at all.",
                result="{}",
            ),
            Method(
                "broker.drain",
                self.drain,
                [Argument("on", Boolean(), required=True, doc="whether to refuse new jobs")],
                roles=ADMIN,
                doc="Take no new jobs, or take them again.",
                result="{jobs}: how many are live",
            ),
            Method(
                "broker.shutdown",
                self.shutdown,
                roles=ADMIN,
                doc="End the broker. Scripts go on, and the next broker finds them.",
                result="{}",
            ),
        ]

    def ping(self, call: Call) -> dict[str, Any]:
        """Answer."""
        del call
        broker = self._broker
        return {
            "version": __version__,
            "time": broker.clock.now().wall,
            "wait_event": broker.config.broker.wait_event,  # what `run` and `attach` wait for by default
        }

    def list_(self, call: Call) -> list[dict[str, object]]:
        """List methods."""
        del call
        return [self.table[name].describe() for name in sorted(self.table)]

    def stats(self, call: Call) -> dict[str, Any]:
        """Return counters."""
        del call
        broker = self._broker
        connections, watches = self._connections()
        ready_at = broker.ready_at
        return {
            "version": __version__,
            "uptime": broker.clock.boottime() - ready_at if ready_at is not None else 0.0,
            "jobs": dict(Counter(job.state.value for job in broker.jobs.values())),
            "holds": sum(
                hold.stage is Stage.ACTIVE for job in broker.jobs.values() for hold in job.holds.values()
            ),
            "scripts": {
                **Counter(run.place.value for run in self._runs.runs.values()),
                "stuck": len(self._runs.stuck),
            },
            "drained": len(broker.drains.rows),
            "events": broker.next_seq - 1,
            "oldest": broker.oldest,
            "commits": broker.writer.commits,
            "damaged": broker.damaged,
            "draining": broker.draining,
            "connections": connections,
            "watches": watches,
            "executor": {"answers": self._link.up, **self._link.info},
        }

    def config(self, call: Call) -> dict[str, Any]:
        """Return the configuration."""
        del call
        return self._broker.config.as_table()

    async def reload(self, call: Call) -> dict[str, Any]:
        """Reload."""
        del call
        await self._control.reload()
        return {}

    def drain(self, call: Call, on: bool) -> dict[str, Any]:
        """Refuse new jobs, or take them again."""
        del call
        self._broker.draining = on
        return {"jobs": len(self._broker.jobs)}

    def shutdown(self, call: Call) -> dict[str, Any]:
        """Stop, once the reply is on its way."""
        call.then = self._control.stop
        return {}
