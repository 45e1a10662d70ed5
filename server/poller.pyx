"""epoll without a new tuple for each event: nearly every event says that a descriptor can be read, so the tuple of that
event is kept for each descriptor. poller.py has the standard library's epoll.
"""

import select

from cpython.exc cimport PyErr_CheckSignals, PyErr_SetFromErrno
from libc.errno cimport EINTR, errno
from posix.unistd cimport close as c_close

cdef extern from "<sys/epoll.h>" nogil:
    int epoll_create1(int flags)
    int epoll_ctl(int epfd, int op, int fd, epoll_event *event)
    int epoll_wait(int epfd, epoll_event *events, int maxevents, int timeout)
    int EPOLL_CLOEXEC, EPOLL_CTL_ADD, EPOLL_CTL_MOD, EPOLL_CTL_DEL, EPOLLIN

cdef enum:
    EVENTS_MAX = 1024  # the size of _ready
    KEPT_MAX = 65536  # descriptors whose tuple is kept: 64 bytes each
    TIMEOUT_MAX_S = 2000000  # a longer timeout in milliseconds would not fit an int


cdef class Poller:
    """The part of select.epoll that the hub uses. One thread polls. Every call raises OSError as select.epoll does."""

    def __init__(self):
        self._readable = []  # (descriptor, EPOLLIN) by descriptor
        self._fd = epoll_create1(EPOLL_CLOEXEC)
        if self._fd < 0:
            PyErr_SetFromErrno(OSError)

    def __dealloc__(self):
        if self._fd > 0:
            c_close(self._fd)

    def fileno(self):
        """Return the descriptor of the epoll itself, -1 once it is closed."""
        return self._fd

    def close(self):
        """Release the descriptor; a second call does nothing."""
        if self._fd >= 0:
            c_close(self._fd)
            self._fd = -1

    def register(self, int fd, uint32_t mask):
        """Watch a descriptor."""
        self._control(EPOLL_CTL_ADD, fd, mask)

    def modify(self, int fd, uint32_t mask):
        """Watch a registered descriptor for other events."""
        self._control(EPOLL_CTL_MOD, fd, mask)

    def unregister(self, int fd):
        """Stop watching a descriptor."""
        self._control(EPOLL_CTL_DEL, fd, 0)

    cdef _control(self, int operation, int fd, uint32_t mask):
        cdef epoll_event event
        event.events = mask
        event.data.fd = fd
        if epoll_ctl(self._fd, operation, fd, &event) < 0:
            PyErr_SetFromErrno(OSError)

    cpdef list poll(self, double seconds=-1, int events_max=EVENTS_MAX):
        """Return (descriptor, mask) for what is ready, at most `events_max` (and 1024) of them; wait for up to `seconds`,
        without a limit if negative. A signal ends the wait early with an empty list.
        """
        cdef int count, at, fd
        cdef int timeout_ms = -1 if seconds < 0 else <int>(min(seconds, TIMEOUT_MAX_S) * 1000 + 0.999)
        cdef list kept = self._readable
        if events_max > EVENTS_MAX:
            events_max = EVENTS_MAX
        if timeout_ms:
            with nogil:
                count = epoll_wait(self._fd, self._ready, events_max, timeout_ms)
        else:
            count = epoll_wait(self._fd, self._ready, events_max, 0)
        if count < 0:
            if errno != EINTR:
                PyErr_SetFromErrno(OSError)
            PyErr_CheckSignals()
            return []
        cdef list events = [None] * count
        for at in range(count):
            fd = self._ready[at].data.fd
            if self._ready[at].events == <uint32_t>EPOLLIN and fd < KEPT_MAX:
                if fd >= len(kept):
                    kept.extend([(each, select.EPOLLIN) for each in range(len(kept), fd + 64)])
                events[at] = kept[fd]
            else:
                events[at] = (fd, self._ready[at].events)
        return events
