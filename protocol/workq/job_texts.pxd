cpdef bytes read_id(bytes word)
cpdef bint is_job_id(bytes raw) except -1
cpdef bytes job_id_at(bytes data, Py_ssize_t at)
cpdef bytes show_id(bytes raw)
cpdef bytes leased(bytes id, bytes shown_terms, bytes payload)
