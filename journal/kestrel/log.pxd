cimport cython

from staniel.journal.group_commit cimport GroupCommit
from staniel.journal.kestrel.addx cimport joined, size_of, waiting_record, xid_record
from staniel.journal.kestrel.encoder cimport Encoder
from staniel.queues.changes cimport Added
from staniel.queues.interfaces cimport Journal
from staniel.queues.item cimport Item, ItemWithPast


cdef long long _ADDX_HEAD_BYTES, _WITH_XID_BYTES


cdef class Log(Journal):
    cdef public object fs, segments, queue_view, config, unfinished, stuck, listener, _file
    cdef public str folder, name, path
    cdef public GroupCommit group
    cdef public Encoder encoder
    cdef public object newest_number  # of a file name: any number of digits
    cdef public long long batch, next_look_seq, policy_bytes, policy_threshold_bytes, growth_max_bytes, kept_bytes
    cdef public long long rewrites, rewritten_ms, rotations, sync_ms, open_transfers, transfers_in
    cdef public long long _counted, _counted_bytes, _size
    cdef public bint is_erased, is_deferred, seal_wanted, blocks_transfers
    cdef public list _pending
    cdef public bytes _unwritten, _restoring

    cpdef long long reply_batch(self) except? -1
    cpdef record(self, change)
    @cython.locals(pending=list, group=GroupCommit)
    cpdef record_added(self, Item item)
    cpdef record_removed(self, item_id)
    @cython.locals(counter="long long", data=bytes)
    cpdef record_opened(self, item_id, xid)
    cpdef record_confirmed(self, item_id, xid)
    cdef _append_group(self, long long counter, bytes data)
    @cython.locals(pending=list, group=GroupCommit)
    cdef _append(self, bytes data)
    @cython.locals(records=list, data=bytes, before="long long", size="long long")
    cpdef write(self)
