cpdef tuple count_adds(bytes data, Py_ssize_t at, Py_ssize_t end)
cpdef Py_ssize_t read_adds(bytes data, Py_ssize_t at, Py_ssize_t end, list items, Py_ssize_t count_max, bint stops_at_stand_ins) except -1
