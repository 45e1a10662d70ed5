"""The items of one queue that are on their way to another: taken from the line, and not yet gone.

Knows how they stand in the journal meanwhile. Refuses to know where they go and when they have arrived: the heir
does, and then calls `release`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from enum import Enum
from typing import TYPE_CHECKING

from queues.changes import Confirmed, Removed
from queues.item import Item, Taken
from queues.ports import Heir, Reason

if TYPE_CHECKING:
    from queues.queue import Queue


class Dropped(Enum):
    """What became of an item that recovery wanted gone."""

    NOT_FOUND = "not found"
    RECORDED = "recorded"
    UNRECORDED = "unrecorded"  # the journal must be rewritten


class Departures:
    """`leaving`: under a transaction, by xid. `limbo`: for the journal still the head of the line, the oldest first.

    An expired item goes into limbo, so that its way costs one plain removal in the journal. That holds only as long
    as no record means another head; before such a record the queue calls `anchor`.
    """

    def __init__(self, queue: Queue) -> None:
        self.queue = queue
        self.leaving: dict[int, Taken] = {}
        self.limbo: deque[Taken] = deque()

    def send_expired(self, heir: Heir, now_ms: int) -> None:
        """The head has expired: it goes to expire_to_queue."""
        taken = self.queue.line.pop()
        self.limbo.append(taken)
        heir.inherit(self.queue, taken, Reason.EXPIRED, now_ms)

    def send_dead(self, heir: Heir, taken: Taken, now_ms: int) -> None:
        """A read that is no longer open was its item's last: it goes to dead_letter_queue."""
        self.leaving[taken.xid] = taken
        heir.inherit(self.queue, taken, Reason.DEAD, now_ms)

    def send_head(self, heir: Heir, target: str, now_ms: int) -> None:
        """An operator wants the head in queue `target`."""
        taken = self.queue.line.pop()
        if self.limbo:
            self.anchor()
        self.queue.begin(taken)
        self.leaving[taken.xid] = taken
        heir.inherit(self.queue, taken, Reason.MOVED, now_ms, target)

    def anchor(self) -> None:
        """Put what is in limbo under transactions: the next record means another head."""
        for taken in self.limbo:
            self.queue.begin(taken)
            self.leaving[taken.xid] = taken
        self.limbo.clear()

    def release(self, taken: Taken) -> None:
        """The item has arrived: it is gone from here for good."""
        if self.limbo and self.limbo[0] is not taken and not taken.xid:
            self.anchor()
        if taken.xid:
            if self.leaving.pop(taken.xid, None) is taken:
                self.queue.journal.record(Confirmed(taken.id, taken.xid))
        elif self.limbo:
            self.limbo.popleft()
            self.queue.journal.record(Removed(taken.id))

    def drop_if(self, means: Callable[[Item], bool]) -> Dropped:
        """Remove the item that is meant; another queue is known to have it. Where it is, depends on the last records
        that a crash has left: open, the head, or behind others, which no record can say.
        """
        queue = self.queue
        for taken in queue.open_reads.values():
            if means(taken.item):
                queue.confirm(taken)
                return Dropped.RECORDED
        head = queue.line.head()
        if head is not None and means(head):
            queue.drop_head()
            return Dropped.RECORDED
        if not queue.line.remove(means):
            return Dropped.NOT_FOUND
        queue.cleared(0)  # a journal that knows its items by id takes it down
        return Dropped.UNRECORDED

    def clear(self) -> None:
        """The queue is closed: nothing that arrives concerns it any more."""
        self.leaving.clear()
        self.limbo.clear()
