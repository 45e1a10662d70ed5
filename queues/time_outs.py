"""The ends of reads without a confirmation: aborts, time-outs, dead letters, and delays before another delivery.

    open read ── abort, time-out ──▶ ready, as the head           without retry_delay
                                 ──▶ delayed ── delay ends ──▶ ready, as the head
                                 ──▶ in transfer to dead_letter_queue, after the last of max_deliveries

At most READS_PER_STEP reads end in one step. More end in `BatchedAborts`, some in each turn, and until the last of them
has ended the queue hands out no item: a client would get a younger item before older ones that are still to come back.
`DelayOrder` tells which delays end next.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from enum import Enum
from heapq import heapify, heappop, heappush
from operator import attrgetter
from typing import Any
from zlib import crc32

from staniel.queues.config import QueueConfig, read_head_guards
from staniel.queues.contents import QueueContents
from staniel.queues.counters import QueueCounters
from staniel.queues.interfaces import Admission, Journal, Reason, Timer, TransferSink
from staniel.queues.item import Delivery

READS_AT_ONCE = 256  # at most this many end in the step in which they are due: 3 us each
READS_PER_STEP = 256  # of a batch
ENDED_AS_MANY = 20  # dropped items that take as long as ending one open read
FOREVER_MS = 2**63


class Ended(Enum):
    """The outcome for an item whose read was to end without a confirmation. It is true if the read was open."""

    NOT_OPEN = "not open"
    RETURNED = "returned"  # to the line, now or when retry_delay ends
    DEAD = "dead"  # it is on its way to dead_letter_queue
    SPARED = "spared"  # it should go to dead_letter_queue, but the transfer sink accepts no more: returned instead

    def __bool__(self) -> bool:
        return self is not Ended.NOT_OPEN


EndedReads = list[tuple[Delivery, Ended]]
"""Reads with the outcome for the item of each, in the order in which they ended."""

OnEnded = Callable[[EndedReads, int], None]
"""A function that gets the reads that have just ended with their outcomes, and the time."""


def tell_nobody(ended: EndedReads, now_ms: int) -> None:
    """Do nothing, because these reads belong to no client any more."""


class QueueReads(QueueContents):
    """The contents of a queue, with the rules by which open reads and delays end."""

    __slots__ = (
        "_armed_ms",
        "_delay_order",
        "_due_order",
        "_head_is_free",
        "batched_aborts",
        "config",
        "counters",
        "gets_paused",
        "on_timed_out",
        "timer",
        "transfer_sink",
    )

    def __init__(self, config: QueueConfig, journal: Journal) -> None:
        super().__init__(journal)
        self.config = config
        self.counters = QueueCounters()
        self.gets_paused = False
        self.batched_aborts = BatchedAborts(self)
        self._delay_order = DelayOrder(self.delayed)
        self._due_order = DelayOrder(self.resting)
        self.timer: Timer | None = None
        self._armed_ms = 0  # when the timer calls `on_timer`; 0: never
        # Of and for a Queue, which this module does not know.
        self.transfer_sink: TransferSink[Any] | None = None
        self.on_timed_out: Callable[[Any, EndedReads, int], None] = lambda queue, reads, now_ms: None

    def _update_head_is_free(self) -> None:
        """Compute the flag that says that only an item's own expiry can prevent the delivery of the head."""
        is_guarded = self.gets_paused or any(read_head_guards(self.config))
        self._head_is_free = not (is_guarded or self.batched_aborts.groups or self.resting)

    # the end of a read

    def end_read(self, delivery: Delivery, now_ms: int) -> Ended:
        """End an open read without a confirmation: its item returns to the line, now or after a delay, or goes to
        dead_letter_queue.
        """
        config, sink = self.config, self.transfer_sink
        del self.open_reads[delivery.xid]
        self.counters.canceled_transactions += 1
        is_last = sink is not None and self.is_last(delivery)
        if sink is not None and is_last and self._can_die(sink, delivery):
            self.counters.dead_letters += 1
            self.set_aside(delivery)
            self._hand_over(sink, delivery, Reason.DEAD, now_ms)
            return Ended.DEAD
        if config.retry_delays_ms:
            self._delay(delivery, now_ms)
        else:
            self.give_back(delivery)
        return Ended.SPARED if is_last else Ended.RETURNED

    def _end_reads(self, reads: list[Delivery], now_ms: int) -> EndedReads:
        """End these open reads, given the oldest first. Items for dead_letter_queue arrive there in their order. Of the
        others the newest returns first, so that the oldest is the head.
        """
        if not self.config.max_deliveries:
            return [(delivery, self.end_read(delivery, now_ms)) for delivery in reversed(reads)]
        ended: EndedReads = []
        returning: list[Delivery] = []
        for delivery in reads:
            if self.dies(delivery):
                ended.append((delivery, self.end_read(delivery, now_ms)))
            else:
                returning.append(delivery)
        ended += [(delivery, self.end_read(delivery, now_ms)) for delivery in reversed(returning)]
        return ended

    def is_last(self, delivery: Delivery) -> bool:
        """Return True if the item will not be delivered again unless this read of it is confirmed."""
        return 0 < self.config.max_deliveries <= delivery.deliveries

    def dies(self, delivery: Delivery) -> bool:
        """Return True if the item goes to dead_letter_queue when its read ends now without a confirmation."""
        sink = self.transfer_sink
        return sink is not None and self.is_last(delivery) and self._can_die(sink, delivery)

    def _can_die(self, sink: TransferSink[Any], delivery: Delivery) -> bool:
        """Return True if `sink` accepts one more item. While dead_letter_queue cannot be used, or the disk is slow, the
        allowed number is already in memory; further items stay in the line and are delivered again.
        """
        return sink.admits(self, len(delivery.item.data)) is Admission.NOW

    def _hand_over(self, sink: TransferSink[Any], delivery: Delivery, reason: Reason, now_ms: int) -> None:
        """Pass an item in transfer to the sink, which releases it or takes it back later."""
        assert self.is_in_transfer(delivery), "a sink gets only items that left the line and the open reads"
        sink.accept(self, delivery, reason, now_ms)

    def abort_later(
        self, reads: list[Delivery], on_ended: OnEnded, now_ms: int, opened_until_ms: int = FOREVER_MS
    ) -> None:
        """End `reads`, given the oldest first, in steps from now on; call `on_ended` with those that each step ended.
        Skip a read that has ended before its step, and one whose client has asked for more time, which counts as opened
        after `opened_until_ms`.
        """
        self.batched_aborts.add(reads, on_ended, now_ms, opened_until_ms)

    def return_open_reads(self, now_ms: int, on_ended: OnEnded = tell_nobody) -> None:
        """End every open read after a recovery, because the clients are gone. With max_deliveries or retry_delay the
        reads end like those of a client that disconnects, in the next turns, and no client gets an item before that.
        `on_ended` is then called with the outcome of each.
        """
        if self.open_reads:
            self._let_rest_again(now_ms)
        oldest_first = sorted(self.open_reads)
        if not oldest_first:
            return
        if self.config.max_deliveries or self.config.retry_delays_ms:
            self.abort_later([self.open_reads[xid] for xid in oldest_first], on_ended, now_ms)
            return
        for xid in reversed(oldest_first):
            self.give_back(self.open_reads.pop(xid))

    def _let_rest_again(self, now_ms: int) -> None:
        """Let the items rest again that were at rest before a recovery, and return those that are due or that no client
        can have seen, in classes with a calendar (see Queue).
        """

    # delays

    def _delay(self, delivery: Delivery, now_ms: int) -> None:
        """Keep an item, still under its transaction, until its retry_delay ends."""
        order = self._delay_order
        if order.may_be_too_long:
            order.shorten(now_ms + longest_delay_ms(self.config))
        delivery.opened_ms = now_ms + delay_ms(self.config, delivery)
        self.delayed[delivery.xid] = delivery
        order.add(delivery)
        self.delayed_bytes += len(delivery.item.data)
        if self.config.keep_journal:  # otherwise every item is in memory, delayed or not
            while self.delayed_bytes > self.config.max_memory_bytes and len(self.delayed) > 1:
                first = order.first()
                assert first is not None
                self.end_delay(first)
        self._arm()

    def end_delay(self, delivery: Delivery) -> None:
        """Make an item the head again whose delay has ended, or which memory has no room for any more."""
        if self.resting.get(delivery.xid) is delivery:
            self.forget_resting(delivery)
        else:
            del self.delayed[delivery.xid]
            self.delayed_bytes -= len(delivery.item.data)
        self.give_back(delivery)

    def keep_at_rest(self, delivery: Delivery, until_ms: int) -> None:
        super().keep_at_rest(delivery, until_ms)
        self._due_order.add(delivery)
        self._on_resting_changed()
        self._arm()

    def forget_resting(self, delivery: Delivery) -> None:
        super().forget_resting(delivery)
        self._on_resting_changed()

    def _on_resting_changed(self) -> None:
        """Compute what depends on the items at rest."""
        if self._head_is_free or not self.resting:
            self._update_head_is_free()

    def end_rests(self, count: int) -> None:
        """Make up to `count` items at rest heads of the line, although they are not due."""
        while count and (first := self._first_due()) is not None:
            self.end_delay(first)
            count -= 1

    def drop_resting(self, count: int) -> int:
        """Remove up to `count` items at rest for good, those that are due first first. Return how many."""
        dropped = 0
        while dropped < count and (first := self._first_due()) is not None:
            self.forget_resting(first)
            self.journal.record_confirmed(first.id, first.xid)
            dropped += 1
        return dropped

    def _first_due(self) -> Delivery | None:
        """Return the item at rest that is due first, or one that ends with a batch; None if nothing is at rest."""
        return self._due_order.first() or next(iter(self.resting.values()), None)

    # time

    def extend(self, delivery: Delivery, now_ms: int) -> bool:
        """Restart the time-out of an open read at `now_ms`. Return False if it is not open any more."""
        if self.open_reads.get(delivery.xid) is not delivery:
            return False
        delivery.opened_ms = now_ms
        self.open_reads[delivery.xid] = self.open_reads.pop(delivery.xid)  # as the newest
        return True

    def time_out(self, now_ms: int) -> int:
        """End the open reads that have timed out, and the delays that have ended. Return how many ended."""
        return self._end_due(now_ms)

    def _end_due(self, now_ms: int) -> int:
        """End the reads and delays that are due. Return how many ended. More than READS_AT_ONCE end in the next turns
        and are not counted.
        """
        if self.batched_aborts.groups:
            return 0
        timeout_ms = self.config.open_timeout_ms
        timed_out = _opened_until(self.open_reads, now_ms - timeout_ms) if timeout_ms else []
        if len(timed_out) > READS_AT_ONCE:
            self.abort_later(timed_out, self._report_timed_out, now_ms, now_ms - timeout_ms)
            return 0
        if timed_out:
            self._report_timed_out(self._end_reads(timed_out, now_ms), now_ms)
        due = self._delay_order.pop_due(now_ms) if self.delayed else []
        if self.resting:
            due += self._due_order.pop_due(now_ms)
        if len(due) > READS_AT_ONCE:
            self.batched_aborts.add_delays(due, now_ms)
            return len(timed_out)
        for delivery in reversed(due):
            self.end_delay(delivery)
        return len(timed_out) + len(due)

    def _report_timed_out(self, ended: EndedReads, now_ms: int) -> None:
        self.counters.timed_out_transactions += len(ended)
        self.on_timed_out(self, ended[::-1], now_ms)

    def next_due_ms(self) -> int:
        """Return when the oldest open read times out or the next delay ends; 0 if never, or while a batch ends."""
        moments: list[int] = []
        if self.batched_aborts.groups:
            return 0
        if self.config.open_timeout_ms and self.open_reads:
            moments.append(next(iter(self.open_reads.values())).opened_ms + self.config.open_timeout_ms)
        if self.delayed and (first := self._delay_order.first()) is not None:
            moments.append(first.opened_ms)
        if self.resting and (first := self._due_order.first()) is not None:
            moments.append(first.opened_ms)
        return min(moments, default=0)

    def _arm(self) -> None:
        """Set the timer to the time when the next read times out or the next delay ends."""
        moment_ms = self.next_due_ms()
        if moment_ms:
            self.ring_at(moment_ms)

    def ring_at(self, moment_ms: int) -> None:
        """Let the timer call `on_timer` at `moment_ms` or earlier."""
        if self.timer is not None and not 0 < self._armed_ms <= moment_ms:
            self._armed_ms = moment_ms
            self.timer.set(self, moment_ms)

    def on_timer(self, now_ms: int) -> int:
        """Do what is due. Return the work done, in dropped items."""
        self._armed_ms = 0
        work = self._expire_due(now_ms)
        ended = self.time_out(now_ms)
        self._arm()
        return work + ended * ENDED_AS_MANY

    def _expire_due(self, now_ms: int) -> int:
        """Expire items for the timer, in classes whose items expire (see Queue). Return the work done, in dropped
        items.
        """
        return 0

    def on_batch_begun(self) -> None:
        """Stop delivering items until the batch has ended."""
        self._update_head_is_free()

    def on_batch_ended(self, now_ms: int) -> None:
        """Deliver items again. Reads and delays that have become due meanwhile end now."""
        self._update_head_is_free()
        self.time_out(now_ms)
        self._arm()

    def _discard_all(self) -> None:
        super()._discard_all()
        if self.timer is not None:
            self.timer.drop(self)
        self._delay_order, self._due_order = DelayOrder(self.delayed), DelayOrder(self.resting)
        self.batched_aborts.groups.clear()


