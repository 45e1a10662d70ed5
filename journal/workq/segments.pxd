# The ends of life of a segment's jobs are any 64 bits each: their sum is a Python integer.

cdef class CmdLogSegment:
    cdef public object limits_ms, due_ms
    cdef public long long number, size, adds, dead, corrupt_ranges, invalid_records
