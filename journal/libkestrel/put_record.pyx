"""The common record of a busy segment, an item without an expiry; put_record.py tells more."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport int32_t, int64_t
from libc.string cimport memcpy

from staniel.journal.libkestrel.records import PUT, PUT_HEAD
from staniel.queues.item cimport Numbered

cdef enum:
    COMMAND = 0x86
    SIZE_AT = 1
    ERRORS_AT = 5
    ID_AT = 9
    ADDED_AT = 17
    HEAD = 25  # command, size, errors, id, time added

assert (PUT, PUT_HEAD.size, PUT_HEAD.format) == (COMMAND, HEAD, "<Biiqq")


cpdef bytes put_record(Numbered item):
    """Return a PUT without an expiry; little-endian, as the machines that this is compiled for."""
    cdef bytes data = item.data
    cdef Py_ssize_t size = len(data)  # raises TypeError for None
    if size > 0x7FFFFFFF or not -0x80000000 <= item.errors <= 0x7FFFFFFF:
        raise OverflowError(f"an item of {size} bytes with {item.errors} errors does not fit a record")
    cdef bytes record = PyBytes_FromStringAndSize(NULL, size + HEAD)
    cdef char *at = PyBytes_AS_STRING(record)
    cdef int32_t counted = <int32_t>size, errors = <int32_t>item.errors
    cdef int64_t item_id = item.id, added_ms = item.added_ms
    at[0] = <char>COMMAND
    memcpy(at + SIZE_AT, &counted, 4)
    memcpy(at + ERRORS_AT, &errors, 4)
    memcpy(at + ID_AT, &item_id, 8)
    memcpy(at + ADDED_AT, &added_ms, 8)
    memcpy(at + HEAD, PyBytes_AS_STRING(data), size)
    return record


cpdef Py_ssize_t size_of_puts(list records) except -2:
    """Return how many bytes `records` have together; -1 if one of them is no PUT without an expiry."""
    cdef Py_ssize_t size = 0
    cdef bytes record
    if records is None:
        raise TypeError("no records")
    for record in records:
        if len(record) == 0:  # raises TypeError for None
            raise IndexError("an empty record")
        if <unsigned char>PyBytes_AS_STRING(record)[0] != COMMAND:
            return -1
        size += len(record)
    return size
