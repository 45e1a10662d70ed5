# A StreamLine computes `behind`, `behind_bytes`, `bytes` and `expiring` by properties, which C fields hide: code that it
# inherits reads them through a plain object (`line = self`, declared as object here); `append` and the last part of
# `pop` are overridden there, and use the fields.

cimport cython

from staniel.queues.item cimport Delivery, Item, new_delivery


cdef class Line:
    cdef public object fresh, tail, heavy_bytes, read_error, on_read_error, deferred_free
    cdef public list returned
    cdef public long long bytes, expiring, added_bytes, added_expiring, left, behind, behind_bytes
    cdef public long long full_bytes, look_items
    cdef public object last_id, _counted_id
    cdef public long long _unmeasured, _unmeasured_seq, _counted_seq, _counted_end

    @cython.locals(size=Py_ssize_t)
    cpdef Py_ssize_t append(self, Item item) except -1
    @cython.locals(line=object)
    cpdef Item head(self)
    @cython.locals(item=Item, taken=Delivery, seq="long long")
    cpdef Delivery pop(self)
    @cython.locals(line=object)
    cpdef _gone(self, Item item)
    @cython.locals(line=object)
    cpdef give_back(self, Delivery taken)
