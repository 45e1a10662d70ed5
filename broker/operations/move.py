"""Moves of items from one queue to another, for an operator: the first `count` of the items that wait when the move
begins.

A move is not a put: it has no fan-out, and the target is one queue, never an alias. The undo file identifies the
copies, so that an undo finds them again (moved_back.py).
"""

from __future__ import annotations

from functools import partial
from zlib import crc32

from staniel.broker import access
from staniel.broker.operations.running import CANCELLED, CUT_OFF, OperationRequest, Operations
from staniel.broker.operations.transfer import (
    BYTES_PER_SLICE,
    ITEMS_PER_SLICE,
    OVERHEAD_BYTES,
    WORK_PER_ITEM,
    Bound,
    SliceUnderWay,
    TransferOperation,
)
from staniel.broker.operations.undo import OperationHead, UndoRecord
from staniel.broker.selection.chosen import PASSED_PER_TURN, RETURNED_PER_TURN, Head
from staniel.journal.journals import Pinned, append_log, removal_log
from staniel.journal.operation_file import OperationFile
from staniel.journal.undo_file import FileNumber, Kept, Moving, MovingItem, Over, Settled, digest_of
from staniel.journal.undo_file import Head as FrameHead
from staniel.queues.interfaces import Admission, Reason
from staniel.queues.item import Delivery, Item, Numbered, item_with, new_item, past_bytes
from staniel.queues.line import PlainLine
from staniel.queues.names import name_error
from staniel.queues.queue import Queue, QueueState
from staniel.queues.registry import QueueRefused, Queues, TryNextTurn
from staniel.queues.stream.stream import StreamLine

HELD_BACK_MAX = 20


def move_error(queues: Queues, source: str, target: str) -> str:
    """Return why items cannot be moved between queues of these names; "" if they can."""
    for name in (source, target):
        if queues.find(name) is None and (why := name_error(name)):
            return why
        if name in queues.aliases:
            return f"{name} is an alias, name a queue"
    return "the two queues are the same" if source == target else ""


