from staniel.queues.jobs.job cimport Job


cdef class JobJournal:
    cpdef added(self, Job job, long long limit_ms)
    cpdef attempted(self, Job job, long long now_ms)
    cpdef deleted(self, Job job, long long now_ms)
