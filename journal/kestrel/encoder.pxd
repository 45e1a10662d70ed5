cimport cython

from staniel.journal.kestrel.addx cimport addx_record, xid_record
from staniel.queues.changes cimport Aborted, Cleared, Confirmed, Opened, Removed
from staniel.queues.item cimport Item, ItemWithPast


cdef class Encoder:
    cdef public object dialect
    cdef public long long counter
    cdef public set open
    cdef public bint took

    cpdef bytes encode(self, change)
    cpdef bytes addx(self, Item item)
    cpdef bytes _cleared(self, Cleared change)
    @cython.locals(xid="long long", record=bytes)
    cpdef bytes _opened(self, Opened change)
    cpdef bytes _confirmed(self, Confirmed change)
    cpdef bytes _aborted(self, Aborted change)
