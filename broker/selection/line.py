"""Items of a line from a position on, in memory or only in the journal, without moving anything that the queue uses."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from itertools import islice

from staniel.journal.kestrel.log import Log
from staniel.journal.kestrel.read_behind import ReadBehind
from staniel.queues.item import Delivery, Item, Numbered
from staniel.queues.line import PlainLine
from staniel.queues.queue import Queue
from staniel.queues.stream.stream import StreamLine

READ_ITEMS_MAX = 1000  # of the items in memory, in one piece
ROTATE_FROM = 64  # beyond this offset, rotating a deque takes a thousandth of the time of walking


def items_from(queue: Queue, offset: int) -> Iterator[tuple[Item, int]]:
    """Yield (item, number of earlier deliveries) from the item at `offset` on. Raises OSError if the journal cannot be
    read.
    """
    line = queue.line
    returned: list[Delivery] = line.returned
    for at in range(len(returned) - 1 - offset, -1, -1):  # walking there would take time in proportion to the offset
        yield returned[at].item, returned[at].deliveries
    offset = max(0, offset - len(returned))
    fresh: deque[Item] = line.in_memory
    if offset < len(fresh):
        for item in _slice(fresh, offset):
            yield item, _errors(item)
    behind = max(0, offset - len(fresh))
    if behind < line.on_disk:
        for item in _behind(queue, behind):
            yield item, _errors(item)


def deliveries_of_head(queue: Queue, head: Item) -> int:
    """Return the number of earlier deliveries of the head, as `items_from` counts it."""
    returned: list[Delivery] = queue.line.returned
    return returned[-1].deliveries if returned else _errors(head)


def _errors(item: Item) -> int:
    """Return how often a reader of libkestrel's format gave the item back before the last start."""
    return item.errors if isinstance(item, Numbered) else 0


def _slice(items: deque[Item], offset: int) -> list[Item]:
    """Return at most READ_ITEMS_MAX items of a deque, from `offset` on."""
    if offset < ROTATE_FROM:
        return list(islice(items, offset, offset + READ_ITEMS_MAX))
    items.rotate(-offset)
    part = list(islice(items, min(READ_ITEMS_MAX, len(items) - offset)))
    items.rotate(offset)
    return part


def _behind(queue: Queue, offset: int) -> Iterator[Item]:
    """Yield the items that are only in the journal, from the one at `offset` on."""
    line = queue.line
    if isinstance(line, StreamLine):
        yield from _unread_of_stream(line, offset)
        return
    log = queue.journal
    assert isinstance(log, Log) and isinstance(line, PlainLine), "items that are not in memory are in a journal"
    line.measure_dropped()
    reader = ReadBehind(log.segments, line)
    reader.loses_stand_ins = True
    seq = line.left + len(line.in_memory) + offset
    while seq < line.end:
        yield reader.fetch((seq,))[seq]  # it reads ahead by itself; `load` would decode a whole line of empty items
        seq += 1


def _unread_of_stream(line: StreamLine, offset: int) -> Iterator[Item]:
    """Yield the items that `line` has not confirmed. Their ids are consecutive, except for items that are confirmed or
    not for this queue.
    """
    done = line.progress.done
    next_id = done.nth_outside(line.next_id, offset)
    while more := line.stream.read(next_id):
        for item in more:
            if item.id not in done:
                yield item
        next_id = done.reach(more[-1].id + 1) + 1
