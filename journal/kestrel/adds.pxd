cpdef tuple count_adds(bytes data, Py_ssize_t at, Py_ssize_t end)
