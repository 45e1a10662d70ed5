"""Recovery of the undo files of an earlier run: it finds out which of their items are in their queues, so that no undo
doubles one.

After a purge that was cut off, the numbers of transactions, or the ids, in the journal show which items were removed.
After an undo that was cut off, its copies are searched for at the place that the file names, like those of a transfer.
The findings are written to the undo file and synced before any other change of the journal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import TypeVar

from staniel.broker.events import EventSink, Level
from staniel.broker.operations.deletions import DeletionRefused
from staniel.broker.operations.resumption import resume
from staniel.broker.operations.running import Operations
from staniel.broker.operations.undo import UndoRecord
from staniel.journal.disk.fs import FULL_ERRNOS, remove_each
from staniel.journal.disk.quarantine import quarantine, quarantine_entry
from staniel.journal.journals import removal_log
from staniel.journal.spool import refused_start
from staniel.journal.transfer_log import Fate, Intent
from staniel.journal.undo_file import (
    RESUMED_VERSION,
    BackItem,
    DeleteEnded,
    Kept,
    Moving,
    MovingItem,
    Over,
    Place,
    Settled,
    UndoContent,
    UndoItem,
    Unusable,
    frame,
    is_name,
    read_back,
    read_content,
    read_items,
    read_moved,
)
from staniel.queues.calendar import FOREVER_MS
from staniel.queues.item import Item, Numbered, item_with, past_bytes
from staniel.queues.queue import Queue
from staniel.queues.registry import QueueRefused
from staniel.queues.stream.stream import StreamLine
from staniel.queues.xids import steps_past

T = TypeVar("T")


class DamagedFrame(Exception):
    """The error for a frame whose bytes have changed since it was written."""


class ReadFailed(OSError):
    """A failure to read an undo file. It is never treated as a full disk, whatever the errno is: the error may pass."""

    call = "read"


@contextmanager
def reading(path: str) -> Iterator[None]:
    """Read the undo file at `path`. Raises ReadFailed."""
    try:
        yield
    except OSError as error:
        raise ReadFailed(error.errno, error.strerror, path) from error


class UndoRecovery:
    """Recovery of undo files. Call `classify` when every queue is loaded and none has been changed; then `find_copies`,
    after the recovery of transfers and before open reads are put back.
    """

    def __init__(self, operations: Operations, report: EventSink) -> None:
        self._operations = operations
        tools, spool = operations.tools, operations.tools.transfers.spool
        self._audit, self._queues, self._deletions, self._transfers = (
            tools.audit,
            tools.queues,
            tools.deletions,
            tools.transfers,
        )
        self.undos, self.fs, self._report_event = tools.undos, spool.fs, report
        self._damaged = f"{spool.own}/damaged"
        self.has_unresolved = False  # a queue with an undo file cannot be read
        self._unresolved: list[UndoRecord] = []
        self._is_starting = True
        self._moves: list[UndoRecord] = []
        self._intents: dict[int, tuple[UndoRecord, bool, int, int]] = {}  # by number: (file, of an undo, slice, place)
        self._cut_off: list[UndoRecord] = []

    def read(self, now_ms: int) -> None:
        """Read the files. Erase those of operations that cannot be undone any more."""
        entries = self._list()
        if entries is None:
            return  # no operation of this spool was ever undoable
        if not self._audit.tells_numbers():
            # Do not reuse numbers: an operator who noted one must not undo another operation with it.
            self._audit.know_id(now_ms // 1000)
        names = [name for name in entries if is_name(name)]
        for name in sorted(names, key=int):
            path = f"{self.undos.folder}/{name}"
            self._audit.know_id(int(name))  # no other operation gets the number of a remaining file
            try:
                content = self._read_file(path)
            except OSError as error:
                self._give_up(path, error)
                continue
            if content is None:
                continue
            if content.undoing is not None:
                # Continue under the same number. The audit log may have lost it in the crash.
                self._audit.know_id(content.undoing.id)
            is_unfinished = content.is_cut_off or content.undoing is not None
            is_kept = content.began.is_kept and self.undos.ends_ms(content.began, now_ms) > now_ms
            if not (is_kept or is_unfinished or content.has_queue_left):
                self._erase(path, is_settled=content.is_settled)
            elif content.began.carries_items:
                record = UndoRecord(path, content)  # the items are in place
                self.undos.add(record, now_ms)
                self._moves.append(record)
                if is_unfinished:
                    self._cut_off.append(record)
            else:
                self._unresolved.append(UndoRecord(path, content))

    def _list(self) -> list[str] | None:
        """List the files of the folder; None if the folder does not exist. Raises SpoolError: if this start ignored the
        files, no later one could find out which of their items are in their queues.
        """
        folder = self.undos.folder
        try:
            names = [name for name, regular in self.fs.list(folder) if regular]
        except FileNotFoundError:
            return None
        except OSError as error:
            raise refused_start(error, folder) from error
        with suppress(OSError):  # the file does no harm
            remove_each(self.fs, folder, [name for name in names if name.endswith(".new")])
        return names

    def _read_file(self, path: str) -> UndoContent | None:
        """Read the content of a file; None if it has no whole frame. Cut the file off behind its last whole frame, and
        keep a copy of bytes that cannot be read. Raises OSError.
        """
        fs = self.fs
        with reading(path):
            content, size = read_content(fs, path), fs.size(path)
        if content is Unusable.LATER:
            self._set_aside(path, content.value)
            return None
        if isinstance(content, Unusable):
            if size:
                saved_as = quarantine(fs, path, 0, size, self._damaged)
                self._report("undo.torn", path, content.value, saved_as=saved_as)
            self._erase(path, is_settled=True)
            return None
        if size > content.end:
            saved_as = quarantine(fs, path, content.end, size - content.end, self._damaged)
            self._report("undo.torn", path, f"no whole frame begins at byte {content.end}", saved_as=saved_as)
            fs.truncate(path, content.end)
        return content

    def classify(self) -> None:
        """Find out which items were removed by purges that were cut off. Change only the undo files."""
        for record in list(self._unresolved):
            queue = self._queues.known(record.queue)
            if record.content.is_over or (queue is None and self._is_blocked(record.queue)):
                continue
            content = record.content
            last = Settled(len(content.slices), 0) if content.is_cut_off else Over()
            try:
                still_there = self._still_there(record, queue)
                self._write(record, [*still_there, last])
                if content.is_cut_off:
                    self._cut_off.append(record)
            except OSError as error:
                self._give_up(record.path, error, record.queue)
                self._unresolved.remove(record)
            else:
                items, _ = content.counts()
                self._report("purge.interrupted", record.path, "the server ended", queue=record.queue, items=items)

    def _still_there(self, record: UndoRecord, queue: Queue | None) -> list[Kept]:
        """Return the items of a purge that are still in `queue`; none for a queue without a journal, or for None.
        Raises OSError.
        """
        if queue is None or removal_log(queue.journal) is None:
            return []
        present = Present(queue)
        kept = []
        for number in range(record.content.settled, len(record.content.slices)):
            places = [at for at, (item, _) in enumerate(self._items(record, number)) if present.holds(item)]
            if places:
                kept.append(Kept(number, places))
        return kept

    def find_copies(self, now_ms: int) -> None:
        """Find out which copies were added by undos that were cut off. After that the operations can be undone, or
        undone further.
        """
        left, self._unresolved = self._unresolved, []
        self.has_unresolved = False
        for record in left:
            content = record.content
            if self._queues.known(record.queue) is None and self._is_blocked(record.queue):
                self._unresolved.append(record)
                self.has_unresolved = True
                continue
            try:
                if content.returning is not None:
                    self._find_landed(record, content, now_ms)
            except OSError as error:
                self._give_up(record.path, error, record.queue)
                continue
            if content.undoing is not None:
                self._cut_off.append(record)
            if content.counts()[0] or record in self._cut_off:
                self.undos.add(record, now_ms)
            else:
                self._erase(record.path, is_settled=True)
        self._is_starting = False

    def _find_landed(self, record: UndoRecord, content: UndoContent, now_ms: int) -> None:
        returning = content.returning
        assert returning is not None
        kept = content.kept.get(returning.slice, frozenset())
        before_ms = returning.before_ms or FOREVER_MS
        items = [
            (at, item_with(past_bytes(item), item.data, min(item.added_ms, before_ms - 1), item.expires_ms, item.flags))
            for at, (_, item) in enumerate(self._items(record, returning.slice))
            if at not in kept
        ]
        position = int(returning.after), returning.at
        recovery = self._transfers.recovery
        landed = recovery.find_copies(record.queue, position, [item for _, item in items], now_ms)
        self._write(record, [Kept(returning.slice, [items[index][0] for index in sorted(landed)])])
        count, _ = content.counts()
        self._report("undo.interrupted", record.path, "the server ended", queue=record.queue, items=count)

    # moves

    def intents(self) -> list[Intent]:
        """Return the intents of moves and of their undos: the transfers of slices that were not settled."""
        intents: list[Intent] = []
        for record in list(self._moves):
            content = record.content
            try:
                for number in range(content.settled, len(content.slices)):
                    if content.began.version >= RESUMED_VERSION:
                        intents += self._moving(record, number)
                for number in range(content.settled_backs, len(content.backs)):
                    intents += self._returning(record, number)
            except DamagedFrame as damage:
                self._set_aside(record.path, str(damage), record.queue)
                self._forget(record)
            except OSError as error:
                self._give_up(record.path, error, record.queue)
                self._forget(record)
        return intents

    def _read_slice(self, record: UndoRecord, place: Place, read: Callable[[bytes], T | None]) -> T:
        """Read a slice by `read`. Raises OSError and DamagedFrame."""
        with reading(record.path):
            data = self.fs.read(record.path, place.at, place.size)
        head = read(data)
        if head is None:
            raise DamagedFrame(f"the frame at byte {place.at} has changed since it was written")
        return head

    def _moving(self, record: UndoRecord, number: int) -> list[Intent]:
        head = self._read_slice(record, record.content.slices[number], read_moved)
        assert isinstance(head, Moving)
        target, place = record.content.target_of(number), (int(head.after), head.at)
        files_of = self._transfers.recovery.files_of
        for other, behind in record.content.moved_behind.items():
            # A settled copy of another reader has no intent any more, and lies in the same files.
            if files_of(other) == files_of(target):
                place = behind.end_for(number, place)
        kept = record.content.kept.get(number, frozenset())  # noted before the items were taken back
        return [
            self._intent(record, False, number, at, record.queue, target, place, item.added_ms, head.at_ms, item)
            for at, item in enumerate(head.items)
            if at not in kept
        ]

    def _returning(self, record: UndoRecord, number: int) -> list[Intent]:
        head = self._read_slice(record, record.content.backs[number], read_back)
        place = record.content.returned_behind.end_for(number, (int(head.after), head.at))
        return [
            self._intent(
                record,
                True,
                item.slice,
                item.place,
                record.content.target_of(item.slice),
                record.queue,
                place,
                item.was_added_ms,
                item.added_ms,
                item,
            )
            for item in head.items
        ]

    def _intent(
        self,
        record: UndoRecord,
        is_undo: bool,
        slice_number: int,
        at: int,
        source: str,
        target: str,
        place: tuple[int, int],
        was_added_ms: int,
        added_ms: int,
        item: MovingItem | BackItem,
    ) -> Intent:
        number = self._transfers.transfer_log.reserve()
        self._intents[number] = record, is_undo, slice_number, at
        return Intent(number, source, was_added_ms, target, *place, added_ms, item.size, item.crc, item.xid, item.id)

    def apply_fates(self, fates: dict[int, Fate | None]) -> None:
        """Write the results of the intents, which are durable, into the files."""
        kept: dict[int, dict[int, list[int]]] = {}
        for number, (record, is_undo, slice_number, at) in self._intents.items():
            # An item that did not leave needs no undo; a returned one needs no further undo.
            if (fates.get(number) is not None) is is_undo:
                kept.setdefault(record.id, {}).setdefault(slice_number, []).append(at)
        for record in list(self._moves):
            content = record.content
            is_settled = content.settled == len(content.slices) or content.began.version < RESUMED_VERSION
            if is_settled and content.settled_backs == len(content.backs):
                continue
            heads = [Kept(number, places) for number, places in kept.get(record.id, {}).items()]
            try:
                self._write(record, [*heads, Settled(len(content.slices), len(content.backs))])
            except OSError as error:
                self._give_up(record.path, error, record.queue)
                self._forget(record)
        self._intents.clear()
        self._moves.clear()

    def _forget(self, record: UndoRecord) -> None:
        self.undos.by_id.pop(record.id, None)
        self._moves = [move for move in self._moves if move is not record]
        self._cut_off = [other for other in self._cut_off if other is not record]

    def resume(self, now_ms: int) -> None:
        """Continue the operations that were cut off. If a queue cannot be read, its operation continues at a later
        startup.
        """
        for record in list(self.undos.by_id.values()):
            if record.is_in_use or not record.content.has_queue_left:
                continue
            queue = self._queues.find(record.queue)
            # Items that were in transfer or open are in the queue again, and left to the next deletion.
            is_empty = queue is not None and not (
                len(queue.line) or queue.open_reads or queue.in_transfer or queue.delayed or queue.resting
            )
            if queue is not None and is_empty and not self._deletions.must_wait(queue):
                with suppress(DeletionRefused):  # the queue stays in service, empty
                    self._deletions.delete(queue, now_ms)
            self.undos.unended[record] = None
            self.undos.end_deletions(record.queue)
        self.undos.set_timer(now_ms)
        cut_off, self._cut_off = self._cut_off, []
        for record in sorted(cut_off, key=lambda record: record.id):
            try:
                resume(self._operations, record, now_ms)
            except (OSError, QueueRefused) as error:
                why = error.why if isinstance(error, QueueRefused) else str(error)
                self._report("operation.waits", record.path, why, queue=record.queue)

    def _items(self, record: UndoRecord, number: int) -> list[tuple[UndoItem, Item]]:
        """Return the items of a slice; none if it is damaged, because they cannot be returned then. Raises OSError."""
        place = record.content.slices[number]
        with reading(record.path):
            data = self.fs.read(record.path, place.at, place.size)
        items = read_items(data)
        if items is None:
            why = f"slice {number} has changed since it was written"
            self._report("undo.damaged", record.path, why, queue=record.queue)
        return items or []

    def _write(self, record: UndoRecord, heads: Sequence[Kept | Over | Settled | DeleteEnded]) -> None:
        """Write frames to the file of `record` and sync it. Raises OSError and JournalFailure."""
        file = self.fs.append(record.path)
        try:
            for head in heads:
                data = frame(head)
                file.write(data)
                record.content.apply(head, record.content.end, len(data))
            file.sync()
        finally:
            file.close()

    def _erase(self, path: str, *, is_settled: bool) -> None:
        """Erase a file whose items must not return. A file that cannot be removed stays, and the next startup tries
        again. If that startup, with its clock set back, could use the file and double an item, the file is set aside.
        Raises JournalFailure if it cannot be.
        """
        try:
            self.fs.truncate(path, 0)
            self.fs.remove(path)
        except OSError as error:
            if is_settled:
                hint = "none of its items returns; the next start tries again"
                self._report_event(Level.ERROR, "undo.unremoved", file=path, why=str(error), hint=hint)
            else:
                self._set_aside(path, str(error))

    def _give_up(self, path: str, error: OSError, queue: str = "") -> None:
        """Give up a file that cannot be read, or to which the findings cannot be written, or whose items' journal
        cannot be read. Set it aside if there is no room for the findings, and at a reload. Otherwise raise SpoolError:
        the error may pass, and startup must wait for that.
        """
        is_of_journal = error.filename not in (None, path)
        is_full = error.errno in FULL_ERRNOS and not isinstance(error, ReadFailed) and not is_of_journal
        if self._is_starting and not is_full:
            raise refused_start(error, path) from error
        self._set_aside(path, str(error), queue)

    def _set_aside(self, path: str, why: str, queue: str = "") -> None:
        """Set a file aside where no startup finds it. It must not be used once the journal of its queue has been
        changed, but its items are too valuable to erase it. Raises JournalFailure if it cannot be moved.
        """
        folder, _, name = path.rpartition("/")
        try:
            saved_as = quarantine_entry(self.fs, folder, name, self._damaged)
        except OSError as error:
            raise self._transfers.group.failure(f"cannot move {path}", error) from error
        hint = "the file has the purged items; the server does not return them any more"
        self._report_event(Level.ERROR, "undo.kept", file=path, why=why, queue=queue, saved_as=saved_as, hint=hint)

    def _is_blocked(self, name: str) -> bool:
        return self._transfers.recovery.is_blocked(name)

    def _report(self, event: str, path: str, why: str, **fields: object) -> None:
        hint = "staniel undo shows the remaining operations"
        self._report_event(Level.WARNING, event, file=path, why=why, hint=hint, **fields)


class Present:
    """The items of an undo file that are still in `queue`, according to its journal, after a crash."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._last = queue.last_xid
        self._ids: set[int] = set()
        if isinstance(queue.line, StreamLine):
            self._ids = {taken.id for taken in queue.open_reads.values()}
            self._ids.update([item.id for item in queue.line.walk() if isinstance(item, Numbered)])

    def holds(self, described: UndoItem) -> bool:
        """Return True if the item is still in the queue. Its transaction is recorded before its removal, so an item
        whose transaction is in the journal and not open was removed.
        """
        if described.id:
            return described.id in self._ids
        if steps_past(self._last, described.xid) > 0:
            return True
        taken = self._queue.open_reads.get(described.xid)
        return taken is not None and described.is_of(taken.item)
