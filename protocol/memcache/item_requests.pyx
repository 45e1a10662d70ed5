# cython: language_level=3
"""The requests that a busy connection is full of; item_requests.py tells more."""

cimport cython  # its decorators hold where a class is written, not where it is declared

from staniel.values import copied, hash_of, is_equal, shown


@cython.final
@cython.no_gc
@cython.freelist(64)
cdef class Set:
    """As in the .py beside this file."""

    __match_args__ = ('queue', 'data', 'flags', 'ttl_ms', 'expires_ms', 'noreply')

    def __init__(self, str queue not None, bytes data not None, long long flags=0, ttl_ms=None, long long expires_ms=0, bint noreply=False):
        self.queue = queue
        self.data = data
        self.flags = flags
        self.ttl_ms = ttl_ms
        self.expires_ms = expires_ms
        self.noreply = noreply

    def __eq__(self, other):
        return is_equal(self, other)

    def __hash__(self):
        return hash_of(self)

    def __repr__(self):
        return shown(self)

    def __reduce__(self):
        return copied(self)


cpdef Set new_set(str queue, bytes data, long long flags, object ttl_ms, long long expires_ms, bint noreply):
    """The same as Set(...), called from compiled code at a quarter of the cost."""
    cdef Set made = Set.__new__(Set)
    made.queue = queue
    made.data = data
    made.flags = flags
    made.ttl_ms = ttl_ms
    made.expires_ms = expires_ms
    made.noreply = noreply
    return made


@cython.final
cdef class Get:
    """As in the .py beside this file."""

    __match_args__ = ('key', 'queue', 'wait_ms', 'open', 'close', 'abort', 'peek', 'with_id')

    def __init__(self, bytes key not None, str queue not None, long long wait_ms=0, bint open=False, bint close=False, bint abort=False, bint peek=False, bint with_id=False):
        self.key = key
        self.queue = queue
        self.wait_ms = wait_ms
        self.open = open
        self.close = close
        self.abort = abort
        self.peek = peek
        self.with_id = with_id

    def __eq__(self, other):
        return is_equal(self, other)

    def __hash__(self):
        return hash_of(self)

    def __repr__(self):
        return shown(self)

    def __reduce__(self):
        return copied(self)


@cython.final
@cython.no_gc
cdef class SetHead:
    """As in the .py beside this file."""

    __match_args__ = ('length', 'queue', 'flags', 'ttl_ms', 'expires_ms', 'noreply', 'meta')

    def __init__(self, long long length, str queue not None, long long flags, ttl_ms, long long expires_ms, bint noreply, meta=None):
        self.length = length
        self.queue = queue
        self.flags = flags
        self.ttl_ms = ttl_ms
        self.expires_ms = expires_ms
        self.noreply = noreply
        self.meta = meta

    def __eq__(self, other):
        return is_equal(self, other)

    def __hash__(self):
        return hash_of(self)

    def __repr__(self):
        return shown(self)

    def __reduce__(self):
        return copied(self)


def without_ends(Get request not None):
    """The same read, without the end of an open one that it also asks for."""
    return Get(request.key, request.queue, request.wait_ms, request.open, False, False, request.peek, request.with_id)
