"""A job: its terms, its state, and its times. Times that decide an order are nanoseconds since 1970, so that two jobs
of one millisecond keep their order. All others are milliseconds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import Struct

from staniel.queues.jobs.states import NEW, PROCESSED, RUN_TTL_MS, JobState, attempts_allowed, followed
from staniel.queues.jobs.times import NEVER_MS, end_ms

if TYPE_CHECKING:
    from staniel.queues.jobs.queue import JobQueue


class Link(Struct, eq=False, gc=False, kw_only=True):
    """A member of a ring of the timers, with its neighbours there. Outside of a ring they are None, because reference
    counting would never free a ring.
    """

    prev: Any = None
    next: Any = None


class Ring(Link, eq=False, gc=False):
    """The beginning and end of the jobs of one slot. An empty ring is its own neighbour."""


class Terms(Struct, eq=False, gc=False):
    """The settings with which a job was added, without its payload. Jobs with equal settings share one Terms. `ttl_ms`
    RUN_TTL_MS: a run. `coded` and `shown` are the terms in the form of the journal and of the wire, kept because a
    million jobs may share them.
    """

    queue: JobQueue
    ttr_ms: int
    ttl_ms: int
    priority: int = 0
    max_attempts: int = 0
    max_fails: int = 0
    coded: bytes = b""
    shown: bytes = b""

    @property
    def attempts_max(self) -> int:
        return attempts_allowed(self.max_attempts)


class Job(Link, eq=False, gc=False):
    """A job. `id` is the UUID's 16 bytes. `time_ns` 0: not scheduled. `until_ms`: the end of the lease or of the
    schedule; or NEVER_MS. `holder`: the last client that got it, for the log. `origin`: the place of its addition in
    the journal, for the journal's use.
    """

    id: bytes
    terms: Terms
    payload: bytes
    created_ns: int
    time_ns: int = 0
    state: JobState = NEW
    attempts: int = 0
    fails: int = 0
    until_ms: int = NEVER_MS
    result: bytes = b""
    holder: str = ""
    origin: int = 0

    @property
    def limit_ms(self) -> int:
        return end_ms(self.created_ns, self.time_ns, self.terms.ttl_ms)

    @property
    def is_run(self) -> bool:
        return self.terms.ttl_ms == RUN_TTL_MS

    @property
    def is_processed(self) -> bool:
        return self.state in PROCESSED

    def become(self, state: JobState) -> None:
        """Enter `state`. A lease does not call this: a job in a line of ready jobs is NEW or PENDING."""
        self.state = followed(self.state, state)


# Called with the first five fields: compiled, this is cheaper than the class (job.pyx).
new_job = Job
