"""Maintenance after each batch, and in small steps in every turn: rotating, starting over, rewriting, packing,
read-ahead, memory.

Source: the packing strategy of the Kestrel journal format.
"""

from __future__ import annotations

from collections.abc import Callable

from staniel.broker.events import EventSink, Level, RateLimitedSink
from staniel.broker.maintenance.damage_events import report_and_quarantine
from staniel.broker.maintenance.memory import MemoryBudget
from staniel.broker.maintenance.packing import PackScheduler
from staniel.broker.maintenance.read_ahead import ReadAhead
from staniel.broker.maintenance.sidecars import Sidecars
from staniel.broker.share import Share
from staniel.journal.background import TaskQueue
from staniel.journal.disk.fs import BROKEN_ERRNOS
from staniel.journal.disk.refusals import described, remedy
from staniel.journal.group_commit import GroupCommit
from staniel.journal.kestrel.log import Log
from staniel.journal.kestrel.policy import JournalStep, is_worth_packing, next_step, saves_half, starts_delay
from staniel.journal.kestrel.read_behind import ReadBehind
from staniel.journal.kestrel.segments import LogSegment
from staniel.queues.deferred_free import DeferredFree
from staniel.queues.journal_view import JournalView
from staniel.queues.line import PlainLine
from staniel.queues.queue import Queue
from staniel.queues.registry import Queues
from staniel.queues.stream.queue import StreamQueue

ON_THE_SPOT_BYTES = 256 << 10  # up to this size a journal is rewritten in one step; a larger one is packed in slices
OPEN_READ_BYTES = 1024  # the assumed size of an open read, where only their number matters
STAND_IN_BYTES = 21
RECLAIMED_BYTES_MIN = 4 << 10  # a block: freeing less does not help on a full disk
RECLAIMED_AT_ONCE = 64  # journals


def _report_refused(report: RateLimitedSink, path: str, error: OSError, now_ms: int) -> None:
    hint = f"the journal continues in its present file; the server tries again; {remedy(error, 'mend that')}"
    fields = {"file": path, "why": described(error), "hint": hint}
    report.of_kind((path, error.errno), Level.WARNING, "journal.rotate_failed", now_ms, **fields)  # `why` has a number