def delay_ms(config: QueueConfig, delivery: Delivery) -> int:
    """Return how long `delivery` is delayed when it ends. The jitter is computed from the item and its number of
    deliveries, so that it is the same in every run. It never makes a delay shorter.
    """
    delays_ms = config.retry_delays_ms
    shortest_ms = delays_ms[min(max(delivery.deliveries, 1), len(delays_ms)) - 1]
    if not config.retry_jitter_percent:
        return shortest_ms
    chance = crc32(b"%d %d" % (delivery.id, delivery.deliveries))
    return shortest_ms + (shortest_ms * config.retry_jitter_percent * chance) // (100 << 32)


def longest_delay_ms(config: QueueConfig) -> int:
    """Return the longest delay that `config` allows; 0 without a retry_delay."""
    longest_ms = max(config.retry_delays_ms, default=0)
    return longest_ms + longest_ms * config.retry_jitter_percent // 100


class DelayOrder:
    """The items of `delayed` or `resting` (by xid) in the order in which their delays end, at their `opened_ms`. An
    item that has left them another way is skipped.

    `may_be_too_long`: a reload may have made the delays shorter than some of these.
    """

    __slots__ = ("_delayed", "_heap", "may_be_too_long")

    def __init__(self, delayed: dict[int, Delivery]) -> None:
        self._delayed = delayed
        self._heap: list[tuple[int, int]] = []  # moment, xid
        self.may_be_too_long = False

    def add(self, delivery: Delivery) -> None:
        """Add an item that was just put into `delayed`."""
        heappush(self._heap, (delivery.opened_ms, delivery.xid))

    def first(self) -> Delivery | None:
        """Return the item whose delay ends first; None without a delayed item."""
        heap, delayed = self._heap, self._delayed
        while heap:
            moment_ms, xid = heap[0]
            delivery = delayed.get(xid)
            if delivery is not None and delivery.opened_ms == moment_ms:
                return delivery
            heappop(heap)
        return None

    def pop_due(self, now_ms: int) -> list[Delivery]:
        """Remove the items whose delays have ended from the order, and return them, the first one first. The caller
        removes them from `delayed`. Items of one moment were held by one client that has disconnected; they are in the
        order that they had in the line.
        """
        due: list[Delivery] = []
        while (delivery := self.first()) is not None and delivery.opened_ms <= now_ms:
            heappop(self._heap)
            due.append(delivery)
        due.sort(key=attrgetter("seq"))
        due.sort(key=attrgetter("opened_ms"))  # two sorts by numbers take a quarter of the time of one by pairs
        return due

    def shorten(self, latest_ms: int) -> None:
        """End all delays at `latest_ms` or earlier, because a reload may have made the delays shorter."""
        self.may_be_too_long = False
        for delivery in self._delayed.values():
            delivery.opened_ms = min(delivery.opened_ms, latest_ms)
        self._heap = [(delivery.opened_ms, delivery.xid) for delivery in self._delayed.values()]
        heapify(self._heap)


