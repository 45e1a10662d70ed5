cimport cython

from staniel.broker.session cimport Session
from staniel.journal.group_commit cimport GroupCommit
from staniel.journal.workq.log cimport CmdLog
from staniel.protocol.workq.job_requests cimport AddJob, DeleteJob, LeaseJob
from staniel.queues.jobs.job cimport Job, Terms
from staniel.queues.jobs.jobs cimport Jobs


@cython.locals(log=CmdLog, group=GroupCommit, jobs=Jobs, payload=bytes, size="long long", tight=bint, terms=Terms, batch="long long")
cpdef add(Session session, AddJob request, now_ms)
@cython.locals(jobs=Jobs, queues=list, job=Job)
cpdef lease(Session session, LeaseJob request, now_ms)
@cython.locals(terms=Terms, shown=bytes)
cpdef show_lease(Session session, service, Job job)
@cython.locals(jobs=Jobs)
cpdef delete(Session session, DeleteJob request, now_ms)
@cython.locals(log=CmdLog, batch="long long")
cpdef depend(Session session, service)