class MaintenanceScheduler:
    """The maintenance of all queues of a broker."""

    def __init__(
        self,
        queues: Queues,
        group: GroupCommit,
        memory_bytes: int,
        report: EventSink,
        is_kept: Callable[[Log], bool],
    ) -> None:
        self.queues, self._by_name = queues, queues.by_name
        self.group = group
        self.tasks = TaskQueue()
        self.packs = PackScheduler(self.tasks, report, is_kept)
        self.read_ahead = ReadAhead(self.tasks)
        self.sidecars = Sidecars(self.tasks, report)
        self.memory = MemoryBudget(memory_bytes, queues)
        self.deferred_free = DeferredFree()
        self._report = report
        limited = RateLimitedSink(report)
        group.on_refused = lambda path, error, now_ms: _report_refused(limited, path, error, now_ms)
        self._sealing: dict[Log, None] = {}  # rotating journals, each with the last file to pack after the rotation
        self.waiting = self.read_ahead.pending, self.deferred_free.left, self._sealing
        """The lists of work. If all are empty and no pack is running, `run_slices` has nothing to do."""

    def adopt(self, queue: Queue) -> None:
        """Include `queue`, which is served from now on."""
        queue.line.deferred_free = self.deferred_free
        if isinstance(queue, StreamQueue):
            queue.stream.deferred_free = self.deferred_free
        if isinstance(queue.journal, Log):
            queue.journal.queue_view = JournalView(queue)
            self.sidecars.adopt(queue.journal)
            self.packs.note_unfinished(queue.journal)
            line = queue.line
            if line.tail is None:
                assert isinstance(line, PlainLine), "a stream's queues have another journal"
                line.tail = ReadBehind(queue.journal.segments, line)
        self.memory.adopt(queue)

    def is_at_work(self, queue: Queue) -> bool:
        """Tell whether a thread is working on `queue`'s files: they must not change before it has ended."""
        log = queue.journal
        return isinstance(log, Log) and (self.packs.is_at_work(log) or self.sidecars.is_at_work(log))

    def forget(self, queue: Queue) -> None:
        """Stop all work for `queue`, which is about to be deleted with its files. No thread may be working on them."""
        self.memory.forget(queue)
        self.read_ahead.forget(queue)
        if isinstance(queue.journal, Log):
            self._sealing.pop(queue.journal, None)
            self._let_go(queue.journal)

    def close(self, now_ms: int) -> None:
        """End all work because the server stops; no file may change afterwards. Waits for the running tasks."""
        self.sidecars.close(now_ms)
        self.packs.close(now_ms)
        self.sidecars.close(now_ms)  # a pack that has just been put in place requests a sidecar

    def _let_go(self, log: Log) -> None:
        """Stop all work on the files of `log`: nothing may touch them any more."""
        self.packs.forget(log)
        self.sidecars.forget(log)

    @property
    def is_busy(self) -> bool:
        """True if `run_slices` has something to do now."""
        return bool(self.read_ahead.pending or self.deferred_free.left) or self.packs.is_busy

    def run_slices(self, now_ms: int) -> None:
        """Do a few slices of the work that is due. Raises JournalFailure."""
        if self.read_ahead.pending:
            self.read_ahead.decode_some()
        if self.deferred_free.left:
            self.deferred_free.free_some()
        if self._sealing:
            for log in [log for log in self._sealing if not log.seal_wanted]:
                del self._sealing[log]
                self.packs.want(log, log.segments.sealed[-1], now_ms)
        packs = self.packs
        if packs.is_quiet:
            return
        if packs.is_busy:
            packs.run_slice(now_ms)
        for log in packs.done():
            self._look_whether_empty(log, now_ms)
        for log in packs.rested(now_ms):
            self._look_again(log, now_ms)

    def look_after(self, log: Log, now_ms: int) -> None:
        """Choose the next step for a journal, after a batch of its changes has been written. Take the step, or request
        it.
        """
        queue = self._by_name.get(log.name)
        if queue is None:
            return  # an alias hides the queue
        line = queue.line
        if log.open_transfers and self.packs.waits_for(log):
            log.blocks_transfers = True
        self.memory.weigh(queue)
        if line.on_disk:
            self.read_ahead.queue_if_room(queue)
        tail = line.tail
        if type(tail) is ReadBehind and tail.unreadable:
            report_and_quarantine(self._report, queue.name, log.segments, tail.unreadable)
        sealed_bytes = log.segments.sealed_bytes
        is_large = log.policy_bytes + sealed_bytes >= log.policy_threshold_bytes
        # A queue with items may keep a single file of up to growth_max_bytes. Below that, skip the policy, which is
        # slow.
        if is_large and (sealed_bytes or log.policy_bytes > log.growth_max_bytes or not len(line)):
            self._act(queue, log, now_ms)

    def reclaim(self, room: int, share: Share, now_ms: int) -> int:
        """Shrink the journals with the most bytes that have been read, ignoring their settings, because the disk is
        full. Do only rewrites that fit into `room` bytes, and return how much of `room` is left. Called each second;
        takes little longer than `share`. Raises JournalFailure.
        """
        return self.reclaim_of(list(self.queues.all()), room, share, now_ms)

    def reclaim_of(self, queues: list[Queue], room: int, share: Share, now_ms: int) -> int:
        """Shrink the journals of these queues, as `reclaim` does."""
        candidates = [(*self.reclaimable(queue), queue) for queue in queues]
        candidates.sort(key=lambda candidate: candidate[0], reverse=True)
        for read_bytes, kept, queue in candidates[:RECLAIMED_AT_ONCE]:
            log = queue.journal
            if share.is_spent or not read_bytes or not isinstance(log, Log):
                break
            if self.packs.rests(log, now_ms):
                continue  # it would only be rotated again and again
            if kept <= room:
                room -= kept
                self._shrink(queue, log, JournalStep.REWRITE, now_ms)
            else:
                room -= self._pack_passed(queue, log, room, now_ms)
        return room

    def reclaimable(self, queue: Queue) -> tuple[int, int]:
        """Return roughly how many bytes of the queue's Kestrel journal have been read, and how many must be written to
        free them. Return (0, 0) if that is not worth it, or impossible now.
        """
        log = queue.journal
        if not isinstance(log, Log) or self.packs.has(log) or log.open_transfers or not log.is_written:
            return 0, 0
        total = log.current_bytes + log.archived_bytes
        kept = queue.line.bytes + 2 * STAND_IN_BYTES * len(queue.line) + OPEN_READ_BYTES * len(queue.open_reads)
        kept += queue.resting_bytes + OPEN_READ_BYTES * len(queue.resting)
        is_worth = total - kept >= RECLAIMED_BYTES_MIN and saves_half(total, kept)
        return (total - kept, kept) if is_worth else (0, 0)

    def _pack_passed(self, queue: Queue, log: Log, room: int, now_ms: int) -> int:
        """Pack as many of the files that the reader has passed as take at most `room` bytes. Return roughly how many
        bytes the pack takes.
        """
        read = queue.line.left + len(queue.line.in_memory)
        best: LogSegment | None = None
        covered_bytes = packed_bytes = 0
        for segment in log.segments.sealed:
            if not segment.checkpoint or segment.checkpoint.end > read or self._packed_bytes(queue, segment) > room:
                break
            covered_bytes += segment.size
            if saves_half(covered_bytes, self._packed_bytes(queue, segment)):
                best, packed_bytes = segment, self._packed_bytes(queue, segment)
        if best is not None:
            self.packs.want(log, best, now_ms)
        return packed_bytes

    def run_deferred_step(self, log: Log, now_ms: int) -> None:
        """Take a step that was deferred until no transfer from or to `log` was running. No transfer begins during the
        call, and everything is written. Raises JournalFailure.
        """
        if self.packs.waits_for(log):
            self.packs.run_slice(now_ms)
        else:
            self._look_again(log, now_ms)

    def _look_whether_empty(self, log: Log, now_ms: int) -> None:
        """Start over if the queue is empty and a pack of `log` prevented that before. Do nothing else: no request has
        changed anything meanwhile, so a journal that is still too large now would be packed again and again.
        """
        queue = self._unchanged(log)
        if queue is None or len(queue.line) or log.open_transfers or self.packs.has(log):
            return
        if next_step(log.usage(0, 0, 0), queue.config, now_ms) is JournalStep.START_OVER:
            self._shrink(queue, log, JournalStep.START_OVER, now_ms)

    def _look_again(self, log: Log, now_ms: int) -> None:
        """Try a failed step again. Nothing has been written since it failed."""
        log.next_look_seq = 0
        queue = self._unchanged(log)
        if queue is not None:
            self._act(queue, log, now_ms)

    def _unchanged(self, log: Log) -> Queue | None:
        """Return the queue of `log` if the policy has to decide and no write is pending; None otherwise. After a
        pending write `look_after` is called anyway.
        """
        queue = self.queues.by_name.get(log.name)
        is_large = log.policy_bytes + log.segments.sealed_bytes >= log.policy_threshold_bytes
        return queue if queue is not None and queue.journal is log and is_large and log.is_written else None

    def _act(self, queue: Queue, log: Log, now_ms: int) -> None:
        line = queue.line
        step = next_step(log.usage(len(line), line.bytes, line.on_disk), queue.config, now_ms)
        if step in (JournalStep.ROTATE, JournalStep.CHECKPOINT):
            self.group.ask_for_sync(log)
        elif step in (JournalStep.START_OVER, JournalStep.REWRITE) and not self.packs.has(log):
            if not log.open_transfers:
                self._shrink(queue, log, step, now_ms)
                return
            log.blocks_transfers = True
        if step is not JournalStep.START_OVER and line.left + len(line.in_memory) >= log.next_look_seq:
            self._consider(queue, log, now_ms)

    def _shrink(self, queue: Queue, log: Log, step: JournalStep, now_ms: int) -> None:
        """Replace the files by the state of the queue: in one step if that is small, else by a pack."""
        held = queue.line.bytes + sum([len(taken.item.data) for taken in JournalView(queue).under_way.values()])
        if log.segments.sealed or held > ON_THE_SPOT_BYTES:
            log.seal_wanted = True
            self._sealing[log] = None
            self.group.ask_for_sync(log)
        elif not self.rewrite(queue, now_ms):
            return
        if starts_delay(step, held, queue.config):
            log.rewritten_ms = now_ms

    def rewrite(self, queue: Queue, now_ms: int) -> bool:
        """Replace a queue's journal by its state, in one step. Return False if a thread is working on its files, if
        there is no room, or if the system refuses it, which is reported.
        """
        log = queue.journal
        if not isinstance(log, Log):
            return True
        if self.is_at_work(queue):
            return False
        if not queue.line.load_all():
            return False  # unreadable items must not be left out
        self._let_go(log)
        try:
            log.rewrite(*JournalView(queue).snapshot(), now_ms)
        except OSError as error:
            if error.errno in BROKEN_ERRNOS:
                raise self.group.failure(f"cannot rewrite {log.path}", error) from error
            self._report(Level.WARNING, "journal.rewrite_failed", queue=queue.name, why=str(error))
            return False
        finally:
            self.packs.note_unfinished(log)
        return True

    def _consider(self, queue: Queue, log: Log, now_ms: int) -> None:
        """Request a pack of the files that the reader has passed, if that is worth it. Called after the reader has
        passed the end of a file.
        """
        read = queue.line.left + len(queue.line.in_memory)
        passed = [segment for segment in log.segments.sealed if segment.checkpoint and segment.checkpoint.end <= read]
        log.next_look_seq = next(
            (
                segment.checkpoint.end
                for segment in log.segments.sealed
                if segment.checkpoint and segment.checkpoint.end > read
            ),
            read + 1,
        )
        total_bytes = log.current_bytes + log.archived_bytes
        best: LogSegment | None = None
        covered_bytes = 0
        known = 0, 0  # covered and packed bytes of the best choice
        for segment in passed:
            covered_bytes += segment.size
            packed_bytes = self._packed_bytes(queue, segment)
            is_worth = is_worth_packing(covered_bytes, packed_bytes, total_bytes, queue.config)
            if is_worth and saves_half(covered_bytes - known[0], packed_bytes - known[1]):
                best, known = segment, (covered_bytes, packed_bytes)
        if best is not None:
            self.packs.want(log, best, now_ms)

    def _packed_bytes(self, queue: Queue, segment: LogSegment) -> int:
        """Return roughly how large a pack up to the end of `segment` would be."""
        mark, line = segment.checkpoint, queue.line
        assert mark is not None
        under_way = OPEN_READ_BYTES * (len(mark.xids) + len(mark.heads))
        stand_ins = STAND_IN_BYTES * max(0, min(line.left, mark.end) - mark.left)
        waiting = max(0, mark.end - max(line.left, mark.left))
        average = line.memory_bytes // max(1, line.memory_items) + STAND_IN_BYTES
        return under_way + stand_ins + waiting * average
