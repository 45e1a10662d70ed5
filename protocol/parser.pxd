cdef class Parser:
    cpdef list feed(self, bytes data)
