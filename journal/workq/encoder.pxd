cimport cython

from staniel.queues.jobs.job cimport Job, Terms


cpdef bytes encode_time(at_ns)
@cython.locals(terms=Terms, data=bytes, coded=bytes, length=bytes, sized=bytes, count=Py_ssize_t, size=Py_ssize_t)
cpdef bytes encode_addition(Job job, bytes time)
cpdef bytes with_crc(bytes record)
cpdef bytes encode_bare(bytes time, Py_ssize_t kind, bytes id)
