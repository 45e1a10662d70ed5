"""Taking back what an operator has done: a purge puts what it removes into an undo file first, and for some time that
can be returned to the end of its queue. What a move notes, and how it is taken back, is in move.py and moved_back.py.

A purge goes slice by slice. The items of a slice leave the line under transactions of their own, as transfers do; their
bytes are written to the undo file and synced; then their transactions are confirmed. A crash in between gives back to
the queue what is not confirmed, and the numbers of the transactions tell the next start which items those are
(undo_recovery.py). An undo works the other way round: that a slice is about to be returned is written and synced, its
copies are recorded in the queue's journal, and when the disk has them that is noted, too; after a crash the copies are
looked for behind the place that the note names. As long as one of either is under way, the journal of its queue is not
rewritten (`Transfers.pin`).

What was begun goes on if its client hangs up: the tasks on the disk drive it, and a client only waits for the end.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from msgspec import Struct

from staniel.broker.access import DISK_FULL
from staniel.broker.events import Level
from staniel.broker.operations.audit import Result
from staniel.broker.operations.running import CANCELLED, Operation
from staniel.broker.session import SUSPENDED, Session, SessionState
from staniel.broker.transfers import Pinned
from staniel.journal.background import CallbackTask, ReadPiece
from staniel.journal.disk.ballast import RECORD_OVERHEAD_BYTES
from staniel.journal.disk.fs import take_back
from staniel.journal.journals import append_log, next_write_position, removal_log
from staniel.journal.undo_file import (
    FOLDER,
    FORMAT_VERSION,
    MOVES_VERSION,
    AppendFrames,
    Began,
    Over,
    Returned,
    Returning,
    UndoContent,
    frame,
    read_items,
    slice_frame,
)
from staniel.queues.item import Delivery, Item, is_payload_gone
from staniel.queues.queue import Queue, QueueState
from staniel.queues.stream.line import StreamLine

if TYPE_CHECKING:
    from staniel.broker.broker import Broker
    from staniel.broker.undo_recovery import UndoRecovery
    from staniel.journal.disk.fs import File

ITEMS_PER_SLICE = 512  # some milliseconds; then it is the other clients' turn, and the disk's
BYTES_PER_SLICE = 1 << 20
FILES_MAX = 1000
ITEM_BYTES = 40  # of an item in an undo file, beside its payload
MOVED_ITEM_BYTES = 48  # of one that was moved: all there is of it
Finish = Callable[[int, str, int], None]
"""Called with how many items that were, what ended it early, if that is to be told, and the time."""


class UndoView(Struct, frozen=True):
    """One operation that can be undone until `until_at_ms`. `bytes`: of payload, about. `target`: where a move has sent
    its items, as far as they are still there.
    """

    id: int
    operation: str
    queue: str
    at_ms: int
    until_at_ms: int
    items: int
    bytes: int
    target: str = ""


class UndoRecord(Struct, eq=False):
    """An undo file: its path and what it holds. `is_busy`: an operation writes to it or returns what is in it; `mover`:
    the same as long as this client is there. `wanted`: how many bytes it is going to have.
    """

    path: str
    content: UndoContent
    is_busy: bool = False
    wanted: int = 0
    mover: Session | None = None

    @property
    def is_in_use(self) -> bool:
        return self.is_busy or (self.mover is not None and self.mover.state is not SessionState.CLOSED)

    @property
    def id(self) -> int:
        return self.content.began.id

    @property
    def queue(self) -> str:
        return self.content.began.queue.decode("utf-8", "surrogateescape")

    @property
    def target(self) -> str:
        """Where a move has sent the items; empty: they are in the file."""
        return self.content.began.target.decode("utf-8", "surrogateescape")

    def view(self) -> UndoView:
        began = self.content.began
        items, size = self.content.counts()
        return UndoView(began.id, began.operation, self.queue, began.at_ms, began.until_ms, items, size, self.target)


class Undos:
    """All operations of a spool that can be undone, the oldest first."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.folder = f"{broker.spool.own}/{FOLDER}"
        self.by_id: dict[int, UndoRecord] = {}
        self.running: dict[RunningPurge | RunningUndo, None] = {}
        self.is_stopping = False
        admin = broker.config.admin
        self.keep_ms, self.bytes_max = admin.undo_ms, admin.undo_max_bytes
        self.is_on = admin.undo_ms > 0
        self.unresolved: UndoRecovery | None = None  # there while some queue with an undo file cannot be read

    def views(self) -> list[UndoView]:
        """What can be undone, the newest first."""
        return [each.view() for each in reversed(self.by_id.values()) if not each.is_in_use]

    def refusal(self, queue: Queue) -> str:
        """Why a purge of `queue` cannot be undone, and so is not begun; empty if it can."""
        line, most = queue.line, self.bytes_max
        size = line.bytes + ITEM_BYTES * line.present
        promised = self._promised_bytes()
        final = "say no_undo (--no-undo) to remove them for good"
        if size > most:
            return f"an undo of {line.present} items takes {size} bytes, and [admin] undo_max_size is {most}: {final}"
        if size + promised > most:
            why = f"operations under way need {promised} bytes of the {most} of [admin] undo_max_size"
            return f"{why}, and this one {size}: wait for them, or {final}"
        if len(self._in_use()) >= FILES_MAX:
            return f"{FILES_MAX} operations are under way: wait for one of them, or {final}"
        if self.broker.group.is_full or not self.broker.group.admits(size + promised):
            return f"the disk has no room for an undo of {size} bytes: {final}"
        return ""

    def can_note(self, items: int) -> bool:
        """Whether there is room for what a move of so many items notes. It is done all the same if there is none."""
        size = items * MOVED_ITEM_BYTES + self._promised_bytes()
        group = self.broker.group
        return self.is_on and size <= self.bytes_max and not group.is_full and group.admits(size)

    def make(self, number: int, operation: str, queue: Queue, now_ms: int) -> UndoRecord:
        """The record of an operation that takes all that waits in `queue`. Files that have to make way for it are gone.
        Raises OSError.
        """
        return self._make(number, operation, queue, "", queue.line.bytes + ITEM_BYTES * queue.line.present, now_ms)

    def make_for_move(
        self, number: int, operation: str, queue: Queue, target: str, items: int, now_ms: int
    ) -> UndoRecord:
        """The same of a move of so many items to `target`."""
        return self._make(number, operation, queue, target, items * MOVED_ITEM_BYTES, now_ms)

    def _make(self, number: int, operation: str, queue: Queue, target: str, size: int, now_ms: int) -> UndoRecord:
        self._make_room(size)
        self.broker.spool.fs.make_folder(self.folder)
        name, sent_to = [each.encode("utf-8", "surrogateescape") for each in (queue.name, target)]
        until_ms = now_ms + self.keep_ms
        version = MOVES_VERSION if target else FORMAT_VERSION
        began = Began(version, number, now_ms, until_ms, operation, name, sent_to)
        return UndoRecord(f"{self.folder}/{number}", UndoContent(began), not target, size)

    def add(self, record: UndoRecord) -> None:
        """It can be undone from now on."""
        record.is_busy = False
        self.by_id[record.id] = record
        self.broker.timers.set(self, min(each.content.began.until_ms for each in self.by_id.values()))

    def due(self, now_ms: int) -> int:
        """The time of some is over. Returns the work, in dropped items."""
        over = [each for each in self.by_id.values() if each.content.began.until_ms <= now_ms and not each.is_in_use]
        for record in over:
            self.drop(record, "its time is over")
        later = [each.content.began.until_ms for each in self.by_id.values() if each.content.began.until_ms > now_ms]
        if later:
            self.broker.timers.set(self, min(later))
        return 1000 * len(over)

    def drop(self, record: UndoRecord, why: str) -> None:
        """It cannot be undone any more. A file that cannot be removed is tried again by the next start."""
        self.by_id.pop(record.id, None)
        with suppress(OSError):
            self.broker.spool.fs.remove(record.path)
        if why:
            items, size = record.content.counts()
            self.broker.report(
                Level.INFO, "undo.dropped", id=record.id, queue=record.queue, items=items, bytes=size, why=why
            )

    def erase(self, path: str) -> None:
        """No later start may find anything in it. Raises JournalFailure if that cannot be made sure of."""
        fs = self.broker.spool.fs
        try:
            with suppress(FileNotFoundError):  # another program has removed it
                fs.truncate(path, 0)
                fs.remove(path)
        except OSError as error:
            raise self.broker.group.failure(f"cannot remove {path}", error) from error

    def drop_all(self, why: str) -> None:
        """Make room on the disk."""
        for record in [each for each in self.by_id.values() if not each.is_in_use]:
            self.drop(record, why)

    def _make_room(self, size: int) -> None:
        """Have the files be no more than they may, and take no more, with one of `size` bytes; the oldest make way."""
        idle = [each for each in self.by_id.values() if not each.is_in_use]
        left = len(idle) + len(self._in_use())
        used = sum([each.content.end for each in idle]) + self._promised_bytes()
        for record in idle:
            if used + size <= self.bytes_max and left < FILES_MAX:
                break
            used -= record.content.end
            left -= 1
            self.drop(record, "a newer one needs its place")

    def _promised_bytes(self) -> int:
        """What the files of operations under way have, or are going to have."""
        return sum([max(each.content.end, each.wanted) for each in self._in_use()])

    def _in_use(self) -> list[UndoRecord]:
        found = [each.record for each in self.running]
        return found + [each for each in self.by_id.values() if each.is_in_use and each not in found]

    def stop(self, now_ms: int) -> None:
        """The server stops: what is under way ends behind its slice. No sync may be running. Raises JournalFailure."""
        self.is_stopping = True
        broker = self.broker
        while self.running:
            operation = next(iter(self.running))
            if operation.task is not None:
                broker.maintenance.tasks.complete(operation.task, now_ms)
            broker.commit_all(now_ms)


