from staniel.queues.contents cimport QueueContents
from staniel.queues.counters cimport QueueCounters


cdef class QueueReads(QueueContents):
    cdef public object batched_aborts, config, timer, transfer_sink, on_timed_out, _delay_order, _due_order
    cdef public QueueCounters counters
    cdef public long long _armed_ms
    cdef public bint gets_paused, _head_is_free
