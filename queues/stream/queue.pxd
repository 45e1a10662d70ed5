cimport cython

from staniel.queues.item cimport Item, Numbered
from staniel.queues.queue cimport Queue
from staniel.queues.stream.stream cimport Stream, StreamLine


cdef class StreamQueue(Queue):
    cdef dict __dict__  # the simulator listens to `_put`
    cdef public Stream stream
    cdef public StreamLine stream_line
    cdef public object reader
    cdef public bint is_parent, _takes_evenly

    @cython.locals(stream=Stream, size=Py_ssize_t, taker=StreamQueue, takers=tuple)
    cpdef bint add(self, Item item, long long now_ms, bint forced=*) except -1
    @cython.locals(stream=Stream, taker=StreamQueue, member=StreamQueue, numbered=Numbered)
    cpdef _put(self, Item item, tuple takers, long long now_ms)
    cpdef bint _lets_in(self, long long size, long long now_ms) except -1
