from staniel.journal.group_commit cimport GroupCommit
from staniel.journal.libkestrel.writer cimport StreamWriter
from staniel.queues.stream.stream cimport Stream


cdef class StreamJournal:
    cdef public object fs, tasks, segments, on_stuck, _cutting, _retry
    cdef public str folder, queue, archive
    cdef public GroupCommit group
    cdef public StreamWriter writer
    cdef public Stream stream
    cdef public dict readers, _being_removed, stuck
    cdef public long long _own_sync_ms

    cpdef trim(self)
