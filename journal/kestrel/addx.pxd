from staniel.queues.item cimport Item

# The layout of an ADDX, for every loop in C over such records; addx.pyx compares it with records.py.
cdef enum:
    OPCODE = 2
    SIZE_AT = 1
    ADDED_AT = 5
    EXPIRY_AT = 13
    HEAD = 21  # opcode, size, time added, expiry
    COUNTED_FROM = 5  # the size counts from here on,
    COUNTED_HEAD = 16  # the times and the payload


cpdef bytes addx_record(Item item)
cpdef bytes xid_record(int opcode, long long xid)
cpdef Item waiting_record(Item item)
cpdef bytes joined(list records)
cpdef Py_ssize_t size_of(list records) except -1
cpdef list boundaries(list records, long long at, long long seq, long long added_bytes, long long added_expiring, long long stride_bytes)
