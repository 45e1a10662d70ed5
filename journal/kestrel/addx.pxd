from staniel.queues.item cimport Item


cpdef bytes addx_record(Item item)
cpdef bytes xid_record(int opcode, long long xid)
cpdef Item waiting_record(Item item)
cpdef bytes joined(list records)
cpdef Py_ssize_t size_of(list records) except -1
cpdef list boundaries(list records, long long at, long long seq, long long added_bytes, long long added_expiring, long long stride_bytes)
