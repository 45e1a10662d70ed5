cimport cython

from staniel.broker.jobs cimport JobService
from staniel.broker.session cimport FrequentCommands, Session
from staniel.journal.group_commit cimport GroupCommit
from staniel.journal.workq.log cimport CmdLog
from staniel.protocol.workq.job_requests cimport AddJob, DeleteJob, LeaseJob
from staniel.protocol.workq.job_texts cimport leased
from staniel.queues.jobs.job cimport Job, Terms
from staniel.queues.jobs.jobs cimport Jobs


@cython.locals(service=JobService, log=CmdLog, jobs=Jobs, payload=bytes, size="long long", terms=Terms, batch="long long", group=GroupCommit)
cpdef add(Session session, AddJob request, long long now_ms)
@cython.locals(service=JobService, jobs=Jobs, queues=list, job=Job)
cpdef lease(Session session, LeaseJob request, long long now_ms)
@cython.locals(terms=Terms, shown=bytes)
cpdef show_lease(Session session, JobService service, Job job)
@cython.locals(service=JobService, jobs=Jobs)
cpdef delete(Session session, DeleteJob request, long long now_ms)
@cython.locals(log=CmdLog, batch="long long")
cpdef depend(Session session, JobService service)


cdef class WorkqCommands(FrequentCommands):
    cpdef serve(self, Session session, request, long long now_ms)
