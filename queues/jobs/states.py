"""The states of a job, which may follow which, and the rules of its numbers: what job.py and job.pyx share."""

from __future__ import annotations

from enum import Enum

ATTEMPTS_MAX = 255  # the log's original reader counts them in a byte
RUN_TTL_MS = 0  # the time to live of a run, which lives in memory and as long as its client waits for it


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


def followed(before: JobState, after: JobState) -> JobState:
    """Return the state `after`, which may follow `before`."""
    assert after in NEXT[before], (before, after)
    return after


def attempts_allowed(max_attempts: int) -> int:
    """Return how often a job is leased that asks for `max_attempts`, 0: for none."""
    return max_attempts or ATTEMPTS_MAX
