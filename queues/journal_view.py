"""Everything that a queue holds, as its journal sees it.

Knows the line, the open reads and the departures together. Refuses to know files: rewriting and packing ask here what
a summary must contain.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from staniel.queues.checkpoint import Checkpoint
from staniel.queues.item import Delivery, Item

if TYPE_CHECKING:
    from staniel.queues.queue import Queue


class JournalView:
    """For the journal, an item in limbo is still the head of the line, and a delayed or leaving one is still open."""

    def __init__(self, queue: Queue) -> None:
        self.queue = queue

    @property
    def under_way(self) -> dict[int, Delivery]:
        """By xid: everything under a transaction."""
        queue = self.queue
        return {**queue.open_reads, **queue.delayed, **queue.outgoing.leaving}

    @property
    def heads(self) -> list[Delivery]:
        """What stands before the fresh items, the head first."""
        unrecorded = self.queue.outgoing.unrecorded
        return ([] if unrecorded is None else [unrecorded]) + self.queue.line.returned[::-1]

    def snapshot(self) -> tuple[dict[int, Delivery], list[Item]]:
        """What a rewritten journal must hold: everything under a transaction, and the whole line."""
        unrecorded = self.queue.outgoing.unrecorded
        return self.under_way, ([] if unrecorded is None else [unrecorded.item]) + self.queue.line.items()

    def checkpoint(self) -> Checkpoint:
        """What the journal's records so far amount to, in numbers."""
        line, unrecorded = self.queue.line, self.queue.outgoing.unrecorded
        opened = self.under_way
        known = [(taken.id, taken.deliveries) for taken in opened.values()]
        if unrecorded is not None:
            known.append((unrecorded.id, unrecorded.deliveries - 1))  # nobody has got it, though it has left the line
        known += [(taken.id, taken.deliveries) for taken in reversed(line.returned)]
        return Checkpoint(
            line.left,
            line.end,
            tuple((xid, taken.seq) for xid, taken in opened.items()),
            tuple(taken.seq for taken in self.heads),
            line.last_id,
            line.added_bytes,
            line.added_expiring,
            tuple(known),
        )

    def tip(self) -> tuple[int, int, int]:
        """(seq of the item that comes next, payload bytes, how many with an expiry) of all that ever came."""
        line = self.queue.line
        return line.end, line.added_bytes, line.added_expiring

    def alive(self) -> dict[int, Item]:
        """By seq: every item that has left the fresh ones and is not gone for good."""
        return {taken.seq: taken.item for taken in [*self.under_way.values(), *self.heads]}

    def unread(self) -> int:
        """The seq of the first item that is not in memory."""
        line = self.queue.line
        line.settle()  # what was dropped unread is read for its size
        return line.left + len(line.fresh)

    @property
    def is_bare(self) -> bool:
        """Whether there is nothing at all."""
        return not (len(self.queue.line) or self.under_way or self.queue.outgoing.unrecorded)
