"""The states of a job and their transitions, and the rules of its numbers: the part that job.py and job.pyx share."""

from __future__ import annotations

from enum import Enum

ATTEMPTS_MAX = 255  # the original server's reader of the log counts them in a byte
RUN_TTL_MS = 0  # the time to live of a run, which exists in memory while its client waits for it


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
    PENDING = 3  # leased before, but not finished in time
    LEASED = 4


# Looking up a member of an Enum takes ten times as long as a global, and every request needs these.
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
    """Return the state `after`, after checking that it may follow `before`."""
    assert after in NEXT[before], (before, after)
    return after


def attempts_allowed(max_attempts: int) -> int:
    """Return how often a job with this `max_attempts` may be leased; 0 sets no limit."""
    return max_attempts or ATTEMPTS_MAX
