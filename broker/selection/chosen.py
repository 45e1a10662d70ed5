"""Chosen items, and taking them out of a queue from any position.

A queue delivers only its head. So the items ahead of a chosen one are set aside, each under a transaction of its own,
as if a client had opened them. When the operation has ended, they become the head again, in their order. Returning them
after each slice instead was tried: then the way to an item far behind is walked once for each slice.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from operator import attrgetter

from staniel.broker.selection.line import deliveries_of_head
from staniel.broker.selection.where import ends_of
from staniel.journal.undo_file import digest_of
from staniel.queues.item import Delivery, Item, is_payload_gone, past_bytes
from staniel.queues.queue import Queue

ASIDE_ITEMS_MAX = 500_000  # of payload, in memory in addition to the line
ASIDE_BYTES_MAX = 128 << 20  # items; each costs a record and about 10 us
PASSED_PER_TURN = 100  # each costs a record and about 10 us
RETURNED_PER_TURN = 200
HASHED_BYTES = 512 << 10  # of each end of a payload: 1 ms
Key = tuple[int, int, int, int, bytes, bytes, int]


class Head(Enum):
    """The state of the queue's head."""

    CHOSEN = "chosen"
    MORE = "more"  # continue in the next turn
    NONE = "none"  # no chosen item is left among those from before the operation began
    TOO_FAR = "too far"


class Chosen:
    """Items by their key: all properties of an item, and a digest of its payload. Of items with an equal key, any one
    is taken. `tells_equal_apart`: the number of deliveries is part of the key.
    """

    def __init__(self, terms: str, *, tells_equal_apart: bool) -> None:
        self.terms = terms  # the terms that chose the items, for people
        self._tells_equal_apart = tells_equal_apart
        self._counts: dict[Key, int] = {}
        self._times: set[int] = set()
        self.count = 0
        self.bytes = 0
        self._may_pass = PASSED_PER_TURN
        self.left_out = 0  # items that were found, but exceed the number that one operation takes
        self.aside: list[Delivery] = []
        self._aside_bytes = 0

    def add(self, item: Item, deliveries: int) -> None:
        key = self._key(item, deliveries)
        self._counts[key] = self._counts.get(key, 0) + 1
        self._times.add(item.added_ms)
        self.count += 1
        self.bytes += len(item.data)

    def holds(self, item: Item, deliveries: int) -> bool:
        if item.added_ms not in self._times or is_payload_gone(item):
            return False
        return self._counts.get(self._key(item, deliveries), 0) > 0

    def cross_off(self, queue: Queue, item: Item) -> Delivery:
        """Take `item`, the head that `reach` has found, and remove it from the choice."""
        self._counts[self._key(item, deliveries_of_head(queue, item))] -= 1
        self.count -= 1
        return queue.open_head_for_transfer()

    def _key(self, item: Item, deliveries: int) -> Key:
        data = item.data
        digest = digest_of(ends_of(data, HASHED_BYTES))
        tries = deliveries if self._tells_equal_apart else 0
        return item.added_ms, item.expires_ms, item.flags, len(data), digest, past_bytes(item), tries

    def begin_turn(self) -> None:
        """Allow as many items to be set aside as a turn may."""
        self._may_pass = PASSED_PER_TURN

    def reach(self, queue: Queue, has_head: Callable[[], bool]) -> Head:
        """Bring a chosen item to the head. `has_head`: the queue has a head, and it was there when the
        operation began.
        """
        while self.count and has_head():
            head = queue.line.head()
            assert head is not None
            if self.holds(head, deliveries_of_head(queue, head)):
                return Head.CHOSEN
            if not self._may_pass:
                return Head.MORE
            self._may_pass -= 1
            if is_payload_gone(head):
                queue.drop_head()
                continue
            if len(self.aside) >= ASIDE_ITEMS_MAX or self._aside_bytes >= ASIDE_BYTES_MAX:
                return Head.TOO_FAR
            self._put_aside(queue.open_head_for_transfer())
        return Head.NONE

    def _put_aside(self, taken: Delivery) -> None:
        self.aside.append(taken)
        self._aside_bytes += len(taken.item.data)

    def keep(self, taken: list[Delivery]) -> None:
        """Set aside items that were taken but are not sent; each returns to its place with the others."""
        for delivery in taken:
            self._put_aside(delivery)
        self.aside.sort(key=attrgetter("xid"))  # the order in which they were opened

    def give_back(self, queue: Queue, now_ms: int, count_max: int) -> bool:
        """Return items that were set aside to their queue, the last one first; return whether all of them are back."""
        aside = self.aside
        for _ in range(min(count_max, len(aside))):
            queue.take_back_unseen(aside.pop())
        queue.time_out(now_ms)  # a waiting reader gets one
        if not aside:
            self._aside_bytes = 0
        return not aside

    @property
    def why_left(self) -> str:
        """The reason why some of the chosen items stay; "" if none do."""
        return f"{self.left_out} more are left for another one" if self.left_out else ""

    @property
    def too_far(self) -> str:
        """The text for people about `Head.TOO_FAR`."""
        return (
            f"the others wait behind {len(self.aside)} items, {self._aside_bytes >> 20} MB, the most that is set aside"
        )
