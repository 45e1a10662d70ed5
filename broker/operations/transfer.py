"""Operations that carry items from one queue to another, many at a time, so that no crash loses or doubles one.

The items of a slice are set aside under transactions of their own. A frame of the operation's file identifies them and
says where their copies will be. When that frame is durable, the copies are added to the other queue; when those are
durable, the items are removed; when the removals are durable, the slice is settled. So a slice takes three syncs, which
it shares with clients and with the slices behind it. After a crash the frames are read like the intents of single
transfers (undo_recovery.py).

A queue without a journal needs no such order: a crash loses all of it.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import deque
from collections.abc import Callable
from enum import Enum
from functools import partial

from msgspec import Struct

from staniel.broker.counters import ServerCounters
from staniel.broker.operations.running import LOOK_AGAIN_MS, Operation, Operations
from staniel.broker.operations.undo import OperationHead, UndoRecord
from staniel.broker.share import Share
from staniel.broker.transfers import ASIDE_BYTES_MAX
from staniel.journal.group_commit import Deferrable, GroupMember
from staniel.journal.journals import Pinned, append_log, next_write_position, removal_log
from staniel.journal.kestrel.log import Log
from staniel.journal.libkestrel.reader import ReaderLog
from staniel.journal.libkestrel.writer import StreamWriter
from staniel.journal.operation_file import OperationFile
from staniel.journal.undo_file import Back, FileNumber, Head, Moving, file_number, frame
from staniel.queues.item import Delivery, Item
from staniel.queues.queue import Queue, QueueState
from staniel.queues.stream.stream import StreamLine

ITEMS_PER_SLICE = 128  # each step of one takes less than a millisecond
BYTES_PER_SLICE = 256 << 10
UNDER_WAY_MAX = 32  # slices
UNDER_WAY_BYTES_MAX = ASIDE_BYTES_MAX - BYTES_PER_SLICE  # copies in memory in addition to their line
OVERHEAD_BYTES = 512  # at most, of an item's part of a frame, its copy's head and its records in the source
STEPS_PER_TURN = 4  # steps of a slice, fewer if the turn's share is used up before
TURN_NS = 1_000_000
TURN_NS_BESIDE_CLIENTS = 700_000
CLIENTS_MS = 100  # after a client's last request, another one may follow within this time
WORK_PER_ITEM = 20  # of a step, as TimerOwner.on_timer counts


class ClientsBeside:
    """Watches whether clients put and get while an operation is running."""

    def __init__(self, counters: ServerCounters) -> None:
        self._counters = counters
        self._seen_requests = 0
        self._until_ms = 0

    def are_there(self, now_ms: int) -> bool:
        counters = self._counters
        requests = counters.cmd_set + counters.cmd_get
        if requests != self._seen_requests:
            self._seen_requests, self._until_ms = requests, now_ms + CLIENTS_MS
        return now_ms < self._until_ms


class Bound:
    """The end of a line at the moment when an operation began. The operation is about the items before it."""

    def __init__(self, queue: Queue) -> None:
        line = queue.line
        self._last = line.stream.last_id if isinstance(line, StreamLine) else line.end

    def holds_head(self, queue: Queue) -> bool:
        """Return True if the head was there when the operation began. The head must be in memory."""
        line = queue.line
        if isinstance(line, StreamLine):
            taken = line.peek()
            return taken is not None and taken.id <= self._last
        return line.head_seq < self._last

    @property
    def end_seq(self) -> int:
        """The first seq behind the bound, in a line that has items of its own."""
        return self._last

    def count(self, queue: Queue) -> int:
        """Return how many items before the bound may still be in the line: never fewer than there are."""
        line = queue.line
        last = line.next_id - 1 if isinstance(line, StreamLine) else line.left
        return max(0, self._last - last) + line.memory_items + len(queue.resting)


class SliceStage(Enum):
    NOTED = "noted"  # its frame is not durable yet
    FRAMED = "framed"  # its frame is durable, and the copies may be added
    SETTLED = "settled"  # its removals are durable


class SliceUnderWay(Struct, eq=False):
    """Items that were set aside, and their copies, on their way from `source` to the queue `target`. `ends`: files that
    must not be rewritten until the slice is settled. `sent`: how many copies were added; the items without a copy are
    back in their queue. `behind`: the end of the copies, as (after, at) of a Moving. `number`: of the slice in the file
    of a move.
    """

    source: Queue
    target: str
    taken: list[Delivery]
    copies: list[Item]
    size: int
    ends: Pinned
    sent: int = 0
    behind: tuple[FileNumber, int] = (0, 0)
    number: int = 0
    stage: SliceStage = SliceStage.NOTED


Step = Callable[[SliceUnderWay, int], None]


class TransferOperation(Operation):
    """The common part of a move and its undo. `source` and `next_target` are the queues of the next slice; slices under
    way may have others.
    """

    def __init__(self, operations: Operations, head: OperationHead, source: Queue, target: str, now_ms: int) -> None:
        super().__init__(operations, head, source.name, target, now_ms)
        self.source = source
        self.next_target = target
        self._announced: dict[str, None] = {}  # targets of slices
        self.record: UndoRecord | None = None
        self.ended_early = ""
        self.is_target_full = False
        self._file: OperationFile | None = None
        self._under_way: deque[SliceUnderWay] = deque()
        self._under_way_bytes = 0
        self._to_copy: deque[SliceUnderWay] = deque()
        """Slices whose copies are not ready to be added. Copies are added in the order of their frames, because
        recovery searches for them in that order; a later frame may be durable first.
        """
        self._ready: deque[tuple[Step, SliceUnderWay]] = deque()
        self._is_all_begun = False  # no more items are set aside
        self._unnoted = 0  # settled slices whose frame is not durable yet
        self._is_noting_kept = False  # items of a slice stay, and the frame that says so is not durable yet
        self._behind_kept: list[SliceUnderWay] = []  # no copy of these is added until then
        self._is_waiting = False  # until a slice under way is settled
        self._is_reading = False  # until a task has ended
        self._is_closing = False
        self._clients = ClientsBeside(self.tools.clients.counters)
        self._is_patient = False  # while clients put and get, whose syncs come first
        self._defers: dict[Deferrable, None] = {}  # journals of the queues of all its slices

    # a turn

    def on_timer(self, now_ms: int) -> int:
        is_beside_clients = self._is_patient = self._clients.are_there(now_ms)
        group = self.tools.group
        group.defers = self._defers if is_beside_clients else {}
        try:
            work = self._take_steps(
                Share(self.tools.timers.clock, TURN_NS_BESIDE_CLIENTS if is_beside_clients else TURN_NS), now_ms
            )
        finally:
            group.defers = {}
        if self.ended_ms:
            return work
        if self._is_all_begun and not self._under_way:
            self._close(now_ms)
        elif self._ready or self._may_begin():
            if not work:
                group.include_patient()  # the operation waits for another change, no longer patiently
            self.tools.timers.soon(self)
        elif not self._under_way:
            self.tools.timers.set(self, now_ms + LOOK_AGAIN_MS)
        return work

    def _take_steps(self, share: Share, now_ms: int) -> int:
        """Do as many steps as the turn has time for. Return the work done, as TimerOwner.on_timer counts."""
        work = 0
        for _ in range(STEPS_PER_TURN):
            if self.ended_ms:
                break
            if self._ready:
                work += self._advance_slices(now_ms) * WORK_PER_ITEM
            elif self._is_all_begun or not self._may_begin():
                break
            elif self._file is not None and self._file.is_lost:
                self.stop_sending(f"another program has removed {self._file.path}", now_ms)
            else:
                work += self._begin_slice(now_ms) * WORK_PER_ITEM
            if share.is_spent:
                break
        return work

    slices_per_step = 1  # more where slices are small
    keeps_times = False  # of the items, in their copies

    def _advance_slices(self, now_ms: int) -> int:
        """Do the next step of one slice, or of several small ones that are together no larger than one. Return how many
        items they have.
        """
        count = size = 0
        for _ in range(self.slices_per_step):
            step, slice_ = self._ready.popleft()
            step(slice_, now_ms)
            count, size = count + len(slice_.taken), size + slice_.size
            if not self._ready or count >= ITEMS_PER_SLICE or size >= BYTES_PER_SLICE:
                break
        return count

    def _may_begin(self) -> bool:
        if self._is_all_begun or self._is_waiting or self._is_reading or self.operations.is_stopping:
            return False
        if len(self._under_way) >= UNDER_WAY_MAX or self._under_way_bytes >= UNDER_WAY_BYTES_MAX:
            return False
        return self.is_cancelled or not self._is_held_back()  # a cancelled one ends instead

    def _is_held_back(self) -> bool:
        """Return True if slices under way must end first: a journal is about to be rewritten, a queue is about to be
        deleted, or another operation is sending copies to the same queue.
        """
        return self.tools.transfers.is_held_back(self.source) or self._must_wait_for(self.next_target)

    def _must_wait_for(self, name: str) -> bool:
        target, transfers = self.tools.queues.find(name), self.tools.transfers
        may_announce = transfers.may_announce(name, self, keeps_times=self.keeps_times)
        return not may_announce or (target is not None and transfers.is_held_back(target))

    @abstractmethod
    def _begin_slice(self, now_ms: int) -> int:
        """Set some items aside and `send` them, or call `stop_sending`. Return how many items were examined."""

    def stop_sending(self, why: str, now_ms: int) -> None:
        """Stop setting items aside because of `why`; the operation ends when the slices under way are settled."""
        self.ended_early = self.ended_early or why
        self._is_all_begun = True
        self.tools.timers.soon(self)

    # a slice

    def send(self, taken: list[Delivery], copies: list[Item], target: Queue, describe: Describe, now_ms: int) -> None:
        """Send `taken` from `source`; their `copies` will be added to `target`."""
        size = sum([len(delivery.item.data) for delivery in taken])
        own, log = removal_log(self.source.journal), append_log(target.journal)
        ends = [end for end in (own, log) if end is not None]
        slice_ = SliceUnderWay(self.source, target.name, taken, copies, size, ends)
        self._under_way.append(slice_)
        self._to_copy.append(slice_)
        self._under_way_bytes += size
        for end in ends:
            end.open_transfers += 1
            if isinstance(end, Log):
                self._defers[end] = None
        if self._file is None:
            self._framed(slice_, now_ms)
            return
        self.tools.transfers.announce(target.name, self)
        self._announced[target.name] = None
        slice_.number = len(self.record.content.slices) if self.record is not None else 0
        self.write(describe(*noted_position(log)))
        came_by = append_log(self.source.journal)
        if came_by is not None and came_by.transfers_in:
            self.tools.group.ask_for_sync(came_by)  # an item that has just come is also still in the queue that it left
        self.after_file(partial(self._framed, slice_), now_ms)

    def after_file(self, then: Callable[[int], None], now_ms: int) -> None:
        """Call `then` when all frames that `write` has added are durable."""
        assert self._file is not None
        self._after(self._file, then)

    def _after(self, member: GroupMember, then: Callable[[int], None]) -> None:
        self.tools.group.call_when_durable(member, then, patiently=self._is_patient)

    def write(self, head: Head) -> None:
        """Add a frame to the file."""
        if self._file is not None and self.record is not None:
            data = frame(head)
            self.record.content.apply(head, self.record.content.end, len(data))
            self._file.append(data)

    def _framed(self, slice_: SliceUnderWay, now_ms: int) -> None:
        """Add the copies of a slice whose frame is durable, and of those behind it that waited for it."""
        slice_.stage = SliceStage.FRAMED
        while self._to_copy and self._to_copy[0].stage is SliceStage.FRAMED:
            self._ready.append((self._copy, self._to_copy.popleft()))
        self.tools.timers.soon(self)

    def _copy(self, slice_: SliceUnderWay, now_ms: int) -> None:
        if self._is_noting_kept:  # recovery would take equal copies of this slice for those of the items that stay
            self._behind_kept.append(slice_)
            return
        target = self.tools.queues.find(slice_.target)
        if target is None or slice_.source.state is QueueState.CLOSED:
            self.stop_sending(f"{slice_.source.name} or {slice_.target} is deleted", now_ms)
            target = None
        if target is not None:
            slice_.sent = self._add(slice_, target, now_ms)
        if self._file is not None:
            self.tools.transfers.came(now_ms)
        log = append_log(target.journal) if target is not None and slice_.sent else None
        if log is not None:
            slice_.behind = noted_position(log)
            log.transfers_in += 1
        if slice_.sent == len(slice_.taken):
            self._await_copies(slice_, log, now_ms)
        elif self._file is None:
            self._hand_back(slice_, log, now_ms)
        else:
            self.note_kept(slice_)
            self._is_noting_kept = True
            self.after_file(partial(self._kept_noted, slice_, log), now_ms)

    @abstractmethod
    def note_kept(self, slice_: SliceUnderWay) -> None:
        """Write that the items behind the first `sent` stay in their queue. Until that is durable they must not be
        taken back: recovery would take the ended transaction of such an item for a removal, and an equal item for its
        copy.
        """

    def _kept_noted(self, slice_: SliceUnderWay, log: Log | StreamWriter | None, now_ms: int) -> None:
        """Go on with the slices behind `slice_`. The frame that says which of its items stay is durable."""
        self._is_noting_kept = False
        # In front of those that have become ready meanwhile, which are behind them in the file.
        self._ready.extendleft((self._copy, behind) for behind in reversed(self._behind_kept))
        self._behind_kept.clear()
        self.tools.timers.soon(self)
        self._hand_back(slice_, log, now_ms)

    def _hand_back(self, slice_: SliceUnderWay, log: Log | StreamWriter | None, now_ms: int) -> None:
        """Take back the items that stay in their queue."""
        self._take_back(slice_, now_ms)
        self._await_copies(slice_, log, now_ms)

    def _await_copies(self, slice_: SliceUnderWay, log: Log | StreamWriter | None, now_ms: int) -> None:
        """Continue when the copies in `log` are durable, or now if `log` is None."""
        if log is not None:
            self.after_copies(log, partial(self._copied, slice_, log), now_ms)
        else:
            self._remove(slice_, now_ms)

    def after_copies(self, log: Log | StreamWriter, then: Callable[[int], None], now_ms: int) -> None:
        self._after(log, then)

    def _add(self, slice_: SliceUnderWay, target: Queue, now_ms: int) -> int:
        """Add the copies that there is room for. Return how many were added."""
        if not (self.obeys_limits and target.is_bounded):
            target.add_all(slice_.copies, now_ms)
            return len(slice_.copies)
        for count, copy in enumerate(slice_.copies):
            if not target.has_room(copy, now_ms):
                self.is_target_full = True
                self.stop_sending(f"{slice_.target} is full (max_items or max_size)", now_ms)
                return count
            target.add(copy, now_ms, forced=True)
        return len(slice_.copies)

    obeys_limits = True  # of the target

    def _take_back(self, slice_: SliceUnderWay, now_ms: int) -> None:
        """Make the items behind the first `sent` the head of the source again."""
        for delivery in reversed(slice_.taken[slice_.sent :]):
            slice_.source.take_back_unseen(delivery)
        slice_.source.time_out(now_ms)  # a waiting reader gets it

    def _copied(self, slice_: SliceUnderWay, log: Log | StreamWriter, now_ms: int) -> None:
        log.transfers_in -= 1
        self._ready.append((self._remove, slice_))
        self.tools.timers.soon(self)

    def _remove(self, slice_: SliceUnderWay, now_ms: int) -> None:
        """Remove the items of a slice from the source. Their copies are durable."""
        slice_.source.release_all(slice_.taken[: slice_.sent])
        own = removal_log(slice_.source.journal)
        if own is None:
            self._mark_settled(slice_, now_ms)
        else:
            self.after_removal(own, partial(self._mark_settled, slice_), now_ms)

    def after_removal(self, log: Log | ReaderLog, then: Callable[[int], None], now_ms: int) -> None:
        self._after(log, then)

    def _mark_settled(self, slice_: SliceUnderWay, now_ms: int) -> None:
        """Mark a slice as settled. Its removals are durable. Slices are counted as done in their order."""
        slice_.stage = SliceStage.SETTLED
        settled: list[SliceUnderWay] = []
        while self._under_way and self._under_way[0].stage is SliceStage.SETTLED:
            settled.append(self._under_way.popleft())
        for slice_ in settled:
            self._under_way_bytes -= slice_.size
            self.advance(self.done + slice_.sent, now_ms)
            self.note_settled(slice_)
        ends = [end for slice_ in settled for end in slice_.ends]
        if self._file is None:
            self.tools.transfers.unpin(ends)
        elif settled:
            self._unnoted += 1
            self.after_file(partial(self._noted, ends), now_ms)
        self.tools.timers.soon(self)

    def _noted(self, ends: Pinned, now_ms: int) -> None:
        """Let the journals of settled slices be rewritten. The file's frames about them are durable."""
        self._unnoted -= 1
        self.tools.transfers.unpin(ends)
        if not self._under_way and not self._unnoted:
            self._end_announcing()

    def _end_announcing(self) -> None:
        for target in self._announced:
            self.tools.transfers.end_announcing(target, self)
        self._announced.clear()

    @abstractmethod
    def note_settled(self, slice_: SliceUnderWay) -> None:
        """Write that a slice is settled."""

    # the end

    def _close(self, now_ms: int) -> None:
        if self._is_closing:
            return
        self._is_closing = True
        if self._file is None or self.record is None:
            self.close(now_ms)
            return
        for head in self.last_frames():
            self.write(head)
        self.after_file(self._close_file, now_ms)

    @abstractmethod
    def last_frames(self) -> list[Head]:
        """Return the frames with which the file ends."""

    def _close_file(self, now_ms: int) -> None:
        self._end_announcing()
        if self._file is not None:
            self._file.close()
        self.close(now_ms)

    @abstractmethod
    def close(self, now_ms: int) -> None:
        """End the operation, whose file is complete and closed."""

    def stop(self, now_ms: int) -> bool:
        while self._ready:
            step, slice_ = self._ready.popleft()
            step(slice_, now_ms)
        if self._under_way or self._unnoted or self._is_closing:
            return False
        if self._file is not None and not self._file.is_closed:
            self._file.close()
        return True


def noted_position(log: Log | StreamWriter | None) -> tuple[FileNumber, int]:
    """Return the place where the next copy will be written, as (after, at) of a Moving. For a queue without a journal
    return (0, 0).
    """
    if log is None:
        return 0, 0
    after, at = next_write_position(log)
    return file_number(after), at


Describe = Callable[[FileNumber, int], Moving | Back]
"""A function that returns the frame of a slice whose copies will be behind the given place."""
