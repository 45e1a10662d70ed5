"""Commands of the workq protocol, one function for each request type, and the waits of a session: for a job to lease,
or for the end of one. Inspections are in workq_inspect.py. Source: the client protocol of workq.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from staniel.broker import access
from staniel.broker.commands import rules, workq_inspect
from staniel.broker.commands.guarded import guarded
from staniel.broker.commands.memcache import invalid, more
from staniel.broker.commands.rules import Commands, Rule, handlers_of, refusal_of_each, rights_of
from staniel.broker.rights import Role
from staniel.broker.session import ITEMS_AT_ONCE, FrequentCommands, Session
from staniel.journal.disk.ballast import RECORD_OVERHEAD_BYTES
from staniel.protocol.requests import Invalid, More
from staniel.protocol.workq import replies
from staniel.protocol.workq import requests as workq
from staniel.protocol.workq.job_requests import AddJob, DeleteJob, LeaseJob
from staniel.protocol.workq.job_texts import leased
from staniel.queues.jobs.job import Job, Terms
from staniel.queues.jobs.jobs import Finish, Jobs
from staniel.queues.jobs.queue import JobQueue
from staniel.queues.jobs.states import COMPLETED
from staniel.queues.jobs.times import NS_A_MS

if TYPE_CHECKING:
    from staniel.broker.jobs import JobService

OK = replies.ok  # Python finds a name of this module faster
ADD_BYTES = 512  # size of an add's record beside its payload, at most


def add(session: Session, request: workq.AddJob, now_ms: int) -> None:
    """Add a job."""
    service = session.workq
    log, jobs, payload = service.log, service.jobs, request.payload
    size = len(payload) + ADD_BYTES
    group = log.group
    is_tight = log.ballast is not None or group.pending_bytes + size > group.budget_bytes
    if (is_tight or session.needs_check) and not may_write(session, service, size):
        return
    terms = service.terms.get(request.terms)
    if terms is None and jobs.find(request.id, now_ms) is None:  # a refused job creates no queue
        terms = service.learn(request.terms)
    if terms is None or jobs.add(request.id, terms, payload, now_ms) is None:
        session.out.append(replies.duplicate_job)
        return
    batch = log.batch
    if batch > session.batch:
        session.batch = batch
    session.out.append(OK)


def schedule(session: Session, request: workq.ScheduleJob, now_ms: int) -> None:
    """Add a job that becomes ready later."""
    service = session.workq
    if not may_write(session, service, len(request.payload) + ADD_BYTES):
        return
    time_ns = request.time_ns and (request.time_ns - service.log.ahead_ns or 1)  # in server time
    if time_ns // NS_A_MS + request.terms.ttl_ms <= now_ms:
        session.out.append(replies.invalid_time)
        return
    if service.jobs.find(request.id, now_ms) is not None:
        session.out.append(replies.duplicate_job)
        return
    service.jobs.add(request.id, service.intern(request.terms), request.payload, now_ms, time_ns)
    depend(session, service)
    session.out.append(replies.ok)


def run(session: Session, request: workq.RunJob, now_ms: int) -> None:
    """Add a job and wait for its end."""
    service = session.workq
    if not may_write(session, service, 0):
        return
    if service.jobs.find(request.id, now_ms) is not None:
        session.out.append(replies.duplicate_job)
        return
    wait = RunWait(service.jobs, session)
    terms = service.intern(request.terms)

    def answer(job: Job | None, now_ms: int) -> None:
        if job is not None:
            show_result(session, job)
        elif wait.is_gone:
            session.out.append(replies.not_found)
        else:
            session.out.append(replies.stopping if session.broker.status.is_stopping else replies.timeout)

    # The session is parked before the job is added, so that a waiting worker gets the job in the same step.
    session.park(wait, now_ms + request.wait_ms, answer, opens=False, peeks=False)
    wait.job = service.jobs.run(request.id, terms, request.payload, wait, now_ms)


def lease(session: Session, request: workq.LeaseJob, now_ms: int) -> None:
    """Lease a job of one of several names, now or as soon as there is one."""
    service = session.workq
    jobs = service.jobs
    if session.needs_check and (why := access.read_refusal(session, None)):
        session.out.append(replies.server_error(why))
        return
    queues = [jobs.queues.get(name) or jobs.queue_to_wait(name) for name in request.names]
    if len(request.names) > ITEMS_AT_ONCE:
        session.yield_turn()
    if request.has_invalid_name:
        session.out.append(replies.invalid_name)
        return
    job = jobs.lease(queues, now_ms)
    if job is not None:
        show_lease(session, service, job)
    elif request.wait_ms:
        wait_for_lease(session, service, queues, now_ms + request.wait_ms)
    else:
        session.out.append(replies.timeout)


def wait_for_lease(session: Session, service: JobService, queues: list[JobQueue], until_ms: int) -> None:
    def answer(job: Job | None, now_ms: int) -> None:
        if job is None:
            session.out.append(replies.timeout)
        else:
            show_lease(session, service, job)

    session.park(LeaseWait(service.jobs, queues, session), until_ms, answer, opens=False, peeks=False)


def show_lease(session: Session, service: JobService, job: Job) -> None:
    terms = job.terms
    shown = terms.shown or show_terms(terms)
    session.out.append(leased(job.id, shown, job.payload))
    session.out_bytes += len(job.payload)
    job.holder = session.address
    depend(session, service)


def show_terms(terms: Terms) -> bytes:
    terms.shown = replies.terms(terms.queue.name, terms.ttr_ms)
    return terms.shown


def finish(session: Session, request: workq.FinishJob, now_ms: int) -> None:
    """Finish a job with the result of its worker."""
    service = session.workq
    size = len(request.result)
    if not may_write(session, service, size and size + RECORD_OVERHEAD_BYTES):
        return
    verdict = service.jobs.finish(request.id, request.result, now_ms, success=request.success)
    if verdict is Finish.DONE:
        depend(session, service)
        session.out.append(replies.ok)
    else:
        session.out.append(replies.not_found if verdict is Finish.NOT_FOUND else replies.duplicate_result)


def delete(session: Session, request: workq.DeleteJob, now_ms: int) -> None:
    service = session.workq
    if session.needs_check and not may_write(session, service, 0):
        return
    jobs = service.jobs
    if jobs.delete(request.id, now_ms):
        depend(session, service)
        session.out.append(OK)
    else:
        session.out.append(replies.not_found)


def result(session: Session, request: workq.AwaitResult, now_ms: int) -> None:
    """Reply with the result of a job, now or when the job ends."""
    service = session.workq
    job = service.jobs.find(request.id, now_ms)
    if job is None:
        session.out.append(replies.not_found)
    elif job.is_processed:
        show_result(session, job)
    elif request.wait_ms:
        wait_for_result(session, service, job, now_ms + request.wait_ms)
    else:
        session.out.append(replies.timeout)


def wait_for_result(session: Session, service: JobService, job: Job, until_ms: int) -> None:
    wait = ResultWait(service.jobs, job, session)

    def answer(job: Job | None, now_ms: int) -> None:
        if job is not None:
            show_result(session, job)
        else:
            session.out.append(replies.not_found if wait.is_gone else replies.timeout)
            depend(session, service)  # the deletion must be durable before the reply

    session.park(wait, until_ms, answer, opens=False, peeks=False)


def show_result(session: Session, job: Job) -> None:
    session.out.append(replies.result(job.id, job.state is COMPLETED, job.result))
    session.out_bytes += len(job.result)
    depend(session, session.workq)


def depend(session: Session, service: JobService) -> None:
    """Hold the reply back until the last change of jobs is durable, as its policy says."""
    log = service.log
    batch = log.batch
    if batch > session.batch:
        session.batch = batch


def may_write(session: Session, service: JobService, size: int) -> bool:
    """Tell whether this session may change jobs now, and the disk has room for `size` more bytes. If not, the client
    has been sent an error. Leases, deletes and empty results fit into the reserve, so they are accepted while the disk
    is full.
    """
    if session.needs_check and (why := access.write_refusal(session, None)):
        session.out.append(replies.server_error(why))
        return False
    if size and not service.log.admits(size):
        session.out.append(replies.read_only)
        return False
    return True


class LeaseWait:
    """A wait for the first job of several queues."""

    __slots__ = ("_jobs", "_session", "queues")

    def __init__(self, jobs: Jobs, queues: Sequence[JobQueue], session: Session) -> None:
        self.queues = queues
        self._jobs = jobs
        self._session = session

    def park(self, session: Session) -> None:
        self._jobs.park(self)

    def unpark(self, session: Session) -> None:
        self._jobs.unpark(self)

    def abort(self, job: Job, now_ms: int) -> None:
        """Give the job back because its client disconnected before the reply."""
        self._jobs.give_back(job, now_ms)

    def deliver(self, job: Job) -> None:
        self._session.deliver(job)

    def dismiss(self) -> None:
        self._session.dismiss()


class ResultWait:
    """A wait for the end of another client's job. `is_gone`: the job was deleted or has expired, and has no result."""

    __slots__ = ("_job", "_jobs", "_session", "is_gone")

    def __init__(self, jobs: Jobs, job: Job, session: Session) -> None:
        self.is_gone = False
        self._jobs = jobs
        self._job = job
        self._session = session

    def park(self, session: Session) -> None:
        self._jobs.watch(self._job, self)

    def unpark(self, session: Session) -> None:
        self._jobs.unwatch(self._job, self)

    def abort(self, job: Job, now_ms: int) -> None:
        pass

    def deliver(self, job: Job) -> None:
        self._session.deliver(job)

    def dismiss(self) -> None:
        self.is_gone = True
        self._session.dismiss()


