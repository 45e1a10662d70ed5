"""`monitor` and `confirm`: a client takes many open reads in one request, each sent as it comes, and closes many at
once.

How an item is written is passed in, because each protocol has its own form. Source: monitor in Kestrel 2.4; unlike
there, a client that hangs up is noticed at once.
"""

from __future__ import annotations

from collections.abc import Callable

from staniel.broker import access
from staniel.broker.commands import gets
from staniel.broker.session import ITEMS_AT_ONCE, OUT_BYTES_PER_TURN, Session
from staniel.queues.item import Delivery
from staniel.queues.queue import Queue

ITEMS_PER_TURN = 256
Show = Callable[[Delivery], None]
Finish = Callable[[], None]


class MonitorCommand:
    """One running monitor. `show` writes an item to the session, `finish` its last line."""

    def __init__(
        self, session: Session, queue: Queue, until_ms: int, max_items: int, show: Show, finish: Finish
    ) -> None:
        self.session = session
        self.queue = queue
        self.until_ms = until_ms
        self.left = max_items
        self.show = show
        self.finish = finish
        session.broker.counters.cmd_monitor += 1

    def step(self, now_ms: int) -> None:
        """Send what there is; then wait for more, yield to other clients, or end."""
        session, queue = self.session, self.queue
        last = max(0, self.left - ITEMS_PER_TURN)
        while self._may_take(now_ms):
            if session.out_bytes > OUT_BYTES_PER_TURN or self.left <= last:
                session.yield_turn(self.step)
                return
            taken = queue.open(now_ms)
            if taken is None and queue.is_unsettled:
                session.retry_after_sweep(queue, self.step)
                return
            if taken is None and queue.count_waiters() >= queue.config.max_waiters:
                break
            if taken is None:
                session.park(queue, self.until_ms, self._on_delivery, opens=True, peeks=False)
                return
            self._send(taken)
        self.finish()

    def _may_take(self, now_ms: int) -> bool:
        held = self.session.reads.get(self.queue.name, ())
        limit = self.session.max_open_reads
        if self.left <= 0 or len(held) >= limit or now_ms >= self.until_ms:
            return False
        if len(self.queue.open_reads) >= self.queue.max_open_reads:
            return False
        return not access.read_refusal(self.session, self.queue)

    def _on_delivery(self, taken: Delivery | None, now_ms: int) -> None:
        """The wait has ended: with an item, or because the time is over or the queue is gone."""
        self.queue = self.session.waited_at
        if taken is None:
            self.session.broker.counters.cmd_monitor_get += 1
            self.session.broker.counters.get_misses += 1
            self.finish()
            return
        self._send(taken)
        self.step(now_ms)

    def _send(self, taken: Delivery) -> None:
        counters = self.session.broker.counters
        counters.cmd_monitor_get += 1
        counters.get_hits += 1
        self.left -= 1
        gets.hold(self.session, self.queue, taken)
        self.session.depend_on(self.queue)
        self.show(taken)


def confirm(session: Session, name: str, count: int) -> bool:
    """Close the `count` oldest open reads of a queue; False, and none is closed, if fewer are open."""
    if count <= 0 or len(session.reads.get(name, ())) < count:
        return False
    for _ in range(count):
        gets.close_oldest(session, name)
    if count > ITEMS_AT_ONCE:
        session.yield_turn()
    return True
