cimport cython

from staniel.queues.item cimport Delivery, Item, Numbered, is_remnant, new_delivery
from staniel.queues.line cimport Line


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


cdef class StreamLine(Line):
    cdef public Stream stream
    cdef public object progress, _source, changed
    cdef public object _next_id, _added_origin, _on_disk_origin  # ids
    cdef public long long _added_bytes_origin, _on_disk_bytes_origin, _bytes_origin
    cdef public list dropped

    cpdef long long weight_bytes(self) except? -1
    cpdef Py_ssize_t append(self, Item item) except -1
    @cython.locals(item=Numbered, item_id=object, seq="long long")
    cpdef Delivery pop(self)
    @cython.locals(item=Item)
    cpdef drop(self)
    @cython.locals(found=list)
    cpdef load(self, size_max=*)
    @cython.locals(item=Item, size="long long", lost="long long")
    cpdef take_in(self, list items)
    cpdef list _own(self, list items)
