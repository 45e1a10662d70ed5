cimport cython

from staniel.broker.session cimport Session
from staniel.protocol.parser cimport Parser
from staniel.server.client_socket cimport Channel, send_pieces


cdef long long _SEND_BYTES_MAX, _LONG_BYTES, _UNSENT_BYTES_MAX
cdef Py_ssize_t _NOT_ANSWERED, _WAITS_FOR_SYNC


cdef class Connection:
    cdef public object sock, state, held, unsent, alarm, _rest
    cdef public Parser _parser
    cdef public Channel _channel
    cdef public Session session
    cdef public dict _changed
    cdef public int fd, events
    cdef public long long held_bytes, _rest_bytes, unread_bytes, active_ms, read_bytes
    cdef public bint has_read, sends_much

    @cython.locals(data=bytes, size=Py_ssize_t, session=Session)
    cpdef Py_ssize_t serve(self, long long now_ms) except? -3
    @cython.locals(data=bytes, sent=Py_ssize_t, session=Session, out=list)
    cpdef Py_ssize_t answer_now(self, long long durable) except? -3
    @cython.locals(data=bytes, sent=Py_ssize_t)
    cpdef bint send_held(self, long long durable) except -1
