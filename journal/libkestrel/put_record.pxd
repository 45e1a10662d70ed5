from staniel.queues.item cimport Numbered


cpdef bytes put_record(Numbered item)
cpdef Py_ssize_t size_of_puts(list records) except -2
