"""The moments of a job; times.py tells more. Integers of 64 bits, and the way of the .py for others."""

from cpython.long cimport PyLong_AsLongLongAndOverflow

NS_A_MS = 1_000_000
NEVER_MS = 2**63 - 1
MARKS = 64

cdef long long NS = 1_000_000
cdef long long MARK_COUNT = MARKS
cdef long long NEVER = 0x7FFFFFFFFFFFFFFF
cdef long long NOW_MS_MAX = 9_000_000_000_000  # of which the nanoseconds fit 64 bits


cpdef long long end_ms(created_ns, time_ns, ttl_ms) except -1:
    """When a time to live is over, from 0 to NEVER_MS."""
    cdef int is_long = 0
    cdef long long from_ns = PyLong_AsLongLongAndOverflow(time_ns, &is_long), more_ms
    if from_ns == 0 and not is_long:
        from_ns = PyLong_AsLongLongAndOverflow(created_ns, &is_long)
    if not is_long:
        more_ms = PyLong_AsLongLongAndOverflow(ttl_ms, &is_long)
        if not is_long:
            from_ns //= NS
            if more_ms > NEVER - (from_ns if from_ns > 0 else 0):
                return NEVER
            return max(from_ns + more_ms, 0) if more_ms >= 0 or from_ns >= 0 else 0
    end = (time_ns or created_ns) // NS_A_MS + ttl_ms
    return end if 0 <= end < NEVER_MS else NEVER_MS if end > 0 else 0


cpdef next_ns(long long now_ms, last_ns, long long mark):
    """Later than `last_ns`, with the remainder `mark` by 64."""
    cdef int is_long = 0
    cdef long long last = PyLong_AsLongLongAndOverflow(last_ns, &is_long), found
    if not is_long and -NOW_MS_MAX < now_ms < NOW_MS_MAX:
        found = now_ms * NS + mark
        if found > last:
            return found
        if 0 <= last < NEVER - 128:
            return last + 1 + (mark - last - 1) % MARK_COUNT
    created_ns = <object>now_ms * NS_A_MS + mark
    return created_ns if created_ns > last_ns else last_ns + 1 + (mark - last_ns - 1) % MARKS
