"""Taking chosen items out of a queue, wherever they stand.

A queue gives only its head away. So those that stand ahead of a chosen one are set aside, each under a transaction of
its own, and are the head again, in their order, when the operation has ended: as if a client had them open meanwhile.
Giving them back after each slice instead was tried: the way to an item far behind is then walked once a slice.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

from staniel.journal.undo_file import digest_of
from staniel.queues.item import Delivery, Item, is_payload_gone
from staniel.queues.queue import Queue

ASIDE_ITEMS_MAX = 500_000  # 120 MB, and
ASIDE_BYTES_MAX = 128 << 20  # of payload: in memory besides the line
PASSED_PER_TURN = 100  # each costs a record and about 10 us
RETURNED_PER_TURN = 200
Key = tuple[int, int, bytes]


class Head(Enum):
    """What stands at the head of the queue."""

    CHOSEN = "chosen"
    MORE = "more"  # the next turn goes on
    NONE = "none"  # of what was there when the operation began, no chosen one is left
    TOO_FAR = "too far"


class Chosen:
    """Items by what they can be known by: when they were put, their length and a digest. Of those that are equal in all
    of that, any one is taken.
    """

    def __init__(self, terms: str = "") -> None:
        self.terms = terms  # that say which, for people
        self._counts: dict[Key, int] = {}
        self._times: set[int] = set()
        self.count = 0
        self.bytes = 0
        self.left_out = 0  # found, too, and more than one operation takes
        self.aside: list[Delivery] = []
        self._aside_bytes = 0

    def add(self, item: Item) -> None:
        key = _key(item)
        self._counts[key] = self._counts.get(key, 0) + 1
        self._times.add(item.added_ms)
        self.count += 1
        self.bytes += len(item.data)

    def holds(self, item: Item) -> bool:
        return item.added_ms in self._times and not is_payload_gone(item) and self._counts.get(_key(item), 0) > 0

    def take(self, item: Item) -> None:
        """It is no longer looked for."""
        self._counts[_key(item)] -= 1
        self.count -= 1

    def reach(self, queue: Queue, has_head: Callable[[], bool]) -> Head:
        """Bring a chosen item to the head. `has_head`: whether there is a live head that was there when the operation
        began.
        """
        for _ in range(PASSED_PER_TURN):
            if not self.count or not has_head():
                return Head.NONE
            head = queue.line.head()
            assert head is not None
            if self.holds(head):
                return Head.CHOSEN
            if len(self.aside) >= ASIDE_ITEMS_MAX or self._aside_bytes >= ASIDE_BYTES_MAX:
                return Head.TOO_FAR
            taken = queue.open_to_leave()
            self.aside.append(taken)
            self._aside_bytes += len(taken.item.data)
        return Head.MORE

    def give_back(self, queue: Queue, now_ms: int, count_max: int) -> bool:
        """Return what was set aside, the last one first; whether all of it is back."""
        aside = self.aside
        for _ in range(min(count_max, len(aside))):
            taken = aside.pop()
            taken.deliveries -= 1  # no client has seen it
            queue.take_back(taken)
        queue.time_out(now_ms)  # a waiting reader gets one
        if not aside:
            self._aside_bytes = 0
        return not aside

    @property
    def rest(self) -> str:
        """Why others stay that were meant, too; empty if none were."""
        return f"{self.left_out} more are left for another one" if self.left_out else ""

    @property
    def too_far(self) -> str:
        """What `Head.TOO_FAR` means, for people."""
        return (
            f"the others wait behind {len(self.aside)} items, {self._aside_bytes >> 20} MB, the most that is set aside"
        )


def _key(item: Item) -> Key:
    return item.added_ms, len(item.data), digest_of(item.data)
