"""Queues that are read but do not exist yet. They are empty, and clients may wait for an item of them.

When the last wait for such a name has ended, nothing is kept of it; no file is made. One placeholder stands for all
such queues with the same settings: a Queue is in reference cycles, so only the garbage collector would free one for
each.
"""

from __future__ import annotations

from collections.abc import Iterator

from staniel.queues.config import QueueConfig
from staniel.queues.interfaces import NoJournal
from staniel.queues.queue import Queue, Waiter


class WaitersByName:
    """Waiters by the name of the queue that they wait for, first come first served."""

    def __init__(self) -> None:
        self._by_name: dict[str, dict[Waiter, None]] = {}
        self._names: dict[Waiter, str] = {}

    def __iter__(self) -> Iterator[tuple[str, int]]:
        """Iterate over (name, number of waiters)."""
        return iter([(name, len(waiters)) for name, waiters in self._by_name.items()])

    def count(self, name: str) -> int:
        """Return the number of waiters for the queue of that name."""
        return len(self._by_name.get(name, ()))

    def park(self, name: str, waiter: Waiter) -> None:
        self._names[waiter] = name
        self._by_name.setdefault(name, {})[waiter] = None

    def unpark(self, waiter: Waiter) -> None:
        name = self._names.pop(waiter, None)
        if name is not None:
            waiters = self._by_name[name]
            del waiters[waiter]
            if not waiters:
                del self._by_name[name]

    def move_to(self, queue: Queue) -> None:
        """Move the waiters for that name to `queue`, which exists now, in the same order."""
        for waiter in self._by_name.pop(queue.name, ()):
            del self._names[waiter]
            waiter.moved(queue)
            queue.park(waiter)

    def dismiss(self, name: str) -> bool:
        """Dismiss the waiters for this queue. Return whether there were any."""
        waiters = self._by_name.pop(name, None)
        for waiter in waiters or ():
            del self._names[waiter]
            waiter.dismiss()
        return waiters is not None

    def dismiss_all(self) -> None:
        """Dismiss all waiters."""
        for name in list(self._by_name):
            self.dismiss(name)


class PlaceholderQueue(Queue):
    """Reads as an empty queue. `name` is set before each read, to the name of the queue that is read."""

    def __init__(self, config: QueueConfig, waiters_by_name: WaitersByName) -> None:
        super().__init__("", config, NoJournal(), 0)
        self._awaited = waiters_by_name

    def count_waiters(self) -> int:
        return self._awaited.count(self.name)

    def park(self, waiter: Waiter) -> None:
        self._awaited.park(self.name, waiter)

    def unpark(self, waiter: Waiter) -> None:
        self._awaited.unpark(waiter)