class RunningMove(TransferOperation):
    """A move. It ends early when the source has no live item left, when the target is full, or when one of the two may
    not be used any more.
    """

    def __init__(
        self,
        operations: Operations,
        request: OperationRequest,
        source: Queue,
        target: str,
        now_ms: int,
        record: UndoRecord | None = None,
    ) -> None:
        """Begin a move. `record` is given if the move continues after a restart. Raises OSError if its file cannot be
        opened.
        """
        chosen = self._chosen = request.chosen
        self._head = Head.NONE
        self._pinned: Pinned = []
        self._times_held_back = 0
        self._targets: dict[str, Queue] = {}  # of the slice that is set aside
        self._unsent = 0  # items that were set aside in this turn, and are not in a slice yet
        self.takes_paused = request.undoably  # a pause is for clients, and so for memcache's `move` (docs/protocol.md)
        present = source.line.present if chosen is None else chosen.count
        self.left = present if request.count is None else min(request.count, present)
        number = operations.tools.audit.next_id() if record is None else record.id
        head = OperationHead(number, request.name, self.left, request.by)
        super().__init__(operations, head, source, target, now_ms)
        self.sets_aside_of = source if chosen is not None else None
        self._bound = Bound(source)
        self._is_kept = request.undoably and self.tools.undos.is_on
        if record is not None:
            self._file = OperationFile(self.tools.group, self.tools.undos.folder, record.path)
            self.record, record.holder = record, self
            self.done = record.content.counts()[0]
            self.total = self.done + self.left
        elif self.left:
            self._open_file(now_ms)
        self.begin(now_ms, terms=chosen.terms if chosen is not None else "")
        self.tools.timers.soon(self)
        if record is not None and record.content.began.is_chosen:
            self.stop_sending(CUT_OFF, now_ms)

    def _open_file(self, now_ms: int) -> None:
        """Open the file of the move. If the file has no room, each item is sent by itself, and the move cannot be
        undone.
        """
        undos = self.tools.undos
        if not undos.can_note(self.left, self.target):
            return
        try:
            record = undos.make_for_move(
                self.head, self.source, self.target, now_ms, is_kept=self._is_kept, is_chosen=self._chosen is not None
            )
            self._file = OperationFile(self.tools.group, undos.folder, record.path)
        except OSError:
            return
        self.record, record.holder = record, self
        undos.add(record, now_ms)
        self.write(record.content.began)

    # what is set aside

    def on_timer(self, now_ms: int) -> int:
        chosen = self._chosen
        if chosen is None:
            return super().on_timer(now_ms)
        chosen.begin_turn()
        if chosen.aside and not self._under_way and self.tools.transfers.is_held_back(self.source):
            # A rewrite or deletion of this queue needs all of its items. Return them, and start over afterwards.
            if self._give_back(now_ms):
                self._begin_again(now_ms)
            self.tools.timers.soon(self)
            return RETURNED_PER_TURN * WORK_PER_ITEM
        work = super().on_timer(now_ms)
        if chosen.aside and not self._pinned:
            # A deletion must also remove the items set aside. Pin the queue, so that a deletion waits until they are
            # back.
            self._pinned = self.tools.transfers.pin(self.source)
        return work

    def _begin_again(self, now_ms: int) -> None:
        self._times_held_back += 1
        if self._times_held_back > HELD_BACK_MAX:  # passing items makes the journal grow, which may rewrite it again
            self.stop_sending(f"the journal of {self.source.name} was rewritten {HELD_BACK_MAX} times", now_ms)
        if (log := removal_log(self.source.journal)) is not None:
            self.tools.group.ask_for_sync(log)  # waiting transfers are retried after a sync

    def _give_back(self, now_ms: int) -> bool:
        """Give back some of the items set aside, or all of them if the server stops; return True if all are back."""
        chosen = self._chosen
        is_stopping = self.operations.is_stopping
        if chosen is None or chosen.give_back(
            self.source, now_ms, len(chosen.aside) if is_stopping else RETURNED_PER_TURN
        ):
            self.tools.transfers.unpin(self._pinned)
            self._pinned = []
            return True
        return False

    @property
    def returning(self) -> int:
        chosen, is_ending = self._chosen, self._is_all_begun and not self._under_way
        return len(chosen.aside) if chosen is not None and is_ending else 0

    def _take_back(self, slice_: SliceUnderWay, now_ms: int) -> None:
        if self._chosen is None:
            super()._take_back(slice_, now_ms)
        else:
            self._chosen.keep(slice_.taken[slice_.sent :])

    # a slice

    def _begin_slice(self, now_ms: int) -> int:
        if self.is_cancelled and self.left:
            self.stop_sending(CANCELLED, now_ms)
            return 0
        if not self.left and self.record is not None:  # continued after a restart: the target may be deleted
            self.stop_sending(self._why_less, now_ms)
            return 0
        try:
            count = self._send_some(now_ms)
        except TryNextTurn:
            return 0
        except QueueRefused as refused:
            self.stop_sending(refused.why, now_ms)
            return 0
        if count:
            return count
        if self._head is Head.MORE:
            return PASSED_PER_TURN // WORK_PER_ITEM  # the next turn continues
        if self._head is Head.TOO_FAR and self._chosen is not None:
            self.stop_sending(self._chosen.too_far, now_ms)
        elif not self._is_waiting and not self.source.is_unsettled:
            full = f"{self.next_target} is full (max_items or max_size)" if self.is_target_full else ""
            self.stop_sending(full or access.trouble(self.source) or self._why_less, now_ms)
        return 0

    @property
    def _why_less(self) -> str:
        return self._chosen.why_left if self._chosen is not None else ""

    def _send_some(self, now_ms: int) -> int:
        """Set a slice aside and send it. Return its number of items. Raises QueueRefused and TryNextTurn."""
        self._check_source()
        self._targets = self._first_targets(now_ms)
        slices = self._set_aside_next(now_ms)
        self._unsent = count = sum([len(taken) for taken in slices.values()])
        for target, taken in slices.items():
            self.left -= len(taken)
            self._unsent -= len(taken)
            self._send(taken, target, now_ms)
        return count

    def _first_targets(self, now_ms: int) -> dict[str, Queue]:
        """Check the targets that are known before the items are. Raises QueueRefused and TryNextTurn."""
        return {self.target: self._check_target(self.target, now_ms)}

    def _target_of(self, head: Item, now_ms: int) -> Queue:
        """Return the target of the head item. Raises QueueRefused and TryNextTurn."""
        return self._targets[self.target]

    def _check_source(self) -> None:
        """Check the source again, which may have changed since the last slice. Raises QueueRefused."""
        source = self.source
        if source.state is QueueState.CLOSED:
            raise QueueRefused(f"{source.name} is deleted", client=False)
        if source.name in self.tools.queues.aliases:
            raise QueueRefused(f"{source.name} is an alias now", client=False)
        if why := access.write_refusal(self, None) or access.read_refusal(self, source):
            raise QueueRefused(why, client=False)

    def _check_target(self, name: str, now_ms: int) -> Queue:
        """Return the target, created if necessary. Raises QueueRefused and TryNextTurn."""
        queues = self.tools.queues
        if name in queues.aliases:
            raise QueueRefused(f"{name} is an alias now", client=False)
        target = queues.make_for_client(name, now_ms)
        if why := access.write_refusal(self, target):
            raise QueueRefused(why, client=False)
        queues.begin_to_take(target, now_ms)
        return target

    def _set_aside_next(self, now_ms: int) -> dict[Queue, list[Delivery]]:
        """Set the next items aside, by target. Raises QueueRefused and TryNextTurn before any item is set aside."""
        target = self._targets.get(self.target)
        if target is not None and (run := self._set_aside_run(target, now_ms)):
            self._head, self.is_target_full = Head.CHOSEN, False
            return {target: run}
        return self._set_aside_singly(now_ms)

    def _set_aside_run(self, target: Queue, now_ms: int) -> list[Delivery]:
        """Set the next items aside together. Return [] if one of them needs a check of its own, or if there are
        none.
        """
        source = self.source
        is_plain = self._chosen is None and not target.is_bounded and isinstance(source.line, PlainLine)
        if not is_plain or not self.tools.group.admits(2 * BYTES_PER_SLICE + ITEMS_PER_SLICE * OVERHEAD_BYTES):
            return []
        item_bytes_max = min(target.config.max_item_bytes, BYTES_PER_SLICE)
        count_max, end_seq = min(self.left, ITEMS_PER_SLICE), self._bound.end_seq
        return source.open_run_for_transfer(
            count_max, BYTES_PER_SLICE, item_bytes_max, end_seq, now_ms, self.takes_paused
        )

    def _set_aside_singly(self, now_ms: int) -> dict[Queue, list[Delivery]]:
        """Set the next items aside one by one, because each may have another target, or find no room."""
        source, group = self.source, self.tools.group
        slices: dict[Queue, list[Delivery]] = {}
        count = size = 0
        items_max = min(self.left, ITEMS_PER_SLICE)
        self.is_target_full = False
        while count < items_max and size < BYTES_PER_SLICE:
            self._head = self._reach_head(now_ms)
            if self._head is not Head.CHOSEN:
                break
            head = source.line.head()
            assert head is not None
            try:
                target = self._target_of(head, now_ms)
                if not group.admits(size + (OVERHEAD_BYTES * (count + 1)) + len(head.data)):
                    raise QueueRefused(access.disk_full(group), client=False)
            except (QueueRefused, TryNextTurn):
                if not count:
                    raise
                break  # the next slice gets it
            taken = slices.get(target, [])
            if not self._has_room(target, head, taken, now_ms):
                self.is_target_full = True
                break
            size += len(head.data)
            count += 1
            taken.append(
                source.open_head_for_transfer() if self._chosen is None else self._chosen.cross_off(source, head)
            )
            slices[target] = taken
        return slices

    def _has_head(self, now_ms: int) -> bool:
        return self.source.has_live_head(now_ms, self.takes_paused) and self._bound.holds_head(self.source)

    def _reach_head(self, now_ms: int) -> Head:
        """Skip to the next item to move. Tell whether there is one at the head."""
        if self._chosen is not None:
            return self._chosen.reach(self.source, partial(self._has_head, now_ms))
        return Head.CHOSEN if self._has_head(now_ms) else Head.NONE

    def _has_room(self, target: Queue, item: Item, taken: list[Delivery], now_ms: int) -> bool:
        """Return True if the target also accepts this item, after `taken` and the items under way."""
        if not target.is_bounded and len(item.data) <= target.config.max_item_bytes:
            return True
        config, line = target.config, target.line
        ahead = [slice_ for slice_ in self._under_way if not slice_.sent and slice_.target == target.name]
        count = len(taken) + sum([len(slice_.taken) for slice_ in ahead])
        size = sum([len(delivery.item.data) for delivery in taken]) + sum([slice_.size for slice_ in ahead])
        if config.discard_old_when_full or not count:
            return target.has_room(item, now_ms)
        is_full = line.present + count >= config.max_items or line.bytes + size >= config.max_bytes
        return not is_full and target.has_room(item, now_ms)

    def _send(self, taken: list[Delivery], target: Queue, now_ms: int) -> None:
        has_journals = removal_log(self.source.journal) is not None and append_log(target.journal) is not None
        if self._file is None and has_journals:
            self._send_singly(taken, target, now_ms)
            return
        # A client may put an equal item into the target before the copies are durable. Recovery tells it from a copy
        # by this time.
        calendar = self.tools.calendar
        added_ms = calendar.wall_ms(now_ms) - 1
        copies = [
            new_item(item.data, added_ms, 0, item.flags)
            if type(item) is Item and not item.expires_ms
            else item_with(past_bytes(item), item.data, added_ms, calendar.renewed_ms(item, now_ms), item.flags)
            for item in [delivery.item for delivery in taken]
        ]
        # Recovery cannot continue with chosen items: the file does not say which ones they are.
        left = min(self.left, self._bound.count(self.source) + self._unsent) if self._chosen is None else 0

        notes_past = isinstance(target.line, StreamLine)
        noted_target = b"" if self.target else target.name.encode("utf-8", "surrogateescape")

        def describe(after: FileNumber, at: int) -> Moving:
            return Moving(added_ms, after, at, _described(taken, notes_past), left, noted_target)

        self.send(taken, copies, target, describe, now_ms)

    def _send_singly(self, taken: list[Delivery], target: Queue, now_ms: int) -> None:
        """Send each item by an intent of its own."""
        transfers, log = self.tools.transfers, removal_log(self.source.journal)
        for delivery in taken:
            transfers.accept(self.source, delivery, Reason.MOVED, now_ms, target.name)
        self.advance(self.done + len(taken), now_ms)
        if log is not None and transfers.admits(self.source, 0) is not Admission.NOW:
            self._is_waiting = True
            self.tools.group.call_when_durable(log, self._resume)

    def _resume(self, now_ms: int) -> None:
        self._is_waiting = False
        self.tools.timers.soon(self)

    def note_kept(self, slice_: SliceUnderWay) -> None:
        self.write(Kept(slice_.number, list(range(slice_.sent, len(slice_.taken)))))

    def note_settled(self, slice_: SliceUnderWay) -> None:
        if self.record is not None:
            content = self.record.content
            self.write(Settled(content.settled + 1, content.settled_backs, *slice_.behind))

    # the end

    def _close(self, now_ms: int) -> None:
        if self._give_back(now_ms):
            super()._close(now_ms)
        else:
            self.tools.timers.soon(self)

    def stop(self, now_ms: int) -> bool:
        is_at_rest = super().stop(now_ms)
        if is_at_rest:
            self._give_back(now_ms)
        return is_at_rest

    def last_frames(self) -> list[FrameHead]:
        return [Over()]

    def close(self, now_ms: int) -> None:
        undos, record = self.tools.undos, self.record
        if record is not None:
            record.holder = None
            if not self._is_kept or not record.content.counts()[0]:
                undos.drop(record, "")
        source, target = self.source.name, self.target
        if self.done or not self.ended_early:
            self.log_event("queue.moved", now_ms, queue=source, target=target, items=self.done)
        self.end(self.ended_early, now_ms)


def _described(those: list[Delivery], notes_past: bool) -> list[MovingItem]:
    described = []
    for taken in those:
        item = taken.item
        data = item.data
        item_id = item.id if isinstance(item, Numbered) else 0
        xid, past = 0 if item_id else taken.xid, past_bytes(item) if notes_past else b""
        described.append(
            MovingItem(item.added_ms, item.expires_ms, len(data), digest_of(data), crc32(data), xid, item_id, past)
        )
    return described
