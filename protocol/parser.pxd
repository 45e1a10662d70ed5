cdef class Parser:
    cdef public long long pending_bytes

    cpdef list feed(self, bytes data)
