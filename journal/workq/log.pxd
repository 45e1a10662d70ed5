cimport cython

from staniel.journal.group_commit cimport GroupCommit
from staniel.journal.workq.encoder cimport encode_addition
from staniel.journal.workq.job_records cimport addition, crc_of, encode_bare, encode_time
from staniel.journal.workq.segments cimport CmdLogSegment
from staniel.queues.jobs.job cimport Job
from staniel.queues.jobs.journal cimport JobJournal


cdef class CmdLog(JobJournal):
    cdef dict __dict__  # the simulator listens to changes
    cdef public object fs, ballast, latest_ns, ahead_ns, aheads_ns, _unwritten, _file, _following, _time_ns
    cdef public CmdLogSegment segment
    cdef public str folder, path
    cdef public GroupCommit group
    cdef public dict segments, _early
    cdef public list _pending
    cdef public long long sync_ms, batch, records, _now_ms
    cdef public long long _segment_bytes, _usual_bytes, _planned_bytes, _pending_bytes, _written_number, _held_number
    cdef public bint _touched
    cdef public bytes _time

    @cython.locals(record=bytes, time=bytes, coded=bytes, segment=CmdLogSegment)
    cpdef added(self, Job job, long long limit_ms)
    cpdef attempted(self, Job job, long long now_ms)
    @cython.locals(segment=CmdLogSegment)
    cpdef deleted(self, Job job, long long now_ms)
    cpdef bytes _advance(self, now_ms)
    @cython.locals(size=Py_ssize_t, group=GroupCommit, pending=list)
    cpdef _record(self, bytes record, bytes crc=*)
