"""Bringing back what the journal remembers: replay, then the same questions as ever.

A job whose log cannot be read is set aside and reported; its nodes are drained, and the broker starts.
"""

from __future__ import annotations

import gc
from collections.abc import Iterable

import structlog

from perilogd.broker.core import Broker
from perilogd.journal import Entry, decode
from perilogd.lifecycle.apply import IllegalEvent, apply
from perilogd.lifecycle.effects import needs_restart_note
from perilogd.lifecycle.job import Event, Job, Stamp

_log = structlog.get_logger()


class Damaged(Exception):  # noqa: N818 - it says what the job is
    """A job's log cannot be folded.

    Args:
        job: the job as far as its log could be.
        why: what is wrong with the rest.
    """

    def __init__(self, job: Job, why: str) -> None:
        super().__init__(f"the log of job {job.id} is damaged: {why}")
        self.job = job
        self.why = why


def replay(job_id: int, entries: Iterable[Entry]) -> Job:
    """Fold a job's events.

    Raises:
        Damaged: an event cannot be decoded, or breaks the rules.
    """
    job = Job(job_id)
    for entry in entries:
        try:
            apply(job, entry.name, decode(entry.context), Stamp(entry.wall, entry.boottime, entry.boot))
        except (IllegalEvent, ValueError, KeyError, TypeError, AttributeError) as error:
            raise Damaged(job, f"event {entry.seq} ({entry.name}): {error!r}") from error
        job.last_seq = entry.seq
        job.length += 1
    return job


def restore(broker: Broker) -> None:
    """Replay every job that has not ended, and let each go on from where the journal left it.

    Args:
        broker: a new one; its scripts must be ready to be asked.
    """
    gc.disable()  # a million small objects that all stay: looking for cycles among them is time lost
    try:
        for job_id, entries in broker.journal.active(lambda job, why: _report(broker, job, why)):
            try:
                job = replay(job_id, entries)
            except Damaged as damage:
                _report(broker, job_id, damage.why)
                job = damage.job
            if job_id in broker.damaged:
                _set_aside(broker, job)
                continue
            broker.add(job, job.userid)
            if job.key is not None:
                broker.keys[job.submitter, job.key] = job_id
    finally:
        gc.enable()
        gc.freeze()
    for job in list(broker.jobs.values()):
        broker.scripts.recall(job)
        broker.resume(job, [Event("broker-restart", {})] if needs_restart_note(job) else [])


def _report(broker: Broker, job_id: int, why: str) -> None:
    if job_id in broker.damaged:
        return
    _log.error("a job cannot be read from the journal and is set aside", job=job_id, why=why)
    broker.damaged.append(job_id)


def _set_aside(broker: Broker, job: Job) -> None:
    """Drain the nodes of a job of which only a part is known."""
    nodes = job.held or job.wanted
    if nodes:
        reason = f"job {job.id} cannot be read from the journal; look after its nodes by hand"
        rows = broker.drains.add(nodes, reason, broker.clock.now().wall, "perilogd", job.id)
        broker.writer.batch.drains += rows
        broker.writer.wake()
