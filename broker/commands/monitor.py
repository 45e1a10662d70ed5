"""`monitor` and `confirm`: a client opens many items with one request, each sent as it arrives, and confirms many at
once.

The caller passes the function that writes an item, because each protocol has its own form. Source: monitor in Kestrel
2.4. Unlike Kestrel, the server notices at once that a client has disconnected.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from itertools import islice

from staniel.broker import access
from staniel.broker.commands import gets
from staniel.broker.session import ITEMS_AT_ONCE, OUT_BYTES_PER_TURN, SUSPENDED, Reads, Session
from staniel.broker.share import Share
from staniel.queues.item import Delivery
from staniel.queues.queue import Queue

ITEMS_PER_TURN = 256
CONFIRMED_AT_ONCE = 256
CONFIRM_WORK = 5_000  # of a turn's share, as timers count it
Show = Callable[[Delivery], None]
Finish = Callable[[], None]


class MonitorCommand:
    """A running monitor. `show` writes an item to the session, `finish` its last line."""

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

    def send_some(self, now_ms: int) -> None:
        """Send the items that are there; then wait for more, yield to other clients, or end."""
        session, queue = self.session, self.queue
        last = max(0, self.left - ITEMS_PER_TURN)
        while self._may_take(now_ms):
            if session.out_bytes > OUT_BYTES_PER_TURN or self.left <= last:
                session.yield_turn(self.send_some)
                return
            taken = queue.open(now_ms)
            if taken is None and queue.is_unsettled:
                session.retry_after_sweep(queue, self.send_some)
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
        """Handle the end of the wait: an item, or None at the timeout or after the queue was deleted."""
        self.queue = self.session.waited_at
        if taken is None:
            self.session.broker.counters.cmd_monitor_get += 1
            self.session.broker.counters.get_misses += 1
            self.finish()
            return
        self._send(taken)
        self.send_some(now_ms)

    def _send(self, taken: Delivery) -> None:
        counters = self.session.broker.counters
        counters.cmd_monitor_get += 1
        counters.get_hits += 1
        self.left -= 1
        gets.hold(self.session, self.queue, taken)
        self.session.depend_on(self.queue)
        self.show(taken)


def confirm(session: Session, name: str, count: int, now_ms: int, finish: Finish) -> bool:
    """Confirm the `count` oldest open reads of a queue, then call `finish`. If fewer are open, confirm none and return
    False.
    """
    held = session.reads.get(name)
    if count <= 0 or held is None or len(held) < count:
        return False
    if count > CONFIRMED_AT_ONCE:
        others = deque(islice(held, count, None))
        if others:
            session.reads[name] = others
        else:
            del session.reads[name]
        RunningConfirm(session, deque(islice(held, count)), finish).begin_confirm(now_ms)
        return True
    for _ in range(count):
        gets.close_oldest(session, name)
    if count > ITEMS_AT_ONCE:
        session.yield_turn()
    finish()
    return True


class RunningConfirm:
    """A confirmation of many open reads, a share of them each turn. The reads do not belong to the session any more, so
    all are confirmed even if its client disconnects meanwhile.
    """

    def __init__(self, session: Session, reads: Reads, finish: Callable[[], None]) -> None:
        self._session = session
        self._left = reads
        self._touched: dict[Queue, None] = {}
        self._finish = finish

    def begin_confirm(self, now_ms: int) -> None:
        self._session.suspend(self._end)
        self.on_timer(now_ms)

    def on_timer(self, now_ms: int) -> int:
        """Confirm a turn's share of the reads. Return the work, as timers count it."""
        session, left, share = self._session, self._left, Share(self._session.broker.step_clock)
        while left:
            queue, taken = left.popleft()
            queue.confirm(taken)
            if queue.traces:
                gets.trace(session, "read.close", queue, taken)
            self._touched[queue] = None
            if share.is_spent:
                break
        if left:
            session.broker.timers.soon(self)
        elif session.state is SUSPENDED:
            session.deliver(True)
        return CONFIRM_WORK

    def _end(self, _: object, now_ms: int) -> None:
        for queue in self._touched:
            self._session.depend_on(queue)
        self._finish()
