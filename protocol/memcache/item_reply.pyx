"""The reply to a get of one key, in pieces; see item_reply.py."""

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


ITEM_END = b"\r\nEND\r\n"
cdef bytes item_end = ITEM_END


cdef bytes head_of(bytes key, long long flags, Py_ssize_t size):
    """Return `VALUE key flags length` with its line end."""
    cdef char flags_shown[NUMBER_BYTES]
    cdef char size_shown[NUMBER_BYTES]
    cdef Py_ssize_t key_size = PyBytes_GET_SIZE(key)
    cdef Py_ssize_t flags_size = digits_of(flags, flags_shown + NUMBER_BYTES)
    cdef Py_ssize_t size_size = digits_of(size, size_shown + NUMBER_BYTES)
    cdef bytes head = PyBytes_FromStringAndSize(NULL, 6 + key_size + 1 + flags_size + 1 + size_size + 2)
    cdef char *at = PyBytes_AS_STRING(head)
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
    return head


cpdef append_item(list out, Get get, bytes data, long long flags, object item_id):
    """Append the same bytes to `out` as item_reply.py does, always in pieces: they are copied once, into the buffer of a
    socket (send_pieces).

    Connections that send the same line share a Get, and items of one queue are often of one size, so the last head is
    kept there.
    """
    if out is None or get is None or get.key is None or data is None:
        raise TypeError("append_item takes a list, a Get and bytes")
    cdef Py_ssize_t size = PyBytes_GET_SIZE(data)
    if get.with_id:
        out.append(b"VALUE %b %d %d %d\r\n" % (get.key, flags, size, item_id))
    else:
        if get.head is None or get.head_size != size or get.head_flags != flags:
            get.head = head_of(get.key, flags, size)
            get.head_size, get.head_flags = size, flags
        out.append(get.head)
    out.append(data)
    out.append(item_end)
