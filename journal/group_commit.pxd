cimport cython


cdef class GroupCommit:
    cdef public object fs, failed_sync, ballast, on_refused, open_files, before_write, after_sync, redo, wait_for, _running
    cdef public str folder
    cdef public long long gathering, durable, pending_bytes, budget_bytes, commit_above_bytes, _started, _next_due_ms
    cdef public long long _checks_due_ms
    cdef public long long synced_ms
    cdef public long long _patient_until_ms
    cdef public list _touched, _then, _closing, _patiently_then
    cdef public bint _waited_for, _folder_changed, is_stopping, _is_last
    cdef public dict _syncing, _now, _later, _asked, _sealed, _unchecked, _patiently_asked, _deferred, defers

    cpdef mark_dirty(self, member)
    cpdef bint admits(self, long long size) except -1
    cpdef list write(self, long long now_ms)
    @cython.locals(last="long long", files=dict)
    cpdef start_sync(self, long long now_ms)
    cpdef finish_sync(self, sync, long long now_ms)
