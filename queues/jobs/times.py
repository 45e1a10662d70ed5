"""The times of a job, computed from numbers in logs and requests, which may be any integers. Compiled, times.pyx
replaces this module.
"""

from __future__ import annotations

NS_A_MS = 1_000_000
NEVER_MS = 2**63 - 1
MARKS = 64


def end_ms(created_ns: int, time_ns: int, ttl_ms: int) -> int:
    """Return the end of a time to live, between 0 and NEVER_MS. It counts from a job's creation, or from a scheduled
    job's time.
    """
    end = (time_ns or created_ns) // NS_A_MS + ttl_ms
    return end if 0 <= end < NEVER_MS else NEVER_MS if end > 0 else 0


def next_ns(now_ms: int, last_ns: int, mark: int) -> int:
    """Return the creation time of a job at `now_ms`: later than the one before it, so that jobs keep their order. Its
    remainder by 64 is `mark`, which identifies the present era of the wall clock (calendar.py).
    """
    created_ns = now_ms * NS_A_MS + mark
    return created_ns if created_ns > last_ns else last_ns + 1 + (mark - last_ns - 1) % MARKS
