"""Leases: applications that live as long as a client's connection; and providers bound to theirs.

A lease ends at once when its connection ends while the broker lives. Only after a restart of the broker
has the client `lease-grace`, counted from READY, to take it again.
"""

from __future__ import annotations

import os
from typing import Protocol

from perilogd.broker.core import Broker
from perilogd.lifecycle import commands, holds
from perilogd.lifecycle.job import Job, Stage, State


class Peer(Protocol):
    """What a lease needs of a connection: to be told apart, and what it is bound to."""

    id: int
    provider: str | None


class Leases:
    """Who holds which lease, and which providers are there.

    Args:
        broker: whose jobs these are.
    """

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._holder: dict[int, int] = {}  # job → connection
        self._held: dict[int, set[int]] = {}  # connection → jobs
        self._bound: dict[str, set[int]] = {}  # provider → connections

    def take(self, job: Job, connection: Peer) -> None:
        """Tie a running application to a connection, in place of an earlier one."""
        self.drop(job.id)
        self._holder[job.id] = connection.id
        self._held.setdefault(connection.id, set()).add(job.id)
        self._broker.timers.clear(("lease", job.id))

    def drop(self, job_id: int) -> None:
        """Let go of an application that has ended."""
        before = self._holder.pop(job_id, None)
        if before is not None:
            self._held[before].discard(job_id)

    def bind(self, connection: Peer) -> None:
        """Note that a provider has come (its `hello`)."""
        if connection.provider is not None:
            self._bound.setdefault(connection.provider, set()).add(connection.id)
            self._broker.timers.clear(("provider", connection.provider))

    def closed(self, connection: Peer) -> None:
        """End what depended on a connection that has ended."""
        for job_id in sorted(self._held.pop(connection.id, ())):
            del self._holder[job_id]
            self._lose(job_id, "the connection of the client that ran the application has ended")
        name = connection.provider
        if name is not None and name in self._bound:
            self._bound[name].discard(connection.id)
            if not self._bound[name]:
                del self._bound[name]
                self._provider_left(name)

    def restored(self) -> None:
        """Give the clients of the broker before us `lease-grace` to come back."""
        grace = self._broker.config.broker.lease_grace
        when = self._broker.clock.boottime() + grace
        for job in self._broker.jobs.values():
            if job.lease and job.state is State.RUN and job.id not in self._holder:
                self._await(job.id, when, grace)

    def _await(self, job_id: int, when: float, grace: float) -> None:
        note = f"the client that ran the application did not come back within {grace:g} s of a broker restart"
        self._broker.timers.set(("lease", job_id), when, lambda: self._lose(job_id, note))

    def _lose(self, job_id: int, note: str) -> None:
        job = self._broker.jobs.get(job_id)
        if job is not None and job.lease:
            self._broker.transact(
                job, commands.lose(job, self._broker.policy, f"lease of job {job_id} ended: {note}")
            )

    def _provider_left(self, name: str) -> None:
        """Start the grace period of a provider whose last connection has ended; then its policy decides."""
        for provider in self._broker.config.providers:
            if provider.name == name and provider.on_disconnect.then == "fail":
                when = self._broker.clock.boottime() + provider.on_disconnect.grace
                self._broker.timers.set(("provider", name), when, lambda: self._fail_holds(name))

    def _fail_holds(self, name: str) -> None:
        owner = f"provider:{name}"
        for job in list(self._broker.jobs.values()):
            for hold in job.active_holds():
                if hold.owner == owner and hold.stage is Stage.ACTIVE:
                    note = f"provider {name} has been disconnected for too long"
                    steps = holds.finish(job, self._broker.policy, hold, os.geteuid(), status=256, note=note)
                    self._broker.transact(job, steps)
