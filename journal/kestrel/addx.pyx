"""The common records of a busy journal; addx.py tells more. An item waits as it is: its record is written into the
batch, instead of being made and copied there.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int32_t, int64_t
from libc.string cimport memcpy

from staniel.journal.kestrel.records import (
    ADDX,
    ADDX_HEAD,
    ADDX_HEAD_BYTES,
    BLOCK_HEAD_BYTES,
    SAVE_XID as SAVE_XID_OPCODE,
    SIZE_END,
    WITH_XID,
)
from staniel.queues.item cimport Item

cdef enum:
    SAVE_XID = 4
    WITH_XID_BYTES = 5

assert (ADDX, ADDX_HEAD_BYTES, BLOCK_HEAD_BYTES, SIZE_END) == (OPCODE, HEAD, COUNTED_HEAD, COUNTED_FROM)
assert (ADDX_HEAD.format, SIZE_AT, ADDED_AT, EXPIRY_AT) == ("<Biqq", 1, 5, 13)
assert (SAVE_XID_OPCODE, WITH_XID.size) == (SAVE_XID, WITH_XID_BYTES)


cdef Py_ssize_t checked_size(Item item) except -1:
    """Return the size of the item's payload. Raises TypeError for None, OverflowError if it does not fit a record."""
    if item is None:
        raise TypeError("no item")
    cdef Py_ssize_t size = len(item.data)
    if size > 0x7FFFFFFF - COUNTED_HEAD:
        raise OverflowError(f"an item of {size} bytes does not fit a record")
    return size


cdef char *put_addx(Item item, char *at) noexcept:
    """Write the record of an item whose size has been checked and return where it ends."""
    cdef bytes data = item.data
    cdef Py_ssize_t size = PyBytes_GET_SIZE(data)
    cdef int32_t counted = <int32_t>(size + COUNTED_HEAD)
    cdef int64_t added_ms = item.added_ms, expires_ms = item.expires_ms
    at[0] = OPCODE
    memcpy(at + SIZE_AT, &counted, 4)
    memcpy(at + ADDED_AT, &added_ms, 8)
    memcpy(at + EXPIRY_AT, &expires_ms, 8)
    memcpy(at + HEAD, PyBytes_AS_STRING(data), size)
    return at + HEAD + size


cpdef bytes addx_record(Item item):
    """Return an ADDX without its flags; little-endian, as the machines that this is compiled for."""
    cdef bytes record = PyBytes_FromStringAndSize(NULL, checked_size(item) + HEAD)
    put_addx(item, PyBytes_AS_STRING(record))
    return record


cpdef bytes xid_record(int opcode, long long xid):
    """Return a record of an opcode and a transaction id."""
    if not -0x80000000 <= xid <= 0x7FFFFFFF or not 0 <= opcode <= 255:
        raise OverflowError(f"opcode {opcode} with {xid} does not fit a record")
    cdef char record[WITH_XID_BYTES]
    cdef int32_t number = <int32_t>xid
    record[0] = <char>opcode
    memcpy(record + 1, &number, 4)
    return PyBytes_FromStringAndSize(record, WITH_XID_BYTES)


cpdef Item waiting_record(Item item):
    """Return the item itself: nothing in it changes once it is recorded."""
    checked_size(item)
    return item


cpdef Py_ssize_t size_of(list records) except -1:
    """Return the size of waiting records, in bytes."""
    cdef Py_ssize_t size = 0
    for record in records:
        if type(record) is bytes:
            size += PyBytes_GET_SIZE(record)
        else:
            size += checked_size(<Item?>record) + HEAD
    return size


cpdef bytes joined(list records):
    """Return the bytes of waiting records."""
    cdef bytes data = PyBytes_FromStringAndSize(NULL, size_of(records))
    cdef char *at = PyBytes_AS_STRING(data)
    cdef Py_ssize_t size
    for record in records:
        if type(record) is bytes:
            size = PyBytes_GET_SIZE(record)
            memcpy(at, PyBytes_AS_STRING(record), size)
            at += size
        else:
            at = put_addx(<Item>record, at)
    return data


cpdef list boundaries(list records, long long at, long long seq, long long added_bytes, long long added_expiring, long long stride_bytes):
    """Return boundaries between waiting records, the last one first."""
    cdef list ends = []
    cdef long long last = at
    cdef Py_ssize_t size, head, index
    cdef bytes data
    cdef const char *start
    for index in range(len(records) - 1, -1, -1):
        record = records[index]
        if type(record) is not bytes:
            size = checked_size(<Item?>record)
            at -= size + HEAD
            seq -= 1
            added_bytes -= size
            added_expiring -= (<Item>record).expires_ms != 0
        else:
            data = record
            size = len(data)
            at -= size
            start = PyBytes_AS_STRING(data)
            head = 0
            while start[head] == SAVE_XID and head + WITH_XID_BYTES < size:
                head += WITH_XID_BYTES  # its flags, and what notes.py tells of
            if start[head] == OPCODE:
                seq -= 1
                added_bytes -= size - head - HEAD
                added_expiring -= data[head + EXPIRY_AT : head + HEAD] != b"\0\0\0\0\0\0\0\0"
        if last - at >= stride_bytes:
            ends.append((at, seq, added_bytes, added_expiring))
            last = at
    return ends
