"""The answer to a get of one key, as bytes; item_reply.py tells more. Written in one piece: no memo is needed."""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.string cimport memcpy

from staniel.protocol.memcache.item_requests cimport Get

cdef enum:
    NUMBER_BYTES = 24  # a sign and the digits of 64 bits


@cython.overflowcheck(False)  # a negative number is made positive as an unsigned one, where wrapping is defined
cdef Py_ssize_t digits_of(long long number, char *end) noexcept:
    """Write a number so that it ends before `end`; how many bytes it takes."""
    cdef unsigned long long left = <unsigned long long>number
    cdef char *at = end
    if number < 0:
        left = 0 - left
    while True:
        at -= 1
        at[0] = <char>(48 + left % 10)
        left = left // 10
        if left == 0:
            break
    if number < 0:
        at -= 1
        at[0] = c"-"
    return end - at


cpdef bytes item_reply(Get get, bytes data, long long flags, object item_id):
    """`VALUE key flags length`, for `gets` the item's id, then the item and END, each with its line end."""
    if get is None or get.key is None or data is None:
        raise TypeError("item_reply takes a Get and bytes")
    cdef bytes key = get.key
    if get.with_id:
        return b"VALUE %b %d %d %d\r\n%b\r\nEND\r\n" % (key, flags, len(data), item_id, data)
    cdef char flags_shown[NUMBER_BYTES]
    cdef char size_shown[NUMBER_BYTES]
    cdef Py_ssize_t key_size = PyBytes_GET_SIZE(key), size = PyBytes_GET_SIZE(data)
    cdef Py_ssize_t flags_size = digits_of(flags, flags_shown + NUMBER_BYTES)
    cdef Py_ssize_t size_size = digits_of(size, size_shown + NUMBER_BYTES)
    cdef bytes reply = PyBytes_FromStringAndSize(NULL, 6 + key_size + 1 + flags_size + 1 + size_size + 2 + size + 7)
    cdef char *at = PyBytes_AS_STRING(reply)
    memcpy(at, b"VALUE ", 6)
    at += 6
    memcpy(at, PyBytes_AS_STRING(key), key_size)
    at += key_size
    at[0] = c" "
    at += 1
    memcpy(at, flags_shown + NUMBER_BYTES - flags_size, flags_size)
    at += flags_size
    at[0] = c" "
    at += 1
    memcpy(at, size_shown + NUMBER_BYTES - size_size, size_size)
    at += size_size
    memcpy(at, b"\r\n", 2)
    at += 2
    memcpy(at, PyBytes_AS_STRING(data), size)
    memcpy(at + size, b"\r\nEND\r\n", 7)
    return reply
