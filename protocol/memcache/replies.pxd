from staniel.protocol.memcache.item_reply cimport append_item
from staniel.protocol.memcache.item_requests cimport Get


cdef class Replies:
    cpdef bytes value(self, Get get, bytes data, long long flags, object item_id)
    cpdef append_item(self, list out, Get get, bytes data, long long flags, object item_id)
    cpdef bytes _head(self, Get get, long long flags, Py_ssize_t size)


cdef class KestrelReplies(Replies):
    cpdef bytes value(self, Get get, bytes data, long long flags, object item_id)
    cpdef append_item(self, list out, Get get, bytes data, long long flags, object item_id)
    cpdef bytes _head(self, Get get, long long flags, Py_ssize_t size)
