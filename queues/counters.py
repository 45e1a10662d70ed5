"""What a queue counts over its life. Numbers only; rendering them is somebody else's business."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True, eq=False)
class QueueCounters:
    """Counts since this process loaded the queue, under Kestrel's names. No Struct, as for the server's."""

    total_items: int = 0
    put_bytes: int = 0
    get_items_hit: int = 0
    get_items_miss: int = 0
    expired_items: int = 0
    discarded: int = 0
    transactions: int = 0
    canceled_transactions: int = 0
    total_flushes: int = 0
    timed_out_transactions: int = 0  # among the canceled ones
    dead_letters: int = 0  # items sent to dead_letter_queue
