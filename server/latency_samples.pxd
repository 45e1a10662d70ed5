from staniel.broker.counters cimport ServerCounters
from staniel.journal.group_commit cimport GroupCommit


cdef class LatencySamples:
    cdef public object _latencies, _elapsed_ns
    cdef public ServerCounters _counters
    cdef public GroupCommit _group
    cdef public long long request_due_ns, delivery_due_ns, _puts, _gets
    cdef public list open
