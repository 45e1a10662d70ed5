cimport cython


cdef class Segment:
    cdef public object path, file, state
    cdef public long long size, at, last_flush, safe_flush
    cdef public unsigned long long last_batch


cdef class Binding:
    cdef public object path, file
    cdef public bint has_data
    cdef public long long number, size, safe_bytes, direct_bytes, noted_bytes, bound_flush, last_flush

    cpdef long long known_safe_bytes(self) except -1
    cpdef long long written_bytes(self) except -1
    cpdef mark_safe(self, long long size)


cdef class RedoLog:
    cdef public object fs, folder, own, state, boot_id, spool_id, why_off, wait_for_sync, segments
    cdef public Segment active
    cdef public dict bindings, released, _unsynced
    cdef public list running, _pending, _sealed, _to_grow
    cdef public bint takes_data, is_due, has_pending, _has_pieces
    cdef public long long segment_bytes_max, flushes, durable_flush
    cdef public unsigned long long next_number, synced, _oldest, _oldest_unsynced
    cdef public long long _files, _table_bytes, _piece_bytes, _pending_bytes, _sealed_bytes

    cpdef bint covers(self, file) except -1
    cpdef list uncovered_files(self, files)
    @cython.locals(binding=Binding, at="long long")
    cpdef wrote(self, file, long long at, bytes data)
    @cython.locals(binding=Binding, at="long long", end="long long", safe_bytes="long long")
    cpdef piece_of(self, file, long long bytes_max)
    cpdef _add_record(self, bytes record)
    cpdef _seal(self, unsigned long long oldest=*)
    cpdef list take_sealed(self)
    cpdef bint stage(self) except -1
    cpdef bint _fits(self, long long size) except -1
    cpdef _stage(self, bytes batch, unsigned long long oldest=*)
