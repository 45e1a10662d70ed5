"""Operations that can be undone. A purge first writes the items that it removes into an undo file; for some time an
undo returns them to the end of their queue (purge.py). A move writes what identifies its copies (move.py,
moved_back.py).
"""

from __future__ import annotations

from contextlib import suppress

from msgspec import Struct

from staniel.broker.config.schema import AdminSettings
from staniel.broker.events import EventSink, Level
from staniel.broker.operations.audit import Requester
from staniel.broker.timers import Timers
from staniel.journal.disk.fs import take_back
from staniel.journal.spool import Spool
from staniel.journal.undo_file import (
    FOLDER,
    HOMEWARD_VERSION,
    RESUMED_VERSION,
    Began,
    DeleteEnded,
    UndoContent,
    frame,
)
from staniel.queues.calendar import Calendar
from staniel.queues.queue import Queue

FILES_MAX = 1000
NOTE_AGAIN_MS = 1000
TARGETS_MAX = 20
ITEM_BYTES = 40  # in an undo file, in addition to its payload
MOVED_ITEM_BYTES = 70  # of a moved item, which is noted without its payload
HOMEWARD_ITEM_BYTES = 250  # of an item alone in its slice, in addition to the name of its target


class UndoView(Struct, frozen=True):
    """An operation that can be undone until `until_at_ms`. `bytes`: roughly the size of the payload. `target`: the
    queue that a move has sent its items to. For a redrive that sends each item home it is "", and `targets` has the
    first TARGETS_MAX homes.
    """

    id: int
    operation: str
    queue: str
    at_ms: int
    until_at_ms: int
    items: int
    bytes: int
    target: str = ""
    targets: list[str] = []


class OperationHead(Struct, frozen=True):
    """The facts of an operation at the beginning of its undo file. `total`: how many items it is about."""

    id: int
    name: str
    total: int
    by: Requester


class UndoRecord(Struct, eq=False):
    """An undo file: its path and its content. `holder`: the operation that writes to it or returns its items. `wanted`:
    the size that it is expected to reach.
    """

    path: str
    content: UndoContent
    wanted: int = 0
    holder: object | None = None

    @property
    def is_in_use(self) -> bool:
        return self.holder is not None

    @property
    def id(self) -> int:
        return self.content.began.id

    @property
    def queue(self) -> str:
        return self.content.began.queue.decode("utf-8", "surrogateescape")

    @property
    def target(self) -> str:
        """The queue that a move has sent the items to; "" if they are in the file, or each has its own target."""
        return self.content.began.target.decode("utf-8", "surrogateescape")