class UndoOperation:
    """What a purge and an undo share: one task on the disk at a time, and a client that waits for the end."""

    def __init__(self, session: Session, queue: Queue, record: UndoRecord, finish: Finish) -> None:
        self.session = session
        self.broker: Broker = session.broker
        self.undos = session.broker.undos
        self.queue = queue
        self.record = record
        self.finish = finish
        self.count = 0
        self.task: CallbackTask | None = None
        self._file: File | None = None
        self._pinned: Pinned = self.broker.transfers.pin(queue)
        self._why = ""
        self.progress: Operation | None = None

    def watch(self, number: int, operation: str, total: int, now_ms: int) -> None:
        """Have operators see it."""
        queue, by = self.queue.name, self.broker.audit.asker(self.session)
        self.progress = self.broker.operations.begin(number, operation, queue, "", total, by, now_ms)

    def is_cancelled(self, now_ms: int) -> bool:
        """Asked between slices, and tells how far it is."""
        if self.progress is None:
            return False
        self.progress.advance(self.count, now_ms)
        return self.progress.is_cancelled

    def wait(self) -> None:
        """The client waits until `_end`."""
        self.session.suspend(lambda _, now_ms: self.finish(self.count, self._why, now_ms))

    def append(self, data: bytes, then: Callable[[OSError | None, int], None]) -> None:
        """Write frames and sync them, then `then`."""
        fs, path = self.broker.spool.fs, self.record.path
        is_new = not self.record.content.end
        if self._file is None:
            self._file = fs.append(path)
        self.submit(AppendFrames(self._file, data, fs, self.undos.folder if is_new else "", then))

    def submit(self, task: CallbackTask) -> None:
        self.task = task
        self.broker.maintenance.tasks.submit(task, urgent=True)

    def after_sync(self, then: Callable[[int], None], now_ms: int, *, of_items: bool) -> None:
        """Call `then` once the disk has what the queue's journal has recorded: of new items, or of removals."""
        self.task = None
        log = (append_log if of_items else removal_log)(self.queue.journal)
        if log is None:
            then(now_ms)  # a queue in memory alone
        else:
            self.broker.group.after(log, then)

    def end(self, why: str, now_ms: int) -> None:
        """It is over: its file is closed, and the client goes on."""
        self.task = None
        if (progress := self.progress) is not None:
            progress.advance(self.count, now_ms)
            record = self.undos.by_id.get(progress.id)
            if record is not None:
                progress.undo, progress.undo_until_ms = record.id, record.content.began.until_ms
            self.broker.operations.end(progress, now_ms, why)
        self._why = why
        if self._file is not None:
            self._file.close()
        self.broker.transfers.unpin(self._pinned)
        self.undos.running.pop(self, None)  # type: ignore[call-overload]
        self.session.depend_on(self.queue)
        if self.session.state is SUSPENDED:
            self.session.deliver(True)


