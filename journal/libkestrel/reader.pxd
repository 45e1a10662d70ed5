cimport cython

from staniel.journal.interval_set cimport IntervalSet
from staniel.journal.libkestrel.appender cimport Appender
from staniel.journal.libkestrel.position cimport Position
from staniel.journal.libkestrel.writer cimport StreamWriter
from staniel.queues.stream.stream cimport StreamLine


cdef class ReaderLog(Appender):
    cdef dict __dict__  # the simulator listens to `record`
    cdef public str name
    cdef public object segments, on_policy_change
    cdef public dict readers
    cdef public Position position
    cdef public StreamLine line
    cdef public StreamWriter writer
    cdef public IntervalSet _done
    cdef public long long open_transfers, _batch, _start_over_bytes
    cdef public bint has_file, blocks_transfers, _is_dirty

    @cython.locals(position=Position)
    cpdef record(self, change)
    @cython.locals(position=Position)
    cpdef confirm(self, first, last)
    cpdef write(self)
    cpdef _mark_dirty(self)
