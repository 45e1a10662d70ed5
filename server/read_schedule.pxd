cimport cython

from staniel.server.connection cimport Connection


cdef class ReadSchedule:
    cdef public dict _connections, postponed
    cdef public object _waiting_bytes, queue
    cdef public long long heard_ms, turn_ms, _round_ms, _heard_in_rounds_ms, _polls_left
    cdef public bint _is_cut

    @cython.locals(connection=Connection)
    cpdef bint sends_much(self, int fd) except -1
