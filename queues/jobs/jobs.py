"""All jobs of a server, and their operations: add, lease, time out, finish, delete, expire. The states are in job.py.
Time is an argument, changes are recorded in a JobJournal, and jobs are delivered to waiters. Source: the client
protocol and the states of workq.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Protocol

from staniel.queues.jobs.job import Job, Terms, new_job
from staniel.queues.jobs.journal import JobJournal
from staniel.queues.jobs.queue import JobLine, JobQueue, JobWaiter, Leaser
from staniel.queues.jobs.states import (
    COMPLETED,
    FAILED,
    LEASED,
    PENDING,
    PROCESSED,
    RUN_TTL_MS,
    JobState,
)
from staniel.queues.jobs.timers import JobTimers
from staniel.queues.jobs.times import NEVER_MS, NS_A_MS, end_ms, next_ns

IDLE_QUEUES_MAX = 2048  # twice the names of one lease: a megabyte


class Finish(Enum):
    """The outcome of completing or failing a job."""

    DONE = "done"
    NOT_FOUND = "not found"
    DUPLICATE = "duplicate"


class Watcher(JobWaiter, Protocol):
    """A client that waits for the end of a job."""

    def dismiss(self) -> None:
        """Stop waiting. The job has been deleted, or its time to live has ended, so it will never be finished."""


class Runner(Watcher, Protocol):
    """A client that has added a job and waits for its end."""

    def leased(self, job: Job, now_ms: int) -> None:
        """Note that a worker has the job. Its time to run counts from now on."""


class Jobs:
    """All jobs of a server. `honours_max_fails`: a failed job returns to its queue until it has failed `max_fails`
    times. The original server declares the setting and ignores it.
    """

    def __init__(self, journal: JobJournal, *, honours_max_fails: bool = False) -> None:
        self.journal = journal
        self.honours_max_fails = honours_max_fails
        self.by_id: dict[bytes, Job] = {}
        self.queues: dict[bytes, JobQueue] = {}
        self.timers = JobTimers()
        self._idle: OrderedDict[JobQueue, None] = OrderedDict()  # created for a lease, and not used by a job
        self.evicted = 0
        self.timed_out = 0  # leases
        self.lease_over: Callable[[Job, int], None] = lambda job, now_ms: None  # called for each time-out
        self._runners: dict[bytes, Runner] = {}
        self._watchers: dict[bytes, dict[Watcher, None]] = {}
        self._last_ns = 0  # each job is created later than the one before, so that jobs keep their order
        self.mark = 0  # of the present era of the wall clock; the remainder by 64 of a job's creation
        self._first = 0  # which of a lease's queues is asked first
        self._behind = False  # the last `ring` did not do everything that was due

    def queue(self, name: bytes) -> JobQueue:
        """Return the jobs' queue of a legal name; create it if necessary. It exists until the process ends."""
        queue = self.queue_to_wait(name)
        queue.is_kept = True
        return queue

    def queue_to_wait(self, name: bytes) -> JobQueue:
        """Return the queue of a legal name; create it if necessary. Of the queues without jobs and waiters, only the
        newest IDLE_QUEUES_MAX are kept.
        """
        queue = self.queues.get(name)
        if queue is None:
            queue = self.queues[name] = JobQueue(name)
            self._idle[queue] = None
            if len(self._idle) > IDLE_QUEUES_MAX:
                self._forget_idle()
        return queue

    def _forget_idle(self) -> None:
        queue, _ = self._idle.popitem(last=False)
        if not queue.is_kept and not queue.waiters:
            del self.queues[queue.name]

    def find(self, id: bytes, now_ms: int) -> Job | None:
        """Return the job that has this id now."""
        job = self.by_id.get(id)
        if self._behind and job is not None and not job.is_run and job.limit_ms <= now_ms:
            self._expire(job, now_ms)
            return None
        return job

    # coming in

    def add(self, id: bytes, terms: Terms, payload: bytes, now_ms: int, time_ns: int = 0) -> Job | None:
        """Add a job that is ready from `time_ns` on. Return None if a job has that id already."""
        if id in self.by_id and self.find(id, now_ms) is not None:
            return None
        self._last_ns = created_ns = next_ns(now_ms, self._last_ns, self.mark)
        job = self.by_id[id] = new_job(id, terms, payload, created_ns, time_ns)
        limit_ms = end_ms(created_ns, time_ns, terms.ttl_ms)
        self.journal.added(job, limit_ms)
        if time_ns and time_ns > created_ns:
            self._schedule(job, now_ms)
            return job
        self.timers.set(job, limit_ms, now_ms)
        queue = terms.queue
        if queue.waiters:
            self._make_ready(job, now_ms)
        else:
            queue.ready.add(job)
        return job

    def run(self, id: bytes, terms: Terms, payload: bytes, runner: Runner, now_ms: int) -> Job | None:
        """Add a job that exists until it is finished, or until `abandon` is called. Return None as `add` does."""
        if id in self.by_id and self.find(id, now_ms) is not None:
            return None
        self._last_ns = next_ns(now_ms, self._last_ns, self.mark)
        job = self.by_id[id] = Job(id, terms, payload, self._last_ns)
        self._runners[id] = runner
        self._make_ready(job, now_ms)
        return job

    def abandon(self, job: Job) -> None:
        """Forget the run `job`, whose client no longer waits."""
        if self.by_id.get(job.id) is job:
            self._runners.pop(job.id)
            self._forget(job)

    def _schedule(self, job: Job, now_ms: int) -> None:
        job.until_ms = -(-job.time_ns // NS_A_MS)
        job.terms.queue.scheduled.add(job)
        self.timers.set(job, job.until_ms, now_ms)

    def _make_ready(self, job: Job, now_ms: int) -> None:
        queue = job.terms.queue
        if queue.waiters:
            waiter = next(iter(queue.waiters))
            self.unpark(waiter)
            self._start(job, now_ms)
            waiter.deliver(job)
        else:
            queue.ready.add(job)

    # leases

    def lease(self, queues: Sequence[JobQueue], now_ms: int) -> Job | None:
        """Lease and return the first job of one of these queues. Each call begins with another queue, so that none of
        them starves.
        """
        if len(queues) == 1 and not self._behind:
            queue = queues[0]
            job = queue.ready.pop()
            if job is not None:
                self._start(job, now_ms)
            return job
        if len(queues) > 1:
            self._first += 1
            first = self._first % len(queues)
            queues = [*queues[first:], *queues[:first]]
        for queue in queues:
            job = queue.ready.pop()
            while self._behind and job is not None and not job.is_run and job.limit_ms <= now_ms:
                queue.ready.add(job)
                self._expire(job, now_ms)
                job = queue.ready.pop()
            if job is not None:
                self._start(job, now_ms)
                return job
        return None

    def park(self, waiter: Leaser) -> None:
        """Deliver the first job that comes into one of its queues to `waiter`; first come, first served."""
        for queue in waiter.queues:
            queue.waiters[waiter] = None

    def unpark(self, waiter: Leaser) -> None:
        for queue in waiter.queues:
            queue.waiters.pop(waiter, None)
            if not queue.is_kept and not queue.waiters and self.queues.get(queue.name) is queue:
                self._idle[queue] = None
                if len(self._idle) > IDLE_QUEUES_MAX:
                    self._forget_idle()

    def dismiss_leasers(self) -> None:
        """Tell all clients that wait for a job that none will come."""
        for queue in list(self.queues.values()):
            for waiter in list(queue.waiters):
                self.unpark(waiter)
                waiter.dismiss()

    def give_back(self, job: Job, now_ms: int) -> None:
        """End a lease because its client disconnected before it got the job."""
        if job.state is LEASED and self.by_id.get(job.id) is job:
            self._time_out(job, now_ms)

    def _start(self, job: Job, now_ms: int) -> None:
        terms = job.terms
        queue = terms.queue
        job.state = LEASED
        job.attempts += 1
        job.until_ms = until_ms = now_ms + terms.ttr_ms
        queue.leased += 1
        if terms.ttl_ms == RUN_TTL_MS:
            self._runners[job.id].leased(job, now_ms)
        else:
            self.journal.attempted(job, now_ms)
            limit_ms = end_ms(job.created_ns, job.time_ns, terms.ttl_ms)
            self.timers.set(job, until_ms if until_ms < limit_ms else limit_ms, now_ms)

    def _time_out(self, job: Job, now_ms: int) -> None:
        job.terms.queue.leased -= 1
        job.until_ms = NEVER_MS
        if not job.is_run:
            self.journal.timed_out(job, now_ms)
            self.timers.set(job, job.limit_ms, now_ms)
            if job.attempts >= job.terms.attempts_max:
                self._finish_job(job, FAILED, b"")
                return
        job.become(PENDING)
        self._make_ready(job, now_ms)

    # going out

    def finish(self, id: bytes, result: bytes, now_ms: int, *, success: bool) -> Finish:
        """Finish a job with its client's result: completed or failed."""
        job = self.find(id, now_ms)
        if job is None:
            return Finish.NOT_FOUND
        if job.is_processed:
            return Finish.DUPLICATE
        if not job.is_run:
            self.journal.finished(job, result, now_ms, success=success)
        if not success and self._may_try_again(job):
            self._try_again(job, now_ms)
            return Finish.DONE
        if job.until_ms < NEVER_MS and not job.is_run:
            self.timers.set(job, job.limit_ms, now_ms)
        self._leave(job)
        self._finish_job(job, COMPLETED if success else FAILED, result)
        return Finish.DONE

    def _may_try_again(self, job: Job) -> bool:
        if not self.honours_max_fails or job.is_run:
            return False
        job.fails += 1
        return job.fails < job.terms.max_fails and job.attempts < job.terms.attempts_max

    def _try_again(self, job: Job, now_ms: int) -> None:
        was_leased = job.state is LEASED
        job.become(PENDING)
        if was_leased:
            job.terms.queue.leased -= 1
            job.until_ms = NEVER_MS
            self.timers.set(job, job.limit_ms, now_ms)
            self._make_ready(job, now_ms)

    def _finish_job(self, job: Job, state: JobState, result: bytes) -> None:
        job.become(state)
        job.result = result
        watchers = self._watchers.pop(job.id, {})
        if job.is_run:
            self._runners.pop(job.id).deliver(job)
            del self.by_id[job.id]
        else:
            job.terms.queue.finished += 1
        for watcher in watchers:
            watcher.deliver(job)

    def watch(self, job: Job, watcher: Watcher) -> None:
        """Tell `watcher` when `job` is finished, or gone."""
        self._watchers.setdefault(job.id, {})[watcher] = None

    def unwatch(self, job: Job, watcher: Watcher) -> None:
        watchers = self._watchers.get(job.id)
        if watchers is not None:
            watchers.pop(watcher, None)
            if not watchers:
                del self._watchers[job.id]

    def delete(self, id: bytes, now_ms: int) -> bool:
        """Remove a job in any state. Return whether there was one."""
        job = self.by_id.get(id)
        if job is None or (self._behind and self.find(id, now_ms) is None):
            return False
        if job.terms.ttl_ms == 0:
            self._runners.pop(id).dismiss()
        else:
            self.journal.deleted(job, now_ms)
        self._forget(job)
        return True

    def _expire(self, job: Job, now_ms: int) -> None:
        self.journal.expired(job, now_ms)
        self.evicted += not job.is_processed
        self._forget(job)

    def _forget(self, job: Job) -> None:
        if job.state is LEASED:
            queue = job.terms.queue
            queue.leased -= 1
        else:
            self._leave(job)
        self.timers.drop(job)
        del self.by_id[job.id]
        if self._watchers:
            for watcher in self._watchers.pop(job.id, {}):
                watcher.dismiss()

    def _leave(self, job: Job) -> None:
        """Remove `job` from its place in its queue."""
        queue, state = job.terms.queue, job.state
        if state is LEASED:
            queue.leased -= 1
        elif state in PROCESSED:
            queue.finished -= 1
        elif not (job.time_ns and queue.scheduled.discard(job)):
            queue.ready.remove(job)
        job.until_ms = NEVER_MS

    # time

    def next_ms(self) -> int:
        """Return when `ring` has something to do; NEVER_MS if never."""
        return self.timers.next_ms()

    def ring(self, now_ms: int, most: int) -> None:
        """Do what is due to jobs by `now_ms`, for at most `most` of them; the next call continues."""
        timers = self.timers
        for _ in range(most):
            job = timers.pop(now_ms)
            if job is None:
                self._behind = False
                return
            self._look_at(job, now_ms)
        self._behind = timers.next_ms() <= now_ms

    def _look_at(self, job: Job, now_ms: int) -> None:
        limit_ms = job.limit_ms
        if limit_ms <= now_ms:
            self._expire(job, now_ms)
        elif job.until_ms > now_ms:
            self.timers.set(job, min(job.until_ms, limit_ms), now_ms)
        elif job.state is LEASED:
            self.timed_out += 1
            self.lease_over(job, now_ms)
            self._time_out(job, now_ms)
        else:
            self._leave(job)
            self.timers.set(job, limit_ms, now_ms)
            self._make_ready(job, now_ms)

    def shift_schedules(self, by_ns: int, now_ms: int) -> None:
        """Shift the dates of scheduled jobs after the wall clock was set back by `by_ns` (forward if negative): they
        become later, or earlier. A date that is past now comes immediately, and the job's lifetime begins. The lifetime
        of a job that was finished before its date begins then, too.
        """
        if not by_ns:
            return
        now_ns = now_ms * NS_A_MS
        for job in self.by_id.values():
            if job.is_processed and job.time_ns and job.time_ns > now_ns:
                job.time_ns = max(job.time_ns + by_ns, now_ns) or 1
                self.timers.set(job, job.limit_ms, now_ms)
        for queue in self.queues.values():
            if not queue.scheduled:
                continue
            jobs, queue.scheduled = list(queue.scheduled), JobLine()
            for job in jobs:
                if job.time_ns > now_ns:
                    job.time_ns = max(job.time_ns + by_ns, now_ns) or 1
                    job.until_ms = -(-job.time_ns // NS_A_MS)
                    self.timers.set(job, job.until_ms, now_ms)
            queue.scheduled.fill(jobs)

    def load(self, jobs: dict[bytes, Job], now_ms: int) -> None:
        """Take over the jobs of a replay: put each in its place and set its timer."""
        assert not self.by_id
        self.by_id = jobs
        ready: dict[JobQueue, list[Job]] = defaultdict(list)
        scheduled: dict[JobQueue, list[Job]] = defaultdict(list)
        now_ns, timers = now_ms * NS_A_MS, self.timers
        for job in jobs.values():
            state, terms, time_ns = job.state, job.terms, job.time_ns
            moment_ms = end_ms(job.created_ns, time_ns, terms.ttl_ms)
            if state is LEASED:
                job.until_ms = now_ms + terms.ttr_ms
                terms.queue.leased += 1
                moment_ms = min(moment_ms, job.until_ms)
            elif state in PROCESSED:
                terms.queue.finished += 1
            elif time_ns and time_ns > now_ns:
                job.until_ms = moment_ms = min(NEVER_MS, -(-time_ns // NS_A_MS))  # a log may have any time
                scheduled[terms.queue].append(job)
            else:
                ready[terms.queue].append(job)
            timers.set(job, moment_ms, now_ms)
        for queue, jobs_of_queue in ready.items():
            queue.ready.fill(jobs_of_queue)
        for queue, jobs_of_queue in scheduled.items():
            queue.scheduled.fill(jobs_of_queue)
