"""Open reads that belong to no connection: thrift's. Each has a number of its own and a time limit.

The limit runs from the moment the item is opened, so a client that vanishes in the middle of a get leaves nothing open
for ever.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING

from staniel.broker.timers import Timers
from staniel.queues.batched_aborts import ENDED_AS_MANY
from staniel.queues.item import Delivery
from staniel.queues.queue import Ended, Queue

if TYPE_CHECKING:
    from staniel.broker.session import Session

Owner = tuple[int, str]  # a session's number and a queue's name


class Lease:
    """One open read with a time limit."""

    __slots__ = ("address", "leases", "number", "owner", "queue", "taken")

    def __init__(self, leases: Leases, number: int, owner: Owner, address: str, queue: Queue, taken: Delivery) -> None:
        self.address = address  # of the client, for the log
        self.leases = leases
        self.number = number
        self.owner = owner
        self.queue = queue
        self.taken = taken

    def due(self, now_ms: int) -> int:
        if self.leases.pop(self.number) is not None and (ended := self.queue.abort(self.taken, now_ms)):
            self.queue.counters.timed_out_transactions += 1
            self.leases.timed_out(self, ended, now_ms)
        return ENDED_AS_MANY


class Leases:
    """All leases by number. Numbers count from 1 for the life of the process; any client may end any of them, if it
    names the queue: that is what its rights are asked for.
    """

    def __init__(self, timers: Timers) -> None:
        self._deadlines = timers
        self._leases: dict[int, Lease] = {}
        self._held: Counter[Owner] = Counter()
        self._last = 0
        # Called with leases that have timed out.
        self.timed_out: Callable[[Lease, Ended, int], None] = lambda lease, ended, now_ms: None

    def held(self, session: int, queue: str) -> int:
        """How many a session has open on a queue."""
        return self._held[session, queue]

    def find(self, taken: Delivery) -> Lease | None:
        """The lease of an open read. Takes time."""
        return next((lease for lease in self._leases.values() if lease.taken is taken), None)

    def grant(self, session: Session, queue: Queue, taken: Delivery, until_ms: int) -> int:
        """The number of a new lease."""
        self._last += 1
        owner = (session.number, queue.name)
        lease = Lease(self, self._last, owner, session.address, queue, taken)
        self._leases[self._last] = lease
        self._held[owner] += 1
        self._deadlines.set(lease, until_ms)
        return self._last

    def pop_of(self, number: int, queue: str) -> Lease | None:
        """The same, if it is of the queue of that name."""
        lease = self._leases.get(number)
        return self.pop(number) if lease is not None and lease.queue.name == queue else None

    def pop(self, number: int) -> Lease | None:
        """The lease, no longer ours; None if there is none of that number."""
        lease = self._leases.pop(number, None)
        if lease is not None:
            self._deadlines.drop(lease)
            self._held[lease.owner] -= 1
            if not self._held[lease.owner]:
                del self._held[lease.owner]
        return lease
