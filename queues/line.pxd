# `on_disk`, `on_disk_bytes` and `bytes` are fields of a PlainLine and properties of a StreamLine: code that has a Line reads
# them by their names, as Python does, and cannot read a field that is another line's.

cimport cython

from staniel.queues.deques cimport append, popleft
from staniel.queues.item cimport Delivery, Item, id_after, is_remnant, new_delivery


cdef class Line:
    cdef public object in_memory, tail, heavy_bytes, read_error, on_read_error, deferred_free
    cdef public list returned
    cdef public object last_id
    cdef public long long expiring, remnants, added_bytes, added_expiring, left, full_bytes, look_items

    cpdef Item head(self)
    cpdef give_back(self, Delivery delivery)
    cpdef _gone(self, Item item)
    @cython.locals(delivery=Delivery)
    cpdef Delivery _pop_returned(self)
    @cython.locals(delivery=Delivery)
    cpdef _drop_returned(self)
    cpdef bint reaches(self, long long items, long long size_bytes) except -1
    cpdef long long weight_bytes(self) except? -1
    cpdef Py_ssize_t append(self, Item item) except -1
    cpdef Delivery pop(self)
    cpdef drop(self)
    cpdef load(self, size_max=*)
    cpdef take_in(self, list items)


cdef class PlainLine(Line):
    cdef public long long bytes, on_disk, on_disk_bytes
    cdef public object _counted_id
    cdef public long long _unmeasured, _unmeasured_seq, _counted_seq, _counted_end

    cpdef bint reaches(self, long long items, long long size_bytes) except -1
    cpdef long long weight_bytes(self) except? -1
    @cython.locals(size=Py_ssize_t)
    cpdef Py_ssize_t append(self, Item item) except -1
    @cython.locals(item=Item, seq="long long")
    cpdef Delivery pop(self)
    @cython.locals(item=Item)
    cpdef drop(self)
    cpdef load(self, size_max=*)
    @cython.locals(item=Item, size="long long", lost="long long")
    cpdef take_in(self, list items)
