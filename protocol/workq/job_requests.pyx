# cython: language_level=3
"""The requests that a busy connection is full of; job_requests.py tells more."""

cimport cython

from staniel.values import copied, hash_of, is_equal, shown


@cython.no_gc
@cython.freelist(64)
cdef class AddJob:
    """As in the .py beside this file."""

    __match_args__ = ("id", "terms", "payload")

    def __init__(self, bytes id not None, terms, bytes payload not None):
        self.id = id
        self.terms = terms
        self.payload = payload

    def __eq__(self, other):
        return is_equal(self, other)

    def __hash__(self):
        return hash_of(self)

    def __repr__(self):
        return shown(self)

    def __reduce__(self):
        return copied(self)


cpdef AddJob new_add(bytes id, terms, bytes payload):
    """The same as AddJob(...), called from compiled code at a quarter of the cost."""
    cdef AddJob made = AddJob.__new__(AddJob)
    made.id = id
    made.terms = terms
    made.payload = payload
    return made


cdef class LeaseJob:
    """As in the .py beside this file."""

    __match_args__ = ("names", "wait_ms", "has_invalid_name")

    def __init__(self, tuple names not None, long long wait_ms, bint has_invalid_name=False):
        self.names = names
        self.wait_ms = wait_ms
        self.has_invalid_name = has_invalid_name

    def __eq__(self, other):
        return is_equal(self, other)

    def __hash__(self):
        return hash_of(self)

    def __repr__(self):
        return shown(self)

    def __reduce__(self):
        return copied(self)


@cython.no_gc
@cython.freelist(64)
cdef class DeleteJob:
    """As in the .py beside this file."""

    __match_args__ = ("id",)

    def __init__(self, bytes id not None):
        self.id = id

    def __eq__(self, other):
        return is_equal(self, other)

    def __hash__(self):
        return hash_of(self)

    def __repr__(self):
        return shown(self)

    def __reduce__(self):
        return copied(self)


cpdef DeleteJob new_delete(bytes id):
    """The same as DeleteJob(...), called from compiled code at a quarter of the cost."""
    cdef DeleteJob made = DeleteJob.__new__(DeleteJob)
    made.id = id
    return made
