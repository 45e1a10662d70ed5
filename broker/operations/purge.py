"""A purge that can be undone, and its undo.

A purge goes slice by slice. The items of a slice leave the line under transactions of their own, as transfers do. Their
bytes are written to the undo file and synced; then their transactions are confirmed. After a crash in between, items
that were not confirmed are in the queue again, and recovery identifies them by the numbers of the transactions
(undo_recovery.py).

An undo works the other way round. A frame that announces the return of a slice is written and synced, the copies are
recorded in the queue's journal, and when they are durable another frame says so. After a crash recovery searches for
the copies behind the place that the first frame names.

While a purge or an undo is running, the journal of its queue is not rewritten (`Transfers.pin`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from staniel.broker import access
from staniel.broker.events import Level
from staniel.broker.operations.audit import Requester
from staniel.broker.operations.deletions import DeletionRefused
from staniel.broker.operations.running import CANCELLED, CUT_OFF, LOOK_AGAIN_MS, Operation, OperationRequest, Operations
from staniel.broker.operations.transfer import Bound, ClientsBeside, noted_position
from staniel.broker.operations.undo import NOTE_AGAIN_MS, OperationHead, UndoRecord
from staniel.broker.selection.chosen import RETURNED_PER_TURN, Head
from staniel.journal.background import CallbackTask, ReadPiece
from staniel.journal.disk.ballast import RECORD_OVERHEAD_BYTES
from staniel.journal.disk.fs import take_back
from staniel.journal.group_commit import Deferrable
from staniel.journal.journals import Pinned, append_log, removal_log
from staniel.journal.kestrel.log import Log
from staniel.journal.undo_file import (
    DELETE,
    AppendFrames,
    DeleteEnded,
    Kept,
    Over,
    Returned,
    Returning,
    UndoBegan,
    UndoEnded,
    frame,
    read_items,
    slice_frame,
)
from staniel.journal.undo_file import Head as FrameHead
from staniel.queues.delays import due_ms
from staniel.queues.item import Delivery, Item, is_payload_gone
from staniel.queues.queue import Queue, QueueState
from staniel.queues.stream.queue import StreamQueue

if TYPE_CHECKING:
    from staniel.journal.disk.fs import File

ITEMS_PER_SLICE = 192  # set aside in one turn and removed in another: less than a millisecond each
BYTES_PER_SLICE = 512 << 10
DROPPED_PER_TURN = 2000  # items removed for good


class FileOperation(Operation):
    """The common part of a purge and its undo: one task on the disk at a time."""

    record: UndoRecord

    def __init__(self, operations: Operations, head: OperationHead, queue: Queue, now_ms: int) -> None:
        super().__init__(operations, head, queue.name, "", now_ms)
        self.queue = queue
        self.undos = self.tools.undos
        self.task: CallbackTask | None = None
        self._file: File | None = None
        self._pinned: Pinned = self.tools.transfers.pin(queue)
        self._why = ""
        self._retry: Callable[[int], None] | None = None  # waits for its next try, or for the next turn
        self._is_told = False  # it was logged that a change cannot be noted

    def on_timer(self, now_ms: int) -> int | None:
        """Do nothing when a client cancels: the operation checks that between slices."""
        return None

    def append(self, data: bytes, then: Callable[[OSError | None, int], None]) -> None:
        """Write frames and sync them, then call `then`. Raises OSError if the file cannot be opened."""
        fs, path = self.tools.fs, self.record.path
        is_new = not self.record.content.end
        if self._file is None:
            self._file = fs.append(path)
        self.submit(AppendFrames(self._file, data, fs, self.undos.folder if is_new else "", then))

    def append_head(self, head: FrameHead, then: Callable[[int], None], failed: Callable[[str, int], None]) -> None:
        """Write and sync a frame without payload, then call `then`. Call `failed` instead if it cannot be written."""
        data = frame(head)

        def written(error: OSError | None, now_ms: int) -> None:
            content = self.record.content
            if error is None:
                content.apply(head, content.end, len(data))
                then(now_ms)
                return
            if self._file is not None:
                take_back(self.tools.fs, self.record.path, self._file, content.end)
            failed(f"the undo file cannot be written: {error.strerror}", now_ms)

        try:
            self.append(data, written)
        except OSError as error:
            failed(f"the undo file cannot be written: {error.strerror}", self.started_ms)

    def submit(self, task: CallbackTask) -> None:
        self.task = task
        self.tools.tasks.submit(task, urgent=True)

    def after_sync(self, then: Callable[[int], None], now_ms: int, *, of_items: bool) -> None:
        """Call `then` when the changes of the queue's journal are durable: the new items if `of_items`, else the
        removals.
        """
        self.task = None
        log = (append_log if of_items else removal_log)(self.queue.journal)
        if log is None:
            then(now_ms)  # the queue has no journal
        else:
            self.tools.group.call_when_durable(log, then)

    def release(self) -> None:
        """Close the file, and let the journal be rewritten. No step of the operation may be running."""
        self.task = None
        if self._file is not None:
            self._file.close()
            self._file = None
        self.tools.transfers.unpin(self._pinned)
        self._pinned = []

    def note_or_retry(
        self, head: FrameHead, then: Callable[[int], None], again: Callable[[int], None], now_ms: int
    ) -> None:
        """Append `head`, which reports a change, then call `then`. While it cannot be written, call `again` each
        second. Until it is written, recovery needs the journal to find the change, so the journal must not be
        rewritten, and the operation cannot end.
        """

        def failed(why: str, _: int) -> None:
            if not self._is_told:
                self._is_told = True
                hint = "make room on its disk; the server tries again each second, and keeps the journal until then"
                fields = {"queue": self.queue.name, "undo": self.record.id}
                self.undos.report(Level.WARNING, "undo.unnoted", file=self.record.path, why=why, hint=hint, **fields)
            self.task = None
            if self.operations.is_stopping:
                self.is_at_rest = True  # and the journal stays pinned
                return
            self.try_again(again, now_ms + NOTE_AGAIN_MS)

        self._retry = None
        self.append_head(head, then, failed)

    def try_again(self, then: Callable[[int], None], at_ms: int) -> None:
        self._retry = then
        self.tools.timers.set(DelayedCall(partial(self._tried_again, then)), at_ms)

    def next_turn(self, then: Callable[[int], None]) -> None:
        self._retry = then
        self.tools.timers.soon(DelayedCall(partial(self._tried_again, then)))

    def _tried_again(self, then: Callable[[int], None], now_ms: int) -> None:
        if self._retry is then:  # otherwise a stop has called it
            self._retry = None
            then(now_ms)

    def stop(self, now_ms: int) -> bool:
        if self._retry is not None:
            then, self._retry = self._retry, None
            then(now_ms)  # the operation comes to rest
        if self.task is not None:
            self.tools.tasks.complete(self.task, now_ms)
        return self.is_at_rest

    is_at_rest = False  # the server stops, and no step is running


class RunningPurge(FileOperation):
    """A purge of the first `count` items that wait in a queue when it begins, which can be undone. `name` "delete": the
    queue is deleted at the end, and items that come before that go into the undo file, too.
    """

    def __init__(
        self,
        operations: Operations,
        request: OperationRequest,
        queue: Queue,
        now_ms: int,
        record: UndoRecord | None = None,
    ) -> None:
        """Begin a purge. `record` is given if the purge continues after a restart. Raises OSError before any change."""
        count, chosen = request.count, request.chosen
        if count is None:
            count = queue.line.present
        number = operations.tools.audit.next_id() if record is None else record.id
        super().__init__(operations, OperationHead(number, request.name, count, request.by), queue, now_ms)
        self.left = count
        self._bound = Bound(queue)
        self._clients = ClientsBeside(self.tools.clients.counters)
        own = removal_log(queue.journal)
        self._defers: dict[Deferrable, None] = {own: None} if isinstance(own, Log) else {}
        self._began = b""
        self._slice: list[Delivery] = []
        self._chosen = chosen
        self._gives_back = False
        self.sets_aside_of = queue if chosen is not None else None
        try:
            self.record = record or self.undos.make(self.head, queue, now_ms, None if chosen is None else chosen.bytes)
        except OSError:
            self.release()
            raise
        self.record.holder = self
        if record is None:
            self._began = frame(self.record.content.began)
        else:
            self._why = CUT_OFF if record.content.began.is_chosen else ""
            self.done = record.content.counts()[0]
            self.total = self.done + count
        self.undos.add(self.record, now_ms)
        self.begin(now_ms, terms=chosen.terms if chosen is not None else "")
        self._next(now_ms)

    def _is_wanted(self) -> bool:
        """Return True if the head is, or may be, an item to remove; or if one at rest is."""
        if self.queue.line.head() is None:
            return self._chosen is None and bool(self.queue.resting) and (self.name == DELETE or self.left > 0)
        return self.name == DELETE or (self.left > 0 and self._bound.holds_head(self.queue))

    def _reach_head(self) -> Head:
        """Skip to the next item to remove. Tell whether there is one at the head."""
        if self._chosen is None:
            if self.name == DELETE or self.left > 0:
                self.queue.end_rests(1)
            return Head.CHOSEN if self._is_wanted() else Head.NONE

        return self._chosen.reach(self.queue, self._is_wanted)

    def _next(self, now_ms: int) -> None:
        """Begin the next slice, or the end."""
        queue = self.queue
        self.task = None
        if self.operations.is_stopping:
            self._rest(now_ms)
            return
        if self.is_cancelled and self._is_wanted():
            self._why = CANCELLED
        if self._why or queue.state is QueueState.CLOSED:
            self._remove_rest(now_ms)
            return
        came_by = append_log(queue.journal)
        if came_by is not None and came_by.transfers_in:
            # An item that has just come from another queue is also still in that queue, until its arrival is durable.
            self.after_sync(self._next, now_ms, of_items=True)
            return
        with self._deferring(now_ms):
            reached = self._set_slice_aside()
        if not self._slice and reached is Head.MORE:
            self.next_turn(self._next)
            return
        if not self._slice:
            if self._chosen is not None:
                self._why = self._chosen.too_far if reached is Head.TOO_FAR else self._chosen.why_left
            if self.name == DELETE or self.left > 0:
                self._why = access.trouble(queue) or self._why  # the queue may have more items
            self._remove_rest(now_ms)
            return
        # Recovery cannot continue with chosen items: the file does not say which ones they are.
        left = min(self.left, self._bound.count(queue)) if self._chosen is None else 0
        began, data = self._began, slice_frame(self._slice, left)
        self._began = b""

        def sealed(error: OSError | None, now_ms: int) -> None:
            self._sealed(error, len(began), len(data), now_ms)

        try:
            self.append(began + data, sealed)
        except OSError as error:
            self._give_up(error, now_ms)

    @contextmanager
    def _deferring(self, now_ms: int) -> Iterator[None]:
        """Let no client wait for the sync of what is recorded within, if clients put and get. From any beginning of
        the journal, recovery can tell which items of the file are still in the queue.
        """
        group = self.tools.group
        group.defers = self._defers if self._clients.are_there(now_ms) else {}
        try:
            yield
        finally:
            group.defers = {}

    def _set_slice_aside(self) -> Head:
        """Set the items of the next slice aside. Return the state of the next head."""
        queue, reached, size = self.queue, Head.CHOSEN, 0
        if self._chosen is not None:
            self._chosen.begin_turn()
        while len(self._slice) < ITEMS_PER_SLICE and size < BYTES_PER_SLICE:
            if (reached := self._reach_head()) is not Head.CHOSEN:
                break
            head = queue.line.head()
            assert head is not None
            if is_payload_gone(head):
                queue.drop_head()
                continue
            self._slice.append(
                queue.open_head_for_transfer() if self._chosen is None else self._chosen.cross_off(queue, head)
            )
            self.left -= 1
            size += len(head.data)
        return reached

    def _sealed(self, error: OSError | None, began_bytes: int, size: int, now_ms: int) -> None:
        """Remove the items of a slice, which is durable in the undo file."""
        content = self.record.content
        if error is not None:
            self._give_up(error, now_ms)
            return
        content.end += began_bytes
        content.add_slice(self._slice, size)
        gone = 0
        with self._deferring(now_ms):
            for taken in self._slice:
                gone += self.queue.release(taken)
        self._slice = []
        self.task = None
        self.advance(self.done + gone, now_ms)
        self.next_turn(self._next)

    def _give_up(self, error: OSError, now_ms: int) -> None:
        """End early because the undo file cannot be written. Items set aside since the last slice return to the
        queue.
        """
        if self._chosen is not None:
            self._chosen.keep(self._slice)
        else:
            for taken in reversed(self._slice):
                self.queue.take_back_unseen(taken)
        self._slice = []
        self.queue.time_out(now_ms)  # a waiting reader gets it
        self._why = f"the undo file cannot be written: {error.strerror}"
        if self._file is not None:
            take_back(self.tools.fs, self.record.path, self._file, self.record.content.end)
        self._remove_rest(now_ms)

    def _rest(self, now_ms: int) -> None:
        """Return chosen items, and come to rest after a sync, because the server stops. The next startup continues."""
        if self._chosen is not None:
            self._chosen.give_back(self.queue, now_ms, len(self._chosen.aside))
        self.after_sync(self._come_to_rest, now_ms, of_items=False)

    def _come_to_rest(self, now_ms: int) -> None:
        self.is_at_rest = True
        self.release()

    @property
    def returning(self) -> int:
        return len(self._chosen.aside) if self._chosen is not None and self._gives_back else 0

    def _remove_rest(self, now_ms: int) -> None:
        """Finish the removals: give back items that stay, and complete the file when all removals are durable."""
        self._gives_back = True
        if self._chosen is not None:
            count = len(self._chosen.aside) if self.operations.is_stopping else RETURNED_PER_TURN
            if not self._chosen.give_back(self.queue, now_ms, count):
                self.next_turn(self._remove_rest)
                return
        if self.record.content.slices:
            self.after_sync(self._removed, now_ms, of_items=False)
        elif self.name == DELETE and not self._why:
            self._over(now_ms)
        else:
            self._close(now_ms)

    def _removed(self, now_ms: int) -> None:
        if self.operations.is_stopping:
            self._rest(now_ms)
        else:
            self.note_or_retry(Over(), self._over, self._removed, now_ms)

    def _over(self, now_ms: int) -> None:
        """Close the operation, or delete the queue: the file is complete, and its items are removed."""
        self.task = None
        if self.name == DELETE and self.record.content.slices:
            self.undos.unended[self.record] = None
        if self.name != DELETE:
            self._close(now_ms)
        elif self._why or self.queue.state is QueueState.CLOSED:
            self._deleted(now_ms)
        else:
            self._delete(now_ms)

    def _delete(self, now_ms: int) -> None:
        """Delete the queue in the step that finds it empty. Items that have come meanwhile go into the file first."""
        deletions, queue = self.tools.deletions, self.queue
        if queue.state is QueueState.CLOSED:
            self._deleted(now_ms)  # another client has deleted it
            return
        if self._is_wanted():
            self._pinned = self._pinned or self.tools.transfers.pin(queue)
            self._next(now_ms)
            return
        if why := access.trouble(queue):
            self._why = why  # the search has just failed: there are more items, which a deletion would destroy
            self._deleted(now_ms)
            return
        self.release()
        if deletions.is_postponed(queue):  # another client's deletion waits for this one
            self._deleted(now_ms)
            return
        deletions.search(queue, now_ms)
        if deletions.must_wait(queue):
            self.is_at_rest = True  # and keeps nothing that another deletion of this queue could wait for
            self.tools.timers.set(DelayedCall(self._delete_again), now_ms + LOOK_AGAIN_MS)
            return
        try:
            self.batch = deletions.delete(queue, now_ms)
        except DeletionRefused as refused:
            self._why = refused.why
            self._deleted(now_ms)
            return
        self.log_event("queue.deleted", now_ms, queue=queue.name, items=self.done)
        self.after_sync(self._deleted, now_ms, of_items=False)

    def _deleted(self, now_ms: int) -> None:
        """Write that the delete has ended: the removal of the queue is durable, or the queue stays. If it is removed
        and this cannot be written, `Undos` tries again, and no other queue gets the name before.
        """
        if not self.record.content.slices:
            self._close(now_ms)
            return
        if self.queue.state is QueueState.CLOSED:
            self.append_head(DeleteEnded(), self._ended, lambda why, now_ms: self._close(now_ms))
        else:  # a start would delete the queue
            self.note_or_retry(DeleteEnded(), self._ended, self._deleted, now_ms)

    def _ended(self, now_ms: int) -> None:
        """Close the operation: its file says that it has ended."""
        self.undos.unended.pop(self.record, None)
        self._close(now_ms)

    batch = 0  # the reply to a delete waits for this batch

    def _delete_again(self, now_ms: int) -> None:
        if not self.operations.is_stopping:
            self.is_at_rest = False
            self._delete(now_ms)

    def _close(self, now_ms: int) -> None:
        record, queue = self.record, self.queue
        record.holder = None
        if record in self.undos.unended:
            self.undos.set_timer(now_ms)
        if not record.content.counts()[0]:
            self.undos.drop(record, "")
        self.task = None
        if self.name != DELETE or self._why:
            self.log_event("queue.flushed", now_ms, queue=queue.name, items=self.done, undo=record.id)
            queue.time_out(
                now_ms
            )  # items at rest have made room for heads that are not due: a waiting reader may go on
        queue.counters.total_flushes += self._chosen is None
        self.release()
        self.end(self._why, now_ms)


class RunningUndo(FileOperation):
    """The return of the items of an undo file to the end of their queue, with the times that they had. Limits of the
    queue do not apply. Items that have expired meanwhile are dropped like any expired item.
    """

    def __init__(self, operations: Operations, by: Requester, queue: Queue, record: UndoRecord, now_ms: int) -> None:
        undoing = record.content.undoing
        number = undoing.id if undoing is not None else operations.tools.audit.next_id()
        super().__init__(operations, OperationHead(number, "undo", record.content.counts()[0], by), queue, now_ms)
        self.record = record
        record.holder = self
        self._items: list[Item] = []
        self.begin(now_ms, str(record.id))
        if undoing is None:
            at_ms = self.tools.calendar.wall_ms(now_ms)
            began = UndoBegan(number, at_ms, self.total, by.address, by.protocol, by.user)
            self.append_head(began, self._read_next, self._stop_early)
        else:
            self._read_next(now_ms)

    def _read_next(self, now_ms: int) -> None:
        self.task = None
        self.tools.transfers.end_announcing(self.queue.name, self)
        content = self.record.content
        if not content.left:
            self.undos.drop(self.record, "")  # if a power cut brings the file back, it contains no items to return
            self._close("", now_ms)
            return
        if self.operations.is_stopping:
            self.is_at_rest = True
            self.release()
            return
        if self.is_cancelled:
            self._stop_early(CANCELLED, now_ms)
            return
        place = content.slices[content.left[0]]
        try:
            fs = self.tools.fs
            piece = ReadPiece(fs, self.record.path, place.at, place.size, 0, lambda error, ms: self._read(error, ms))
        except OSError as error:
            self._stop_early(f"the undo file cannot be read: {error.strerror}", now_ms)
            return
        self.submit(piece)

    def _read(self, error: OSError | None, now_ms: int) -> None:
        """Read the items of a slice, which is in memory."""
        task, content = self.task, self.record.content
        assert isinstance(task, ReadPiece)
        items = read_items(task.data) if error is None else None
        if items is None:
            self._stop_early("the undo file is damaged" if error is None else str(error.strerror), now_ms)
            return
        number = content.left[0]
        kept = content.kept.get(number, frozenset())
        self._items = [item for at, (_, item) in enumerate(items) if at not in kept]
        self.task = None
        self._announce(now_ms)

    def _announce(self, now_ms: int) -> None:
        """Write where the copies will be. Only one operation at a time adds copies to a queue; the others wait."""
        if self.operations.is_stopping:
            self.is_at_rest = True
            self.release()
            return
        if why := CANCELLED if self.is_cancelled else self._refusal() or self._delay_refusal(now_ms):
            self._stop_early(why, now_ms)
            return
        if not self.tools.transfers.may_announce(self.queue.name, self, keeps_times=True):
            self.try_again(self._announce, now_ms + LOOK_AGAIN_MS)
            return
        self.tools.transfers.announce(self.queue.name, self)
        self._items = [self.tools.transfers.earlier(item, now_ms) for item in self._items]
        place, wall_ms = noted_position(append_log(self.queue.journal)), self.tools.calendar.wall_ms(now_ms)
        returning = Returning(self.record.content.left[0], *place, wall_ms)
        self.append_head(returning, self._announced, self._unannounced)

    def _unannounced(self, why: str, now_ms: int) -> None:
        self.tools.transfers.came(now_ms)
        self._stop_early(why, now_ms)

    def _refusal(self) -> str:
        """Return why the slice cannot be returned now; "" if it can."""
        size = sum([len(item.data) + RECORD_OVERHEAD_BYTES for item in self._items])
        if self.queue.state is QueueState.CLOSED:
            return f"{self.queue.name} is deleted"
        if self.tools.group.is_full or not self.tools.group.admits(size):
            return access.disk_full(self.tools.group)
        return ""

    def _delay_refusal(self, now_ms: int) -> str:
        """Return why the queue cannot keep the delays of the slice; "" if it can, or if they have ended."""
        calendar = self.tools.calendar
        if isinstance(self.queue, StreamQueue) and any(due_ms(calendar, item, now_ms) > now_ms for item in self._items):
            return (
                f"{self.queue.name} has libkestrel's format, which has no delays: delete it, set journal_format to "
                "kestrel, then undo"
            )
        return ""

    def _announced(self, now_ms: int) -> None:
        """Add the copies of a slice to the queue. The frame that announces them is durable."""
        self.task = None
        if why := self._refusal():
            # No copies will come: recovery must not search for them among the copies of others.
            self.tools.transfers.came(now_ms)
            stop = partial(self._stop_early, why)
            self.append_head(Kept(self.record.content.left[0], []), stop, lambda _, now_ms: stop(now_ms))
            return
        counters = self.queue.counters
        for item in self._items:
            self.queue.add(item, now_ms, forced=True)
            counters.total_items -= 1  # these items were counted when they were put
            counters.put_bytes -= len(item.data)
        self.advance(self.done + len(self._items), now_ms)
        self._items = []
        self.tools.transfers.came(now_ms)
        if (log := append_log(self.queue.journal)) is not None:
            log.transfers_in += 1  # no transfer takes them further until their arrival is durable
        self.after_sync(self._copied, now_ms, of_items=True)

    def _copied(self, now_ms: int) -> None:
        """Write that the slice is returned: its copies are durable."""
        if (log := append_log(self.queue.journal)) is not None:
            log.transfers_in -= 1
        self._note_returned(now_ms)

    def _note_returned(self, now_ms: int) -> None:
        """Write that the slice is returned, or retry. Until that is written, recovery finds the copies by their place
        in the journal.
        """
        self.note_or_retry(Returned(self.record.content.left[0]), self._read_next, self._note_returned, now_ms)

    def _stop_early(self, why: str, now_ms: int) -> None:
        """End the undo early. The other items stay in the file, for another undo."""
        self.append_head(
            UndoEnded(), lambda now_ms: self._close(why, now_ms), lambda _, now_ms: self._close(why, now_ms)
        )

    def _close(self, why: str, now_ms: int) -> None:
        self.tools.transfers.end_announcing(self.queue.name, self)
        self.record.holder = None
        self.log_event("queue.restored", now_ms, queue=self.queue.name, items=self.done, undo=self.record.id)
        self.release()
        self.end(why, now_ms, str(self.record.id))


class RunningDrop(Operation):
    """A removal of the first `count` items of a queue for good, some each turn. Items that came after they were counted
    stay.
    """

    def __init__(self, operations: Operations, by: Requester, queue: Queue, count: int, now_ms: int) -> None:
        head = OperationHead(operations.tools.audit.next_id(), "purge", count, by)
        super().__init__(operations, head, queue.name, "", now_ms)
        self.queue = queue
        self.begin(now_ms)
        self.tools.timers.soon(self)

    def on_timer(self, now_ms: int) -> int:
        left = self.total - self.done
        if self.is_cancelled or self.queue.state is QueueState.CLOSED:
            self.end(CANCELLED if self.is_cancelled else f"{self.queue.name} is deleted", now_ms)
            return 0
        wanted = min(left, DROPPED_PER_TURN)
        dropped = self.queue.drop_resting(wanted)
        dropped += self.queue.drop_heads(wanted - dropped)
        self.queue.time_out(now_ms)  # there is room for more items at rest, and so a head for a waiting reader
        self.advance(self.done + dropped, now_ms)
        if dropped < left and dropped == DROPPED_PER_TURN:
            self.tools.timers.soon(self)
        else:
            self.log_event("queue.flushed", now_ms, queue=self.queue.name, items=self.done)
            self.end("", now_ms)
        return dropped


class DelayedCall:
    """A call at a given time, as the owner of a timer."""

    def __init__(self, then: Callable[[int], None]) -> None:
        self._then = then

    def on_timer(self, now_ms: int) -> None:
        self._then(now_ms)
