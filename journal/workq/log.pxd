cimport cython

from staniel.journal.group_commit cimport GroupCommit
from staniel.journal.workq.encoder cimport encode_addition, encode_bare, encode_time
from staniel.queues.jobs.job cimport Job


cdef class CmdLog:
    cdef dict __dict__  # the simulator listens to changes
    cdef public object fs, ballast, latest_ns, segment, _unwritten, _file, _time_ns, _second_ns, _now_ms
    cdef public str folder, path
    cdef public GroupCommit group
    cdef public dict segments, _early
    cdef public list _pending
    cdef public long long sync_ms, batch, records
    cdef public long long _segment_bytes, _planned_bytes, _pending_bytes, _written_number
    cdef public bint _touched
    cdef public bytes _time, _second

    @cython.locals(record=bytes, time=bytes)
    cpdef added(self, Job job, limit_ms)
    cpdef attempted(self, Job job, now_ms)
    cpdef deleted(self, Job job, now_ms)
    cpdef bytes _advance(self, now_ms)
    @cython.locals(size=Py_ssize_t, group=GroupCommit)
    cpdef _record(self, bytes record)
