"""A queue in memory: the data model, and who puts an item in and who gets one.

`Queue` adds settings, limits, expiry and waiters to `QueueReads` (time_outs.py: how reads and delays end), which adds
them to `QueueContents` (contents.py: the items, where they are, and what is recorded of their moves).

                    add              remove_head
    client ──────────────────▶ ready ──────────▶ gone
                               │  ▲ ▲ ◀── due ────────── resting, from ready: a head put with a delay
                          open │  │ └── delay ends ─── delayed
                               ▼  │ abort, time-out      ▲
                               open ─────────────────────┘ abort with retry_delay
                               │  └── abort of the last of max_deliveries ──▶ in transfer
                      confirm  ▼
                              gone          in transfer ── arrived ──▶ gone
                                            in transfer ── refused ──▶ ready, as the head

Items (item.py). An `Item` is what a client put. An item that has left the line is in a `Delivery`: `id` (the same at
every delivery), `xid` (number of the open read), `deliveries`, `opened_ms`, and `seq`, its running number in the line.

Ready: `line` (line.py). In delivery order: `returned` (handed back; the last one is the head), `in_memory` (in the
order they were put), and `on_disk` items that only the journal holds. `line.left` is the seq of the next fresh item and
`line.end` the one that the next put gets. `line.bytes`, `line.expiring`: payload and items with an expiry, of all of
these; `on_disk_bytes` of those on disk; `added_bytes`, `added_expiring` of all that ever came. Each kind of item can be
the head of the line, and only the head leaves.

Under a transaction, each in one dictionary by xid, and open for the journal:

    open_reads   held by a client, in the order of opening
    delayed      aborted, and delayed until `opened_ms`; `delayed_bytes` of payload
    resting      put with a delay, and a head before `opened_ms`, when it is due; `resting_bytes` of payload (delays.py)
    in_transfer  given to `transfer_sink`, for expire_to_queue, dead_letter_queue or an operator, until `release` or
                 `take_back`; `in_transfer_bytes` of payload, `transferring_head` included

In addition `transferring_head`: at most one item that is in transfer without a transaction, and is the journal's head
until it has arrived. `last_xid` is the number of the latest transaction.

Waiting: `waiters`, first come, first served. The queue has no waiters while an item can be handed out, while it is
closed or hidden by an alias, or while its journal cannot be read.

Steps. At most SWEEP_MAX expired heads are dropped in one step (`has_more_expired`), and at most READS_PER_STEP open
reads end in one (`batched_aborts`), and at most RESTS_PER_STEP heads go to rest in one (`has_more_early`). While one of
these is unfinished the queue `is_unsettled`: no client gets an item, and a
request is tried again in the next turn.

Changes. Every move of an item is first recorded in `journal`, as one of the six changes of changes.py:

    Added      put
    Removed    remove_head, drop_head, release of `transferring_head`
    Cleared    flush, expiry
    Opened     open, begin of a transfer, begin of a rest
    Confirmed  confirm, release, flush of an item at rest
    Aborted    abort, time-out, end of a delay or a rest, take_back

Counters (`QueueCounters`) are for statistics alone; nothing is decided by them. All times are milliseconds of server
time, `now_ms`, except `added_ms` and `expires_ms` of an item, which are wall-clock times of that moment (calendar.py).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from enum import Enum
from operator import attrgetter
from typing import Protocol

from staniel.queues.calendar import EVEN, Calendar
from staniel.queues.config import UNLIMITED_BYTES, UNLIMITED_ITEMS, QueueConfig
from staniel.queues.delays import due_ms, is_rest
from staniel.queues.interfaces import Admission, Journal, Reason, TransferSink
from staniel.queues.item import Delivery, Item, ItemWithPast, ItemWithXid, copy_of, is_payload_gone, is_remnant
from staniel.queues.line import Line
from staniel.queues.names import shared_name
from staniel.queues.sweeping import Sweep
from staniel.queues.time_outs import Ended, EndedReads, QueueReads

SENT_AS_MANY = 100  # dropped items that take as long as sending one to another queue
COUNTED_PER_TURN = 4096  # items counted before a flush, 0.1 us each
SINCE_MAX = 1 << 16  # of the items put in a turn: with more, a crowd could put faster than this counts
SWEEP_MAX = 20_000  # expired items dropped at once: about 4 ms
SEND_MAX = 256  # expired items sent to another queue in one step: each costs an intent and three records
SEND_BYTES_MAX = 1 << 20
RESTS_PER_STEP = 256  # 10 us each
MAY_HAVE_DELAY = (ItemWithPast, ItemWithXid)
DROPPED_PER_STEP = 4096  # items at rest, before a flush
LATER_MS = 1000  # before a full sink is asked again
FOREVER_AGO_MS = -(2**63)
PASSED_MAX = 16  # items before those that are put back: each costs two records


class QueueState(Enum):
    SERVING = "serving"
    CLOSED = "closed"  # deleted, or the server stops: no item enters or leaves


CLOSED = QueueState.CLOSED  # a global is found ten times as fast as a member of an Enum


class Waiter(Protocol):
    """A reader that waits for an item. Queues call `deliver` in the step that made the item available."""

    opens: bool
    peeks: bool

    def deliver(self, delivery: Delivery) -> None: ...

    def moved(self, queue: Queue) -> None:
        """Continue the wait at `queue`, which has been created meanwhile."""

    def dismiss(self) -> None:
        """End the wait without an item, because the queue is closing."""


class Queue(QueueReads):
    """A FIFO with reliable reads; the data model is at the top of this file."""

    __slots__ = (  # without slots Python finds more than thirty attributes slowly
        "_bounded",
        "_max_age_ms",
        "_max_bytes",
        "_max_item_bytes",
        "_max_items",
        "_weighed",
        "_weight_limit_bytes",
        "calendar",
        "children",
        "copies",
        "created_ms",
        "expiry_is_ahead",
        "fanout_only",
        "flushed_resting",
        "had_children",
        "has_more_early",
        "has_more_expired",
        "hidden",
        "last_removed_added_ms",
        "max_open_reads",
        "name",
        "needs_check",
        "on_read_error",
        "puts_once",
        "puts_paused",
        "state",
        "sweeping",
        "traces",
        "waiters",
    )

    def __init__(self, name: str, config: QueueConfig, journal: Journal, created_ms: int) -> None:
        super().__init__(config, journal)
        self.name = shared_name(name)
        self.created_ms = created_ms
        self.state = QueueState.SERVING
        self.calendar: Calendar = EVEN
        self.line.on_read_error = self._on_line_error
        self.on_read_error: Callable[[Queue], None] = lambda queue: None  # called when the journal cannot be read
        self.puts_paused = False
        self.hidden = False  # by an alias
        self.puts_once, self.copies = False, 1  # see StreamQueue
        self.has_more_expired = False  # the head has expired, and is dropped when the timer calls,
        self.expiry_is_ahead = False  # or after the next sync: no more may be on its way to another queue
        self.flushed_resting = 0  # items at rest that the flush under way has removed already
        self.has_more_early = False  # the head is not due, and goes to rest when it is looked at again
        self.sweeping = Sweep()
        self.waiters: OrderedDict[Waiter, None] = OrderedDict()
        self.last_removed_added_ms = 0
        self.children: dict[str, Queue] = {}  # fan-out: the queues that get a copy of every item
        self.had_children = False
        self._weight_limit_bytes = UNLIMITED_BYTES
        self.configure(config)

    def count_waiters(self) -> int:
        """Return the number of clients that wait for an item."""
        return len(self.waiters)

    def configure(self, config: QueueConfig) -> None:
        """Take over changed settings, which apply from the next operation on. This may recompute what depends on them
        and set timers. It does not get the time, so it records no change and serves no waiter: a timer does.
        """
        self._delay_order.may_be_too_long = bool(self.delayed)
        self.config = config
        self.max_open_reads = config.max_open_reads
        self._max_item_bytes, self._max_age_ms = config.max_item_bytes, config.max_age_ms
        self.fanout_only, self.traces = config.fanout_only, config.enable_trace
        self._update_bounded()
        # Time-outs need the oldest read. A plain dictionary finds it slowly once many earlier ones were removed; an
        # ordered one costs three times as much per entry.
        kind = OrderedDict if config.open_timeout_ms else dict
        if type(self.open_reads) is not kind:
            self.open_reads = kind(self.open_reads)
        self.line.bound(config.max_memory_bytes)
        self._update_needs_check()
        if self.timer is not None:
            self._arm()
            if self.resting:
                self.timer.soon(self)  # there may be room for more of them, and so a head for a waiter

    def limit_weight(self, weight_bytes: int | None) -> None:
        """Accept no items beyond this weight in memory, in addition to all other limits. None: no limit by weight."""
        self._weight_limit_bytes = UNLIMITED_BYTES if weight_bytes is None else weight_bytes
        self._update_bounded()

    def _update_bounded(self) -> None:
        config = self.config
        self._max_items = config.max_items - len(self.resting)  # the line's share
        self._max_bytes = config.max_bytes - self.resting_bytes
        self._bounded = config.max_items < UNLIMITED_ITEMS or config.max_bytes < UNLIMITED_BYTES
        self._weighed = self._weight_limit_bytes < UNLIMITED_BYTES
        self._bounded = self._bounded or self._weighed

    def _on_resting_changed(self) -> None:
        super()._on_resting_changed()
        if self._bounded:
            self._update_bounded()

    @property
    def is_resting_full(self) -> bool:
        """True if as many items are at rest as memory may hold. The next one waits as the head of the line."""
        return bool(self.resting) and self.resting_weight_bytes >= self.line.full_bytes

    def pause(self, *, gets: bool, puts: bool) -> None:
        """Pause gets (readers wait or find nothing) or puts (the caller refuses them), or resume them."""
        self.gets_paused, self.puts_paused = gets, puts
        self._update_needs_check()

    def hide(self, hidden: bool) -> None:
        """Hide the queue while an alias has its name, or show it again. A hidden queue gets no items, so its waiters
        are dismissed.
        """
        self.hidden = hidden
        self._update_needs_check()
        if hidden:
            self.dismiss_waiters()

    def _update_needs_check(self) -> None:
        config = self.config
        # Tells the caller to check whether the client may read or write.
        self.needs_check = self.puts_paused or bool(config.client_id_for_enqueue or config.client_id_for_dequeue)
        self.needs_check = self.needs_check or self.line.read_error is not None
        self._update_head_is_free()

    def sync_counters(self) -> None:
        """Bring `counters` up to date. Those of a plain queue always are; a StreamQueue counts its puts here."""

    def has_room(self, item: Item, now_ms: int) -> bool:
        """Return True if `add` would accept `item`."""
        config = self.config
        if len(item.data) > config.max_item_bytes or self.state is CLOSED:
            return False
        if config.discard_old_when_full:
            return config.max_items > 0 and config.max_bytes > 0
        return not self._is_full() or self._sweep_for_room(now_ms)

    def refuses_puts(self, now_ms: int, was_full: bool) -> bool:
        """Return True if the queue is so full that it refuses any item. This changes no item. If a sweep of expired
        items behind the head may make room, request one and return `was_full` until it has ended.
        """
        config = self.config
        if self.state is CLOSED:
            return True
        if config.discard_old_when_full:
            return config.max_items <= 0 or config.max_bytes <= 0
        if not self._is_full():
            return False
        if self.sweeping.was_vain(now_ms) or not self._may_sweep(now_ms):
            return True
        self.sweeping.is_asked = True
        self.ring_at(now_ms)
        return was_full

    # what clients do

    def add(self, item: Item, now_ms: int, forced: bool = False) -> bool:
        """Append `item`. Return False if a limit refuses it. Limits are tested before adding, so one item may exceed
        max_bytes. `forced`: ignore limits, because the item comes from another queue and must not be lost.
        """
        line = self.line
        if not forced:
            if len(item.data) > self._max_item_bytes or self.state is CLOSED:
                return False
            if (
                self._bounded
                and (self._weighed or line.reaches(self._max_items, self._max_bytes))
                and not self._make_room(now_ms)
            ):
                return False
        if line.expiring or self._max_age_ms:
            if self._max_age_ms:
                item.expires_ms = self.calendar.shortened_ms(item, now_ms, self._max_age_ms)
            self.expire(now_ms, self.config.max_expire_sweep)
        self.journal.record_added(item)
        self.counters.total_items += 1
        self.counters.put_bytes += line.append(item)
        if self.waiters:
            self._serve(now_ms)
        return True

    def add_all(self, items: list[Item], now_ms: int) -> None:
        """Append `items`, which come from another queue, ignoring limits."""
        for item in items:
            self.add(item, now_ms, True)

    def remove_head(self, now_ms: int) -> Delivery | None:
        """Remove the head for good and return it; None if there is no live item."""
        line = self.line
        if not (self._head_is_free and line.in_memory and not line.expiring) and not self._may_read_head(now_ms):
            return None
        delivery = line.pop()
        self.last_removed_added_ms = delivery.item.added_ms
        if self.transferring_head is not None:
            self._record_transferring_head()
        self.journal.record_removed(delivery.id)  # as `_record` would, without a change object
        return delivery

    def open(self, now_ms: int) -> Delivery | None:
        """Take the head under a transaction: confirming removes it for good, aborting makes it the head again."""
        line = self.line
        if not (self._head_is_free and line.in_memory and not line.expiring) and not self._may_read_head(now_ms):
            return None
        delivery = line.pop()
        self.last_removed_added_ms = delivery.item.added_ms
        delivery.opened_ms = now_ms
        self._record_opened(delivery)
        self.open_reads[delivery.xid] = delivery
        self.counters.transactions += 1
        if not self._head_is_free:
            self._arm()
        return delivery

    def has_live_head(self, now_ms: int, despite_pause: bool = False) -> bool:
        """Return True if an item could be delivered now; with `despite_pause`, also if gets are paused."""
        is_paused = self.gets_paused
        if not (is_paused and despite_pause):
            return self._may_read_head(now_ms)
        self.gets_paused = False
        try:
            return self._may_read_head(now_ms)
        finally:
            self.gets_paused = True

    @property
    def is_bounded(self) -> bool:
        """True if `add` may have to refuse an item because the queue is full."""
        return self._bounded

    def peek(self, now_ms: int) -> Delivery | None:
        """Return the head without removing it; None if there is no live item."""
        if not self._may_read_head(now_ms):
            return None
        return self.line.peek()

    def confirm(self, delivery: Delivery) -> bool:
        """Confirm an open read. Return False if it is not open any more (timed out, or the queue was deleted)."""
        reads, xid = self.open_reads, delivery.xid
        try:
            if reads[xid] is not delivery:
                return False
        except KeyError:
            return False
        del reads[xid]
        self.journal.record_confirmed(delivery.id, xid)
        return True

    def abort(self, delivery: Delivery, now_ms: int) -> Ended:
        """Return the item of an open read to the head, or to the next waiter, unless it goes to dead_letter_queue."""
        if self.open_reads.get(delivery.xid) is not delivery:
            return Ended.NOT_OPEN
        ended = self.end_read(delivery, now_ms)
        self._serve(now_ms)
        return ended

    def abort_together(self, reads: list[Delivery], now_ms: int) -> EndedReads:
        """Abort these reads, given the oldest first. Return those that were open, in the order in which they ended. All
        items are returned before a waiter gets one, so it gets the oldest.
        """
        opened = [delivery for delivery in reads if self.open_reads.get(delivery.xid) is delivery]
        ended = self._end_reads(opened, now_ms)
        self._serve(now_ms)
        return ended

    def put_back(self, items: list[Item], now_ms: int) -> None:
        """Return items to the head, or to a waiter, that were removed for good but reached no client. Their removal is
        already recorded, and no record reverses it. So they are added again, ignoring limits, and then moved ahead of
        the items in the line, if these are at most PASSED_MAX. With max_deliveries, which counts how often a record was
        opened, they stay at the end.
        """
        if self.state is CLOSED:
            return
        ahead = len(self.line)
        for item in items:
            self.add(copy_of(item), now_ms, forced=True)
            self.counters.total_items -= 1  # it was counted when it was put
            self.counters.put_bytes -= len(item.data)
        is_whole = len(self.line) == ahead + len(items)
        if 0 < ahead <= PASSED_MAX and is_whole and not self.config.max_deliveries:
            self._bring_forward(ahead, len(items))

    def prepare_flush(self) -> bool:
        """Do a part of the work of flushing a long line. Return True if all is done, so that `flush` takes only a
        moment.
        """
        if len(self.resting) > DROPPED_PER_STEP:
            self.flushed_resting += self.drop_resting(DROPPED_PER_STEP)
            return False
        return self.line.count(COUNTED_PER_TURN, SINCE_MAX)

    def flush(self) -> int:
        """Remove every item that waits; open reads stay open. Return the number of removed items."""
        if self.transferring_head is not None:
            self._record_transferring_head()  # it had left before, and stays if the line is empty
        present = self.line.present + self.flushed_resting + self.drop_resting(len(self.resting))
        self.flushed_resting = 0
        self.record_cleared(self.line.clear())
        self.has_more_early = False
        self.counters.total_flushes += 1
        if self.line.read_error is not None:
            self.read_again()  # no unread item is left
        return present

    # waiters

    def park(self, waiter: Waiter) -> None:
        """Add `waiter` after the other waiters, which are served in this order. A closed queue dismisses it at once;
        the queue may have been deleted between two turns of a command.
        """
        if self.state is CLOSED or self.hidden or self.line.read_error is not None:
            waiter.dismiss()
        else:
            self.waiters[waiter] = None

    def unpark(self, waiter: Waiter) -> None:
        self.waiters.pop(waiter, None)

    # what time does

    def expire(self, now_ms: int, sweep_max: int) -> int:
        """Drop expired items from the head, at most `sweep_max` and at most SWEEP_MAX; the timer calls for the rest.
        Return how many were dropped, not counting remnants.
        """
        self.has_more_expired = self.expiry_is_ahead = False
        head = self.line.head()
        if head is None or not self.is_expired(head, now_ms):
            return 0
        if self.transfer_sink is not None and self.config.expire_to_queue:
            count = self._send_expired(self.transfer_sink, now_ms, sweep_max)
        else:
            remnants = self.line.remnants
            count = self._drop_expired(now_ms, min(sweep_max, SWEEP_MAX))
            count -= remnants - self.line.remnants  # remnants were counted when they were swept
        self.counters.expired_items += count
        return count

    def sweep(self, now_ms: int, count_max: int) -> tuple[int, bool]:
        """Sweep more expired items behind a live head, at most `count_max`. Return their number, and True if the sweep
        has reached the end of the line. They leave the line with the head, as remnants.
        """
        sweeping = self.sweeping
        if self.config.expire_to_queue or not count_max:
            return 0, True
        return self._sweep_some(now_ms, count_max), not sweeping.is_under_way

    def _sweep_for_room(self, now_ms: int) -> bool:
        """Sweep expired items behind the head, which then take no room. Return True if the queue has room now. A long
        line takes several turns.
        """
        sweeping = self.sweeping
        if not self._may_sweep(now_ms):
            return False
        self._sweep_some(now_ms, self.config.max_expire_sweep)
        if sweeping.is_under_way:
            self.ring_at(now_ms)
        return not self._is_full()

    def _may_sweep(self, now_ms: int) -> bool:
        """Return True if a sweep may find something. If there is an expire_to_queue, expired items stay whole until
        they are the head, because they must still be sent.
        """
        return not self.config.expire_to_queue and self.sweeping.may_help(self.line, now_ms)

    def _sweep_some(self, now_ms: int, count_max: int) -> int:
        count = self.sweeping.sweep_some(self.line, self.calendar.judge(now_ms), now_ms, count_max)
        self.counters.expired_items += count
        return count

    @property
    def is_unsettled(self) -> bool:
        """True if a sweep, a batch of aborts or the rests of heads are unfinished: the caller must ask for the head
        again in the next turn.
        """
        return self.has_more_expired or self.has_more_early or bool(self.batched_aborts.groups)

    def _drop_expired(self, now_ms: int, count_max: int) -> int:
        if self.transferring_head is not None:
            self._record_transferring_head()
        max_age_ms, calendar = self.config.max_age_ms, self.calendar
        if calendar.is_even:
            wall_ms = now_ms + calendar.ahead_ms
            count = self.line.expire(wall_ms, wall_ms - max_age_ms if max_age_ms else FOREVER_AGO_MS, count_max)
        else:
            count = self.line.expire_those(lambda item: self.is_expired(item, now_ms), count_max)
        self.record_cleared(count)
        if count == SWEEP_MAX:
            self._expire_more_soon(now_ms)
        return count

    def _send_expired(self, sink: TransferSink[Queue], now_ms: int, count_max: int) -> int:
        """Pass expired heads to `sink`, for expire_to_queue. If it has no room they stay at the head, and no client
        gets them.

        The only item of a queue is removed by a plain record, as in Kestrel: it stays the journal's head until it has
        arrived, so the record cannot mean another item (`transferring_head`). For all others a transaction is opened,
        whose number later identifies the item among equal ones. With plain removals for all, an equal item could be
        mistaken for one that is already removed.
        """
        line = self.line
        count = size = 0
        while count < count_max and (head := line.head()) is not None and self.is_expired(head, now_ms):
            if count == SEND_MAX or size >= SEND_BYTES_MAX:
                self._expire_more_soon(now_ms)
                break
            if is_payload_gone(head):
                self.drop_head()
            else:
                match sink.admits(self, len(head.data)):
                    case Admission.SOON:
                        self._expire_more_soon(now_ms)
                        self.expiry_is_ahead = True
                        break
                    case Admission.LATER:
                        self.ring_at(now_ms + LATER_MS)
                        break
                self._hand_over(sink, self.pop_head_for_transfer(head), Reason.EXPIRED, now_ms)
                size += len(head.data)
            count += 1
        return count

    def _expire_more_soon(self, now_ms: int) -> None:
        self.has_more_expired = True
        self.ring_at(now_ms)

    def open_run_for_transfer(
        self, count_max: int, bytes_max: int, item_bytes_max: int, end_seq: int, now_ms: int, despite_pause: bool
    ) -> list[Delivery]:
        """Open live heads as `open_head_for_transfer` does, until there are `count_max` or their payload has
        `bytes_max`, or the head is larger than `item_bytes_max` or has the seq `end_seq`. Not for a line that follows a
        stream.
        """
        line = self.line
        run: list[Delivery] = []
        size = 0
        while len(run) < count_max and size < bytes_max and self.has_live_head(now_ms, despite_pause):
            head = line.head()
            assert head is not None
            if len(head.data) > item_bytes_max or line.head_seq >= end_seq:
                break
            size += len(head.data)
            run.append(self.open_head_for_transfer())
        return run

    def is_expired(self, item: Item, now_ms: int) -> bool:
        """Return True if the item has passed its own expiry or the queue's present max_age, whichever comes first."""
        if item.expires_ms and self.calendar.is_over(item, now_ms):
            return True
        max_age_ms = self.config.max_age_ms
        return max_age_ms > 0 and self.calendar.added_ms(item, now_ms) + max_age_ms < now_ms

    def time_out(self, now_ms: int) -> int:
        """End the reads and delays that are due, and serve the waiters. Return how many ended."""
        count = self._end_due(now_ms)
        self._serve(now_ms)
        return count

    def _expire_due(self, now_ms: int) -> int:
        """Expire items at the head. Sweep the ones behind it if a sweep is running or requested. Return the
        work done.
        """
        self.has_more_early = False  # until a reader looks at the head again
        count = self.expire(now_ms, self.config.max_expire_sweep)
        if self.sweeping.is_under_way or self.sweeping.is_asked:
            self.sweeping.is_asked = False
            self._sweep_for_room(now_ms)
        return count * (SENT_AS_MANY if self.config.expire_to_queue else 1)

    def age_ms(self, now_ms: int) -> int:
        """Return how long the last removed item had waited; 0 while the queue is empty or before the first removal.
        Kestrel reports this age; ages.py has the one for alarms.
        """
        if not self.line.bytes or not self.last_removed_added_ms:
            return 0
        return max(0, now_ms - self.calendar.moment_ms(self.last_removed_added_ms, now_ms))

    # what the disk does

    def load(self, line: Line, open_reads: dict[int, Delivery], last_xid: int) -> None:
        """Take over a replayed state, with the reads that were open."""
        assert not len(self.line) and not self.open_reads and not self.waiters, "before the queue is served"
        line.deferred_free = self.line.deferred_free
        self.line = line
        line.on_read_error = self._on_line_error
        self.open_reads = type(self.open_reads)(open_reads)
        self.last_xid = last_xid

    def _on_line_error(self) -> None:
        """Stop delivering items until `read_again`, because the next ones cannot be read."""
        self._update_needs_check()
        self.dismiss_waiters()
        self.on_read_error(self)

    def read_again(self) -> None:
        """Try again to read items that could not be read."""
        self.line.read_error = None
        self._update_needs_check()

    def dismiss_waiters(self) -> None:
        """Dismiss all waiters, without an item."""
        while self.waiters:
            self.waiters.popitem(last=False)[0].dismiss()

    def close(self) -> None:
        """Stop serving: no item enters or leaves any more, and all waiters are dismissed."""
        self.state = QueueState.CLOSED
        self._discard_all()
        self.has_more_expired = self.has_more_early = (
            False  # its timer does not call any more, and its waiters must not wait
        )
        self.dismiss_waiters()
        assert not self.waiters, "a client that waits for a closed queue would wait for ever"

    def check(self) -> None:
        """Assert every invariant."""
        super().check()
        can_wait = self.state is QueueState.SERVING and not self.hidden and self.line.read_error is None
        assert can_wait or not self.waiters

    # inside

    def _may_read_head(self, now_ms: int) -> bool:
        # Never deliver an expired item, however many there are: the sweep limit is for puts.
        line = self.line
        if self._head_is_free and not line.expiring:
            if line.in_memory or line.returned:
                return True
            if not line.on_disk:
                return False
        if self.gets_paused or self.batched_aborts.groups:
            return False
        self._end_due(now_ms)
        if self.batched_aborts.groups:
            return False
        if line.expiring:
            return self._has_due_head(now_ms)
        head = line.head()
        if head is None or not self.is_expired(head, now_ms):
            return head is not None
        self.expire(now_ms, len(line))
        head = line.head()
        return head is not None and not self.is_expired(head, now_ms)

    def _has_due_head(self, now_ms: int) -> bool:
        """Drop expired heads, and let heads rest that are not due, as many as one step may. Return True if the head can
        be handed out now.
        """
        line = self.line
        self.has_more_early = False
        for _ in range(RESTS_PER_STEP):
            head = line.head()
            if head is not None and self.is_expired(head, now_ms):
                self.expire(now_ms, len(line))
                head = line.head()
            if head is None or self.is_expired(head, now_ms):
                return False
            until_ms = self._rests_until_ms(head, now_ms) if isinstance(head, MAY_HAVE_DELAY) else 0
            if not until_ms:
                return True
            if self.is_resting_full:
                self.ring_at(until_ms)
                return False
            self.rest_head(until_ms)
        self.has_more_early = line.head() is not None
        if self.has_more_early and self.timer is not None:
            self.timer.soon(self)
        return False

    def _rests_until_ms(self, item: Item, now_ms: int) -> int:
        """Return until when `item` may not be handed out: until its delay ends, or its life; 0 if it may be now."""
        until_ms = due_ms(self.calendar, item, now_ms)
        if until_ms <= now_ms:
            return 0
        until_ms = min(until_ms, self.calendar.ends_ms(item, now_ms) + 1)
        max_age_ms = self.config.max_age_ms
        return min(until_ms, self.calendar.added_ms(item, now_ms) + max_age_ms + 1) if max_age_ms else until_ms

    def _let_rest_again(self, now_ms: int) -> None:
        over: list[Delivery] = []
        for delivery in [read for read in self.open_reads.values() if isinstance(read.item, MAY_HAVE_DELAY)]:
            if not is_rest(delivery.xid, delivery.item):
                if due_ms(self.calendar, delivery.item, now_ms) > now_ms:
                    del self.open_reads[delivery.xid]
                    delivery.deliveries -= 1  # an operation had set it aside: no client gets it before it is due
                    self.give_back(delivery)
                continue
            del self.open_reads[delivery.xid]
            self.last_rest_xid = min(self.last_rest_xid, delivery.xid)
            until_ms = self._rests_until_ms(delivery.item, now_ms)
            if until_ms > now_ms:
                self.keep_at_rest(delivery, until_ms)
            else:
                delivery.opened_ms = due_ms(self.calendar, delivery.item, now_ms)
                over.append(delivery)
        for delivery in sorted(over, key=attrgetter("opened_ms", "seq"), reverse=True):
            self.give_back(delivery)

    def _make_room(self, now_ms: int) -> bool:
        if not self._is_full() or self._sweep_for_room(now_ms):
            return True
        if not self.config.discard_old_when_full:
            return False
        while (head := self.line.head()) is not None and self._is_full():
            self.counters.discarded += not is_remnant(head)
            self.drop_head()
        while self.resting and self._is_full():
            self.counters.discarded += self.drop_resting(1)
        # With max_items = 0 no item is left to drop, and there is still no room.
        return not self._is_full()

    def _is_full(self) -> bool:
        line = self.line
        if line.reaches(self._max_items, self._max_bytes):
            return True
        return self._weighed and line.weight_bytes() + self.resting_weight_bytes >= self._weight_limit_bytes

    def _serve(self, now_ms: int) -> None:
        """Deliver available items to the waiters, in their order. A waiter that only peeks does not use the item up."""
        waiters = self.waiters
        while waiters:
            line = self.line
            if not (self._head_is_free and line.in_memory and not line.expiring) and not self._may_read_head(now_ms):
                return
            if not waiters:
                return  # what left the head has gone to other queues, which have served clients that wait there, too
            waiter = next(iter(waiters))
            if waiter.peeks:
                delivery = self.peek(now_ms)
            else:
                delivery = self.open(now_ms) if waiter.opens else self.remove_head(now_ms)
            if delivery is None:
                return
            del waiters[waiter]
            waiter.deliver(delivery)
