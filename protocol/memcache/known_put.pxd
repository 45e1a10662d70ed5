from staniel.protocol.memcache.item_requests cimport Set


cpdef Set known_put(dict known, bytes data, Py_ssize_t at)
