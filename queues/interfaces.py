"""Interfaces that a queue calls: its journal, its timer, and the sink that moves items to another queue."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Any, Protocol, TypeVar

from staniel.queues.changes import Change, added, confirmed, opened, removed
from staniel.queues.item import Delivery, Item


class Journal:
    """The journal of a queue, its only access to disks. A base class and not a Protocol, so that compiled code calls
    its methods without a look-up. `batch` is a field of most journals; one kind computes it.
    """

    __slots__ = ()

    batch = 0  # the commit batch that a reply about this queue's last change must wait for; 0: none

    def record(self, change: Change) -> None:
        """Record a change, before any client learns of it."""
        raise NotImplementedError

    # A busy queue makes one of these changes with every request. A journal that needs no change object for them
    # overrides these methods, which must write the same bytes as its `record`.

    def record_added(self, item: Item) -> None:
        """Record Added(item)."""
        self.record(added(item))

    def record_removed(self, item_id: int) -> None:
        """Record Removed(item_id)."""
        self.record(removed(item_id))

    def record_opened(self, item_id: int, xid: int) -> None:
        """Record Opened(item_id, xid)."""
        self.record(opened(item_id, xid))

    def record_confirmed(self, item_id: int, xid: int) -> None:
        """Record Confirmed(item_id, xid)."""
        self.record(confirmed(item_id, xid))

    def reply_batch(self) -> int:
        """Return `batch`, for the hot path."""
        return self.batch


class NoJournal(Journal):
    """The journal of queues without files (`keep_journal = false`). It only notes that its queue has changed."""

    __slots__ = ("_changed", "_queue", "batch", "is_noted", "listener")

    def __init__(self) -> None:
        self.batch = 0
        self._queue: object = None
        self._changed: dict[Any, None] = {}
        self.is_noted = False  # the queue is noted; most changes follow another
        self.listener: Callable[[Change], None] | None = None  # set by the simulator

    def watch(self, queue: object, changed: dict[Any, None]) -> None:
        """Note `queue` in `changed` from now on, at the first change after `is_noted` was set to False."""
        self._queue, self._changed, self.is_noted = queue, changed, False

    def reply_batch(self) -> int:
        return self.batch

    def record(self, change: Change) -> None:
        if self.listener is not None:
            self.listener(change)
        if not self.is_noted:
            self.is_noted = True
            self._changed[self._queue] = None


class Reason(Enum):
    EXPIRED = "expired"  # to expire_to_queue
    DEAD = "dead"  # delivered max_deliveries times and never confirmed: to dead_letter_queue
    MOVED = "moved"  # by an operator's command


class Admission(Enum):
    """Results of asking a transfer sink for room for one more item."""

    NOW = "now"
    SOON = "soon"  # when the transfers under way have arrived
    LATER = "later"  # the target cannot accept now; ask again after a while


class TimerOwner(Protocol):
    """An object whose `on_timer` is called at a given moment."""

    def on_timer(self, now_ms: int) -> int | None:
        """Do the work that is due. Return the work, in dropped items, if it may be much."""


class Timer(Protocol):
    """Calls `on_timer` of its owners. Each owner has one moment."""

    def set(self, owner: TimerOwner, at_ms: int) -> None:
        """Call `owner.on_timer` at `at_ms`, instead of any moment set before."""

    def drop(self, owner: TimerOwner) -> None:
        """Cancel the timer of `owner`, if it has one."""

    def soon(self, owner: TimerOwner) -> None:
        """Call `owner.on_timer` once, in this turn or the next, in addition to any moment set."""


SourceT = TypeVar("SourceT", contravariant=True)


class TransferSink(Protocol[SourceT]):
    """Takes over an item until it is safe in another queue, then calls `release` of its source, a Queue.

    `target` names the queue that a moved item goes to; for other reasons the settings of the source name it.
    """

    def admits(self, source: SourceT, size: int) -> Admission:
        """Tell whether an item of `size` bytes may be sent. A dead letter that may not be sent returns to the line."""

    def accept(self, source: SourceT, delivery: Delivery, reason: Reason, now_ms: int, target: str = "") -> None: ...
