"""One job: its terms, its state, and the times that concern it. Times that decide an order are nanoseconds since 1970,
because two jobs of one millisecond must keep theirs; all others are milliseconds.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Any

from msgspec import Struct

if TYPE_CHECKING:
    from staniel.queues.jobs.queue import JobQueue

NS_A_MS = 1_000_000
ATTEMPTS_MAX = 255  # the log's original reader counts them in a byte


class JobState(Enum):
    """The numbers are those that `inspect` shows. Which state may follow which is in NEXT.

    NEW ─▶ LEASED ─▶ COMPLETED | FAILED         finishing without a lease is allowed, also before a scheduled time
             │ ▲
             ▼ │     the lease ends: FAILED after the last attempt, else
           PENDING   back in its old place
    """

    NEW = 0
    COMPLETED = 1
    FAILED = 2
    PENDING = 3  # leased before, and not finished in time
    LEASED = 4


# Looking a member up in its Enum takes ten times as long as a global, and these are asked for at every request.
NEW = JobState.NEW
COMPLETED = JobState.COMPLETED
FAILED = JobState.FAILED
PENDING = JobState.PENDING
LEASED = JobState.LEASED

PROCESSED = (COMPLETED, FAILED)
NEXT = {  # a failed job that may be tried again is PENDING, leased or not
    NEW: (LEASED, PENDING, *PROCESSED),
    PENDING: (LEASED, PENDING, *PROCESSED),
    LEASED: (PENDING, *PROCESSED),
    COMPLETED: (),
    FAILED: (),
}


class Terms(Struct, eq=False, gc=False):
    """What a job was added with, beside its payload. Jobs alike in it share one. `ttl_ms` 0: a `run`, which lives in
    memory and as long as its client waits for it.

    `coded` and `shown` are what the journal and the wire make of it, kept because a million jobs may share it.
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
        return self.max_attempts or ATTEMPTS_MAX


class Job(Struct, eq=False, gc=False):
    """`id` is the UUID's 16 bytes. `time_ns` 0: not scheduled. `until_ms`: when the lease ends, or the schedule; or 0.
    `holder`: the client that got it last, for the log. `origin`: where the journal has written its addition, for the
    journal's use. `prev`, `next`: its neighbours in a ring of the timers, None out of it: nothing else would free a
    ring.
    """

    id: bytes
    terms: Terms
    payload: bytes
    created_ns: int
    time_ns: int = 0
    state: JobState = NEW
    attempts: int = 0
    fails: int = 0
    until_ms: int = 0
    result: bytes = b""
    holder: str = ""
    origin: int = 0
    prev: Any = None
    next: Any = None

    @property
    def limit_ms(self) -> int:
        """When its time to live is over: counted from its creation, a scheduled job's from its time."""
        return (self.time_ns or self.created_ns) // NS_A_MS + self.terms.ttl_ms

    @property
    def is_run(self) -> bool:
        return self.terms.ttl_ms == 0

    @property
    def is_processed(self) -> bool:
        return self.state in PROCESSED

    def become(self, state: JobState) -> None:
        """Enter `state`. A lease does without this call: what is in a line of ready jobs is NEW or PENDING."""
        assert state in NEXT[self.state], (self.state, state)
        self.state = state
