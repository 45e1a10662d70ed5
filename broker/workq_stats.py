"""What the jobs count, under names like those of the queues.

Knows the names. Refuses to know how a protocol writes them.
"""

from __future__ import annotations

from collections.abc import Iterator

from staniel.broker.jobs import Workq
from staniel.queues.jobs.queue import JobQueue


def snapshot(service: Workq) -> Iterator[tuple[str, object]]:
    """(name, value) of all jobs and their log, then of every name that jobs have."""
    jobs, log = service.jobs, service.log
    yield "jobs", len(jobs.by_id)
    yield "jobs_evicted", jobs.evicted
    yield "jobs_timed_out", jobs.timed_out
    yield "jobs_logsize", log.stored_bytes
    yield "jobs_log_segments", len(log.segments)
    yield "jobs_log_records", log.records
    yield "jobs_log_cleanings", service.cleanings
    for name, queue in sorted(jobs.queues.items()):
        for key, value in queue_stats(queue):
            yield f"jobs_{name.decode('latin-1')}_{key}", value


def queue_stats(queue: JobQueue) -> Iterator[tuple[str, object]]:
    """One name's: jobs to be handed out, to come, with a worker, done; and who waits."""
    yield "ready", len(queue.ready)
    yield "scheduled", len(queue.scheduled)
    yield "leased", queue.leased
    yield "finished", queue.finished
    yield "waiters", len(queue.waiters)
