from staniel.journal.group_commit cimport GroupCommit
from staniel.queues.interfaces cimport Journal


cdef class Appender(Journal):
    cdef public object fs, _file
    cdef public str folder, queue, path
    cdef public GroupCommit group
    cdef public long long sync_ms, _closed_bytes
    cdef public bint is_erased
    cdef public bytes _unwritten

    cpdef write(self)
    cpdef _append(self, bytes data)