class RunningPurge(UndoOperation):
    """Removes every item that waits in a queue when it begins, so that it can be undone. The session of the client is
    suspended until it is over. `operation`: "purge", or "delete" if the queue is going to be deleted then.
    """

    def __init__(
        self, session: Session, queue: Queue, number: int, now_ms: int, finish: Finish, operation: str = "purge"
    ) -> None:
        """Raises OSError, and nothing has been done."""
        record = session.broker.undos.make(number, operation, queue, now_ms)
        super().__init__(session, queue, record, finish)
        self._last = self._newest()
        self.watch(number, operation, queue.line.present, now_ms)
        self._began = frame(record.content.began)
        self._slice: list[Delivery] = []
        self.undos.running[self] = None
        self.wait()
        came_by = append_log(queue.journal)
        if came_by is not None and came_by.transfers_in:
            # What has just come from another queue is still in that one, too, until the disk knows that it is here.
            self.after_sync(self._next, now_ms, of_items=True)
        else:
            self._next(now_ms)

    def _newest(self) -> int:
        """Behind which item it ends: those that come later stay."""
        line = self.queue.line
        return line.stream.last_id if isinstance(line, StreamLine) else line.end

    def _is_wanted(self) -> bool:
        """Whether the head, if there is one, was there when it began."""
        line = self.queue.line
        head = line.head()
        if head is None:
            return False
        if isinstance(line, StreamLine):
            taken = line.peek()
            return taken is not None and taken.id <= self._last
        return (line.returned[-1].seq if line.returned else line.left) < self._last

    def _next(self, now_ms: int) -> None:
        """The next slice, or the end."""
        queue, size = self.queue, 0
        if self.is_cancelled(now_ms) and self._is_wanted():
            self._why = CANCELLED
            self._remove_rest(now_ms)
            return
        if queue.state is QueueState.CLOSED or self.undos.is_stopping:
            self._remove_rest(now_ms)
            return
        while len(self._slice) < ITEMS_PER_SLICE and size < BYTES_PER_SLICE and self._is_wanted():
            head = queue.line.head()
            assert head is not None
            if is_payload_gone(head):
                queue.drop_head()
                continue
            self._slice.append(queue.open_to_leave())
            size += len(head.data)
        if not self._slice:
            self._remove_rest(now_ms)
            return
        began, data = self._began, slice_frame(self._slice)
        self._began = b""

        def sealed(error: OSError | None, now_ms: int) -> None:
            self._sealed(error, len(began), len(data), now_ms)

        try:
            self.append(began + data, sealed)
        except OSError as error:
            self._give_up(error, now_ms)

    def _sealed(self, error: OSError | None, began_bytes: int, size: int, now_ms: int) -> None:
        """The disk has the slice in the undo file: its items may go."""
        content = self.record.content
        if error is not None:
            self._give_up(error, now_ms)
            return
        content.end += began_bytes
        content.add_slice(self._slice, size)
        for taken in self._slice:
            self.count += self.queue.release(taken)
        self._slice = []
        self._next(now_ms)

    def _give_up(self, error: OSError, now_ms: int) -> None:
        """The undo file cannot be written: what has left since the last slice comes back."""
        for taken in reversed(self._slice):
            self.queue.take_back(taken)
        self._slice = []
        self.queue.time_out(now_ms)  # a waiting reader gets it
        self._why = f"the undo file cannot be written: {error.strerror}"
        if self._file is not None:
            take_back(self.broker.spool.fs, self.record.path, self._file, self.record.content.end)
        self._remove_rest(now_ms)

    def _remove_rest(self, now_ms: int) -> None:
        """All that is to go has gone; the file is whole when the disk knows that."""
        if not self.record.content.slices:
            self.undos.drop(self.record, "")
            self._close(now_ms)
        else:
            self.after_sync(self._removed, now_ms, of_items=False)

    def _removed(self, now_ms: int) -> None:
        data = frame(Over())

        def written(error: OSError | None, now_ms: int) -> None:
            if error is None:
                self.record.content.apply(Over(), self.record.content.end, len(data))
                self.undos.add(self.record)
            else:
                # What has gone has gone. A start would have to tell which items those are, from a journal that goes on.
                self._why = self._why or f"it cannot be undone, the undo file cannot be written: {error.strerror}"
                self.undos.erase(self.record.path)
            self._close(now_ms)

        try:
            self.append(data, written)
        except OSError as error:
            written(error, now_ms)

    def _close(self, now_ms: int) -> None:
        session, record = self.session, self.record
        result = Result.REFUSED if self._why and not self.count else Result.DONE
        session.log_event("queue.flushed", now_ms, queue=self.queue.name, items=self.count, undo=record.id)
        self.queue.counters.total_flushes += 1
        self.broker.audit.note(
            session,
            "purge",  # of a delete, too: the deletion itself is noted when it comes
            now_ms,
            queue=self.queue.name,
            items=self.count,
            result=result,
            why=self._why,
            number=record.id,
        )
        self.end(self._why, now_ms)


