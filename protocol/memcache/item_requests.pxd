# The C fields of item_requests's values; their sizes are tested at the bounds by tests/compiled/.

cimport cython


@cython.final
@cython.no_gc
@cython.freelist(64)
cdef class Set:
    cdef readonly str queue
    cdef readonly bytes data
    cdef readonly long long flags
    cdef readonly object ttl_ms
    cdef readonly long long expires_ms
    cdef readonly bint noreply


cpdef Set new_set(str queue, bytes data, long long flags, object ttl_ms, long long expires_ms, bint noreply)


@cython.final
cdef class Get:
    cdef readonly bytes key
    cdef readonly str queue
    cdef readonly long long wait_ms
    cdef readonly bint open
    cdef readonly bint close
    cdef readonly bint abort
    cdef readonly bint peek
    cdef readonly bint with_id
    # The first line of the last reply to this request, and the item that it was made for: see append_item.
    cdef bytes head
    cdef Py_ssize_t head_size
    cdef long long head_flags


@cython.final
@cython.no_gc
cdef class SetHead:
    cdef readonly long long length
    cdef readonly str queue
    cdef readonly long long flags
    cdef readonly object ttl_ms
    cdef readonly long long expires_ms
    cdef readonly bint noreply
    cdef readonly object meta
