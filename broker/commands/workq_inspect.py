"""Replies of `inspect`: a job, pages of jobs, queues, the server. No function here changes anything."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from staniel.broker.commands.batches import PieceCommand
from staniel.broker.commands.guarded import refuse_failed
from staniel.broker.jobs import JobService
from staniel.broker.session import Session
from staniel.broker.stats import in_order
from staniel.protocol.workq import replies
from staniel.protocol.workq import requests as workq
from staniel.protocol.workq.fields import show_id, show_time
from staniel.queues.jobs.job import Job
from staniel.queues.jobs.queue import JobQueue
from staniel.queues.jobs.times import NS_A_MS


def job(session: Session, request: workq.InspectJob, now_ms: int) -> None:
    wanted = session.workq.jobs.find(request.id, now_ms)
    if wanted is None:
        session.out.append(replies.not_found)
    else:
        show(session, [wanted])


def jobs(session: Session, request: workq.InspectJobs, now_ms: int) -> None:
    """Reply with a page of a queue's ready or scheduled jobs, in the order in which they are delivered."""
    queue = session.workq.jobs.queues.get(request.name)
    if queue is None:
        session.out.append(replies.not_found)
        return
    line = queue.scheduled if request.scheduled else queue.ready
    show(session, line.page(request.offset, request.limit))


def queue(session: Session, request: workq.InspectQueue, now_ms: int) -> None:
    wanted = session.workq.jobs.queues.get(request.name)
    if wanted is None:
        session.out.append(replies.not_found)
    else:
        session.out.append(replies.objects([queue_block(wanted)]))


def queues(session: Session, request: workq.InspectQueues, now_ms: int) -> None:
    """Reply with a page of the names, in their order. With many names it takes several turns."""
    by_name = session.workq.jobs.queues
    blocks: list[bytes] = []

    def pieces() -> Iterator[None]:
        passed = 0
        for name in in_order(by_name):
            if name is not None and name in by_name:
                passed += 1
                if passed > request.offset + request.limit:
                    return
                if passed > request.offset:
                    blocks.append(queue_block(by_name[name]))
            yield

    def show(now_ms: int) -> None:
        session.out.append(replies.objects(blocks))

    PieceCommand(session, pieces(), show, partial(refuse_failed, session, "inspect queues")).make_some(now_ms)


def server(session: Session, request: workq.InspectServer, now_ms: int) -> None:
    service = session.workq
    lines = [
        (b"active-clients", number(sum(other.protocol == session.protocol for other in session.broker.sessions))),
        (b"evicted-jobs", number(service.jobs.evicted)),
        (b"started", show_time(service.shown_ns(service.started_ms * NS_A_MS))),
    ]
    session.out.append(replies.objects([replies.block(b"server", lines)]))


def show(session: Session, jobs: Sequence[Job]) -> None:
    session.out.append(replies.objects([job_block(job, session.workq) for job in jobs]))
    session.out_bytes += sum(len(job.payload) for job in jobs)
    # The reply may show a change that is not yet durable.
    session.batch = max(session.batch, session.workq.log.batch)


def job_block(job: Job, service: JobService) -> bytes:
    terms = job.terms
    lines = [
        (b"name", terms.queue.name),
        (b"ttr", number(terms.ttr_ms)),
        (b"ttl", number(terms.ttl_ms)),
        (b"payload-size", number(len(job.payload))),
        (b"payload", job.payload),
        (b"max-attempts", number(terms.max_attempts)),
        (b"attempts", number(job.attempts)),
        (b"max-fails", number(terms.max_fails)),
        (b"fails", number(job.fails)),
        (b"priority", number(terms.priority)),
        (b"state", number(job.state.value)),
        (b"created", show_time(service.shown_ns(job.created_ns))),
    ]
    if job.time_ns:
        lines.append((b"time", show_time(service.shown_ns(job.time_ns))))
    return replies.block(show_id(job.id), lines)


def queue_block(queue: JobQueue) -> bytes:
    lines = [(b"ready-len", number(len(queue.ready))), (b"scheduled-len", number(len(queue.scheduled)))]
    return replies.block(queue.name, lines)


def number(value: int) -> bytes:
    return b"%d" % value