class BatchedAborts:
    """Reads and delays of one queue that end in steps, because they are too many for one turn.

    While there are `groups`, (reads, callback, opened until) each, the timer is asked for another step.
    """

    __slots__ = ("groups", "queue")

    def __init__(self, queue: QueueReads) -> None:
        self.queue = queue
        self.groups: deque[tuple[deque[Delivery], OnEnded, int]] = deque()

    def add(self, reads: list[Delivery], on_ended: OnEnded, now_ms: int, opened_until_ms: int) -> None:
        """Add a group of reads; see `QueueReads.abort_later`."""
        self.groups.append((deque(self._dying_last(reads)), on_ended, opened_until_ms))
        self.queue.on_batch_begun()
        if self.queue.timer is not None:
            self.queue.timer.soon(self)
            return
        while self.groups:
            self._abort_some(now_ms)

    def add_delays(self, delayed: list[Delivery], now_ms: int) -> None:
        """Add a group of delays that have ended, given the oldest first."""
        self.add(delayed, _ignore_delays, now_ms, FOREVER_MS)

    def _dying_last(self, reads: list[Delivery]) -> list[Delivery]:
        """Return `reads` with those for dead_letter_queue at the end, the oldest of them last. Steps begin at the end,
        so dead letters leave first, in their order.
        """
        queue = self.queue
        if not queue.config.max_deliveries or queue.config.retry_delays_ms:
            return reads
        dying = {delivery.xid for delivery in reads if queue.dies(delivery)}
        last = [delivery for delivery in reversed(reads) if delivery.xid in dying]
        return [*(delivery for delivery in reads if delivery.xid not in dying), *last]

    def on_timer(self, now_ms: int) -> int:
        """Take a step. Return the work done, in dropped items."""
        count = self._abort_some(now_ms) if self.groups else 0
        if self.groups and self.queue.timer is not None:
            self.queue.timer.soon(self)
        return count * ENDED_AS_MANY

    def _abort_some(self, now_ms: int) -> int:
        """End at most READS_PER_STEP reads of the first group. Return how many were checked."""
        queue, (reads, on_ended, opened_until_ms) = self.queue, self.groups[0]
        ended: EndedReads = []
        count = 0
        # A returned item becomes the head, so the newest read ends first. Delayed items are delivered in the order in
        # which their delays began, so the oldest read ends first.
        is_oldest_first = queue.config.retry_delays_ms and on_ended is not _ignore_delays
        while reads and count < READS_PER_STEP:
            delivery = reads.popleft() if is_oldest_first else reads.pop()
            count += 1
            if queue.open_reads.get(delivery.xid) is delivery:
                if delivery.opened_ms > opened_until_ms:
                    continue  # its client has asked for more time
                ended.append((delivery, queue.end_read(delivery, now_ms)))
            elif (queue.resting if delivery.xid in queue.resting else queue.delayed).get(delivery.xid) is delivery:
                queue.end_delay(delivery)
        on_ended(ended, now_ms)
        if not reads:
            self.groups.popleft()
            if not self.groups:
                queue.on_batch_ended(now_ms)
        return count


def _ignore_delays(ended: EndedReads, now_ms: int) -> None:
    """Do nothing: clients are not notified of the end of a delay."""


def _opened_until(reads: dict[int, Delivery], moment_ms: int) -> list[Delivery]:
    """Return those of `reads`, the oldest first, that were opened at `moment_ms` or earlier."""
    opened = []
    for delivery in reads.values():
        if delivery.opened_ms > moment_ms:
            break
        opened.append(delivery)
    return opened
