# cython: language_level=3
"""An item, and an item that has left the line at least once; item.py tells more."""

cimport cython  # its decorators hold where a class is written, not where it is declared

from staniel.values import copied, is_equal, shown


LOST_MS = -1
REMNANT_MS = 2

cdef extern from "Python.h":
    long long PyLong_AsLongLongAndOverflow(object number, int *overflow) except? -1

cdef enum:
    SHIFT = 16
cdef long long ADDED_MAX = 1 << 46, ID_MAX = 1 << 62  # below these the shifted time and the next id fit 63 bits


cdef class Item:
    """As in the .py beside this file."""

    __match_args__ = ('data', 'added_ms', 'expires_ms', 'flags')

    def __init__(self, bytes data not None, long long added_ms, long long expires_ms=0, long long flags=0):
        self.data = data
        self.added_ms = added_ms
        self.expires_ms = expires_ms
        self.flags = flags

    def __eq__(self, other):
        return is_equal(self, other)

    def __repr__(self):
        return shown(self)

    def __reduce__(self):
        return copied(self)


cpdef Item new_item(bytes data, long long added_ms, long long expires_ms, long long flags):
    """The same as Item(...), called from compiled code at a quarter of the cost."""
    cdef Item made = Item.__new__(Item)
    made.data = data
    made.added_ms = added_ms
    made.expires_ms = expires_ms
    made.flags = flags
    return made


@cython.final
cdef class Numbered(Item):
    """As in the .py beside this file."""

    __match_args__ = ('data', 'added_ms', 'expires_ms', 'flags', 'id', 'errors')

    def __init__(self, bytes data not None, long long added_ms, long long expires_ms=0, long long flags=0, long long id=0, long long errors=0):
        self.data = data
        self.added_ms = added_ms
        self.expires_ms = expires_ms
        self.flags = flags
        self.id = id
        self.errors = errors


@cython.final
cdef class ItemWithXid(Item):
    """As in the .py beside this file."""

    __match_args__ = ('data', 'added_ms', 'expires_ms', 'flags', 'xid', 'past')

    def __init__(self, bytes data not None, long long added_ms, long long expires_ms=0, long long flags=0, long long xid=0, bytes past not None=b""):
        self.data = data
        self.added_ms = added_ms
        self.expires_ms = expires_ms
        self.flags = flags
        self.xid = xid
        self.past = past


@cython.final
cdef class ItemWithPast(Item):
    """As in the .py beside this file."""

    __match_args__ = ('data', 'added_ms', 'expires_ms', 'flags', 'past')

    def __init__(self, bytes data not None, long long added_ms, long long expires_ms=0, long long flags=0, bytes past not None=b""):
        self.data = data
        self.added_ms = added_ms
        self.expires_ms = expires_ms
        self.flags = flags
        self.past = past


@cython.final
@cython.no_gc
@cython.freelist(64)
cdef class Delivery:
    """As in the .py beside this file."""

    __match_args__ = ('item', 'id', 'deliveries', 'xid', 'opened_ms', 'seq', 'client')

    def __init__(self, Item item not None, id, long long deliveries=1, xid=0, long long opened_ms=0, long long seq=0, str client not None=""):
        self.item = item
        self.id = id
        self.deliveries = deliveries
        self.xid = xid
        self.opened_ms = opened_ms
        self.seq = seq
        self.client = client

    def __repr__(self):
        return shown(self)

    def __reduce__(self):
        return copied(self)


cpdef Delivery new_delivery(Item item, object id, long long deliveries, object xid, long long opened_ms, long long seq, str client=""):
    """The same as Delivery(...), called from compiled code at a quarter of the cost."""
    cdef Delivery made = Delivery.__new__(Delivery)
    made.item = item
    made.id = id
    made.deliveries = deliveries
    made.xid = xid
    made.opened_ms = opened_ms
    made.seq = seq
    made.client = client
    return made


def item_with(bytes past not None, bytes data not None, long long added_ms, long long expires_ms, long long flags):
    """An item, with its past if it has one."""
    return ItemWithPast(data, added_ms, expires_ms, flags, past) if past else Item(data, added_ms, expires_ms, flags)


def past_bytes(item):
    """The encoded past of an item; b"": it has none."""
    return item.past if isinstance(item, (ItemWithPast, ItemWithXid)) else b""


def copy_of(item):
    """The same item without what only its present journal knows it by."""
    return item_with(past_bytes(item), item.data, item.added_ms, item.expires_ms, item.flags)


cpdef bint is_remnant(Item item) except -1:
    """Whether nothing but its place in the line is left of this item."""
    return item.expires_ms == 2 and not item.data  # REMNANT_MS


def is_payload_gone(Item item not None):
    """Whether there is nothing left to hand out or to send: lost by the disk, or swept."""
    return item.expires_ms == LOST_MS or is_remnant(item)


def remnant_of(Item item not None):
    """What stays of an item that has expired: what its id is made of, or its id."""
    if isinstance(item, Numbered):
        return Numbered(b"", item.added_ms, REMNANT_MS, 0, item.id, item.errors)
    return Item(b"", item.added_ms, REMNANT_MS)


ID_SHIFT = SHIFT


cpdef object id_after(long long added_ms, object last_id):
    """As in item.py. Computed in C while both numbers fit 62 bits: only a foreign journal can hold larger ones."""
    cdef int overflow = 0
    cdef long long last, by_clock
    if 0 <= added_ms < ADDED_MAX:
        last = PyLong_AsLongLongAndOverflow(last_id, &overflow)
        if not overflow and last < ID_MAX:
            by_clock = added_ms << SHIFT
            return by_clock if by_clock > last else last + 1
    wanted = (<object>added_ms) << ID_SHIFT
    return wanted if wanted > last_id else last_id + 1
