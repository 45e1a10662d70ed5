"""The reasons of `health` that need time to notice: queues that are not read, that grow or fill up; slow syncs; a disk
that fills.

A round looks at all queues in turn, a slice a turn, every ROUND_MS. `health` looks at all at once, if there are few.
`after_round` is called after each round (Broker.end_round).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from heapq import nlargest

from msgspec import Struct

from staniel.broker.admin.damaged_copies import DamagedCopies
from staniel.broker.admin.held_reads import held_files
from staniel.broker.admin.reasons import ReasonName
from staniel.broker.events import EventSink, Level
from staniel.broker.latencies import Histogram
from staniel.broker.maintenance.scheduler import MaintenanceScheduler
from staniel.broker.share import Share
from staniel.broker.timers import Timers
from staniel.broker.wall_clock import APART_MS
from staniel.journal.disk.fs import UNKNOWN_BYTES
from staniel.journal.libkestrel.reader import ReaderLog
from staniel.journal.spool import Spool
from staniel.queues.config import UNLIMITED_BYTES, UNLIMITED_ITEMS
from staniel.queues.queue import Queue

ROUND_MS = 5_000
SLICE_MS = 64
SLICE = 256  # queues: a third of a millisecond; a slice may take several turns
LOOK_COST = 5  # of looking at one queue, as timers count it
AT_ONCE_MAX = 1_000  # queues that `check_now` checks: a millisecond
MARK_MS = 300_000  # between two notes of depths, of syncs and of free space
MARKS_MAX = 12  # of free space: an hour
UNREAD_MS = 300_000  # without a get
GROWS_ITEMS_MIN = 1_000
GROWS_FACTOR = 1.2  # times as many items as five to ten minutes before
TOLD_AHEAD_MAX = 100  # logged queues whose items were put in the future
PACKED_AT_ONCE = 64  # queues in a round
READ_DISK_PART = 4  # of the disk: beyond a quarter of it, read items are packed before the disk is full
READ_ROUNDS_MAX = 12  # rounds: a minute
HELD_MS = 300_000  # an open read keeps files for longer than this
HELD_BYTES_MIN = 64 << 20  # kept bytes that are reported, or
HELD_DISK_PART = 50  # of the disk: a fiftieth
FILLING_PART = 0.9  # of max_items or max_size
SLOW_SYNC_S = 0.25
SLOW_SYNCS_MIN = 5  # fewer slow syncs are no reason
SYNC_HANGS_MS = 5_000
FILLS_WITHIN_MS = 4 * 3600 * 1000
FREE_PART_MIN = 0.3  # of the disk: with more free space it is not called filling
EMPTY: tuple[ReasonName, ...] = ()


class Watched(Struct):
    """The notes about a queue with items. `gets`: how many items had been delivered at `unread_since_ms`. `before`,
    `mark`: its depth at the last two marks. `notes`: how many marks had been made by then; `seen_notes`: how many since
    the queue was first seen.
    """

    gets: int
    unread_since_ms: int
    before: int
    mark: int
    notes: int
    seen_notes: int = 0


class DiskNote(Struct, frozen=True):
    """The free space at one moment."""

    at_ms: int
    free_bytes: int


class Watch:
    """The latest rounds and their findings. `queues`: by reason, the names of its queues. `reasons`: by name, the
    reasons of a queue. `slow_syncs`: how many of `syncs` in the last five to ten minutes were slow. `sync_hangs_ms`:
    how long the running sync has taken, 0: not long. `fills_in_ms`: when the disk is full at the rate of the last hour,
    0: not soon. `_syncs` has the durations of all syncs.
    """

    def __init__(
        self,
        spool: Spool,
        maintenance: MaintenanceScheduler,
        syncs: Histogram,
        timers: Timers,
        report: EventSink,
    ) -> None:
        self.queues: dict[ReasonName, dict[str, None]] = {}
        self.reasons: dict[str, tuple[ReasonName, ...]] = {}
        self.syncs = self.slow_syncs = self.sync_hangs_ms = 0
        self.fills_in_ms = 0
        self._registry, self._spool, self._maintenance, self._syncs = maintenance.queues, spool, maintenance, syncs
        self.copies = DamagedCopies(spool.fs, f"{spool.own}/damaged", self._registry.calendar)
        self._timers, self._report = timers, report
        self.may_look = True
        self._told_ahead: set[str] = set()
        self.after_round: Callable[[int], None] = lambda now_ms: None  # set by the broker
        self.unreadable: dict[str, None] = {}  # queues that the last round could not read
        self._unreadable: dict[str, None] = {}  # of this round
        self._watched: dict[str, Watched] = {}
        self._dead: dict[str, None] = {}  # dead-letter queues met in this round
        self._left: deque[str] = deque()  # names still to be looked at in this round
        self._read: list[tuple[int, str]] = []  # in this round, by queue: bytes that were read and are still stored
        self.read_bytes = 0  # of all queues, in the last round
        self._read_rounds = 0  # rounds in a row in which that exceeded the limit
        self._of_slice = 0  # queues of this slice that are done
        self._round_ms = 0
        self._notes = 0
        self._noted_ms: int | None = None
        self._sync_counts = (0, 0), (0, 0)  # all and slow syncs, at the last two marks
        self._disk: deque[DiskNote] = deque(maxlen=MARKS_MAX)
        self._sync_seen = 0, 0  # the batch that was durable when a sync was first seen running, and when that was

    @property
    def most_read(self) -> list[tuple[int, str]]:
        """The queues with the most bytes that were read and are still stored, in the last round."""
        return nlargest(PACKED_AT_ONCE, self._read)

    def begin_rounds(self, now_ms: int) -> None:
        """Begin the rounds, every ROUND_MS."""
        self._begin_round(now_ms)
        self._timers.soon(self)

    def check_now(self, now_ms: int) -> None:
        """Look at all queues at once, if there are few. If there are many, `queues` is as old as their last round. Only
        the first call of a turn looks, because one client can ask for health many times in one turn.
        """
        names = self._registry.by_name
        if len(names) > AT_ONCE_MAX or not self.may_look:
            return
        self.may_look = False
        self._left = deque(names)
        self._dead, self._read, self._unreadable = {}, [], {}
        while self._left:
            self._check_queue(self._left.popleft(), now_ms)
        self._end_round(now_ms)

    def on_timer(self, now_ms: int) -> int:
        """Do a slice of the round. Return the work, as timers count it."""
        timers = self._timers
        if not self._left and now_ms >= self._round_ms + ROUND_MS:
            self._begin_round(now_ms)
        share, first = Share(timers.clock), self._of_slice
        while self._left and self._of_slice < SLICE:
            self._check_queue(self._left.popleft(), now_ms)
            self._of_slice += 1
            if share.is_spent:
                break
        done = self._of_slice - first + 1
        if self._left and self._of_slice < SLICE:
            timers.soon(self)  # the rest of the slice
        elif self._left:
            self._of_slice = 0
            timers.set(self, now_ms + SLICE_MS)
        else:
            self._of_slice = 0
            self._end_round(now_ms)
            self.after_round(now_ms)
            timers.set(self, max(now_ms + SLICE_MS, self._round_ms + ROUND_MS))
        return done * LOOK_COST

    def _begin_round(self, now_ms: int) -> None:
        self._round_ms = now_ms
        self._left = deque(self._registry.by_name)
        self._dead, self._read, self._unreadable = {}, [], {}

    def _end_round(self, now_ms: int) -> None:
        self.unreadable = self._unreadable
        self.read_bytes = sum(size for size, _ in self._read)
        self._read_rounds = self._read_rounds + 1 if 0 < self.read_bytes_max < self.read_bytes else 0
        names = self._registry.by_name
        for name in [name for name in self._watched if name not in names]:
            del self._watched[name]
        for name in [name for name in self.reasons if name not in names]:
            self._set(name, EMPTY)
        known = self.queues.get(ReasonName.DEAD_LETTERS, {})
        for name in [*self._dead, *[name for name in known if name not in self._dead]]:
            queue = self._registry.find(name)
            others: list[ReasonName] = [
                reason for reason in self.reasons.get(name, EMPTY) if reason is not ReasonName.DEAD_LETTERS
            ]
            if queue is not None and queue.line.present and name in self._dead:
                others = _of_dead_letters(others)
            self._set(name, tuple(others))
        self._look_at_syncs(now_ms)
        self._look_at_disk(now_ms)
        self.copies.list_copies(now_ms)
        if self._noted_ms is None or now_ms - self._noted_ms >= MARK_MS:
            self._note_marks(now_ms)

    def _note_marks(self, now_ms: int) -> None:
        self._noted_ms = now_ms
        self._notes += 1
        self._sync_counts = self._sync_counts[1], self._count_syncs()
        self._disk.append(DiskNote(now_ms, self._free_bytes()[0]))

    def _check_queue(self, name: str, now_ms: int) -> None:
        queue = self._registry.find(name)
        if queue is None:
            return
        if queue.config.dead_letter_queue:
            self._dead[queue.config.dead_letter_queue] = None
        if queue.line.read_error is not None:
            self._unreadable[name] = None
        self._tell_if_ahead(queue, now_ms)
        if read_bytes := read_bytes_of(self._spool, self._maintenance, queue):
            self._read.append((read_bytes, name))
        was_full = ReasonName.QUEUE_FULL in self.reasons.get(name, EMPTY)
        reasons = [ReasonName.QUEUE_FULL] if queue.refuses_puts(now_ms, was_full) else []
        if not queue.line.present:
            self._watched.pop(name, None)
        else:
            reasons += self._of_items(queue, now_ms, bool(reasons))
        if queue.open_reads and self._are_reads_held(queue, now_ms):
            reasons.append(ReasonName.READS_HELD)
        if name in self.queues.get(ReasonName.DEAD_LETTERS, ()):
            reasons = _of_dead_letters(reasons)
        self._set(name, tuple(reasons))

    def _of_items(self, queue: Queue, now_ms: int, is_full: bool) -> list[ReasonName]:
        items, gets = queue.line.present, _gets(queue)
        seen = self._watched.get(queue.name)
        if seen is None:
            seen = self._watched[queue.name] = Watched(gets, now_ms, items, items, self._notes)
        if gets != seen.gets or queue.open_reads or queue.waiters or queue.gets_paused:
            seen.gets, seen.unread_since_ms = gets, now_ms
        reasons = []
        if now_ms - seen.unread_since_ms >= UNREAD_MS:
            reasons.append(ReasonName.QUEUE_NOT_READ)
        if seen.notes != self._notes:
            seen.before, seen.mark, seen.notes = seen.mark, items, self._notes
            seen.seen_notes += 1
        is_known = seen.seen_notes >= 2  # `before` is at least five minutes old
        if is_known and items > GROWS_ITEMS_MIN and items > seen.before * GROWS_FACTOR and items >= seen.mark:
            reasons.append(ReasonName.QUEUE_GROWS)
        if not is_full and _is_filling(queue):
            reasons.append(ReasonName.QUEUE_FILLING)
        return reasons

    def _tell_if_ahead(self, queue: Queue, now_ms: int) -> None:
        """Log, once per start and queue, that the head was put at a time that this spool's clock has not reached. A
        head that is not in memory is checked later, once it is.
        """
        fresh = queue.line.in_memory
        if not fresh or queue.name in self._told_ahead or len(self._told_ahead) >= TOLD_AHEAD_MAX:
            return
        ahead_ms = queue.calendar.added_ms(fresh[0], now_ms) - now_ms
        if ahead_ms >= APART_MS:
            self._told_ahead.add(queue.name)
            hint = "put under another clock: until that time their age is 0, and they expire later by as much"
            seconds = ahead_ms // 1000
            self._report(Level.WARNING, "clock.items_ahead", queue=queue.name, seconds=seconds, hint=hint)

    def _are_reads_held(self, queue: Queue, now_ms: int) -> bool:
        held = held_files(queue, now_ms)
        if held.ms < HELD_MS or not held.bytes:
            return False
        return held.bytes >= min(HELD_BYTES_MIN, self._free_bytes()[1] // HELD_DISK_PART)

    def _set(self, name: str, reasons: tuple[ReasonName, ...]) -> None:
        before = self.reasons.get(name, EMPTY)
        if reasons == before:
            return
        for reason in before:
            if reason not in reasons:
                del self.queues[reason][name]
        for reason in reasons:
            self.queues.setdefault(reason, {})[name] = None
        if reasons:
            self.reasons[name] = reasons
        else:
            del self.reasons[name]

    def _count_syncs(self) -> tuple[int, int]:
        syncs = self._syncs
        slow = sum(n for bound, n in zip((*syncs.bounds_s, 1e9), syncs.counts, strict=True) if bound > SLOW_SYNC_S)
        return sum(syncs.counts), slow

    def _look_at_syncs(self, now_ms: int) -> None:
        group, (count, slow) = self._spool.group, self._count_syncs()
        before, before_slow = self._sync_counts[0]
        self.syncs, self.slow_syncs = count - before, slow - before_slow
        durable, since_ms = self._sync_seen
        if not group.is_syncing or durable != group.durable:
            since_ms = now_ms
        self._sync_seen = group.durable, since_ms
        ran_ms = now_ms - since_ms
        self.sync_hangs_ms = ran_ms if ran_ms >= SYNC_HANGS_MS else 0

    @property
    def are_syncs_slow(self) -> bool:
        """True if one sync in a hundred takes longer than SLOW_SYNC_S, or the present one does not end."""
        is_slow = self.slow_syncs >= SLOW_SYNCS_MIN and self.slow_syncs * 100 > self.syncs
        return is_slow or self.sync_hangs_ms > 0

    def are_copies_kept(self, now_ms: int) -> bool:
        """Tell whether there are copies of damaged bytes that are old or large."""
        return self.copies.count > 0 and self.copies.are_to_be_looked_at(now_ms, self._free_bytes()[1])

    @property
    def read_bytes_max(self) -> int:
        """The limit of bytes that were read and are still on the disk. Beyond it journals are packed, whatever the
        settings allow. 0 if the size of the disk is unknown.
        """
        total = self._free_bytes()[1]
        return 0 if total >= UNKNOWN_BYTES else total // READ_DISK_PART

    @property
    def is_read_kept(self) -> bool:
        """True if bytes that were read have exceeded `read_bytes_max` for a minute."""
        return self._read_rounds > READ_ROUNDS_MAX

    def _free_bytes(self) -> tuple[int, int]:
        return self._spool.fs.free_bytes(self._spool.folder)

    def _look_at_disk(self, now_ms: int) -> None:
        self.fills_in_ms = 0
        if len(self._disk) < 2:
            return
        free, total = self._free_bytes()
        first = self._disk[0]
        used, passed_ms = first.free_bytes - free, now_ms - first.at_ms
        if used > 0 and passed_ms > 0 and free < total * FREE_PART_MIN:
            left_ms = max(1, free * passed_ms // used)
            self.fills_in_ms = left_ms if left_ms < FILLS_WITHIN_MS else 0


def read_bytes_of(spool: Spool, maintenance: MaintenanceScheduler, queue: Queue) -> int:
    """Return roughly how many bytes of the queue's files have been read and could be removed now. The files of a
    libkestrel family count for the first of its readers.
    """
    journal = queue.journal
    if not isinstance(journal, ReaderLog):
        return maintenance.reclaimable(queue)[0]
    return spool.streams.families[journal.queue].reclaimable()[0] if queue.name == journal.queue else 0


def _of_dead_letters(reasons: Sequence[ReasonName]) -> list[ReasonName]:
    """Return the reasons of a dead-letter queue. Its items wait for an operator, not for a reader, so `queue_not_read`
    does not apply.
    """
    return [*[reason for reason in reasons if reason is not ReasonName.QUEUE_NOT_READ], ReasonName.DEAD_LETTERS]


def _gets(queue: Queue) -> int:
    queue.sync_counters()
    return queue.counters.get_items_hit


def _is_filling(queue: Queue) -> bool:
    config, line = queue.config, queue.line
    if config.discard_old_when_full:
        return False
    is_long = config.max_items < UNLIMITED_ITEMS and line.present >= config.max_items * FILLING_PART
    return is_long or (config.max_bytes < UNLIMITED_BYTES and line.bytes >= config.max_bytes * FILLING_PART)
