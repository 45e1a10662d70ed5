"""Jobs rebuilt from the facts that a log holds. The original server decides and writes in two steps, so facts of one
job may stand in another order than they happened.

    fact of a job       not known                       known
    added               taken over, unless its life     the later one wins
                        is over; what was written too
                        early is caught up
    leased              kept for an addition to come    an attempt; again: the time-out is still to come
    timed out           ignored                         back, or failed after the last attempt
    finished            kept for an addition to come    finished; the first one counts
    deleted, expired    ignored                         gone
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from staniel.queues.calendar import EVEN, Calendar
from staniel.queues.jobs.job import Job, Terms
from staniel.queues.jobs.jobs import Jobs
from staniel.queues.jobs.states import COMPLETED, FAILED, LEASED, PENDING, RUN_TTL_MS
from staniel.queues.jobs.times import end_ms

Early = tuple[int, int, Callable[[bytes], None]]
# How long before the addition another change of the same job may have been written: the original does both at once, in
# two threads. If this were much longer, changes could be attributed to a later job after the clock stepped back.
SWAPPED_NS = 1_000_000_000


class JobReplay:
    """Builds jobs from the changes in a log. Times of changes are the wall clock's of their moment; those of jobs, and
    all in ms, are server time. `dead` counts, by origin, the additions of ended jobs. `origin` is where the present
    changes come from. `early` has the jobs that depend on changes in an earlier origin than their addition's: (their
    creation, the first such origin).
    """

    def __init__(self, jobs: Jobs, now_ms: int, calendar: Calendar = EVEN) -> None:
        self.jobs = jobs
        self.calendar = calendar
        self.now_ms = now_ms
        self.found: dict[bytes, Job] = {}
        self.dead: Counter[int] = Counter()
        self.origin = 0
        self.early: dict[bytes, tuple[int, int]] = {}
        self.latest_ns = 0  # the latest time of a lease or an end, by the log's clock
        self.strays: list[bytes] = []  # at the end: ids with changes but without an addition
        self._early: dict[bytes, list[Early]] = {}
        self._swapped: Counter[bytes] = Counter()

    def added(self, id: bytes, terms: Terms, payload: bytes, created_ns: int, time_ns: int, origin: int) -> int:
        """Apply an addition of a job, scheduled for `time_ns` unless that is 0. Return the end of its lifetime,
        in ms.
        """
        if id in self.found:
            self.removed(id)
        written_ns = created_ns
        if not self.calendar.is_even:
            created_ns = self.calendar.created_ns(written_ns, self.now_ms)
            time_ns = time_ns and (self.calendar.comes_ns(time_ns, written_ns, self.now_ms) or 1)
        limit_ms = end_ms(created_ns, time_ns, terms.ttl_ms)
        if limit_ms <= self.now_ms or terms.ttl_ms == RUN_TTL_MS:  # with a time to live of 0 it would seem to be a run
            self.dead[origin] += 1
            return limit_ms
        job = Job(id, terms, payload, created_ns, time_ns)
        job.origin = origin
        self.found[id] = job
        if self._early and id in self._early:
            for at_ns, told_in, apply in self._early.pop(id):
                # An earlier change belongs to another job with that id, whose addition a crash has lost.
                if written_ns <= at_ns <= written_ns + SWAPPED_NS:
                    apply(id)
                    if told_in < origin:
                        self.early.setdefault(id, (created_ns, told_in))
        return limit_ms

    def attempted(self, id: bytes, at_ns: int) -> None:
        """Apply a lease of the job, at `at_ns` by the log's clock."""
        if at_ns > self.latest_ns:
            self.latest_ns = at_ns
        job = self.found.get(id)
        if job is None:
            self._remember(id, at_ns, lambda id: self.attempted(id, at_ns))
        elif job.state is LEASED:
            job.attempts += 1
            self._swapped[id] += 1
        elif not job.is_processed:
            job.attempts += 1
            job.state = LEASED

    def timed_out(self, id: bytes) -> None:
        """Apply the end of a lease without a result."""
        job = self.found.get(id)
        if job is None or job.is_processed:
            return
        if self._swapped[id] > 0 and job.state is LEASED:
            self._swapped[id] -= 1
        elif job.attempts >= job.terms.attempts_max:
            job.become(FAILED)
            job.result = b""
        else:
            job.become(PENDING)

    def finished(self, id: bytes, result: bytes, at_ns: int, *, success: bool) -> None:
        """Apply the result of a client that has completed or failed the job."""
        if at_ns > self.latest_ns:
            self.latest_ns = at_ns
        job = self.found.get(id)
        if job is None:
            self._remember(id, at_ns, lambda id: self.finished(id, result, at_ns, success=success))
            return
        if job.is_processed:
            return
        if not success and self.jobs.honours_max_fails:
            job.fails += 1
            if job.fails < job.terms.max_fails and job.attempts < job.terms.attempts_max:
                job.become(PENDING)
                return
        job.become(COMPLETED if success else FAILED)
        job.result = result

    def removed(self, id: bytes) -> None:
        """Apply the end of the job: it was deleted, or its time to live was over."""
        job = self.found.pop(id, None)
        if job is not None:
            self.dead[job.origin] += 1
            self.early.pop(id, None)
        self._early.pop(id, None)
        self._swapped.pop(id, None)

    def end(self) -> None:
        """Pass all jobs to the jobs in service."""
        self.strays = list(self._early)
        self._early.clear()
        self.jobs.load(self.found, self.now_ms)

    def unended(self) -> list[Job]:
        """Return the leased jobs with an earlier lease that has no end in the log, once for each such lease, because a
        crash has lost the end. Otherwise the end of this lease would be read as that of the earlier one.
        """
        return [self.found[id] for id, count in self._swapped.items() if id in self.found for _ in range(count)]

    def _remember(self, id: bytes, at_ns: int, apply: Callable[[bytes], None]) -> None:
        self._early.setdefault(id, []).append((at_ns, self.origin, apply))
