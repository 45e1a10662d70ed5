cimport cython

from staniel.queues.queue cimport Queue


cdef class MemoryBudget:
    cdef public object queues
    cdef public long long limit_bytes, used_bytes, _shared_by, _share_bytes
    cdef public bint is_tight
    cdef public dict changed, _weights

    @cython.locals(weight="long long", weights=dict)
    cpdef weigh(self, Queue queue)
