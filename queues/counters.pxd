cdef class QueueCounters:
    cdef public long long total_items, put_bytes, get_items_hit, get_items_miss, expired_items, discarded
    cdef public long long transactions, canceled_transactions, total_flushes, timed_out_transactions, dead_letters
