"""Transfers of items from one queue to another: expired ones, dead letters, single moves. No crash loses an item or
leaves it in both queues.

1. The intent, which names the item and the place of its copy, is written to `.staniel/intents` and synced.
2. The copy is added to the target, in memory at once.
3. The target is synced, whatever its policy.
4. The item is removed from the source. When that is durable the intent is crossed out, which is synced too.

During these steps the source keeps the item under a transaction (`Queue.in_transfer`), and neither journal is
rewritten. After a crash transfer_recovery.py looks for the copy at the place in the intent: if it is there, the source
drops the item, which it finds by the number of its transaction (by its id in libkestrel's format), so equal items are
not confused. Decision 0008 has the alternatives. Operations that move many items note a slice of them at once
(operations/transfer.py).

Clients go on putting items behind the place that a note names. No byte distinguishes such an item from an equal copy,
but its time does: a copy has a time before its note (`Transfers.earlier`), every later put a later one, and the
calendar follows a step back of the wall clock only when no noted copies are to come (`Transfers.may_set_back`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from functools import partial

from msgspec import Struct

from staniel.broker.events import EventSink, Level, RateLimitedSink
from staniel.broker.transfer_recovery import TransferRecovery
from staniel.broker.wall_clock import WallClock
from staniel.journal.disk.ballast import RECORD_OVERHEAD_BYTES
from staniel.journal.group_commit import NEVER_MS, GroupCommit
from staniel.journal.journals import Pinned, append_log, next_write_position, removal_log
from staniel.journal.kestrel.log import Log
from staniel.journal.libkestrel.reader import ReaderLog
from staniel.journal.libkestrel.writer import StreamWriter
from staniel.journal.own_files import KeptFile
from staniel.journal.spool import Spool
from staniel.journal.transfer_log import TransferLog
from staniel.queues.delays import delay_of
from staniel.queues.interfaces import Admission, Reason
from staniel.queues.item import Delivery, Item, item_with, past_bytes
from staniel.queues.names import family_of
from staniel.queues.past import PAST_BYTES_MAX, Why, next_past
from staniel.queues.queue import Queue, QueueState
from staniel.queues.registry import QueueRefused, Queues

ASIDE_BYTES_MAX = 1 << 20  # of payload of one queue, in memory outside its line
RETRY_MS = 1000
NOTE_OVERHEAD_BYTES = 2 * PAST_BYTES_MAX  # for the past of a copy, in records


class Transfer(Struct, frozen=True):
    """An item that leaves `source`. `target` is set for a moved item; else the settings name it. `left_ms`: the wall
    clock's time when the item left the line.
    """

    source: Queue
    taken: Delivery
    reason: Reason
    target: str
    left_ms: int

    @property
    def past(self) -> bytes:
        """The encoded past of the copy: the new past of a dead letter, or the own past or delay of any other item, if
        it has one. An item that expires into another queue loses its delay and gets no new past: Kestrel moves expired
        items, too, and its journals hold the bare item.
        """
        taken = self.taken
        if self.reason is not Reason.DEAD:
            has_no_fact = self.reason is Reason.EXPIRED and delay_of(taken.item) is not None
            return b"" if has_no_fact else past_bytes(taken.item)
        return next_past(taken.item, Why.DEAD, self.source.name, taken.deliveries, taken.client, self.left_ms)

    @property
    def destination(self) -> str:
        if self.reason is Reason.MOVED:
            return self.target
        config = self.source.config
        return config.expire_to_queue if self.reason is Reason.EXPIRED else config.dead_letter_queue


class Transfers:
    """The transfer sink of every queue."""

    def __init__(self, queues: Queues, spool: Spool, report: EventSink, wall: WallClock) -> None:
        self.queues = queues
        self._wall = wall
        wall.may_set_back = self.may_set_back
        self.spool = spool
        self.group: GroupCommit = spool.group
        self.transfer_log = TransferLog(spool.fs, f"{spool.own}/intents")
        self.transfer_log.close_after_sync = self.group.close_after_sync
        self.transfer_log.on_pending = self.write_before_all
        self.write_also: Callable[[], None] = lambda: None  # set by what has notes of its own: writes and syncs them
        spool.kept.append(
            KeptFile(self.transfer_log.path, lambda: self.transfer_log.is_lost, self.transfer_log.write_anew)
        )
        self.recovery = TransferRecovery(queues, spool, self.transfer_log, report, self.pin, self.unpin)
        self.rate_limited = RateLimitedSink(report)
        self._waiting: deque[Transfer] = deque()
        self._stuck: dict[Queue, list[Transfer]] = {}
        # Files from or to which no transfer may begin now.
        self._on_hold: dict[Log | ReaderLog | StreamWriter, None] = {}
        self._held_back: list[Transfer] = []  # wait until their files are no longer on hold
        self.unblocked: list[Log | ReaderLog | StreamWriter] = []  # files that block transfers, with none under way
        self.next_ms = NEVER_MS  # when the refused transfers are tried again
        self._busy = False
        self._announcing: dict[str, object] = {}  # by the target's files, as recovery names them: the operation
        self._announced_families: dict[str, object] = {}  # those to families in libkestrel's format
        self._to_come = 0  # announcements whose copies have not been added
        self._wall_waits = False  # a step back of the wall clock waits until there are none

    def may_announce(self, target: str, operation: object, *, keeps_times: bool = False) -> bool:
        """Tell whether `operation` may note copies that it will add to `target`. Only one operation at a time may, in
        libkestrel's format for all readers that share the files. It adds the copies after their notes, so after a crash
        the copies of two operations could not be distinguished if their items are equal. `keeps_times`: its copies may
        have the times of earlier ones, as those of an undo; then it also waits while copies of an earlier life have to
        be searched for in those files.
        """
        if self._wall_waits or (keeps_times and self.recovery.is_to_search(target)):
            return False
        files, family = self.recovery.files_of(target), family_of(target)
        # The family may have been deleted since the announcement, and `target` may begin it anew.
        others = self._announcing.get(files), self._announced_families.get(family)
        return all(other in (None, operation) for other in others)

    def announce(self, target: str, operation: object) -> None:
        """Note that `operation` has written notes of copies for `target`. Other operations wait until `end_announcing`.
        Call `came` when the copies are added.

        Clients may put equal items until then, and recovery distinguishes these from the copies by their times alone:
        the copies have the times of `earlier`, and the wall clock is not set back meanwhile (`may_set_back`).
        """
        assert self.may_announce(target, operation)
        files = self.recovery.files_of(target)
        self._announcing[files] = operation
        if files in self.spool.streams.families:
            self._announced_families[files] = operation
        self._to_come += 1

    def came(self, now_ms: int) -> None:
        """Note that the copies of an announcement have been added, or never will be."""
        self._to_come -= 1
        if self._wall_waits and not self._to_come:
            self._wall_waits = False
            self._wall.check_clock(now_ms)

    @property
    def are_copies_to_come(self) -> bool:
        """True if copies have been announced and not yet added."""
        return self._to_come > 0

    def may_set_back(self) -> bool:
        """Tell whether the calendar may follow a step back of the wall clock. If copies are to come it may not, because
        a put could get the time of such a copy; then no more copies may be announced, and the wall clock is checked
        again when all have come.
        """
        self._wall_waits = self.are_copies_to_come
        return not self._wall_waits

    def earlier(self, item: Item, now_ms: int) -> Item:
        """Return `item` with the time of its copy: added before `now_ms`, by the wall clock, and also if that clock was
        set back since `item` was put.
        """
        calendar, latest_ms = self.queues.calendar, self.latest_ms(now_ms)
        if item.added_ms <= latest_ms:
            return item
        return item_with(past_bytes(item), item.data, latest_ms, calendar.renewed_ms(item, now_ms), item.flags)

    def latest_ms(self, now_ms: int) -> int:
        """Return the latest time that a copy may have if it is announced now."""
        return self.queues.calendar.wall_ms(now_ms) - 1

    def end_announcing(self, target: str, operation: object) -> None:
        """End the announcements of `operation`. All of their outcomes are durable."""
        for files in (target, family_of(target)):  # the queue may have been deleted, and have other files now
            for announced in (self._announcing, self._announced_families):
                if announced.get(files) is operation:
                    del announced[files]

    def accept(
        self,
        source: Queue,
        taken: Delivery,
        reason: Reason,
        now_ms: int,
        target: str = "",
    ) -> None:
        """Transfer an item. A put into the target may expire other items there; their transfers wait in a list, because
        recursion could exhaust the stack.
        """
        self._enqueue(Transfer(source, taken, reason, target, self.queues.calendar.wall_ms(now_ms)), now_ms)

    def _enqueue(self, transfer: Transfer, now_ms: int) -> None:
        self._waiting.append(transfer)
        if self._busy:
            return
        self._busy = True
        try:
            while self._waiting:
                self._transfer(self._waiting.popleft(), now_ms)
        finally:
            self._busy = False

    def admits(self, source: Queue, size: int) -> Admission:
        """Return when an expired item may leave. It is admitted like a put, and at most ASIDE_BYTES_MAX of one queue
        are under way at a time.
        """
        aside_bytes = source.in_transfer_bytes
        if aside_bytes and aside_bytes + size > ASIDE_BYTES_MAX:
            return Admission.LATER if source in self._stuck else Admission.SOON
        if not self.group.is_full and not self.group.admits(size + RECORD_OVERHEAD_BYTES + NOTE_OVERHEAD_BYTES):
            return Admission.SOON if self.group.pending_bytes else Admission.LATER
        return Admission.NOW

    def tick(self, now_ms: int) -> None:
        """Try again the transfers whose target refused them."""
        if now_ms >= self.next_ms:
            stuck, self._stuck = self._stuck, {}
            self.next_ms = NEVER_MS
            for transfers in stuck.values():
                for transfer in transfers:
                    self._enqueue(transfer, now_ms)

    def _retry_later(self, transfer: Transfer, now_ms: int) -> None:
        self._stuck.setdefault(transfer.source, []).append(transfer)
        self.next_ms = min(self.next_ms, now_ms + RETRY_MS)

    def has_under_way(self, queue: Queue) -> bool:
        """Tell whether a transfer from or to `queue` may still have to be finished after a crash. Until its intent's
        end is durable, the files of both queues must be those that the intent names. Files that recovery must still
        search for a copy do not count: once they are deleted there is no copy.
        """
        searched = self.recovery.pinned(queue)
        return any(log.open_transfers > searched.count(log) for log in ends_of(queue))

    def pin(self, queue: Queue) -> Pinned:
        """Keep the files of `queue` until `unpin`, as during a transfer: they are neither rewritten nor deleted."""
        logs = ends_of(queue)
        for log in logs:
            log.open_transfers += 1
        return logs

    def unpin(self, logs: Pinned) -> None:
        """Release files, as the end of a transfer does."""
        for log in logs:
            log.open_transfers -= 1
            if log.blocks_transfers and not log.open_transfers:
                self.unblocked.append(log)

    def hold(self, queue: Queue) -> None:
        """Begin no transfer from or to `queue` until `resume`, so that the running transfers come to an end."""
        self._on_hold.update(dict.fromkeys(ends_of(queue)))

    def is_held_back(self, queue: Queue) -> bool:
        """Tell whether a transfer from or to `queue` would have to wait."""
        return any(self.is_on_hold(log) for log in ends_of(queue))

    def resume(self, queues: Iterable[Queue], now_ms: int) -> None:
        """Begin the transfers that were held back because of `queues`."""
        for queue in queues:
            for log in ends_of(queue):
                self._on_hold.pop(log, None)
        self.begin_again(now_ms)

    def begin_again(self, now_ms: int) -> None:
        """Begin the transfers that were held back, except those that still must wait."""
        held_back, self._held_back = self._held_back, []
        for transfer in held_back:
            self._enqueue(transfer, now_ms)

    def write_before_all(self) -> None:
        """Write pending notes before anything else of this turn."""
        self.group.before_write = self._write_intents

    def _write_intents(self) -> None:
        """Sync intents before their copies are written. Raises JournalFailure."""
        self.group.write_or_release_ballast(self.transfer_log.write_and_sync, self.transfer_log.path)
        self.write_also()
        self.group.before_write = None

    def _transfer(self, transfer: Transfer, now_ms: int) -> None:
        source, taken, name = transfer.source, transfer.taken, transfer.destination
        if source.state is QueueState.CLOSED:
            return  # the queue was deleted with the item, or the server stops and the item stays
        if self._is_called_off(transfer, name, now_ms):
            return
        if self.group.is_full:
            self._retry_later(transfer, now_ms)  # a copy without admission would use up the reserve
            return
        try:
            target = self.queues.make_to_take(name, now_ms)
        except QueueRefused as refused:
            self.rate_limited(Level.ERROR, "transfer.stuck", now_ms, source=source.name, target=name, why=refused.why)
            self._retry_later(transfer, now_ms)
            return
        old, calendar = taken.item, self.queues.calendar
        expires_ms = calendar.renewed_ms(old, now_ms) if transfer.reason is Reason.MOVED else 0
        copy = item_with(transfer.past, old.data, calendar.wall_ms(now_ms), expires_ms, old.flags)
        came_by, own, log = append_log(source.journal), removal_log(source.journal), append_log(target.journal)
        if own is not None and log is not None and (self.is_on_hold(own) or self.is_on_hold(log)):
            self._held_back.append(transfer)
        elif came_by is not None and came_by.transfers_in:
            # The item may be new in this queue. Move it on only after its arrival is durable.
            self.group.call_when_durable(came_by, partial(self._enqueue, transfer))
        elif own is not None and log is not None:
            self._begin_transfer(source, taken, own, target, log, copy, now_ms)
        else:
            # One of the two queues has no journal, so a crash cannot make them inconsistent.
            target.add(copy, now_ms, forced=True)
            source.release(taken)

    def is_on_hold(self, log: Log | ReaderLog | StreamWriter) -> bool:
        """Tell whether no transfer from or to these files may begin for now."""
        # A step that waits for a search waits for a reload. Until then it does not block transfers.
        return log in self._on_hold or (log.blocks_transfers and not self.recovery.keeps(log))

    def _is_called_off(self, transfer: Transfer, name: str, now_ms: int) -> bool:
        """Return the item to its queue if a reload has removed its target while the item waited. Return whether
        it has.
        """
        if name and not (transfer.reason is Reason.MOVED and name in self.queues.aliases):
            return False
        transfer.source.take_back(transfer.taken)
        transfer.source.time_out(now_ms)  # a waiting reader gets it
        return True

    def _begin_transfer(
        self,
        source: Queue,
        taken: Delivery,
        own: Log | ReaderLog,
        target: Queue,
        log: Log | StreamWriter,
        copy: Item,
        now_ms: int,
    ) -> None:
        """Begin a transfer. Neither journal is rewritten before its end, because the copy must be found where it was
        written.
        """
        number = self.transfer_log.log_intent(source.name, taken, target.name, next_write_position(log), copy)
        own.open_transfers += 1
        log.open_transfers += 1
        log.transfers_in += 1
        target.add(copy, now_ms, forced=True)
        self.group.call_when_durable(log, partial(self._copy_synced, source, taken, own, log, number))

    def _copy_synced(
        self, source: Queue, taken: Delivery, own: Log | ReaderLog, log: Log | StreamWriter, number: int, now_ms: int
    ) -> None:
        """Remove the item from its source. The copy is durable."""
        log.transfers_in -= 1
        source.release(taken)
        self.group.call_when_durable(own, partial(self._removal_synced, own, log, number))

    def _removal_synced(self, own: Log | ReaderLog, log: Log | StreamWriter, number: int, now_ms: int) -> None:
        """End the intent. The removal is durable. The intent's end must be durable, too, before one of the journals is
        rewritten: a transaction's number has a meaning only in the journal that records it.
        """
        self.transfer_log.end_intent(number)
        self.group.call_when_durable(self.transfer_log, partial(self._end, own, log))

    def _end(self, own: Log | ReaderLog, log: Log | StreamWriter, now_ms: int) -> None:
        self.unpin([own, log])
        self.transfer_log.end_synced()


def ends_of(queue: Queue) -> Pinned:
    """Return the files that record what is added to `queue` and what is removed from it."""
    return [log for log in (append_log(queue.journal), removal_log(queue.journal)) if log is not None]
