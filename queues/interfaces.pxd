# The journals of queues: every kind has Journal as its base, so that a queue calls its own without a look-up.

from staniel.queues.item cimport Item


cdef class Journal:
    cpdef record(self, change)
    cpdef record_added(self, Item item)
    cpdef record_removed(self, item_id)
    cpdef record_opened(self, item_id, xid)
    cpdef record_confirmed(self, item_id, xid)
    cpdef long long reply_batch(self) except? -1


cdef class NoJournal(Journal):
    cdef public long long batch
    cdef public object _queue, listener
    cdef public dict _changed
    cdef public bint is_noted

    cpdef record(self, change)
    cpdef long long reply_batch(self) except? -1
