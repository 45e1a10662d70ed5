cimport cython

from staniel.queues.jobs.job cimport Job, Terms, new_job
from staniel.queues.jobs.journal cimport JobJournal
from staniel.queues.jobs.queue cimport JobQueue
from staniel.queues.jobs.timers cimport JobTimers
from staniel.queues.jobs.times cimport end_ms, next_ns


cdef class Jobs:
    cdef public JobJournal journal
    cdef public object lease_over, _idle, _last_ns
    cdef public bint honours_max_fails, _behind
    cdef public dict by_id, queues, _runners, _watchers
    cdef public JobTimers timers
    cdef public long long evicted, timed_out, mark, _first

    @cython.locals(queue=JobQueue)
    cpdef JobQueue queue_to_wait(self, bytes name)
    @cython.locals(job=Job)
    cpdef Job find(self, bytes id, long long now_ms)
    @cython.locals(job=Job, queue=JobQueue, limit_ms="long long")
    cpdef Job add(self, bytes id, Terms terms, bytes payload, long long now_ms, time_ns=*)
    @cython.locals(queue=JobQueue)
    cpdef _make_ready(self, Job job, long long now_ms)
    @cython.locals(queue=JobQueue, job=Job, first=Py_ssize_t)
    cpdef Job lease(self, list queues, long long now_ms)
    @cython.locals(terms=Terms, queue=JobQueue, limit_ms="long long", until_ms="long long")
    cpdef _start(self, Job job, long long now_ms)
    @cython.locals(job=Job)
    cpdef bint delete(self, bytes id, long long now_ms) except -1
    @cython.locals(queue=JobQueue)
    cpdef _forget(self, Job job)
    @cython.locals(queue=JobQueue)
    cpdef _leave(self, Job job)
    cpdef long long next_ms(self) except -1