class RunWait:
    """A wait for the end of the client's own job, which is dropped when the wait ends. `is_gone`: the job was
    deleted.
    """

    __slots__ = ("_jobs", "_session", "is_gone", "job")

    def __init__(self, jobs: Jobs, session: Session) -> None:
        self.job: Job | None = None
        self.is_gone = False
        self._jobs = jobs
        self._session = session

    def park(self, session: Session) -> None:
        pass

    def unpark(self, session: Session) -> None:
        if self.job is not None:
            self._jobs.abandon(self.job)

    def abort(self, job: Job, now_ms: int) -> None:
        pass

    def leased(self, job: Job, now_ms: int) -> None:
        self._session.broker.timers.set(self._session, now_ms + job.terms.ttr_ms)

    def deliver(self, job: Job) -> None:
        self._session.deliver(job)

    def dismiss(self) -> None:
        self.is_gone = True
        self._session.dismiss()


def write_terms(session: Session, request: workq.AddJob | workq.ScheduleJob | workq.RunJob, now_ms: int) -> str:
    """Require the right to write to the job's name. Rights to jobs are rights to their names, as for queues."""
    return rights_of(session).refusal(Role.WRITE, request.terms.name.decode("latin-1"))


def read_each_name(session: Session, request: workq.LeaseJob, now_ms: int) -> str:
    return refusal_of_each(session, Role.READ, {name.decode("latin-1") for name in request.names})


