# cython: language_level=3
"""The requests that a busy connection is full of; job_requests.py tells more."""

cimport cython


cdef tuple values_of(object value):
    return tuple([getattr(value, name) for name in value.__match_args__])


cdef str shown(object value):
    fields = ", ".join([f"{name}={getattr(value, name)!r}" for name in value.__match_args__])
    return f"{type(value).__name__}({fields})"


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
        return values_of(self) == values_of(other) if type(other) is type(self) else NotImplemented

    def __hash__(self):
        return hash((type(self), values_of(self)))

    def __repr__(self):
        return shown(self)

    def __reduce__(self):
        return type(self), values_of(self)


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
        return values_of(self) == values_of(other) if type(other) is type(self) else NotImplemented

    def __hash__(self):
        return hash((type(self), values_of(self)))

    def __repr__(self):
        return shown(self)

    def __reduce__(self):
        return type(self), values_of(self)


@cython.no_gc
@cython.freelist(64)
cdef class DeleteJob:
    """As in the .py beside this file."""

    __match_args__ = ("id",)

    def __init__(self, bytes id not None):
        self.id = id

    def __eq__(self, other):
        return values_of(self) == values_of(other) if type(other) is type(self) else NotImplemented

    def __hash__(self):
        return hash((type(self), values_of(self)))

    def __repr__(self):
        return shown(self)

    def __reduce__(self):
        return type(self), values_of(self)


cpdef DeleteJob new_delete(bytes id):
    """The same as DeleteJob(...), called from compiled code at a quarter of the cost."""
    cdef DeleteJob made = DeleteJob.__new__(DeleteJob)
    made.id = id
    return made
