cimport cython


@cython.locals(digits=bytes)
cpdef bytes read_id(bytes word)
cpdef bint is_job_id(bytes raw) except -1
@cython.locals(text=bytes)
cpdef bytes show_id(bytes raw)
