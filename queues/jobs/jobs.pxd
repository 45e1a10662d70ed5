cimport cython

from staniel.queues.jobs.job cimport Job, Terms, new_job
from staniel.queues.jobs.queue cimport JobQueue
from staniel.queues.jobs.states cimport end_ms
from staniel.queues.jobs.timers cimport JobTimers


cdef class Jobs:
    cdef public object journal, lease_over, _idle, _last_ns
    cdef public bint honours_max_fails, _behind
    cdef public dict by_id, queues, _runners, _watchers
    cdef public JobTimers timers
    cdef public long long evicted, timed_out, _first

    @cython.locals(queue=JobQueue)
    cpdef JobQueue queue_to_wait(self, bytes name)
    @cython.locals(job=Job)
    cpdef Job find(self, bytes id, now_ms)
    @cython.locals(job=Job, queue=JobQueue)
    cpdef Job add(self, bytes id, Terms terms, bytes payload, now_ms, time_ns=*)
    @cython.locals(queue=JobQueue)
    cpdef _make_ready(self, Job job, now_ms)
    @cython.locals(queue=JobQueue, job=Job, first=Py_ssize_t)
    cpdef Job lease(self, queues, now_ms)
    @cython.locals(terms=Terms, queue=JobQueue)
    cpdef _start(self, Job job, now_ms)
    @cython.locals(job=Job)
    cpdef bint delete(self, bytes id, now_ms) except -1
    @cython.locals(queue=JobQueue)
    cpdef _forget(self, Job job)
    @cython.locals(queue=JobQueue)
    cpdef _leave(self, Job job)
