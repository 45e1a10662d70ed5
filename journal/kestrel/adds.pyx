"""Items that were put one after the other, counted or read at once; adds.py tells more."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport int32_t, int64_t
from libc.string cimport memcpy

from staniel.journal.kestrel.addx cimport ADDED_AT, COUNTED_FROM, COUNTED_HEAD, EXPIRY_AT, HEAD, OPCODE, SIZE_AT
from staniel.queues.item cimport new_item


cpdef tuple count_adds(bytes data, Py_ssize_t at, Py_ssize_t end):
    """Count adds as adds.py does. Raises IndexError where that would read outside of `data`."""
    cdef Py_ssize_t count = 0, size_bytes = 0, expiring = 0, stop
    cdef const char *bytes_at
    cdef int32_t size
    cdef int64_t expires_ms
    if at < 0 or end > len(data):  # len raises TypeError for None
        raise IndexError(f"bytes {at} to {end} of {len(data)}")
    bytes_at = PyBytes_AS_STRING(data)
    while at <= end - HEAD and bytes_at[at] == OPCODE:
        memcpy(&size, bytes_at + at + SIZE_AT, 4)
        if size < COUNTED_HEAD or size > end - at - COUNTED_FROM:
            break
        stop = at + COUNTED_FROM + size
        memcpy(&expires_ms, bytes_at + at + EXPIRY_AT, 8)
        expiring += expires_ms != 0
        count += 1
        size_bytes += size - COUNTED_HEAD
        at = stop
    return count, size_bytes, expiring, at


cpdef Py_ssize_t read_adds(
    bytes data, Py_ssize_t at, Py_ssize_t end, list items, Py_ssize_t count_max, bint stops_at_stand_ins
) except -1:
    """Read items as adds.py does. Raises IndexError where that would read outside of `data`."""
    cdef Py_ssize_t count = count_max - len(items)  # raises TypeError for None
    cdef const char *bytes_at
    cdef int32_t size
    cdef int64_t added_ms, expires_ms
    if at < 0 or end > len(data):
        raise IndexError(f"bytes {at} to {end} of {len(data)}")
    bytes_at = PyBytes_AS_STRING(data)
    while at <= end - HEAD and count > 0 and bytes_at[at] == OPCODE:
        memcpy(&size, bytes_at + at + SIZE_AT, 4)
        if size < COUNTED_HEAD or size > end - at - COUNTED_FROM:
            break
        memcpy(&added_ms, bytes_at + at + ADDED_AT, 8)
        memcpy(&expires_ms, bytes_at + at + EXPIRY_AT, 8)
        if size == COUNTED_HEAD and stops_at_stand_ins and not (added_ms or expires_ms):
            break
        items.append(new_item(PyBytes_FromStringAndSize(bytes_at + at + HEAD, size - COUNTED_HEAD), added_ms, expires_ms, 0))
        count -= 1
        at += COUNTED_FROM + size
    return at
