cimport cython

from staniel.protocol.parser cimport Parser
from staniel.protocol.workq.fields cimport is_job_id, read_id
from staniel.protocol.workq.job_requests cimport new_add, new_delete


cdef class WorkqParser(Parser):
    cdef object _state, _body
    cdef bytearray _tail, _data
    cdef bytes _rest
    cdef long long _line_bytes_max, _work_left
    cdef public long long pending_bytes

    @cython.locals(requests=list, at=Py_ssize_t)
    cpdef list feed(self, bytes data)
    @cython.locals(adds=dict, leases=dict, arrived=Py_ssize_t, size=Py_ssize_t, end=Py_ssize_t, stop=Py_ssize_t, begin=bytes, line=bytes, id=bytes, deleted=bytes)
    cpdef Py_ssize_t _read_lines(self, bytes data, Py_ssize_t at, list requests) except -1


cpdef bytes _deleted(bytes line)
