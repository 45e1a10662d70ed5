"""A search for the items of a queue that meet terms, a piece a turn. It takes no items, and no client waits for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice

from staniel.broker.selection.chosen import Chosen
from staniel.broker.selection.line import items_from
from staniel.broker.selection.where import Candidate, Where
from staniel.queues.item import Item, is_payload_gone
from staniel.queues.queue import Queue, QueueState

PIECE_ITEMS = 64  # half a millisecond
PIECE_COST = 1 << 20  # bytes of payload that are searched for a text, or read
CHOSEN_MAX = 100_000  # items of one operation: 30 MB


class ItemSearch:
    """A search among the items that are in `queue` when it begins. Other clients take items meanwhile, so an item that
    was found may have left.
    """

    def __init__(self, queue: Queue, where: Where, now_ms: int, show: Callable[[Candidate], object] | None) -> None:
        """Begin a search. `show` is called with each item that is found. With `show` None the items are to be taken,
        and `chosen` keeps them.
        """
        self.queue = queue
        self.at_ms = now_ms
        self.chosen = Chosen(where.terms, tells_equal_apart=where.tells_equal_apart)
        self.found = self.found_bytes = 0
        self.looked_at = 0
        self.cut = 0  # items with a payload that a term has not searched to its end
        self._where = where
        self._show = show
        self._cost = 0

    def pieces(self) -> Iterator[None]:
        """Search, a piece in each step. Raises OSError if the journal cannot be read."""
        line = self.queue.line
        seq, end = line.left, line.end
        at = len(line.returned) - 1  # the head is the last one; returned items stand after it in the list
        while at >= 0 and self._goes_on(len(line.returned) - 1 - at):
            self._cost = 0
            at = min(at, len(line.returned) - 1)
            for _ in range(min(PIECE_ITEMS, at + 1)):
                taken = line.returned[at]
                self._match_item(taken.item, taken.deliveries, len(line.returned) - 1 - at)
                at -= 1
                if self._cost >= PIECE_COST:
                    break
            yield
        while seq < end and self._goes_on(len(line.returned) + seq - line.left):
            self._cost = 0
            seq = max(seq, line.left)  # earlier items have left meanwhile
            place = before = len(line.returned) + seq - line.left
            for item, deliveries in islice(items_from(self.queue, place), min(PIECE_ITEMS, end - seq)):
                self._match_item(item, deliveries, place)
                place, seq = place + 1, seq + 1
                if self._cost >= PIECE_COST:
                    break
            if place == before:
                return  # no more items can be read
            yield

    def _goes_on(self, place: int) -> bool:
        return place <= self._where.last and self.queue.state is not QueueState.CLOSED

    def _match_item(self, item: Item, deliveries: int, position: int) -> None:
        where, size = self._where, len(item.data)
        self._cost += where.cost(size)
        if is_payload_gone(item) or not where.first <= position <= where.last:
            return
        seen = Candidate(position, item, deliveries, self.queue.calendar, self.at_ms)
        self.looked_at += 1
        self.cut += -1 < where.searched_bytes < size
        if not where.holds(seen):
            return
        self.found += 1
        self.found_bytes += size
        if self._show is not None:
            self._show(seen)
        elif self.found <= CHOSEN_MAX:
            self.chosen.add(item, deliveries)
