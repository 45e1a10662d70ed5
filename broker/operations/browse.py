"""Looking at the items of a queue without taking them: from memory, or from the journal behind it.

Nothing that a queue uses is moved: what only the journal holds is read by a reader of its own, so a browser does not
make the next get read again.
"""

from __future__ import annotations

from base64 import b64encode
from collections import deque
from collections.abc import Iterator
from itertools import islice

from msgspec import Struct

from staniel.journal.kestrel.log import Log
from staniel.journal.kestrel.read_behind import ReadBehind
from staniel.queues.item import Delivery, Item, is_payload_gone
from staniel.queues.line import PlainLine
from staniel.queues.past import past_of
from staniel.queues.queue import Queue
from staniel.queues.stream.line import StreamLine

LIMIT_MAX = 1000
PREVIEW_BYTES = 4096
BYTES_MAX = 1 << 20  # of payload in one answer
ROTATE_FROM = 64  # a longer way into a deque is a thousandth of the time by rotating it


class PastView(Struct, frozen=True):
    """Where a dead letter comes from. `reason`: "dead" (delivered max_deliveries times). `deliveries`: by `origin`.
    `client`: the last one that it was delivered to; "" if that is not known. `times`: how often it has left a queue
    like this.
    """

    origin: str
    reason: str
    deliveries: int
    put_at_ms: int
    left_at_ms: int
    client: str
    times: int


class ItemView(Struct, frozen=True):
    """One item that waits in a queue. `offset`: how many stand before it. `data` is text where the bytes are UTF-8, and
    base64 where not; `encoding` says which. Of a long item it is the beginning, and `data_bytes` the length of it all.
    `deliveries`: how often it was handed out before. `expires_at_ms` 0: it does not expire. `past`: of a dead letter,
    or an item that expired in another queue.
    """

    offset: int
    added_at_ms: int
    age_ms: int
    expires_at_ms: int
    flags: int
    deliveries: int
    data_bytes: int
    encoding: str
    data: str
    is_cut: bool
    past: PastView | None = None


class Page(Struct, frozen=True):
    """Some items, the head first, as the queue was at `at_ms`. `items_total`: places in the line at that moment;
    those of expired items that were swept show nothing.
    """

    queue: str
    at_ms: int
    items_total: int
    offset: int
    items: list[ItemView]


def browse(queue: Queue, now_ms: int, offset: int, limit: int, preview_bytes: int = PREVIEW_BYTES) -> Page:
    """The items from `offset` on, at most `limit` and about BYTES_MAX of payload, shown or read. An expired item at the
    head is shown like any other until it is swept. Raises OSError if the journal cannot be read.
    """
    views: list[ItemView] = []
    size = 0
    total = len(queue.line)
    in_memory = total - queue.line.behind
    if offset < total:
        for at, (item, deliveries) in enumerate(islice(_items_from(queue, offset), limit), offset):
            if not is_payload_gone(item):
                age_ms = max(0, now_ms - queue.calendar.added_ms(item, now_ms))
                views.append(_view(item, deliveries, at, age_ms, preview_bytes))
                size += min(len(item.data), preview_bytes) if at < in_memory else len(item.data)  # all of it is read
            if size >= BYTES_MAX:
                break
    return Page(queue.name, queue.calendar.wall_ms(now_ms), total, offset, views)


def _items_from(queue: Queue, offset: int) -> Iterator[tuple[Item, int]]:
    """(item, how often it was delivered) from the one at `offset` on."""
    line = queue.line
    returned: list[Delivery] = line.returned
    for taken in islice(reversed(returned), offset, None):
        yield taken.item, taken.deliveries
    offset = max(0, offset - len(returned))
    fresh: deque[Item] = line.fresh
    if offset < len(fresh):
        for item in _slice(fresh, offset):
            yield item, 0
    behind = max(0, offset - len(fresh))
    if behind < line.behind:
        for item in _behind(queue, behind):
            yield item, 0


def _slice(items: deque[Item], offset: int) -> list[Item]:
    """At most LIMIT_MAX of a deque, from `offset` on."""
    if offset < ROTATE_FROM:
        return list(islice(items, offset, offset + LIMIT_MAX))
    items.rotate(-offset)
    found = list(islice(items, min(LIMIT_MAX, len(items) - offset)))
    items.rotate(offset)
    return found


def _behind(queue: Queue, offset: int) -> Iterator[Item]:
    """Of those that only the journal holds, from the one at `offset` on."""
    line = queue.line
    if isinstance(line, StreamLine):
        yield from _unread_of_stream(line, offset)
        return
    log = queue.journal
    assert isinstance(log, Log) and isinstance(line, PlainLine), "only a journal holds what is not in memory"
    line.settle()
    reader = ReadBehind(log.segments, line)
    reader.lose_stand_ins()
    seq = line.left + len(line.fresh) + offset
    while seq < line.end:
        yield reader.fetch((seq,))[seq]  # reads ahead by itself; `load` would decode all of a line of empty items
        seq += 1


def _unread_of_stream(line: StreamLine, offset: int) -> Iterator[Item]:
    """Ids follow one another, but for those that are not for this queue or are confirmed already."""
    done = line.progress.done
    next_id = done.nth_outside(line.next_id, offset)
    while more := line.stream.read(next_id):
        for item in more:
            if item.id not in done:
                yield item
        next_id = done.reach(more[-1].id + 1) + 1


def _view(item: Item, deliveries: int, offset: int, age_ms: int, preview_bytes: int) -> ItemView:
    shown = item.data[:preview_bytes]
    text = as_text(shown, is_cut=len(shown) < len(item.data))
    return ItemView(
        offset=offset,
        added_at_ms=item.added_ms,
        age_ms=age_ms,
        expires_at_ms=item.expires_ms,
        flags=item.flags,
        deliveries=deliveries,
        data_bytes=len(item.data),
        encoding="base64" if text is None else "text",
        data=b64encode(shown).decode("ascii") if text is None else text,
        is_cut=len(shown) < len(item.data),
        past=_past_view(item),
    )


def _past_view(item: Item) -> PastView | None:
    past = past_of(item)
    if past is None:
        return None
    return PastView(
        origin=past.origin_name,
        reason=past.why.name.lower(),
        deliveries=past.deliveries,
        put_at_ms=past.put_ms,
        left_at_ms=past.left_ms,
        client=past.client,
        times=past.times,
    )


def as_text(data: bytes, *, is_cut: bool) -> str | None:
    """`data` as text, None if it is none. A letter that the end of a piece has cut in two is left out."""
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        if is_cut and error.start >= len(data) - 3 and error.reason == "unexpected end of data":
            return data[: error.start].decode("utf-8")
        return None
