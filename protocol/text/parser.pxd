cimport cython

from staniel.protocol.parser cimport Parser


cdef class TextParser(Parser):
    cdef object _state, _answer
    cdef long long _line_bytes_max, _item_bytes_max, _put_bytes_max, _items_bytes
    cdef bytearray _tail
    cdef bytes _rest
    cdef list _items

    @cython.locals(requests=list, at=Py_ssize_t, end=Py_ssize_t, work_left="long long", line=bytes)
    cpdef list feed(self, bytes data)
    cpdef _enter(self, state)
    cpdef _end_line(self, bytes line, list requests)
    cpdef _read_line(self, bytes line, list requests)
    cpdef _read_item(self, bytes item, list requests)
    cpdef bint _refuse_item(self, long long size) except -1
    cpdef _end_items(self, list requests)
    cpdef _forget_items(self)
    @cython.locals(known=Py_ssize_t)
    cpdef _store_rest(self, bytes rest, list requests)
    cpdef _emit(self, request, list requests)
