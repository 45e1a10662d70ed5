"""The record that a busy journal is full of: an item that joins the line; addx.py tells more."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport int32_t, int64_t
from libc.string cimport memcpy

from staniel.journal.kestrel.records import ADDX, ADDX_HEAD, BLOCK_HEAD_BYTES
from staniel.queues.item cimport Item

cdef enum:
    OPCODE = 2
    HEAD = 21  # opcode, size, time added, expiry
    COUNTED_HEAD = 16  # of these the size field counts the times

assert (ADDX, ADDX_HEAD.size, BLOCK_HEAD_BYTES) == (OPCODE, HEAD, COUNTED_HEAD)


cpdef bytes addx_record(Item item):
    """ADDX without its flags; little-endian, as the machines that this is compiled for."""
    cdef bytes data = item.data
    cdef Py_ssize_t size = len(data)  # raises TypeError for None
    if size > 0x7FFFFFFF - COUNTED_HEAD:
        raise OverflowError(f"an item of {size} bytes does not fit a record")
    cdef bytes record = PyBytes_FromStringAndSize(NULL, size + HEAD)
    cdef char *at = PyBytes_AS_STRING(record)
    cdef int32_t counted = <int32_t>(size + COUNTED_HEAD)
    cdef int64_t added_ms = item.added_ms, expires_ms = item.expires_ms
    at[0] = OPCODE
    memcpy(at + 1, &counted, 4)
    memcpy(at + 5, &added_ms, 8)
    memcpy(at + 13, &expires_ms, 8)
    memcpy(at + HEAD, PyBytes_AS_STRING(data), size)
    return record
