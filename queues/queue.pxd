cimport cython

from staniel.queues.calendar cimport Calendar
from staniel.queues.changes cimport added, confirmed, opened, removed
from staniel.queues.counters cimport QueueCounters
from staniel.queues.interfaces cimport Journal
from staniel.queues.item cimport Delivery, Item
from staniel.queues.line cimport Line


cdef long long _XID_MAX


cdef class Queue:
    cdef public str name
    cdef public object open_reads, batched_aborts, timer, config, state, transferring_head, transfer_sink
    cdef public object _rests, on_read_error, on_timed_out, waiters, sweeping
    cdef public Calendar calendar
    cdef public Line line
    cdef public dict delayed, in_transfer, children
    cdef public QueueCounters counters
    cdef public Journal journal
    cdef public long long delayed_bytes, _armed_ms, created_ms, in_transfer_bytes, last_xid, last_removed_added_ms
    cdef public long long _weight_limit_bytes, _max_item_bytes, _max_age_ms, _max_items, _max_bytes, max_open_reads
    cdef public bint gets_paused, puts_paused, hidden, has_more_expired, _may_rest_too_long, expiry_is_ahead, had_children
    cdef public long long copies
    cdef public bint puts_once, fanout_only, traces, needs_check, _bounded, _weighed, _head_is_free

    cpdef bint add(self, Item item, long long now_ms, bint forced=*) except -1
    @cython.locals(item=Item)
    cpdef add_all(self, list items, long long now_ms)
    @cython.locals(delivery=Delivery)
    cpdef Delivery remove_head(self, long long now_ms)
    @cython.locals(delivery=Delivery)
    cpdef Delivery open(self, long long now_ms)
    cpdef bint confirm(self, Delivery delivery) except -1
    cpdef bint has_live_head(self, long long now_ms, bint despite_pause=*) except -1
    @cython.locals(run=list, head=Item, size="long long", last=Delivery)
    cpdef list open_run_for_transfer(self, Py_ssize_t count_max, long long bytes_max, long long item_bytes_max, end_seq, long long now_ms, bint despite_pause)
    @cython.locals(delivery=Delivery)
    cpdef Delivery open_head_for_transfer(self)
    cpdef set_aside(self, Delivery delivery)
    cpdef bint release(self, Delivery delivery) except -1
    @cython.locals(delivery=Delivery)
    cpdef release_all(self, list those)
    cpdef bint _forget_in_transfer(self, Delivery delivery) except -1
    cpdef bint _is_full(self) except -1
    cpdef bint _may_read_head(self, long long now_ms) except -1
    cpdef _record(self, change)
    # One Python number is made, for the delivery, the key of its read and the record.
    @cython.locals(last="long long", xid=object)
    cpdef _record_opened(self, Delivery delivery)
    cpdef _serve(self, long long now_ms)
