"""A sampler that looks at all queues in turn, a slice a turn, so that pages and histories show what has changed.

    who is there             which queues                                  how often
    a page is open           all                                           every second; beyond 1,000 queues each 64 ms
                                                                           64 of them, so 10,000 take ten seconds
    none                     those with a ring, and 256 of the others      every five seconds, as far as that goes

Each queue has a row: the result of the last look at it. Rows are in the order of their last change, which has a number,
so that a page needs to remember one number to get all that it does not know, however slow the page is.

A ring of points (history.py) is kept for RINGS_MAX queues, at most 10 MB. If there are more queues, those that had a
ring first keep it. The ring of a queue that has had neither items nor traffic for ten minutes goes to a queue that has.
"""

from __future__ import annotations

from collections import deque
from itertools import islice

from msgspec import Struct

from staniel.broker.admin.health import HealthCheck
from staniel.broker.admin.history import POINTS, RING_BYTES_MAX, HistoryRing, Point
from staniel.broker.admin.reasons import Health
from staniel.broker.admin.watch import Watch
from staniel.broker.counters import ServerCounters
from staniel.broker.events import RateLimitedSink
from staniel.broker.failures import report_failure
from staniel.broker.figures import QueueLook, QueueRow, queue_row
from staniel.broker.maintenance.memory import MemoryBudget
from staniel.broker.operations.holds import HoldFigure, Holds
from staniel.broker.share import Share
from staniel.broker.timers import Timers
from staniel.journal.spool import Spool
from staniel.queues.queue import Queue
from staniel.queues.registry import Queues

ROUND_MS = 1_000
QUIET_ROUND_MS = 5_000
SLICE_MS = 64
SLICE = 64  # queues: about a millisecond; a slice may take several turns
OTHERS = 256  # queues without a ring, in a round without pages
HISTORY_BYTES_MAX = 10 << 20
RINGS_MAX = HISTORY_BYTES_MAX // RING_BYTES_MAX
WATCHED_MS = 3_000  # a page asks once a second
SKIPPED_MAX = 9  # samples: a change without puts or gets, such as the journal's size, is shown that late
LOOK_MAX = 16  # items at the head; the oldest of them gives the queue's age
STATE_MS = 500
DISK_STEP_BYTES = 1 << 20
GONE_MAX = 1_000  # deleted queues kept for pages; beyond that pages begin with a new list


class QueueSums(Struct):
    """Sums over all rows. `oldest_at_ms` is the earliest of all queues, that of the queue `oldest_in`. Ages are those
    of the last round.
    """

    queues: int = 0
    items: int = 0
    bytes: int = 0
    put_rate: float = 0
    get_rate: float = 0
    open_reads: int = 0
    waiters: int = 0
    unsynced_bytes: int = 0
    journal_bytes: int = 0
    oldest_at_ms: int = 0
    oldest_in: str = ""


class DiskView(Struct, frozen=True):
    """The spool's disk; the free space in steps of a MB. `holds`: the retention holds."""

    free_bytes: int
    bytes: int
    holds: list[HoldFigure] = []


class LoadView(Struct, frozen=True):
    """The server's load: connections, the memory of all items and its limit, and the end of the last sync (0: none has
    ended).
    """

    connections: int
    memory_bytes: int
    memory_bytes_max: int
    synced_at_ms: int


class ServerState(Struct, frozen=True):
    """The server's own state, as it was at `at_ms`."""

    at_ms: int
    health: Health
    totals: QueueSums
    disk: DiskView
    load: LoadView


class ServerStates:
    """The server's own state, computed at most once in STATE_MS for all pages."""

    def __init__(
        self, spool: Spool, memory: MemoryBudget, counters: ServerCounters, health: HealthCheck, holds: Holds
    ) -> None:
        self._holds = holds
        self.spool, self._memory, self._counters, self._health = spool, memory, counters, health
        self._last: ServerState | None = None

    def state(self, totals: QueueSums, now_ms: int) -> ServerState:
        if self._last is None or not 0 <= now_ms - self._last.at_ms < STATE_MS:
            free, total = self.spool.fs.free_bytes(self.spool.folder)
            disk = DiskView(free - free % DISK_STEP_BYTES, total, self._holds.figures())
            memory, synced_ms = self._memory, self.spool.group.synced_ms
            load = LoadView(self._counters.curr_connections, memory.used_bytes, memory.limit_bytes, synced_ms)
            self._last = ServerState(now_ms, self._health.check(now_ms), totals, disk, load)
        return self._last