class RunningUndo(UndoOperation):
    """Returns the items of an undo file to the end of their queue, whatever its limits say, with the times that they
    had. Those that have expired meanwhile go as any expired item does.
    """

    def __init__(self, session: Session, queue: Queue, record: UndoRecord, number: int, finish: Finish) -> None:
        super().__init__(session, queue, record, finish)
        record.is_busy = True
        self.number = number  # of the undo itself, in the audit log
        self._items: list[Item] = []
        self.undos.running[self] = None
        self.wait()

    def begin(self, now_ms: int) -> None:
        """Raises nothing: what goes wrong is told at the end."""
        self.watch(self.number, "undo", self.record.content.counts()[0], now_ms)
        self._read_next(now_ms)

    def _read_next(self, now_ms: int) -> None:
        content = self.record.content
        if not content.left:
            self.undos.drop(self.record, "")  # should a power cut bring it back, nothing is left in it
            self._close("", now_ms)
            return
        if self.undos.is_stopping:
            self._stop_early("the server stops", now_ms)
            return
        if self.is_cancelled(now_ms):
            self._stop_early(CANCELLED, now_ms)
            return
        place = content.slices[content.left[0]]
        try:
            fs = self.broker.spool.fs
            piece = ReadPiece(fs, self.record.path, place.at, place.size, 0, lambda error, ms: self._read(error, ms))
        except OSError as error:
            self._stop_early(f"the undo file cannot be read: {error.strerror}", now_ms)
            return
        self.submit(piece)

    def _read(self, error: OSError | None, now_ms: int) -> None:
        """A slice is in memory: note where its copies will be."""
        task, content = self.task, self.record.content
        assert isinstance(task, ReadPiece)
        found = read_items(task.data) if error is None else None
        if found is None:
            self._stop_early("the undo file is damaged" if error is None else str(error.strerror), now_ms)
            return
        number = content.left[0]
        kept = content.kept.get(number, frozenset())
        self._items = [item for at, (_, item) in enumerate(found) if at not in kept]
        if why := self._refusal():
            self._stop_early(why, now_ms)
            return
        log = append_log(self.queue.journal)
        after, at = next_write_position(log) if log is not None else (0, 0)
        self._append(Returning(number, after, at), self._announced, now_ms)

    def _refusal(self) -> str:
        """Why the slice cannot be returned now."""
        size = sum([len(item.data) + RECORD_OVERHEAD_BYTES for item in self._items])
        if self.queue.state is QueueState.CLOSED:
            return f"{self.queue.name} is deleted or the server stops"
        if self.undos.is_stopping:
            return "the server stops"
        if self.broker.group.is_full or not self.broker.group.admits(size):
            return DISK_FULL
        return ""

    def _append(self, head: Returning | Returned, then: Callable[[int], None], now_ms: int) -> None:
        data = frame(head)

        def written(error: OSError | None, now_ms: int) -> None:
            content = self.record.content
            if error is not None:
                if self._file is not None:
                    take_back(self.broker.spool.fs, self.record.path, self._file, content.end)
                self._stop_early(f"the undo file cannot be written: {error.strerror}", now_ms)
                return
            content.apply(head, content.end, len(data))
            then(now_ms)

        try:
            self.append(data, written)
        except OSError as error:
            written(error, now_ms)

    def _announced(self, now_ms: int) -> None:
        """The disk knows what is coming."""
        if why := self._refusal():
            self._stop_early(why, now_ms)
            return
        counters = self.queue.counters
        for item in self._items:
            self.queue.add(item, now_ms, forced=True)
            counters.total_items -= 1  # it was counted when it was put
            counters.put_bytes -= len(item.data)
        self.count += len(self._items)
        self._items = []
        if (log := append_log(self.queue.journal)) is not None:
            log.transfers_in += 1  # what takes them further waits until the disk knows that they are here
        self.after_sync(self._copied, now_ms, of_items=True)

    def _copied(self, now_ms: int) -> None:
        """The disk has the copies."""
        if (log := append_log(self.queue.journal)) is not None:
            log.transfers_in -= 1
        self._append(Returned(self.record.content.left[0]), self._read_next, now_ms)

    def _stop_early(self, why: str, now_ms: int) -> None:
        """The others stay in the file, for another try."""
        self.undos.add(self.record)
        self._close(why, now_ms)

    def _close(self, why: str, now_ms: int) -> None:
        result = Result.REFUSED if why and not self.count else Result.DONE
        self.session.log_event("queue.restored", now_ms, queue=self.queue.name, items=self.count, undo=self.record.id)
        self.broker.audit.note(
            self.session,
            "undo",
            now_ms,
            queue=self.queue.name,
            target=str(self.record.id),
            items=self.count,
            result=result,
            why=why,
            number=self.number,
        )
        self.end(why, now_ms)


def undo(session: Session, record: UndoRecord, now_ms: int, finish: Finish) -> None:
    """Return what is in the file of `record`. Raises Refused, if the queue cannot be made again."""
    queue = session.broker.queues.make(record.queue, now_ms)
    number = session.broker.audit.next_id()
    RunningUndo(session, queue, record, number, finish).begin(now_ms)
