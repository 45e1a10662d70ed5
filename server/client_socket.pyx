"""The socket of a client, as the hub uses it: one system call each, without the socket module's parsing of arguments
and its look at the time-out. client_socket.py has the plain one.
"""

import socket

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.exc cimport PyErr_CheckSignals, PyErr_SetFromErrno
from cpython.ref cimport Py_DECREF
from libc.errno cimport EINTR, errno
from libc.string cimport memcpy

cdef extern from "<sys/socket.h>" nogil:
    ssize_t c_recv "recv" (int fd, void *buffer, size_t count, int flags)
    ssize_t c_send "send" (int fd, const void *buffer, size_t count, int flags)
    int MSG_DONTWAIT
    int MSG_NOSIGNAL

cdef enum:
    BUFFER_BYTES = 524288  # connection.py reads no more at once
    SPARE_BYTES_MIN = 512  # less has an allocator of its own, which costs little
    SPARE_BYTES_MAX = 65536  # kept at most
    KEPT_PIECES_MAX = 128  # 1 KB a connection: three pieces for each item of a pipeline
    LONG_BYTES = 16384  # the kernel takes its time to copy more: other threads may run

cdef extern from "Python.h":
    ctypedef struct PyBytesObject:
        Py_hash_t ob_shash  # -1: not known
    ctypedef struct PyObject:
        Py_ssize_t ob_refcnt
    ctypedef struct PyListObject:
        PyObject **ob_item
    void Py_SET_SIZE(object, Py_ssize_t)

# One for all sockets, which one thread reads: what was read is copied out before the next read. A bytes object of the
# full length for each read, cut to what came, costs an allocation from the system and its return.
cdef char buffer[BUFFER_BYTES]

# The last read that the system's allocator had to make, for the next one of that length if nothing else holds it: most
# puts are as long as the one before, and their bytes are gone once the item has been cut out.
cdef bytes spare = b""


cdef bytes taken_from_buffer(Py_ssize_t size):
    """The first bytes of the buffer."""
    global spare
    cdef bytes data
    if SPARE_BYTES_MIN < size <= SPARE_BYTES_MAX:
        # Not Py_REFCNT(spare): Cython holds a global once more while it is an argument, so that is never 1.
        if PyBytes_GET_SIZE(spare) == size and (<PyObject *>spare).ob_refcnt == 1:
            memcpy(PyBytes_AS_STRING(spare), buffer, size)
            (<PyBytesObject *>spare).ob_shash = -1
            return spare
        data = PyBytes_FromStringAndSize(buffer, size)
        spare = data
        return data
    return PyBytes_FromStringAndSize(buffer, size)


cdef class Channel:
    """What a connection reads from and writes to."""

    cpdef bytes recv(self, Py_ssize_t count):
        raise NotImplementedError

    cpdef Py_ssize_t send(self, data) except -1:
        raise NotImplementedError


cdef class OtherChannel(Channel):
    """Any socket: a simulated one, or the system's by itself."""

    def __init__(self, sock):
        self._recv, self._send = sock.recv, sock.send

    cpdef bytes recv(self, Py_ssize_t count):
        return self._recv(count)

    cpdef Py_ssize_t send(self, data) except -1:
        return self._send(data)


cdef class ClientSocket(Channel):
    """A non-blocking socket; its calls raise what the socket's own do, also once it is closed (EBADF)."""

    def __init__(self, sock):
        self._sock = sock
        self._fd = sock.fileno()

    cpdef bytes recv(self, Py_ssize_t count):
        """b"" at the end of the stream. Raises BlockingIOError, OSError."""
        cdef ssize_t size
        if count < 0:
            raise ValueError("negative buffersize in recv")
        if count > BUFFER_BYTES:
            count = BUFFER_BYTES
        while True:
            size = c_recv(self._fd, buffer, count, MSG_DONTWAIT)
            if size >= 0:
                return taken_from_buffer(size)
            if errno != EINTR:
                PyErr_SetFromErrno(OSError)
            PyErr_CheckSignals()

    cpdef Py_ssize_t send(self, data) except -1:
        """How many bytes the socket took. Raises BlockingIOError, OSError."""
        cdef const unsigned char[::1] view
        if type(data) is bytes:
            return self._send(PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data))
        view = data
        return self._send(<const char *>&view[0], view.shape[0]) if view.shape[0] else 0

    cdef Py_ssize_t _send(self, const char *data, Py_ssize_t count) except -1:
        cdef ssize_t size
        cdef int fd = self._fd
        while True:
            if count > LONG_BYTES:
                with nogil:
                    size = c_send(fd, data, count, MSG_DONTWAIT | MSG_NOSIGNAL)
            else:
                size = c_send(fd, data, count, MSG_DONTWAIT | MSG_NOSIGNAL)
            if size >= 0:
                return size
            if errno != EINTR:
                PyErr_SetFromErrno(OSError)
            PyErr_CheckSignals()

    def fileno(self):
        """The descriptor, -1 once it is closed."""
        return self._fd

    def shutdown(self, how):
        """Close one side or both. Raises OSError."""
        self._sock.shutdown(how)

    def close(self):
        """Release the descriptor: from here on it may be another socket's."""
        self._fd = -1
        self._sock.close()


