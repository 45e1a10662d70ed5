cdef class Channel:
    cpdef bytes recv(self, Py_ssize_t count)
    cpdef Py_ssize_t send(self, data) except -1


cdef class OtherChannel(Channel):
    cdef object _recv, _send

    cpdef bytes recv(self, Py_ssize_t count)
    cpdef Py_ssize_t send(self, data) except -1


cdef class ClientSocket(Channel):
    cdef object _sock
    cdef int _fd

    cpdef bytes recv(self, Py_ssize_t count)
    cpdef Py_ssize_t send(self, data) except -1
    cdef Py_ssize_t _send(self, const char *data, Py_ssize_t count) except -1


cpdef Py_ssize_t send_pieces(Channel channel, list pieces, Py_ssize_t size_max) except? -1
