# The C fields of job.py's values. Moments and times to live come from logs with any 64 bits, in seconds or without a sign:
# they are Python integers.

cimport cython


@cython.no_gc
cdef class Link:
    cdef public Link prev, next


@cython.final
@cython.no_gc
cdef class Ring(Link):
    pass


@cython.final
@cython.no_gc
cdef class Terms:
    cdef public object queue, ttl_ms
    cdef public long long ttr_ms, priority, max_attempts, max_fails
    cdef public bytes coded, shown


@cython.final
@cython.no_gc
cdef class Job(Link):
    cdef public bytes id, payload, result
    cdef public Terms terms
    cdef public object created_ns, time_ns, state, until_ms
    cdef public long long attempts, fails, origin
    cdef public str holder

    cpdef become(self, state)


cpdef Job new_job(bytes id, Terms terms, bytes payload, object created_ns, object time_ns)