def client_socket(sock):
    """A non-blocking socket with `recv`, `send`, `fileno`, `shutdown` and `close`."""
    return ClientSocket(sock)


def channel_of(sock):
    """What a connection reads from and writes to."""
    return sock if isinstance(sock, Channel) else OtherChannel(sock)


cdef void empty(list pieces):
    """Remove all pieces. A list that is cleared gives its memory back, and takes new memory for the next reply; one of a
    few pieces keeps it.
    """
    cdef Py_ssize_t at, count = len(pieces)
    if count > KEPT_PIECES_MAX:
        pieces.clear()
        return
    Py_SET_SIZE(pieces, 0)  # first, so that nothing sees a piece that has been released
    for at in range(count):
        Py_DECREF(<object>(<PyListObject *>pieces).ob_item[at])


cpdef Py_ssize_t send_pieces(Channel channel, list pieces, Py_ssize_t size_max) except? -1:
    """As in client_socket.py. Several pieces are gathered in the buffer of reads, which is free between two reads, so no
    bytes object is made of them.
    """
    cdef Py_ssize_t size = 0, sent
    cdef bytes piece, rest = None
    if len(pieces) == 1:
        piece = <bytes?>pieces[0]
        size = PyBytes_GET_SIZE(piece)
        if size > size_max:
            return -1
        sent = channel.send(piece)
        if sent < size:
            rest = piece[sent:]
    else:
        size = size_of(pieces)
        if size > size_max:
            return -1
        if size <= BUFFER_BYTES and type(channel) is ClientSocket:
            gather(pieces)
            sent = (<ClientSocket>channel)._send(buffer, size)
            if sent < size:
                rest = PyBytes_FromStringAndSize(buffer + sent, size - sent)
        else:
            piece = b"".join(pieces)
            sent = channel.send(piece)
            if sent < size:
                rest = piece[sent:]
    empty(pieces)
    if rest is not None:
        pieces.append(rest)
    return sent


# The two loops have each piece's address alone, without a reference to it: a pipeline of 32 gets has 96 of them. The
# list holds them, and no Python code runs within a loop.


cdef Py_ssize_t size_of(list pieces) except -1:
    """The bytes of all pieces. Raises TypeError if one is no bytes object."""
    cdef Py_ssize_t at, size = 0
    cdef PyObject *one
    for at in range(len(pieces)):
        one = (<PyListObject *>pieces).ob_item[at]
        if not PyBytes_CheckExact(<object>one):
            raise TypeError("a piece of a reply is no bytes object")
        size += PyBytes_GET_SIZE(<object>one)
    return size


cdef void gather(list pieces) noexcept:
    """Copy pieces that `size_of` has looked at, and that fit, into the buffer, one behind the other."""
    cdef Py_ssize_t at
    cdef PyObject *one
    cdef char *end = buffer
    for at in range(len(pieces)):
        one = (<PyListObject *>pieces).ob_item[at]
        memcpy(end, PyBytes_AS_STRING(<object>one), PyBytes_GET_SIZE(<object>one))
        end += PyBytes_GET_SIZE(<object>one)


def plain_socket(sock):
    """The system's socket below a client's, for its options; None in a simulated world."""
    if isinstance(sock, ClientSocket):
        return (<ClientSocket>sock)._sock
    return sock if isinstance(sock, socket.socket) else None
