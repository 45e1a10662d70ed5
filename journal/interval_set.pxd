cdef class IntervalSet:
    cdef public list starts, _ends

    cpdef add_interval(self, first, last)
    cpdef drop_through(self, item_id)
