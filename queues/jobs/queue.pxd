cimport cython

from staniel.queues.jobs.job cimport Job


cdef class JobLine:
    cdef list _chunks
    cdef Py_ssize_t _length

    @cython.locals(chunks=list, chunk=list, last=Job)
    cpdef add(self, Job job)
    @cython.locals(chunks=list, chunk=list)
    cpdef Job pop(self)
    cpdef remove(self, Job job)
    @cython.locals(chunks=list, chunk=list, number=Py_ssize_t, at=Py_ssize_t)
    cpdef bint discard(self, Job job) except -1


@cython.locals(time_ns=object)
cpdef order(Job job)
cpdef _end(list chunk)


cdef class JobQueue:
    cdef public bytes name
    cdef public JobLine ready, scheduled
    cdef public dict waiters
    cdef public long long leased, finished
    cdef public bint is_kept
