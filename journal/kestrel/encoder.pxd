cimport cython

from staniel.journal.kestrel.addx cimport addx_record, xid_record
from staniel.queues.changes cimport Aborted, Cleared, Confirmed, Opened, Removed
from staniel.queues.item cimport Item, ItemWithPast


cdef int _CONFIRM_REMOVE


cdef class Encoder:
    cdef public object dialect
    cdef public long long counter
    cdef public set open
    cdef public bint took

    cpdef bytes encode(self, change)
    cpdef bytes addx(self, Item item)
    cpdef bytes _cleared(self, Cleared change)
    @cython.locals(number="long long", record=bytes)
    cpdef bytes opened(self, xid)
    cpdef bytes confirmed(self, xid)
    cpdef bytes _aborted(self, Aborted change)