class Undos:
    """All operations of a spool that can be undone, the oldest first."""

    def __init__(
        self, settings: AdminSettings, spool: Spool, timers: Timers, calendar: Calendar, report: EventSink
    ) -> None:
        self._group, self._fs = spool.group, spool.fs
        self._timers, self._calendar, self.report = timers, calendar, report
        self.folder = f"{spool.own}/{FOLDER}"
        self.by_id: dict[int, UndoRecord] = {}
        self.keep_ms, self.bytes_max = settings.undo_ms, settings.undo_max_bytes
        self.is_on = settings.undo_ms > 0
        self.unended: dict[UndoRecord, None] = {}
        """Deletions whose files do not say yet that they have ended: the next start would carry them out on whatever
        queue has the name then, if it is empty.
        """

    def views(self, now_ms: int) -> list[UndoView]:
        """Return the operations that can be undone, the newest first."""
        return [self._view(record, now_ms) for record in reversed(self.by_id.values()) if not record.is_in_use]

    def _view(self, record: UndoRecord, now_ms: int) -> UndoView:
        began = record.content.began
        items, size = record.content.counts()
        until_ms = self._calendar.wall_ms(self.until_ms(record, now_ms))
        targets = record.content.targets[:TARGETS_MAX]
        return UndoView(
            began.id, began.operation, record.queue, began.at_ms, until_ms, items, size, record.target, targets
        )

    def until_ms(self, record: UndoRecord, now_ms: int) -> int:
        """Return until when an operation can be undone, in server time. The file has the wall clock's time, like an
        item.
        """
        return self.ends_ms(record.content.began, now_ms)

    def ends_ms(self, began: Began, now_ms: int) -> int:
        """Return until when the operation of `began` can be undone, in server time."""
        return self._calendar.ends_at_ms(began.at_ms, began.until_ms, now_ms)

    def refusal(self, queue: Queue, count: int, chosen_bytes: int | None = None) -> str:
        """Return why a purge of `count` items of `queue` cannot be undone, and so must not begin; "" if it can."""
        size, most = purged_bytes(queue, count, chosen_bytes), self.bytes_max
        promised = self._promised_bytes()
        final = "say no_undo (--no-undo) to remove them for good"
        if chosen_bytes is not None:
            final = "purge fewer of them at once"
        if size > most:
            return f"an undo of {count} items takes {size} bytes, and [admin] undo_max_size is {most}: {final}"
        if size + promised > most:
            why = f"operations under way need {promised} bytes of the {most} of [admin] undo_max_size"
            return f"{why}, and this one {size}: wait for them, or {final}"
        if len(self._in_use()) >= FILES_MAX:
            return f"{FILES_MAX} operations are under way: wait for one of them, or {final}"
        if self._group.is_full or not self._group.admits(size + promised):
            return f"the disk has no room for an undo of {size} bytes: {final}"
        return ""

    def can_note(self, items: int, target: str) -> bool:
        """Return True if there is room for the undo file of a move of `items` items. Without room the move is done, but
        cannot be undone.
        """
        size = moved_bytes(items, target) + self._promised_bytes()
        group = self._group
        return size <= self.bytes_max and not group.is_full and group.admits(size)

    def make(self, operation: OperationHead, queue: Queue, now_ms: int, chosen_bytes: int | None = None) -> UndoRecord:
        """Return the record of an operation that takes items from `queue`: the first ones, or chosen ones of
        `chosen_bytes`. Drop older files to make room for its file. Raises OSError.
        """
        is_chosen = chosen_bytes is not None
        size = purged_bytes(queue, operation.total, chosen_bytes)
        return self._make(operation, queue, "", size, now_ms, is_kept=True, is_chosen=is_chosen)

    def make_for_move(
        self,
        operation: OperationHead,
        queue: Queue,
        target: str,
        now_ms: int,
        *,
        is_kept: bool,
        is_chosen: bool,
    ) -> UndoRecord:
        """Return the record of a move to `target`; "": each item goes home."""
        size = moved_bytes(operation.total, target)
        return self._make(
            operation, queue, target, size, now_ms, is_kept=is_kept, is_chosen=is_chosen, is_homeward=not target
        )

    def _make(
        self,
        operation: OperationHead,
        queue: Queue,
        target: str,
        size: int,
        now_ms: int,
        *,
        is_kept: bool,
        is_chosen: bool,
        is_homeward: bool = False,
    ) -> UndoRecord:
        if is_kept:
            self._make_room(size)
        self._fs.make_folder(self.folder)
        calendar = self._calendar
        name, sent_to = [text.encode("utf-8", "surrogateescape") for text in (queue.name, target)]
        until_ms, by = calendar.end_of_life(now_ms, self.keep_ms), operation.by
        began = Began(
            HOMEWARD_VERSION if is_homeward else RESUMED_VERSION,
            operation.id,
            calendar.wall_ms(now_ms),
            until_ms,
            operation.name,
            name,
            sent_to,
            0 if is_chosen else operation.total,  # a version without chosen items continues with none
            by.address,
            by.protocol,
            by.user,
            is_kept,
            is_chosen,
            is_homeward,
        )
        return UndoRecord(f"{self.folder}/{operation.id}", UndoContent(began), size)

    def add(self, record: UndoRecord, now_ms: int) -> None:
        """Add a record. Its operation can be undone when no operation holds it."""
        self.by_id[record.id] = record
        self.set_timer(now_ms)

    def set_timer(self, now_ms: int) -> None:
        """Set the timer for the next record whose time passes, and for ends of deletions that are to be noted."""
        ends = [(record, self.until_ms(record, now_ms)) for record in self.by_id.values()]
        due = [until_ms for record, until_ms in ends if until_ms > now_ms or not record.is_in_use]
        if any(not record.is_in_use for record in self.unended):
            due.append(now_ms + NOTE_AGAIN_MS)
        if due:
            self._timers.set(self, min(due))

    def on_timer(self, now_ms: int) -> int:
        """Drop the records whose time to undo has passed. Return the work done, in dropped items."""
        ends = {record: self.until_ms(record, now_ms) for record in self.by_id.values()}
        over = [record for record, until_ms in ends.items() if until_ms <= now_ms and not record.is_in_use]
        for record in over:
            self.drop(record, "it expired")
        for record in [record for record in self.unended if not record.is_in_use]:
            with suppress(OSError):  # the next second tries again
                self._note_ended(record)
        self.set_timer(now_ms)
        return 1000 * len(over)

    def is_ending(self, name: str) -> bool:
        """Tell whether the end of a deletion of queue `name` is being noted."""
        return any(record.is_in_use and record.queue == name for record in self.unended)

    def end_deletions(self, name: str) -> str:
        """Note durably that the deletions of queue `name` have ended, before another queue of that name is created.
        Return why that is not possible now; "" if it is done.
        """
        for record in [record for record in self.unended if record.queue == name]:
            if record.is_in_use:
                return "its deletion has not ended"
            try:
                self._note_ended(record)
            except OSError as error:
                return f"the end of its deletion cannot be noted in {record.path}: {error.strerror}"
        return ""

    def _note_ended(self, record: UndoRecord) -> None:
        """Note durably that a deletion has ended. Raises OSError."""
        fs, path, content, data = self._fs, record.path, record.content, frame(DeleteEnded())
        with suppress(FileNotFoundError):  # the record was dropped
            fs.size(path)
            file = fs.append(path)
            try:
                take_back(fs, path, file, content.end)
                file.write(data)
                file.sync()
            except OSError:
                take_back(fs, path, file, content.end)
                raise
            finally:
                file.close()
            content.apply(DeleteEnded(), content.end, len(data))
        fs.sync_folder(self.folder)
        del self.unended[record]

    def drop(self, record: UndoRecord, why: str) -> None:
        """Drop a record, so that its operation cannot be undone any more. If its file cannot be removed, the next
        startup tries again.
        """
        self.by_id.pop(record.id, None)
        with suppress(OSError):
            self._fs.remove(record.path)
        if why:
            items, size = record.content.counts()
            self.report(Level.INFO, "undo.dropped", id=record.id, queue=record.queue, items=items, bytes=size, why=why)

    def erase(self, path: str) -> None:
        """Erase an undo file, so that no later startup finds items in it. Raises JournalFailure if that cannot be
        ensured.
        """
        fs = self._fs
        try:
            with suppress(FileNotFoundError):  # another program has removed it
                fs.truncate(path, 0)
                fs.remove(path)
        except OSError as error:
            raise self._group.failure(f"cannot remove {path}", error) from error

    def drop_all(self, why: str) -> None:
        """Drop all records that no operation holds, to make room on the disk."""
        for record in [record for record in self.by_id.values() if not record.is_in_use]:
            self.drop(record, why)

    def _make_room(self, size: int) -> None:
        """Drop the oldest files until one of `size` bytes fits into the limits of their number and size."""
        idle = [record for record in self.by_id.values() if not record.is_in_use]
        left = len(idle) + len(self._in_use())
        used = sum([record.content.end for record in idle]) + self._promised_bytes()
        for record in idle:
            if used + size <= self.bytes_max and left < FILES_MAX:
                break
            used -= record.content.end
            left -= 1
            self.drop(record, "its space was needed for a newer one")

    def _promised_bytes(self) -> int:
        """Return the sizes of the files of operations under way, present or expected, together."""
        return sum([max(record.content.end, record.wanted) for record in self._in_use()])

    def _in_use(self) -> list[UndoRecord]:
        return [record for record in self.by_id.values() if record.is_in_use]


def moved_bytes(items: int, target: str) -> int:
    """Return roughly the size of an undo file for a move to `target`, or for sending each item home."""
    return items * (MOVED_ITEM_BYTES if target else HOMEWARD_ITEM_BYTES)


def purged_bytes(queue: Queue, count: int, chosen_bytes: int | None) -> int:
    """Return roughly the size of an undo file for the first `count` items of `queue`, or for chosen ones."""
    items = queue.waiting_items
    if chosen_bytes is not None:
        return chosen_bytes + ITEM_BYTES * count
    return queue.waiting_bytes * min(count, items) // max(1, items) + ITEM_BYTES * count
