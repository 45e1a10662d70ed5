cdef class Calendar:
    cdef public object _eras
    cdef public long long ahead_ms, mark
    cdef public bint is_even
