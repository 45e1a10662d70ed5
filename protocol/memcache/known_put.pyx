"""The put that one read consists of, when its line is known; known_put.py tells more. Bytes are cut out without a slice
object, which costs as much as the rest.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE

from staniel.protocol.memcache.item_requests cimport Set, SetHead, new_set

CRLF = b"\r\n"


cpdef Set known_put(dict known, bytes data, Py_ssize_t at):
    """The put that `data` is, and nothing else, if its line has `at` bytes and is `known`; else None."""
    if known is None or data is None:
        raise TypeError("known_put takes a dictionary and bytes")
    cdef Py_ssize_t size = PyBytes_GET_SIZE(data), stop
    cdef const char *text = PyBytes_AS_STRING(data)
    if at < 0 or at > size:
        at = size
    found = known.get(PyBytes_FromStringAndSize(text, at))
    if type(found) is not SetHead:
        return None
    cdef SetHead head = <SetHead>found
    if head.length < 0 or head.length != size - 2 - at:
        return None
    stop = size - 2
    if text[stop] != c"\r" or text[stop + 1] != c"\n" or head.meta is not None:
        return None
    data = PyBytes_FromStringAndSize(text + at, stop - at)
    return new_set(head.queue, data, head.flags, head.ttl_ms, head.expires_ms, head.noreply)
