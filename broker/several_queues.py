"""A wait at several queues at once: the client stands among the waiters of each, and leaves the others when one
delivers. So an item is never handed to it twice, and a second one never leaves its queue for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from staniel.queues.item import Delivery
from staniel.queues.placeholder import PlaceholderQueue
from staniel.queues.queue import Queue


def has_item_now(queues: Iterable[Queue], now_ms: int) -> bool:
    """Tell whether one of `queues`, which were all empty when they were looked at, has an item now: an expired item or
    a dead letter of a later one may have gone to an earlier one. A client must not begin to wait then.
    """
    return any(queue.has_live_head(now_ms) or queue.is_unsettled for queue in queues)


class WaitingClient(Protocol):
    """A client that waits: a session."""

    address: str

    def moved(self, queue: Queue) -> None: ...

    def deliver(self, taken: Delivery) -> None: ...

    def dismiss(self) -> None: ...


class WaitingPlace:
    """The place of a client among the waiters of one of several queues."""

    __slots__ = ("_wait", "name", "opens", "peeks", "queue")

    def __init__(self, wait: WaitAtSeveral, name: str, queue: Queue, *, opens: bool, peeks: bool) -> None:
        self.name, self.queue = name, queue
        self.opens, self.peeks = opens, peeks
        self._wait = wait

    @property
    def address(self) -> str:
        """The client's address, for the list of waiters."""
        return self._wait.client.address

    def join(self) -> None:
        """Join the waiters of the queue."""
        if type(self.queue) is PlaceholderQueue:
            self.queue.name = self.name  # one placeholder stands for all queues that do not exist
        self.queue.park(self)

    def leave(self) -> None:
        """Leave the waiters of the queue."""
        self.queue.unpark(self)

    def deliver(self, taken: Delivery) -> None:
        """Take the item for the client, in the step that made it available."""
        self._wait.end_with(self, taken)

    def moved(self, queue: Queue) -> None:
        """Continue the wait at `queue`, which has been created meanwhile."""
        self.queue = queue

    def dismiss(self) -> None:
        """End the client's wait, at all its queues: this one closes, or cannot be read."""
        self._wait.end_without()


class WaitAtSeveral:
    """A source that a session waits at: the queues of these names, in the order in which they were asked for. `name`
    has them all, for operators. When one delivers, the session waits at that queue alone, and its item is that queue's.
    `queues`: once the wait has ended, those of them that exist.
    """

    __slots__ = ("_places", "client", "name", "queues")

    def __init__(
        self, client: WaitingClient, queues: Sequence[tuple[str, Queue]], *, opens: bool, peeks: bool = False
    ) -> None:
        self.client = client
        self.name = ",".join(name for name, _ in queues)
        self.queues: list[Queue] = []
        self._places = [WaitingPlace(self, name, queue, opens=opens, peeks=peeks) for name, queue in queues]

    def park(self, waiter: object) -> None:
        """Take a place at each queue. One that dismisses its waiters at once ends the wait."""
        for place in list(self._places):
            if self._places:
                place.join()

    def unpark(self, waiter: object) -> None:
        """Leave all places, for good."""
        for place in self._places:
            place.leave()
        self.queues += [place.queue for place in self._places if type(place.queue) is not PlaceholderQueue]
        self._places.clear()  # they refer to this wait, and such a cycle would wait for the garbage collector

    def abort(self, taken: Delivery, now_ms: int) -> None:
        raise AssertionError("an item is delivered by one queue, which the session then waits at")

    def end_with(self, place: WaitingPlace, taken: Delivery) -> None:
        """End the wait with the item of one queue, and leave the others before any of them may deliver."""
        self.unpark(self.client)
        self.client.moved(place.queue)
        self.client.deliver(taken)

    def end_without(self) -> None:
        """End the wait without an item."""
        self.unpark(self.client)
        self.client.dismiss()
