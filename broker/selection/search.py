"""Looking for the items of a queue that meet terms, a piece a turn: nothing is taken, and no client waits for it."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from staniel.broker.selection.chosen import Chosen
from staniel.broker.selection.line import items_from
from staniel.broker.selection.where import Candidate, Where
from staniel.queues.item import Item, is_payload_gone
from staniel.queues.queue import Queue, QueueState

PIECE_ITEMS = 64  # half a millisecond
PIECE_BYTES = 1 << 20  # of payload, looked at or read
CHOSEN_MAX = 100_000  # items of one operation: 30 MB


class ItemSearch:
    """A look at the items that are in `queue` when it begins. Others leave while it goes on, so what was found need not
    be there any more.
    """

    def __init__(self, queue: Queue, where: Where, now_ms: int, shown_max: int) -> None:
        """`shown_max`: how many of the found ones are kept to be shown."""
        self.queue = queue
        self.at_ms = now_ms
        self.shown: list[Candidate] = []
        self.shown_bytes = 0
        self.chosen = Chosen(where.terms)
        self.found = self.found_bytes = 0
        self.looked_at = 0
        self.cut = 0  # items whose payload is longer than what was searched of it
        self._where = where
        self._shown_max = shown_max
        self._piece_bytes = 0

    def pieces(self) -> Iterator[None]:
        """Each step is a piece. Raises OSError if the journal cannot be read."""
        queue, position = self.queue, 0
        line = queue.line
        returned = [(taken.item, taken.deliveries) for taken in reversed(line.returned)]
        seq, end = line.left, line.end
        for at in range(0, len(returned), PIECE_ITEMS):
            for item, deliveries in returned[at : at + PIECE_ITEMS]:
                self._look(item, deliveries, position)
                position += 1
            yield
        while seq < end and position <= self._where.last and queue.state is not QueueState.CLOSED:
            seq = max(seq, line.left)  # those before it have left meanwhile
            self._piece_bytes = 0
            place = len(line.returned) + seq - line.left
            for item, deliveries in islice(items_from(queue, place), min(PIECE_ITEMS, end - seq)):
                self._look(item, deliveries, position)
                position, seq = position + 1, seq + 1
                if self._piece_bytes >= PIECE_BYTES:
                    break
            else:
                if place >= len(line):
                    return
            yield

    def _look(self, item: Item, deliveries: int, position: int) -> None:
        if is_payload_gone(item):
            return
        where = self._where
        seen = Candidate(position, item, deliveries, self.queue.calendar, self.at_ms)
        size = len(item.data)
        self.looked_at += 1
        self._piece_bytes += size
        self.cut += -1 < where.searched_bytes < size
        if not where.holds(seen):
            return
        self.found += 1
        self.found_bytes += size
        if len(self.shown) < self._shown_max:
            self.shown.append(seen)
        if self.found <= CHOSEN_MAX:
            self.chosen.add(item)
