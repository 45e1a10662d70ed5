"""The six changes of a queue that its journal records, as values.

Applying the changes in order rebuilds the queue. A journal records each change before any client learns of it. Each
format has its own way to write them.
"""

from __future__ import annotations

from msgspec import Struct

from staniel.queues.item import Item


class Added(Struct, frozen=True, gc=False):
    """`item` joined the end of the line."""

    item: Item


class Removed(Struct, frozen=True, gc=False):
    """The head of the line is removed for good: delivered, expired, discarded or flushed."""

    id: int


class Cleared(Struct, frozen=True, gc=False):
    """The first `count` items of the line are removed for good."""

    count: int


class Opened(Struct, frozen=True, gc=False):
    """The head of the line is open under `xid`, a signed 32-bit number that no other open read of the queue has."""

    id: int
    xid: int


class Confirmed(Struct, frozen=True, gc=False):
    """Open read `xid` is confirmed; its item is removed for good."""

    id: int
    xid: int


class Aborted(Struct, frozen=True, gc=False):
    """Open read `xid` ended; its item is the head of the line again."""

    id: int
    xid: int


Change = Added | Removed | Cleared | Opened | Confirmed | Aborted

# Called with all fields: compiled, these are cheaper than the classes (changes.pyx).
added, removed, opened, confirmed = Added, Removed, Opened, Confirmed
