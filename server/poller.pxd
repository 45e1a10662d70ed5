from libc.stdint cimport uint32_t


cdef extern from "<sys/epoll.h>" nogil:
    ctypedef union epoll_data_t:
        int fd
    struct epoll_event:
        uint32_t events
        epoll_data_t data


cdef class Poller:
    cdef int _fd
    cdef list _readable
    cdef epoll_event _ready[1024]

    cdef _control(self, int operation, int fd, uint32_t mask)
    cpdef list poll(self, double seconds=*, int events_max=*)
