cimport cython

from staniel.journal.libkestrel.appender cimport Appender
from staniel.journal.libkestrel.put_record cimport put_record
from staniel.queues.item cimport Numbered


cdef class StreamWriter(Appender):
    cdef public object segments, _run
    cdef public object newest_number, written_id, _entered_id  # of a file name, ids: of any size
    cdef public long long batch, open_transfers, transfers_in, rotations, segment_bytes, usual_bytes, _size, _rotated_ms
    cdef public bint blocks_transfers, _is_dirty
    cdef public list _pending_records, _planned
    cdef public dict left_out

    @cython.locals(record=bytes, size="long long", after="long long", pending=list)
    cpdef put(self, Numbered item, long long now_ms)
    @cython.locals(records=list)
    cpdef write(self)
    cpdef _index_records(self, list records)
    cpdef _mark_dirty(self)
