"""The moments of a job, from what logs and clients give: any integers. Compiled, times.pyx takes its place."""

from __future__ import annotations

NS_A_MS = 1_000_000
NEVER_MS = 2**63 - 1
MARKS = 64


def end_ms(created_ns: int, time_ns: int, ttl_ms: int) -> int:
    """Return the end of a time to live: counted from a job's creation, a scheduled job's from its time. 0 to
    NEVER_MS.
    """
    end = (time_ns or created_ns) // NS_A_MS + ttl_ms
    return end if 0 <= end < NEVER_MS else NEVER_MS if end > 0 else 0


def next_ns(now_ms: int, last_ns: int, mark: int) -> int:
    """Return the moment of creation of a job at `now_ms`: later than the one before it, so that they keep their order.
    The remainder by 64 is `mark`, of the present era of the wall (calendar.py).
    """
    created_ns = now_ms * NS_A_MS + mark
    return created_ns if created_ns > last_ns else last_ns + 1 + (mark - last_ns - 1) % MARKS
