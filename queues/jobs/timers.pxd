cimport cython

from staniel.queues.jobs.job cimport Job, Link, Ring

cdef long long _SLOT_MS, _FAR_MS, _FAR_STEP_MS, _FAR_STEP_SLOTS
cdef long long _VERY_FAR_MS, _VERY_FAR_STEP_MS, _VERY_FAR_STEP_SLOTS


cdef class JobTimers:
    cdef public dict _rings
    cdef list _heap

    @cython.locals(before=Link, after=Link, last=Link, ring=Ring, ahead_ms="long long", slot="long long")
    cpdef set(self, Job job, long long at_ms, long long now_ms)
    cpdef Ring _add_ring(self, long long slot)
    @cython.locals(before=Link, after=Link)
    cpdef drop(self, Job job)
    @cython.locals(heap=list, rings=dict, ring=Ring, slot="long long")
    cpdef long long next_ms(self) except -1
    @cython.locals(job=Job)
    cpdef Job pop(self, long long now_ms)
