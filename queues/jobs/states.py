"""The states of a job, and which may follow which."""

from __future__ import annotations

from enum import Enum


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
