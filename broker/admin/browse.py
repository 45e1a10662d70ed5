"""Views of the items of a queue without taking them: from memory, or from the journal.

Browsing changes nothing that the queue uses: a separate reader reads the items that are only in the journal, so that
the next get need not read them again.
"""

from __future__ import annotations

from base64 import b64encode
from itertools import islice

from msgspec import Struct

from staniel.broker.selection.line import READ_ITEMS_MAX, items_from
from staniel.broker.selection.where import item_id
from staniel.queues.delays import expiry_of
from staniel.queues.item import Item, is_payload_gone
from staniel.queues.past import past_of
from staniel.queues.queue import Queue

LIMIT_MAX = READ_ITEMS_MAX
PREVIEW_BYTES = 4096
BYTES_MAX = 1 << 20  # of payload in one reply


class PastView(Struct, frozen=True):
    """The origin of a dead letter, `origin`, and why it left that queue. `reason` "dead": it was delivered
    max_deliveries times. `deliveries`: how often `origin` delivered it. `client`: the last client that got it; "" if
    unknown. `times`: how often it has left a queue like this.
    """

    origin: str
    reason: str
    deliveries: int
    put_at_ms: int
    left_at_ms: int
    client: str
    times: int


class ItemView(Struct, frozen=True):
    """An item that waits in a queue. `offset`: how many items stand before it. `data` is text if the bytes are UTF-8,
    else base64; `encoding` says which. Of a long item `data` has the beginning, and `data_bytes` is the length of the
    whole. `deliveries`: how often the item was delivered before. `expires_at_ms` 0: it does not expire. `past`
    describes a dead letter, or an item that expired in another queue. `id` is what the term `id=` takes
    (staniel.broker.selection.where).
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
    id: str = ""


class Page(Struct, frozen=True):
    """A slice of a queue's items, the head first, as the queue was at `at_ms`. `items_total`: places in the line at
    that moment. A place whose expired item was already swept shows nothing.
    """

    queue: str
    at_ms: int
    items_total: int
    offset: int
    items: list[ItemView]


class Matches(Struct, frozen=True):
    """The result of a search that looked at `looked_at` items from the head on. `found` of them met the terms, with
    `found_bytes` together; `items` has the first ones. `cut`: how many payloads were too long to be searched to their
    end.
    """

    queue: str
    at_ms: int
    looked_at: int
    found: int
    found_bytes: int
    cut: int
    items: list[ItemView]


def browse(queue: Queue, now_ms: int, offset: int, limit: int, preview_bytes: int = PREVIEW_BYTES) -> Page:
    """Return the items from `offset` on: at most `limit`, and about BYTES_MAX of payload, whether shown or only read.
    An expired item at the head is shown like any other until it is swept. Raises OSError if the journal cannot be read.
    """
    views: list[ItemView] = []
    size = 0
    total = len(queue.line)
    in_memory = total - queue.line.on_disk
    if offset < total:
        for at, (item, deliveries) in enumerate(islice(items_from(queue, offset), limit), offset):
            if not is_payload_gone(item):
                age_ms = max(0, now_ms - queue.calendar.added_ms(item, now_ms))
                views.append(item_view(item, deliveries, at, age_ms, preview_bytes))
                size += min(len(item.data), preview_bytes) if at < in_memory else len(item.data)  # read whole
            if size >= BYTES_MAX:
                break
    return Page(queue.name, queue.calendar.wall_ms(now_ms), total, offset, views)


def item_view(item: Item, deliveries: int, offset: int, age_ms: int, preview_bytes: int) -> ItemView:
    shown = item.data[:preview_bytes]
    text = as_text(shown, is_cut=len(shown) < len(item.data))
    return ItemView(
        offset=offset,
        added_at_ms=item.added_ms,
        age_ms=age_ms,
        expires_at_ms=expiry_of(item),
        flags=item.flags,
        deliveries=deliveries,
        data_bytes=len(item.data),
        encoding="base64" if text is None else "text",
        data=b64encode(shown).decode("ascii") if text is None else text,
        is_cut=len(shown) < len(item.data),
        past=past_view(item),
        id=item_id(item),
    )


def past_view(item: Item) -> PastView | None:
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
    """Decode `data` as text; return None if it is not text. If `is_cut`, a character that the cut has split is left
    out.
    """
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        if is_cut and error.start >= len(data) - 3 and error.reason == "unexpected end of data":
            return data[: error.start].decode("utf-8")
        return None