def read_name(session: Session, request: workq.InspectJobs | workq.InspectQueue, now_ms: int) -> str:
    return rights_of(session).refusal(Role.READ, request.name.decode("latin-1"))


def on_job(role: Role) -> Rule:
    """Return a rule for requests with the id of a job. The required right is for the job's name."""

    def rule(session: Session, request: Any, now_ms: int) -> str:
        job = session.workq.jobs.find(request.id, now_ms)
        if job is None:
            return rules.known(session, request, now_ms)
        return rights_of(session).refusal(role, job.terms.queue.name.decode("latin-1"))

    return rule


COMMANDS: Commands = {
    workq.AddJob: (add, write_terms),
    workq.ScheduleJob: (schedule, write_terms),
    workq.RunJob: (run, write_terms),
    workq.LeaseJob: (lease, read_each_name),
    workq.FinishJob: (finish, on_job(Role.READ)),
    workq.DeleteJob: (delete, on_job(Role.WRITE)),
    workq.AwaitResult: (result, on_job(Role.WRITE)),
    workq.InspectJob: (guarded(workq_inspect.job), on_job(Role.READ)),
    workq.InspectJobs: (guarded(workq_inspect.jobs), read_name),
    workq.InspectQueue: (guarded(workq_inspect.queue), read_name),
    workq.InspectQueues: (guarded(workq_inspect.queues), rules.look_at_all),
    workq.InspectServer: (guarded(workq_inspect.server), rules.known),
    Invalid: (invalid, rules.always),
    More: (more, rules.always),
}
HANDLERS = handlers_of(COMMANDS)


def refuse(session: Session, request: Any, now_ms: int) -> None:
    """Refuse a request because the command log cannot be read."""
    session.out.append(replies.server_error(session.workq.trouble))


class WorkqCommands(FrequentCommands):
    """The functions of HANDLERS for frequent requests, unless the session is blocked."""

    __slots__ = ()

    def serve(self, session: Session, request: Any, now_ms: int) -> None:
        kind = type(request)
        if session.handlers is not HANDLERS:
            session.handlers[kind](session, request, now_ms)
        elif kind is AddJob:
            add(session, request, now_ms)
        elif kind is LeaseJob:
            lease(session, request, now_ms)
        elif kind is DeleteJob:
            delete(session, request, now_ms)
        else:
            session.handlers[kind](session, request, now_ms)


BLOCKED: dict[type, Callable[[Session, Any, int], None]] = dict.fromkeys(HANDLERS, refuse)
