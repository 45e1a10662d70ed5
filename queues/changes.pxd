# The C fields of changes's values; their sizes are tested at the bounds by tests/compiled/.

cimport cython

from staniel.queues.item cimport Item


@cython.final
@cython.no_gc
@cython.freelist(8)
cdef class Added:
    cdef readonly Item item


cpdef Added added(Item item)


@cython.final
@cython.no_gc
@cython.freelist(8)
cdef class Removed:
    cdef readonly object id


cpdef Removed removed(object id)


@cython.final
@cython.no_gc
cdef class Cleared:
    cdef readonly long long count


@cython.final
@cython.no_gc
@cython.freelist(8)
cdef class Opened:
    cdef readonly object id
    cdef readonly long long xid


cpdef Opened opened(object id, long long xid)


@cython.final
@cython.no_gc
@cython.freelist(8)
cdef class Confirmed:
    cdef readonly object id
    cdef readonly long long xid


cpdef Confirmed confirmed(object id, long long xid)


@cython.final
@cython.no_gc
cdef class Aborted:
    cdef readonly object id
    cdef readonly long long xid
