"""The counters of one queue's statistics."""

from __future__ import annotations

from staniel.queues.changes import Aborted, Added, Change, Opened

CHANGES_COUNTED: dict[str, type[Change]] = {
    "total_items": Added,
    "transactions": Opened,
    "canceled_transactions": Aborted,
}
"""The counters that count one of the six changes, as long as no setting delays items or sends them to another queue.
The simulator compares them with the recorded changes.
"""


class QueueCounters:
    """Counts since this process loaded the queue, under Kestrel's names. Not a Struct, for the same reason as
    ServerCounters.
    """

    __slots__ = (
        *CHANGES_COUNTED,
        "dead_letters",
        "discarded",
        "expired_items",
        "get_items_hit",
        "get_items_miss",
        "put_bytes",
        "timed_out_transactions",
        "total_flushes",
    )

    def __init__(self) -> None:
        self.total_items = 0
        self.put_bytes = 0
        self.get_items_hit = 0
        self.get_items_miss = 0
        self.expired_items = 0
        self.discarded = 0
        self.transactions = 0
        self.canceled_transactions = 0
        self.total_flushes = 0
        self.timed_out_transactions = 0  # among the canceled ones
        self.dead_letters = 0  # items sent to dead_letter_queue
