cimport cython

from staniel.queues.item cimport Item, Numbered


cdef class Stream:
    cdef dict __dict__  # the simulator listens to `append`
    cdef public object log, parent, deferred_free
    cdef public object last_id, _heavy_bytes  # an id of any size; more than the bound, which may be any 63 bits
    cdef public long long bytes, expiring, memory_bytes, _chunk_bytes, _chunk_items, _chunk_until, _last_flags
    cdef public dict members
    cdef public tuple takers
    cdef public bint is_strict
    cdef public list _chunks, _newest, _flags

    @cython.locals(flags="long long", size="long long", newest=list, numbered=Numbered)
    cpdef Numbered append(self, Item item, long long now_ms)
    cpdef list read(self, item_id)
    cpdef trim(self)
