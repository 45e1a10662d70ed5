"""Whom a queue calls: the transfer sink of items that leave it for another queue, and the timer of its open reads.

Knows why items leave. Refuses to know how they get there safely, and what time it is.
"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Protocol

from staniel.queues.item import Delivery

if TYPE_CHECKING:
    from staniel.queues.batched_aborts import BatchedAborts
    from staniel.queues.queue import Queue


class Reason(Enum):
    EXPIRED = "expired"  # to expire_to_queue
    DEAD = "dead"  # delivered max_deliveries times and never confirmed: to dead_letter_queue
    MOVED = "moved"  # an operator's wish


class Admission(Enum):
    """Whether a transfer sink takes one more item."""

    NOW = "now"
    SOON = "soon"  # when those that are under way have arrived
    LATER = "later"  # they have nowhere to go for now; it is asked again in a while


class Timer(Protocol):
    """Calls a queue's `due` once `at_ms` has come; one moment a queue."""

    def set(self, owner: Queue, at_ms: int) -> None: ...

    def drop(self, owner: Queue) -> None: ...

    def soon(self, owner: BatchedAborts) -> None:
        """Call its `due` once, in this turn or the next."""


class TransferSink(Protocol):
    """Takes charge of an item until it is safe elsewhere, then calls `Queue.release`.

    `target` names the queue that a moved item goes to; where the others go, their queue's settings say.
    """

    def admits(self, source: Queue, size: int) -> Admission:
        """Whether an item of `size` bytes may be sent. What dies and may not be sent goes back to the line."""

    def accept(self, source: Queue, taken: Delivery, reason: Reason, now_ms: int, target: str = "") -> None: ...
