from staniel.journal.group_commit cimport GroupCommit
from staniel.journal.workq.log cimport CmdLog
from staniel.queues.jobs.jobs cimport Jobs


cdef class JobService:
    cdef public object settings, report, calendar, cleaner, _spool
    cdef public str folder, trouble
    cdef public long long started_ms, cleanings, _ballast_due_ms
    cdef public dict terms, _equal
    cdef public GroupCommit group
    cdef public CmdLog log
    cdef public Jobs jobs
