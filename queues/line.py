"""The line of one queue: the items ready to be handed out, in delivery order.

Knows order, bytes and ids. Refuses to know limits, expiry, open reads and journals. Queue lives on it, and so does
replay, so that both give an item the same id.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from queues.item import Item, Taken

ID_SHIFT = 16  # room for 65,536 items added within one millisecond before ids run ahead of the clock


class Line:
    """Returned items first (the last returned is the head), then fresh ones in the order they were added.

    An item's id is made when it leaves the line for the first time: its add time in ms, shifted, or one more than the
    id before it. So ids rise along a queue, cost no memory while an item waits, and come out the same after a replay
    of the same records.
    """

    __slots__ = ("bytes", "fresh", "last_id", "mortal", "returned")

    def __init__(self) -> None:
        self.fresh: deque[Item] = deque()
        self.returned: list[Taken] = []
        self.bytes = 0
        self.mortal = 0  # how many of the items have an expiry of their own
        self.last_id = 0

    def __len__(self) -> int:
        return len(self.fresh) + len(self.returned)

    def append(self, item: Item) -> int:
        """`item` is the last; its size in bytes."""
        self.fresh.append(item)
        size = len(item.data)
        self.bytes += size
        if item.expires_ms:
            self.mortal += 1
        return size

    def head(self) -> Item | None:
        if self.returned:
            return self.returned[-1].item
        return self.fresh[0] if self.fresh else None

    def peek(self) -> Taken | None:
        """The head as `pop` would give it, left where it is."""
        if self.returned:
            return self.returned[-1]
        return Taken(self.fresh[0], self._id_after(self.fresh[0])) if self.fresh else None

    def pop(self) -> Taken:
        """Take the head off, delivered once more. Raises IndexError on an empty line."""
        if self.returned:
            taken = self.returned.pop()
            self._left(taken.item)
            return Taken(taken.item, taken.id, taken.deliveries + 1)
        item = self.fresh.popleft()
        self.bytes -= len(item.data)
        if item.expires_ms:
            self.mortal -= 1
        item_id = item.added_ms << ID_SHIFT
        if item_id <= self.last_id:
            item_id = self.last_id + 1
        self.last_id = item_id
        return Taken(item, item_id)

    def drop(self) -> int:
        """Take the head off for good; its id. Raises IndexError on an empty line."""
        if self.returned:
            taken = self.returned.pop()
            self._left(taken.item)
            return taken.id
        item = self.fresh.popleft()
        self._left(item)
        self.last_id = item_id = self._id_after(item)
        return item_id

    def give_back(self, taken: Taken) -> None:
        """`taken` becomes the head."""
        self.returned.append(taken)
        self.bytes += len(taken.item.data)
        if taken.item.expires_ms:
            self.mortal += 1

    def remove(self, means: Callable[[Item], bool]) -> bool:
        """Take the first item that is meant out of the line, wherever it is; False if there is none."""
        for taken in reversed(self.returned):
            if means(taken.item):
                self.returned.remove(taken)
                self._left(taken.item)
                return True
        for at, item in enumerate(self.fresh):
            if means(item):
                del self.fresh[at]
                self._left(item)
                return True
        return False

    def items(self) -> list[Item]:
        """All items, head first."""
        return [taken.item for taken in reversed(self.returned)] + list(self.fresh)

    def _left(self, item: Item) -> None:
        self.bytes -= len(item.data)
        if item.expires_ms:
            self.mortal -= 1

    def _id_after(self, item: Item) -> int:
        by_clock = item.added_ms << ID_SHIFT
        return by_clock if by_clock > self.last_id else self.last_id + 1
