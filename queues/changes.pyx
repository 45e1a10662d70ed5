# cython: language_level=3
"""The six changes of a queue that its journal records; changes.py tells more."""

cimport cython  # its decorators hold where a class is written, not where it is declared

from staniel.queues.item cimport Item
from staniel.values import copied, hash_of, is_equal, shown


@cython.final
@cython.no_gc
@cython.freelist(8)
cdef class Added:
    """As in the .py beside this file."""

    __match_args__ = ('item',)

    def __init__(self, Item item not None):
        self.item = item

    def __eq__(self, other):
        return is_equal(self, other)

    def __hash__(self):
        return hash_of(self)

    def __repr__(self):
        return shown(self)

    def __reduce__(self):
        return copied(self)


cpdef Added added(Item item):
    """The same as Added(...), called from compiled code at a quarter of the cost."""
    cdef Added made = Added.__new__(Added)
    made.item = item
    return made


@cython.final
@cython.no_gc
@cython.freelist(8)
cdef class Removed:
    """As in the .py beside this file."""

    __match_args__ = ('id',)

    def __init__(self, id):
        self.id = id

    def __eq__(self, other):
        return is_equal(self, other)

    def __hash__(self):
        return hash_of(self)

    def __repr__(self):
        return shown(self)

    def __reduce__(self):
        return copied(self)


cpdef Removed removed(object id):
    """The same as Removed(...), called from compiled code at a quarter of the cost."""
    cdef Removed made = Removed.__new__(Removed)
    made.id = id
    return made


@cython.final
@cython.no_gc
cdef class Cleared:
    """As in the .py beside this file."""

    __match_args__ = ('count',)

    def __init__(self, long long count):
        self.count = count

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
@cython.freelist(8)
cdef class Opened:
    """As in the .py beside this file."""

    __match_args__ = ('id', 'xid')

    def __init__(self, id, long long xid):
        self.id = id
        self.xid = xid

    def __eq__(self, other):
        return is_equal(self, other)

    def __hash__(self):
        return hash_of(self)

    def __repr__(self):
        return shown(self)

    def __reduce__(self):
        return copied(self)


cpdef Opened opened(object id, long long xid):
    """The same as Opened(...), called from compiled code at a quarter of the cost."""
    cdef Opened made = Opened.__new__(Opened)
    made.id = id
    made.xid = xid
    return made


@cython.final
@cython.no_gc
@cython.freelist(8)
cdef class Confirmed:
    """As in the .py beside this file."""

    __match_args__ = ('id', 'xid')

    def __init__(self, id, long long xid):
        self.id = id
        self.xid = xid

    def __eq__(self, other):
        return is_equal(self, other)

    def __hash__(self):
        return hash_of(self)

    def __repr__(self):
        return shown(self)

    def __reduce__(self):
        return copied(self)


cpdef Confirmed confirmed(object id, long long xid):
    """The same as Confirmed(...), called from compiled code at a quarter of the cost."""
    cdef Confirmed made = Confirmed.__new__(Confirmed)
    made.id = id
    made.xid = xid
    return made


@cython.final
@cython.no_gc
cdef class Aborted:
    """As in the .py beside this file."""

    __match_args__ = ('id', 'xid')

    def __init__(self, id, long long xid):
        self.id = id
        self.xid = xid

    def __eq__(self, other):
        return is_equal(self, other)

    def __hash__(self):
        return hash_of(self)

    def __repr__(self):
        return shown(self)

    def __reduce__(self):
        return copied(self)


Change = Added | Removed | Cleared | Opened | Confirmed | Aborted
