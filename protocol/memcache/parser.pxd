cimport cython

from staniel.protocol.parser cimport Parser
from staniel.protocol.memcache.item_requests cimport SetHead, new_set


cdef char _CR, _LF


cdef class MemcacheParser(Parser):
    cdef object _dialect, _limits, _lines, _state, _block, _body, _last_parsed
    cdef dict _known, _single
    cdef long long _work_left, _missing
    cdef bytes _tail, _last_line, _last_read
    cdef list _last_found

    # `text` is `data` as C sees it: its slices make no slice objects, and are not checked against its end.
    @cython.locals(at=Py_ssize_t, stop=Py_ssize_t, text="const char *", line=bytes, parsed=object, follows=bint, head=SetHead)
    cpdef list feed(self, bytes data)
    @cython.locals(requests=list, is_known=bint)
    cpdef list _feed_pipeline(self, bytes data)
    @cython.locals(requests=list, at=Py_ssize_t)
    cpdef list _feed(self, bytes data)
    cpdef Py_ssize_t _parse_from(self, bytes data, Py_ssize_t at, list requests) except -1
    @cython.locals(text="const char *", arrived=Py_ssize_t, size=Py_ssize_t, end=Py_ssize_t, stop=Py_ssize_t, line=bytes, body=bytes, head=SetHead)
    cpdef Py_ssize_t _read_lines(self, bytes data, Py_ssize_t at, list requests) except -1
