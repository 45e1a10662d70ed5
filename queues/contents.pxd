cimport cython

from staniel.queues.interfaces cimport Journal
from staniel.queues.item cimport Delivery
from staniel.queues.line cimport Line


cdef long long _XID_MAX


cdef class QueueContents:
    cdef public Journal journal
    cdef public Line line
    cdef public object open_reads, transferring_head
    cdef public dict delayed, in_transfer, resting
    cdef public long long delayed_bytes, in_transfer_bytes, last_xid, resting_bytes, resting_weight_bytes, last_rest_xid

    @cython.locals(delivery=Delivery)
    cpdef Delivery open_head_for_transfer(self)
    cpdef set_aside(self, Delivery delivery)
    cpdef bint release(self, Delivery delivery) except -1
    @cython.locals(delivery=Delivery)
    cpdef release_all(self, list deliveries)
    cpdef bint _forget_in_transfer(self, Delivery delivery) except -1
    cpdef _record(self, change)
    # One Python number is made, for the delivery, the key of its read and the record.
    @cython.locals(last="long long", xid=object)
    cpdef _record_opened(self, Delivery delivery)
