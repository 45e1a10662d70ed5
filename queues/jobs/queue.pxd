from staniel.queues.jobs.line cimport JobLine


cdef class JobQueue:
    cdef public bytes name
    cdef public JobLine ready, scheduled
    cdef public dict waiters
    cdef public long long leased, finished
    cdef public bint is_kept
