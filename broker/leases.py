"""Open reads that belong to no connection: those of thrift and of HTTP. Each has a number of its own and a time limit.

The limit runs from the moment at which the item is opened, so a client that disconnects during a get leaves no read
open for ever.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from operator import attrgetter

from staniel.broker.timers import Timers
from staniel.queues.item import Delivery
from staniel.queues.queue import Queue
from staniel.queues.time_outs import ENDED_AS_MANY, READS_PER_STEP, Ended

Owner = tuple[int, str]  # a session's number and a queue's name


class Lease:
    """An open read with a time limit."""

    __slots__ = ("address", "leases", "number", "owner", "queue", "taken")

    def __init__(self, leases: Leases, number: int, owner: Owner, address: str, queue: Queue, taken: Delivery) -> None:
        self.address = address  # the client's, for the log
        self.leases = leases
        self.number = number
        self.owner = owner
        self.queue = queue
        self.taken = taken

    def on_timer(self, now_ms: int) -> None:
        self.leases.expire(self)


class Leases:
    """All leases by number. Numbers count from 1 while the process lives. Any client may end any lease by its number
    and its queue's name, if its rights to the queue allow it.
    """

    def __init__(self, timers: Timers) -> None:
        self._deadlines = timers
        self._leases: dict[int, Lease] = {}
        self._by_read: dict[Delivery, Lease] = {}
        self._held: dict[Owner, dict[int, Lease]] = {}  # by number, so the oldest first
        self._over: dict[Queue, list[Lease]] = {}
        self._last = 0
        # Called with leases that have timed out.
        self.timed_out: Callable[[Lease, Ended, int], None] = lambda lease, ended, now_ms: None

    def held(self, session: int, queue: str) -> int:
        """Return how many leases a session holds on a queue."""
        return len(self._held.get((session, queue), ()))

    def by_session(self) -> dict[int, dict[str, tuple[int, int]]]:
        """Return, by the session's number and the queue's name, how many leases each session holds and when the oldest
        began.
        """
        counts: dict[int, dict[str, tuple[int, int]]] = {}
        for (session, queue), held in self._held.items():
            oldest = next(iter(held.values()))
            counts.setdefault(session, {})[queue] = len(held), oldest.taken.opened_ms
        return counts

    def find(self, taken: Delivery) -> Lease | None:
        """Return the lease of an open read."""
        return self._by_read.get(taken)

    def grant(self, session: int, address: str, queue: Queue, taken: Delivery, until_ms: int) -> int:
        """Grant a lease to the session of this number, whose client is at `address`; return the lease's number."""
        self._last += 1
        owner = (session, queue.name)
        lease = Lease(self, self._last, owner, address, queue, taken)
        self._leases[self._last] = self._by_read[taken] = lease
        taken.client = address
        self._held.setdefault(owner, {})[self._last] = lease
        self._deadlines.set(lease, until_ms)
        return self._last

    def expire(self, lease: Lease) -> None:
        """End a lease that has timed out. Leases of one queue end together, once all of them are known."""
        if self.pop(lease.number) is not None:
            self._over.setdefault(lease.queue, []).append(lease)
            self._deadlines.soon(self)

    def on_timer(self, now_ms: int) -> int:
        """End the leases that have timed out, those of a queue together, which restores the order of their items."""
        if self._deadlines.is_behind(now_ms):
            self._deadlines.soon(self)  # further leases may have timed out
            return 0
        over, self._over = self._over, {}
        for queue, leases in over.items():
            leases.sort(key=attrgetter("number"))
            reads = [lease.taken for lease in leases]
            tell = partial(self._report_ended, queue, {lease.taken.xid: lease for lease in leases})
            if len(reads) > READS_PER_STEP:
                queue.abort_later(reads, tell, now_ms)
            else:
                tell(queue.abort_together(reads, now_ms), now_ms)
        return sum(map(len, over.values())) * ENDED_AS_MANY

    def _report_ended(
        self, queue: Queue, leases: dict[int, Lease], ended: list[tuple[Delivery, Ended]], now_ms: int
    ) -> None:
        queue.counters.timed_out_transactions += len(ended)
        for taken, fate in reversed(ended):
            self.timed_out(leases[taken.xid], fate, now_ms)

    def of(self, number: int, queue: str) -> Lease | None:
        """Return a lease; None if the queue of that name has no lease of that number."""
        lease = self._leases.get(number)
        return lease if lease is not None and lease.queue.name == queue else None

    def extend(self, lease: Lease, until_ms: int) -> None:
        """Let a lease end at another moment."""
        self._deadlines.set(lease, until_ms)

    def pop_of(self, number: int, queue: str) -> Lease | None:
        """Remove a lease and return it; None if the queue of that name has no lease of that number."""
        return None if self.of(number, queue) is None else self.pop(number)

    def pop(self, number: int) -> Lease | None:
        """Remove a lease and return it; None if there is none of that number."""
        lease = self._leases.pop(number, None)
        if lease is not None:
            del self._by_read[lease.taken]
            self._deadlines.drop(lease)
            held = self._held[lease.owner]
            del held[number]
            if not held:
                del self._held[lease.owner]
        return lease
