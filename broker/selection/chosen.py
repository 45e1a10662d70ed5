"""Taking chosen items out of a queue, wherever they stand.

A queue gives only its head away. So those that stand ahead of a chosen one are set aside, each under a transaction of
its own, and are the head again, in their order, when the operation has ended: as if a client had them open meanwhile.
Giving them back after each slice instead was tried: the way to an item far behind is then walked once a slice.
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

ASIDE_ITEMS_MAX = 500_000  # 120 MB, and
ASIDE_BYTES_MAX = 128 << 20  # of payload: in memory besides the line
PASSED_PER_TURN = 100  # each costs a record and about 10 us
RETURNED_PER_TURN = 200
HASHED_BYTES = 512 << 10  # of each end of a payload: 1 ms
Key = tuple[int, int, int, int, bytes, bytes, int]


class Head(Enum):
    """What stands at the head of the queue."""

    CHOSEN = "chosen"
    MORE = "more"  # the next turn goes on
    NONE = "none"  # of what was there when the operation began, no chosen one is left
    TOO_FAR = "too far"


class Chosen:
    """Items by what they can be known by: all that an item has, a digest of its payload. Of those that are equal in all
    of that, any one is taken. `tells_equal_apart`: how often they were delivered tells them apart, too.
    """

    def __init__(self, terms: str = "", *, tells_equal_apart: bool = False) -> None:
        self.terms = terms  # that say which, for people
        self._tells_equal_apart = tells_equal_apart
        self._counts: dict[Key, int] = {}
        self._times: set[int] = set()
        self.count = 0
        self.bytes = 0
        self._may_pass = PASSED_PER_TURN
        self.left_out = 0  # found, too, and more than one operation takes
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

    def take(self, queue: Queue, item: Item) -> Delivery:
        """Take `item`, the head that `reach` has found: it is no longer looked for."""
        self._counts[self._key(item, deliveries_of_head(queue, item))] -= 1
        self.count -= 1
        return queue.open_to_leave()

    def _key(self, item: Item, deliveries: int) -> Key:
        data = item.data
        digest = digest_of(ends_of(data, HASHED_BYTES))
        tries = deliveries if self._tells_equal_apart else 0
        return item.added_ms, item.expires_ms, item.flags, len(data), digest, past_bytes(item), tries

    def begin_turn(self) -> None:
        """So many items more may be passed."""
        self._may_pass = PASSED_PER_TURN

    def reach(self, queue: Queue, has_head: Callable[[], bool]) -> Head:
        """Bring a chosen item to the head. `has_head`: whether there is a head that was there when the operation
        began.
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
            self._put_aside(queue.open_to_leave())
        return Head.NONE

    def _put_aside(self, taken: Delivery) -> None:
        self.aside.append(taken)
        self._aside_bytes += len(taken.item.data)

    def keep(self, taken: list[Delivery]) -> None:
        """These were taken and go nowhere: they come back with the others, each to its place."""
        for each in taken:
            self._put_aside(each)
        self.aside.sort(key=attrgetter("xid"))  # they were opened in their order

    def give_back(self, queue: Queue, now_ms: int, count_max: int) -> bool:
        """Return what was set aside, the last one first; whether all of it is back."""
        aside = self.aside
        for _ in range(min(count_max, len(aside))):
            queue.take_back_unseen(aside.pop())
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
