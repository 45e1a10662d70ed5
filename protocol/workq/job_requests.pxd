# The C fields of job_requests's values; their sizes are tested at the bounds by tests/compiled/.

cimport cython


@cython.final
@cython.no_gc
@cython.freelist(64)
cdef class AddJob:
    cdef readonly bytes id
    cdef readonly object terms
    cdef readonly bytes payload


cpdef AddJob new_add(bytes id, terms, bytes payload)


@cython.final
cdef class LeaseJob:
    cdef readonly tuple names
    cdef readonly long long wait_ms
    cdef readonly bint has_invalid_name


@cython.final
@cython.no_gc
@cython.freelist(64)
cdef class DeleteJob:
    cdef readonly bytes id


cpdef DeleteJob new_delete(bytes id)
