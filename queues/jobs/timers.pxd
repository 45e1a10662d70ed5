# A moment may be any integer: a job's end comes from a log.

cimport cython

from staniel.queues.jobs.job cimport Job, Link, Ring


cdef class JobTimers:
    cdef public dict _rings
    cdef list _heap

    @cython.locals(before=Link, after=Link, last=Link, ring=Ring)
    cpdef set(self, Job job, at_ms, now_ms)
    @cython.locals(before=Link, after=Link)
    cpdef drop(self, Job job)
    @cython.locals(heap=list, rings=dict, ring=Ring)
    cpdef next_ms(self)
    cpdef Job pop(self, now_ms)
