from staniel.journal.group_commit cimport GroupCommit


cdef class SyncRunner:
    cdef public GroupCommit _group
    cdef public object _worker, _now_ns, _durations, _release_replies, latency_of_one, latency_of_several, running

    cpdef bint run(self, sync, Py_ssize_t replies, long long now_ms) except -1
