"""Ages of a queue's items: of the ready ones, and of all that it contains. Where items are not in the order of their
age, only a thousand are checked, so that the call costs little.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain, islice

from staniel.queues.item import Item
from staniel.queues.queue import Queue

LOOK_MAX = 1000
NEVER_MS = 2**63 - 1


def ready_ms(queue: Queue, now_ms: int) -> int:
    """Return the age of the oldest item that is ready, or would be if the queue were not paused; 0 if there is none."""
    line = queue.line
    if not line.returned:
        head = line.head()
        if head is None or not queue.is_expired(head, now_ms):  # the usual case
            return _age_ms(queue, [] if head is None else [head], now_ms)
    came_back = [item for item in _returned(queue) if not queue.is_expired(item, now_ms)]
    if came_back:  # a returned item is older than all items behind it
        return _age_ms(queue, came_back, now_ms)
    line.head()
    first = islice(line.in_memory, LOOK_MAX)
    return _age_ms(queue, islice((item for item in first if not queue.is_expired(item, now_ms)), 1), now_ms)


def oldest_ms(queue: Queue, now_ms: int) -> int:
    """Return the age of the oldest item in the queue: in the line, open, delayed, at rest, or in transfer to another
    queue; 0 if there is none.
    """
    aside = (reads.values() for reads in (queue.open_reads, queue.delayed, queue.resting, queue.in_transfer))
    items = [delivery.item for reads in aside for delivery in islice(reads, LOOK_MAX)]
    if queue.transferring_head is not None:
        items.append(queue.transferring_head.item)
    return _age_ms(queue, chain(items, _returned(queue), islice(queue.line.in_memory, 1)), now_ms)


def _returned(queue: Queue) -> Iterable[Item]:
    return (delivery.item for delivery in islice(reversed(queue.line.returned), LOOK_MAX))


def _age_ms(queue: Queue, items: Iterable[Item], now_ms: int) -> int:
    if queue.calendar.is_even:
        added_ms = min((item.added_ms for item in items if item.added_ms), default=NEVER_MS)
        return max(0, now_ms + queue.calendar.ahead_ms - added_ms)
    calendar = queue.calendar
    added_ms = min((calendar.added_ms(item, now_ms) for item in items if item.added_ms), default=NEVER_MS)
    return max(0, now_ms - added_ms)
