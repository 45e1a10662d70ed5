cimport cython

from staniel.queues.calendar cimport Calendar
from staniel.queues.item cimport Delivery, Item
from staniel.queues.line cimport Line
from staniel.queues.time_outs cimport QueueReads


cdef class Queue(QueueReads):
    cdef public str name
    cdef public object state, on_read_error, waiters, sweeping
    cdef public Calendar calendar
    cdef public dict children
    cdef public long long created_ms, last_removed_added_ms
    cdef public long long _weight_limit_bytes, _max_item_bytes, _max_age_ms, _max_items, _max_bytes, max_open_reads
    cdef public bint puts_paused, hidden, has_more_expired, has_more_early, expiry_is_ahead, had_children
    cdef public long long copies, flushed_resting
    cdef public bint puts_once, fanout_only, traces, needs_check, _bounded, _weighed

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
    cpdef bint _is_full(self) except -1
    cpdef bint _may_read_head(self, long long now_ms) except -1
    cpdef _serve(self, long long now_ms)