class Seen:
    """The last sample of one queue. `number`: of its last change; `shown`: the row, None once the queue is deleted."""

    __slots__ = ("encoded", "gets", "looked_ms", "mark", "number", "puts", "queue", "ring", "shown", "skipped")

    def __init__(self, queue: Queue) -> None:
        self.queue = queue
        self.shown: QueueRow | None = None
        self.number = 0
        self.puts = self.gets = 0
        self.looked_ms = 0
        self.mark: tuple[object, ...] = ()  # equal to the last one if nothing has changed
        self.skipped = 0  # samples since then that found the mark unchanged and did no more
        self.ring: HistoryRing | None = None
        self.encoded = b""  # as JSON, once a page has asked


class Sampler:
    """The sampler of all queues, for pages and histories. `rows`: every sampled queue, in the order of the last change.
    `batch`: the changes that rows show are durable once the commit group has reached this batch. `epoch`: a page with
    an earlier epoch begins with a new list.
    """

    def __init__(
        self,
        queues: Queues,
        watch: Watch,
        states: ServerStates,
        timers: Timers,
        client_events: RateLimitedSink,
    ) -> None:
        self._queues, self._spool, self._queue_reasons, self._states = queues, states.spool, watch.reasons, states
        self._timers, self._client_events = timers, client_events
        self.rows: dict[str, Seen] = {}
        self.totals = QueueSums()
        self.ring = HistoryRing()  # of all queues together
        self.rings = 0
        self.batch = 0
        self.epoch = 0
        self.is_whole = False  # every queue has a row
        self._changes = 0
        self._gone = 0
        self._watched_ms = 0
        self._idle: dict[str, None] = {}  # queues whose rings may go to others
        self._left: deque[str] = deque()  # names of this round
        self._of_slice = 0  # queues of this slice that were sampled so far
        self._round_ms = 0
        self._others = 0  # names without a ring that quiet rounds have sampled

    def begin_rounds(self, now_ms: int) -> None:
        """Begin to look."""
        self._begin_round(now_ms)
        self._timers.soon(self)

    def watch(self, now_ms: int) -> None:
        """Sample all queues, and often, until WATCHED_MS from now, because a page is open."""
        is_new = now_ms >= self._watched_ms
        self._watched_ms = now_ms + WATCHED_MS
        if is_new:
            self.is_whole = False  # queues may be new since the last round: each turn samples some until all have rows
            self._begin_round(now_ms)
            self._timers.soon(self)

    def state(self, now_ms: int) -> ServerState:
        return self._states.state(self.totals, now_ms)

    def changed_since(self, number: int) -> list[Seen]:
        """Return the rows that have changed since change `number`, the first change first."""
        rows = []
        for row in reversed(self.rows.values()):
            if row.number <= number:
                break
            rows.append(row)
        rows.reverse()
        return rows

    def _begin_round(self, now_ms: int) -> None:
        """Begin a round: choose the queues to look at."""
        names = self._queues.by_name
        self._round_ms, self._is_over = now_ms, False
        self._oldest = 0, ""
        self.is_watched = now_ms < self._watched_ms
        if self.is_watched or len(names) <= RINGS_MAX:
            self._left = deque(names)
        else:
            self.is_whole = False
            for name in [name for name, row in self.rows.items() if row.ring is None]:
                self._forget(name)
            others = list(islice((name for name in names if name not in self.rows), self._others, None))
            self._others = 0 if len(others) <= OTHERS else self._others + OTHERS
            self._left = deque([*self.rows, *others[:OTHERS]])

    def on_timer(self, now_ms: int) -> int:
        """Do a slice of the round. Return the work, as timers count it. An exception costs a round."""
        try:
            return self._look_around(now_ms)
        except Exception as error:
            report_failure(self._client_events, "a look at the queues", "", error, now_ms)
            self._is_over = True
            self._timers.set(self, now_ms + QUIET_ROUND_MS)
            return 0

    def _look_around(self, now_ms: int) -> int:
        if self._is_over:
            self._begin_round(now_ms)
        left, share, first = self._left, Share(self._timers.clock), self._of_slice
        while left and self._of_slice < SLICE:
            name = left.popleft()
            queue = self._queues.find(name)
            if queue is not None:
                self._of_slice += self._sample_queue(queue, now_ms)
                self._note_age(self.rows[name])
                if share.is_spent:
                    break
        done = self._of_slice - first
        if not left:
            self._of_slice = 0
            self._end(now_ms)
        elif self._of_slice < SLICE:
            self._timers.soon(self)  # the rest of the slice
        else:
            self._of_slice = 0
            if not self.is_whole and self.is_watched:
                self._timers.soon(self)
            else:
                self._timers.set(self, now_ms + SLICE_MS)
        return (done + 1) * 50

    def _end(self, now_ms: int) -> None:
        """End a round, in which all queues have been looked at."""
        self._is_over = True
        names = self._queues.by_name
        if not self.is_whole or self.totals.queues != len(names):
            for name in [name for name, row in self.rows.items() if row.shown is not None and name not in names]:
                self._mark_gone(name)
        self.is_whole = self.is_whole or self.is_watched or len(names) <= RINGS_MAX
        totals = self.totals
        totals.oldest_at_ms, totals.oldest_in = self._oldest
        age_ms = now_ms - totals.oldest_at_ms if totals.oldest_at_ms else 0
        rates = totals.put_rate, totals.get_rate
        self.ring.add(Point(totals.items, *rates, age_ms, totals.open_reads, totals.unsynced_bytes), now_ms)
        every_ms = ROUND_MS if now_ms < self._watched_ms else QUIET_ROUND_MS
        self._timers.set(self, max(now_ms + SLICE_MS, self._round_ms + every_ms))

    def _note_age(self, row: Seen) -> None:
        """Count the age in a row for this round."""
        shown = row.shown
        if shown is not None and shown.oldest_at_ms and not 0 < self._oldest[0] <= shown.oldest_at_ms:
            self._oldest = shown.oldest_at_ms, shown.name

    def _sample_queue(self, queue: Queue, now_ms: int) -> int:
        """Sample a queue. Return the cost, in queues with nothing to read from the journal."""
        line = queue.line
        took = SLICE if line.on_disk and not (line.in_memory or line.returned or line.read_error) else 1
        row = self.rows.get(queue.name) or self._new_row(queue)
        if row.queue is not queue:
            self._begin_again(row, queue)
        queue.sync_counters()
        counters, reasons = queue.counters, self._queue_reasons.get(queue.name, ())
        mark = (
            *(counters.total_items, counters.get_items_hit, line.present, len(queue.open_reads), len(queue.waiters)),
            *(queue.needs_check, id(queue.config), reasons),
        )
        if mark == row.mark and row.skipped < SKIPPED_MAX and row.shown is not None and _is_quiet(row.shown):
            row.skipped += 1
            row.looked_ms = now_ms
            if row.ring is not None and not row.ring.has_seen(now_ms):
                self._keep(row.ring, row.shown, now_ms)
            return took
        row.mark, row.skipped = mark, 0
        shown = self._row_of(row, now_ms)
        self.batch = max(self.batch, queue.journal.reply_batch())
        if row.ring is None:
            row.ring = self._new_ring(shown)
        if row.ring is not None:
            self._keep(row.ring, shown, now_ms)
        if shown != row.shown:
            if row.shown is not None:
                self._count(row.shown, -1)
            self._count(shown, 1)
            row.shown, row.encoded = shown, b""
            self._moved(row)
        return took

    def _new_row(self, queue: Queue) -> Seen:
        row = self.rows[queue.name] = Seen(queue)
        return row

    def _begin_again(self, row: Seen, queue: Queue) -> None:
        """Reset the row for a new queue of the same name as a deleted one."""
        row.queue, row.looked_ms = queue, 0
        if row.shown is None:
            self._gone -= 1

    def _row_of(self, row: Seen, now_ms: int) -> QueueRow:
        queue = row.queue
        puts, gets = queue.counters.total_items, queue.counters.get_items_hit
        passed_ms = now_ms - row.looked_ms
        is_first = not row.looked_ms or passed_ms <= 0
        put_rate = 0.0 if is_first else max(0, puts - row.puts) * 1000 / passed_ms
        get_rate = 0.0 if is_first else max(0, gets - row.gets) * 1000 / passed_ms
        row.puts, row.gets, row.looked_ms = puts, gets, now_ms
        return queue_row(
            QueueLook(queue, now_ms, self._spool),
            oldest_at_ms=_oldest_at_ms(queue, now_ms),
            put_rate=round(put_rate, 2),
            get_rate=round(get_rate, 2),
            unreadable=queue.line.read_error is not None,
            reasons=self._queue_reasons.get(queue.name, ()),
        )

    def _moved(self, row: Seen) -> None:
        """Move a row to the end, because it has just changed."""
        name = row.queue.name
        self._changes += 1
        row.number = self._changes
        del self.rows[name]
        self.rows[name] = row

    def _count(self, shown: QueueRow, sign: int) -> None:
        totals = self.totals
        totals.queues += sign
        totals.items += sign * shown.items
        totals.bytes += sign * shown.bytes
        totals.open_reads += sign * shown.open_reads
        totals.waiters += sign * shown.waiters
        totals.unsynced_bytes += sign * shown.unsynced_bytes
        totals.journal_bytes += sign * shown.journal_bytes
        # Adding and subtracting floats in another order leaves a remainder, which rounding removes.
        totals.put_rate = round(totals.put_rate + sign * shown.put_rate, 2) if totals.queues else 0
        totals.get_rate = round(totals.get_rate + sign * shown.get_rate, 2) if totals.queues else 0

    def _mark_gone(self, name: str) -> None:
        row = self.rows[name]
        assert row.shown is not None
        self._count(row.shown, -1)
        self._drop_ring(row)
        row.shown, row.encoded = None, b""
        self._moved(row)
        self._gone += 1
        if self._gone > GONE_MAX or not self.is_watched:
            for gone in [gone for gone, seen in self.rows.items() if seen.shown is None]:
                del self.rows[gone]
            self._gone = 0
            self.epoch += 1

    def note_step(self) -> None:
        """Make pages begin with a new list, because the wall clock was set."""
        for row in self.rows.values():
            row.encoded = b""
        self.epoch += 1

    def _forget(self, name: str) -> None:
        """Remove the row of a queue without a ring, while no page is open."""
        row = self.rows.pop(name)
        if row.shown is not None:
            self._count(row.shown, -1)
        else:
            self._gone -= 1

    def _new_ring(self, shown: QueueRow) -> HistoryRing | None:
        """Return a ring for a queue that has none, if one is available."""
        if self.rings >= RINGS_MAX:
            is_busy = shown.items or shown.open_reads or shown.put_rate or shown.get_rate
            if not is_busy or not self._idle:
                return None
            self._drop_ring(self.rows[next(iter(self._idle))])
        self.rings += 1
        return HistoryRing()

    def _drop_ring(self, row: Seen) -> None:
        self._idle.pop(row.queue.name, None)
        if row.ring is not None:
            row.ring = None
            self.rings -= 1

    def _keep(self, ring: HistoryRing, shown: QueueRow, now_ms: int) -> None:
        age_ms = max(0, now_ms - shown.oldest_at_ms) if shown.oldest_at_ms else 0
        rates = shown.put_rate, shown.get_rate
        ring.add(Point(shown.items, *rates, age_ms, shown.open_reads, shown.unsynced_bytes), now_ms)
        if ring.idle_points >= POINTS[0]:
            self._idle[shown.name] = None
        elif self._idle:
            self._idle.pop(shown.name, None)


def _is_quiet(shown: QueueRow) -> bool:
    """Tell whether the row stays the same as long as nothing happens."""
    return not (shown.put_rate or shown.get_rate or shown.unsynced_bytes)


def _oldest_at_ms(queue: Queue, now_ms: int) -> int:
    """Return when the oldest of the first few ready items was put, in server time. Return 0 if there is none, or if the
    time is unknown.
    """
    line, put_ms = queue.line, queue.calendar.added_ms
    if line.read_error is not None or not len(line):
        return 0
    came_back = [taken.item for taken in islice(reversed(line.returned), LOOK_MAX)]
    times_ms = [put_ms(item, now_ms) for item in came_back if item.added_ms and not queue.is_expired(item, now_ms)]
    if times_ms:
        return min(times_ms)
    line.head()  # reads from the journal if no item is in memory
    fresh = islice(line.in_memory, LOOK_MAX)
    return next((put_ms(item, now_ms) for item in fresh if item.added_ms and not queue.is_expired(item, now_ms)), 0)
