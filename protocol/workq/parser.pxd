cimport cython

from staniel.protocol.parser cimport Parser
from staniel.protocol.workq.job_requests cimport new_add, new_delete
from staniel.protocol.workq.job_texts cimport job_id_at

cdef char _CR, _LF, _A, _D, _L


cdef class WorkqParser(Parser):
    cdef object _state, _body
    cdef bytearray _tail, _data
    cdef bytes _rest, _last_add, _last_lease
    cdef tuple _add_found
    cdef object _lease_found
    cdef long long _line_bytes_max, _work_left

    @cython.locals(requests=list, at=Py_ssize_t)
    cpdef list feed(self, bytes data)
    # `text` is `data` as C sees it: its slices make no slice objects, and are not checked against its end.
    @cython.locals(text="const char *", first=char, arrived=Py_ssize_t, size=Py_ssize_t, end=Py_ssize_t, begin=Py_ssize_t, stop=Py_ssize_t, length=Py_ssize_t, known=tuple, line=bytes, id=bytes)
    cpdef Py_ssize_t _read_lines(self, bytes data, Py_ssize_t at, list requests) except -1
    cpdef bint _recall(self, bytes line) except -1
