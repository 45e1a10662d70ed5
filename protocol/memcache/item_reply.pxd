from staniel.protocol.memcache.item_requests cimport Get


cdef Py_ssize_t digits_of(long long number, char *end) noexcept
cpdef append_item(list out, Get get, bytes data, long long flags, object item_id)
