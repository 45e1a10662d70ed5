cimport cython

from staniel.queues.jobs.job cimport Job, Link, Ring


cpdef long long slot_of(long long at_ms, long long now_ms) except -1


cdef class JobTimers:
    cdef public dict _rings
    cdef list _heap

    @cython.locals(before=Link, after=Link, last=Link, ring=Ring, ahead_ms="long long", slot="long long")
    cpdef set(self, Job job, long long at_ms, long long now_ms)
    cpdef Ring _begin(self, long long slot)
    @cython.locals(before=Link, after=Link)
    cpdef drop(self, Job job)
    @cython.locals(heap=list, rings=dict, ring=Ring, slot="long long")
    cpdef long long next_ms(self) except -1
    cpdef Job pop(self, long long now_ms)
