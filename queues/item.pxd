# The C fields of item's values; their sizes are tested at the bounds by tests/compiled/.

cimport cython


cdef class Item:
    cdef public bytes data
    cdef public long long added_ms
    cdef public long long expires_ms
    cdef public long long flags


cpdef Item new_item(bytes data, long long added_ms, long long expires_ms, long long flags)


@cython.final
cdef class Numbered(Item):
    cdef public long long id
    cdef public long long errors


@cython.final
cdef class ItemWithXid(Item):
    cdef public long long xid
    cdef public bytes past


@cython.final
cdef class ItemWithPast(Item):
    cdef public bytes past


@cython.final
@cython.no_gc
@cython.freelist(64)
cdef class Delivery:
    cdef public Item item
    cdef public object id
    cdef public long long deliveries
    cdef public object xid  # the key of the open reads itself, so that it is found by identity
    cdef public long long opened_ms
    cdef public long long seq
    cdef public str client


cpdef Delivery new_delivery(Item item, object id, long long deliveries, object xid, long long opened_ms, long long seq, str client=*)


cpdef bint is_remnant(Item item) except -1


cpdef object id_after(long long added_ms, object last_id)
