from staniel.journal.interval_set cimport IntervalSet


cdef class Position:
    cdef public object head  # an id: a file may hold any
    cdef public IntervalSet done

    cpdef confirm(self, first, last, segments)
    cpdef advance_head(self, segments)
