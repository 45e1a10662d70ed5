cdef class NamedFile:
    cdef public object _file, _names, binding, write
    cdef public str path
    cdef public long long safe_bytes, cuts
    cdef public bint is_in_doubt
