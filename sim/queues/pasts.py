"""The check of the pasts of items. A past is set when an item leaves its queue by itself, and stays the same after any
accident. It may be missing where the format has no place for it (libkestrel's). It must never be another item's.
"""

from __future__ import annotations

from staniel.queues.item import is_payload_gone, item_with, past_bytes
from staniel.queues.past import Past, past_of
from staniel.queues.queue import Queue
from staniel.sim.queues.model import QueueModel, Record
from staniel.sim.violations import Kind, Violation, shown

StatedPasts = dict[tuple[str, bytes], set[bytes]]
"""The encoded pasts that an item, identified by its payload, has had in a queue, over all lives; b"": it had none
there.
"""


def check_transfer(source: QueueModel, target: QueueModel, left: Record, copy: Record, now_ms: int) -> None:
    """Judge the past of a copy that came to `target` because `left` was in `source`. Raises Violation."""
    queue = source.queue
    if copy.past == left.past and (
        target.name in source.moved_to or (queue is not None and target.name == queue.config.expire_to_queue)
    ):
        return  # an operator has moved the item, or it has expired
    if queue is None or source.is_reader or target.is_reader:
        return
    past = _decoded(copy)
    if past is None:
        raise Violation(Kind.LOST, f"{shown(copy.data)} came from {source.name} to {target.name} without its past")
    expected = past.origin_name, past.put_ms, past.left_ms <= now_ms, past.times
    before = _decoded(left)
    times = 1 if before is None else before.times + 1
    if expected != (source.name, left.first_put_ms, True, times):
        why = f"{shown(copy.data)} from {source.name} has the past {past}, put at {left.first_put_ms}"
        raise Violation(Kind.INVENTED, why)
    if past.deliveries < 1:
        raise Violation(Kind.INVENTED, f"{shown(copy.data)} died in {source.name} without a delivery")


def may_be_copy(left: Record, copy: Record) -> bool:
    """Tell whether the past of `copy` is that of `left` rather than that of another item with the same payload."""
    past = _decoded(copy)
    return past is None or copy.past == left.past or past.put_ms == left.first_put_ms


def check_start(model: QueueModel, queue: Queue, stated: StatedPasts) -> None:
    """Judge the pasts of the items in `queue` after recovery: each must have been stated for this item in this queue.
    An item that was there twice may have either. Raises Violation.
    """
    if model.is_reader or not model.is_journaled:
        return
    items = [*(queue.open_reads[xid].item for xid in sorted(queue.open_reads)), *queue.line.walk()]
    for item in items:
        known = stated.get((queue.name, item.data), set())
        if past_bytes(item) not in known and not is_payload_gone(item):
            kind = Kind.INVENTED if past_bytes(item) else Kind.LOST
            had = [past_of(item_with(past, b"", 0, 0, 0)) for past in sorted(known)]
            why = f"{shown(item.data)} of {queue.name} has the past {past_of(item)} after a restart, and had {had}"
            raise Violation(kind, why)
    for record, item in zip(model.base, items, strict=False):
        if record.data == item.data:  # the record may be the other one of an item that was in the queue twice
            past = past_of(item)
            record.past, record.first_put_ms = past_bytes(item), item.added_ms if past is None else past.put_ms


def _decoded(record: Record) -> Past | None:
    return past_of(item_with(record.past, b"", 0, 0, 0))
