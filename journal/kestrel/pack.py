"""A pack that is being written. It replaces the files of a journal up to a sealed one, and replays to the same state.

Each step is short; calls that wait for the disk are background tasks. The broker decides which journal is worth a pack,
and when to try again.

Source: "If the queue is in read-behind" of the packing strategy. A pack has the open reads of the checkpoint, a
stand-in for each item removed since, and the remaining items. Later files go on removing from the head, so every item
that was in the line at the checkpoint needs a record in its place; the record of a removed item is an empty one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from enum import Enum

from staniel.journal.background import BackgroundTask, CallbackTask, ReadPiece, SyncFile
from staniel.journal.disk.fs import File
from staniel.journal.disk.quarantine import quarantine
from staniel.journal.disk.replace_file import create_empty, discard
from staniel.journal.kestrel import files as kestrel_files
from staniel.journal.kestrel.derived_effect import head_of, with_rest
from staniel.journal.kestrel.encoder import Encoder
from staniel.journal.kestrel.install import InstallPack
from staniel.journal.kestrel.log import Log
from staniel.journal.kestrel.read_behind import ReadBehind, UnreadableItems
from staniel.journal.kestrel.segments import IndexEntry, LogSegment, index_records, index_run
from staniel.queues.checkpoint import Checkpoint
from staniel.queues.config import JournalDialect
from staniel.queues.item import Delivery, Item
from staniel.queues.line import PlainLine

STAND_IN = Item(b"", 0)  # it has no add time, so it raises no id
STAND_IN_RECORD = Encoder(JournalDialect.DOCUMENTS).addx(STAND_IN)  # the same bytes in every dialect
A_SLICE = 1000  # cost of a slice, about a millisecond
RUN_COST, ITEM_COST = 20, 1
STAND_INS_A_COST = 50  # stand-ins that cost as much as one item, because their bytes are all the same
RUN_BYTES = 256 << 10
SYNC_BYTES = 4 << 20  # sync this often while the pack grows, so that no sync is long


class Stage(Enum):
    WRITING = "writing"
    WAITING = "waiting"  # for a task, or for a sync of the journal
    SYNCED = "synced"  # the pack is complete and durable
    SAFE = "safe"  # the removals of the items that it omits are durable
    DONE = "done"
    FAILED = "failed"
    DROPPED = "dropped"


_ENDS = (Stage.FAILED, Stage.DROPPED)
_NEXT = {
    Stage.WRITING: (Stage.WAITING, *_ENDS),
    Stage.WAITING: (Stage.WRITING, Stage.SYNCED, Stage.SAFE, Stage.DONE, *_ENDS),
    Stage.SYNCED: (Stage.WAITING, Stage.DROPPED),
    Stage.SAFE: (Stage.WAITING, *_ENDS),
    Stage.DONE: (),
    Stage.FAILED: (),
    Stage.DROPPED: (),
}
"""The stages that may follow a stage; `_enter` asserts it."""


class Pack:
    """A pack that is being written. `last` is the newest file that it replaces. `error` says why it failed; nothing is
    changed then. `is_vain`: it is in place, but the system allowed no replaced file to be removed.
    """

    def __init__(self, log: Log, last: LogSegment, submit: Callable[[BackgroundTask], None]) -> None:
        assert last.checkpoint is not None
        self.log = log
        self.last = last
        self.checkpoint: Checkpoint = last.checkpoint
        self.stage = Stage.WRITING
        self.error: OSError | None = None
        self.is_vain = False
        self.task: CallbackTask | None = None
        self.lost: list[tuple[UnreadableItems, str]] = []  # unreadable items, and where copies of their bytes are
        self._submit = submit
        self._temp = kestrel_files.temp_name(log.name, last.number)
        self._file: File | None = None
        self._unsynced_bytes = 0
        self._segment: LogSegment | None = None  # the pack as a segment, once its head is written
        self._lead: Iterator[bytes] = iter(())  # unwritten records of its head
        self._head_bytes = 0
        self._came = 0, 0  # payload bytes of the written items, and how many of these have an expiry
        self._seq = self.checkpoint.left
        self._alive = log.queue_view.alive()
        self._kept = deque(sorted(seq for seq in self._alive if seq >= self.checkpoint.left))
        # These stay valid: an item that leaves the line from now on is in the pack with its data.
        self._left = log.queue_view.checkpoint().left
        self._line = PlainLine()  # the part of the line that must be read from the files
        self._reader = ReadBehind(log.segments, self._line)
        self._encoder = Encoder(log.config.journal_dialect)

    def _enter(self, stage: Stage) -> None:
        assert stage in _NEXT[self.stage], f"{stage} after {self.stage}"
        self.stage = stage

    def run_slice(self, now_ms: int) -> None:
        """Do a slice of the work, if there is any to be done now."""
        try:
            if self.stage is Stage.WRITING:
                self._write_some()
            elif self.stage is Stage.SYNCED:
                # A power cut must not undo the removals of the items that the pack omits.
                self._enter(Stage.WAITING)
                self.log.group.call_when_durable(self.log, self._safe)
            elif self.stage is Stage.SAFE:
                self._install(now_ms)
        except OSError as error:
            self._fail(error)

    @property
    def is_idle(self) -> bool:
        """True if `run_slice` has nothing to do before a task or a sync ends."""
        return self.stage is Stage.WAITING

    @property
    def is_over(self) -> bool:
        return self.stage in (Stage.DONE, Stage.FAILED, Stage.DROPPED)

    def discard(self) -> None:
        """Remove all traces of the pack. No task of this pack may be running; a task that has not begun will
        never run.
        """
        self._enter(Stage.DROPPED)
        if self.task is not None:
            self.task.release()
            self.task = None
            self.log.segments.close_held(self.log.segments.covered_by(self.last))
        self._clear_away()

    def _write_some(self) -> None:
        if self._file is None:
            self._file = create_empty(self.log.fs, f"{self.log.folder}/{self._temp}")
            self._lead = self._head()
        if self._segment is None:
            self._write_lead()
        elif self._seq < min(self._left, self.checkpoint.end):
            self._write_left()
        elif self._seq < self.checkpoint.end:
            self._write_items(self._read_items())
        if self.stage is not Stage.WRITING:
            return
        if self._segment is not None and self._seq >= self.checkpoint.end:
            self._sync(Stage.SYNCED)
        elif self._unsynced_bytes >= SYNC_BYTES:
            self._sync(Stage.WRITING)

    def _head(self) -> Iterator[bytes]:
        """Return the records of the open reads and of the returned items at the checkpoint."""
        heads = [self._item_at(seq) for seq in self.checkpoint.heads]
        if not self.checkpoint.xids and not heads:
            # The files after this one continue from this counter.
            is_nothing = self.checkpoint.left >= self.checkpoint.end
            return iter([(self._encoder.encode_empty if is_nothing else self._encoder.save_xid)(self.last.counter)])
        opened = {xid: Delivery(self._item_at(seq), 0, 1, xid) for xid, seq in self.checkpoint.open.items()}
        return self._encoder.snapshot(self.last.counter, opened, heads)

    def _write_lead(self) -> None:
        """Write a slice of the head."""
        records: list[bytes] = []
        size = 0
        for record in self._lead:
            records.append(record)
            size += len(record)
            if size >= RUN_BYTES or len(records) >= A_SLICE:
                self._write(b"".join(records))
                return
        self._write(b"".join(records))
        self._begin_segment()

    def _item_at(self, seq: int) -> Item:
        return self._alive.get(seq, STAND_IN)

    def _write_left(self) -> None:
        """Write a slice of the items that have left the line since the checkpoint: a stand-in for each removed item,
        and the items that are not removed.
        """
        end = min(self._left, self.checkpoint.end)
        budget = A_SLICE
        while budget > 0 and self._seq < end:
            next_kept = min(self._kept[0], end) if self._kept else end
            count = min(next_kept - self._seq, STAND_INS_A_COST * budget)
            if count:
                self._write_stand_ins(count)
                budget -= RUN_COST + count // STAND_INS_A_COST
            else:
                items = self._next_kept(end)
                self._write_items(items)
                budget -= RUN_COST + ITEM_COST * len(items)

    def _next_kept(self, end: int) -> list[Item]:
        """Return the items from the present seq on that are not removed, as one run of neighbours."""
        items: list[Item] = []
        size = 0
        while self._kept and self._kept[0] == self._seq + len(items) < end and len(items) < A_SLICE:
            item = self._alive[self._kept.popleft()]
            items.append(item)
            size += len(item.data)
            if size >= RUN_BYTES:
                break
        return items

    def _read_items(self) -> list[Item]:
        """Return a slice of the items that are in the files; [] while a piece of them is being read."""
        self._line.left, self._line.on_disk = self._seq, self.checkpoint.end - self._seq
        items = self._reader.decode()
        span = None if items else self._reader.span_to_read()
        if span is not None:
            segment, at, count = span
            path = self.log.segments.path(segment)
            piece = ReadPiece(
                self.log.fs,
                path,
                at,
                count,
                segment.block_bytes,
                lambda error, now_ms: self._have_read(error, segment, piece),
            )
            self._hand_over(piece)
        return items

    def _have_read(self, error: OSError | None, segment: LogSegment, piece: ReadPiece) -> None:
        if error is None:
            self._reader.read_ahead(segment, piece.at, piece.data, piece.checks)
        self._came_back(error, Stage.WRITING)

    def _begin_segment(self) -> None:
        """Begin the segment of the pack. The head has been written, the line follows."""
        assert self._file is not None
        checkpoint, counter = self.checkpoint, self.last.counter
        self._head_bytes = self._file.size
        segment = LogSegment(
            self.log.name,
            self.last.number,
            IndexEntry(self._head_bytes, checkpoint.left),
            entry=checkpoint,
            checkpoint=checkpoint,
        )
        segment.entered = segment.counter = counter
        opened = [self._item_at(seq) for _, seq in sorted(checkpoint.open.items())]
        segment.head = head_of(checkpoint, opened, [self._item_at(seq) for seq in checkpoint.heads], counter)
        self._segment = segment

    def _write_stand_ins(self, count: int) -> None:
        assert self._file is not None and self._segment is not None
        self._write(STAND_IN_RECORD * count)
        self._seq += count
        index_run(self._segment, len(STAND_IN_RECORD), count, IndexEntry(self._file.size, self._seq, *self._came))

    def _write_items(self, items: list[Item]) -> None:
        if not items:
            return
        assert self._file is not None and self._segment is not None
        records = [self._encoder.addx(item) for item in items]
        self._write(b"".join(records))
        self._seq += len(items)
        size, expiring = self._came
        size += sum([len(item.data) for item in items])
        self._came = size, expiring + sum([item.expires_ms != 0 for item in items])
        index_records(self._segment, records, IndexEntry(self._file.size, self._seq, *self._came))

    def _write(self, data: bytes) -> None:
        assert self._file is not None
        self._file.write(data)
        self._unsynced_bytes += len(data)

    def _sync(self, then: Stage) -> None:
        assert self._file is not None
        self._unsynced_bytes = 0
        self._hand_over(SyncFile(self._file, lambda error, now_ms: self._came_back(error, then)))

    def _hand_over(self, task: CallbackTask) -> None:
        self._enter(Stage.WAITING)
        self.task = task
        self._submit(task)

    def _came_back(self, error: OSError | None, then: Stage) -> None:
        self.task = None
        if self.is_over:
            return
        if error is not None:
            self._fail(error)
        else:
            self._enter(then)

    def _safe(self, now_ms: int) -> None:
        if self.stage is Stage.WAITING:
            self._enter(Stage.SAFE)

    def _install(self, now_ms: int) -> None:
        log, number = self.log, self.last.number
        if log.open_transfers:
            return  # recovery may still have to find a transfer's copy in these files
        folder = kestrel_files.damaged_folder(log.folder)
        for lost in self._reader.unreadable:
            # These files are about to be removed.
            try:
                saved_as = quarantine(log.fs, f"{log.folder}/{lost.file}", lost.at, lost.size, folder)
            except FileNotFoundError:
                saved_as = ""
            self.lost.append((lost, saved_as))
        self._reader.unreadable.clear()
        assert self._file is not None
        names = self._temp, kestrel_files.pack_name(log.name, number), kestrel_files.archive_name(log.name, number)
        covered = log.segments.covered_by(self.last)
        # Items that memory had no room for may be in these files, and another file may take their names at any moment.
        log.segments.keep_open(covered, log.queue_view.unread())
        self._hand_over(InstallPack(log.fs, log.folder, names, log.covered_files(self.last), self._installed))

    def _installed(self, error: OSError | None, now_ms: int) -> None:
        install, self.task = self.task, None
        self.log.segments.close_held(self.log.segments.covered_by(self.last))
        assert isinstance(install, InstallPack)
        if error is not None and not install.has_begun:
            self._fail(error)
            return
        if error is not None:
            # How far the installation came is unknown, so leave the files to recovery. No deletion of the queue and no
            # stop may change them before, because neither knows the pack.
            self.error = error
            self._enter(Stage.FAILED)
            raise self.log.group.failure(f"cannot put the pack of {self.log.path} in place", error) from error
        assert self._file is not None
        segment = self._segment
        assert segment is not None and segment.head is not None
        segment.size = self._file.size
        segment.head = with_rest(segment.head, self._came)
        self.is_vain = install.is_vain and self.last.name != kestrel_files.pack_name(self.log.name, self.last.number)
        self.log.covered(self.last, segment, install.unfinished)
        self.log.kept_bytes = self._head_bytes
        self.log.rewrites += 1
        self._file.close()
        self._file = None
        self._enter(Stage.DONE)

    def _fail(self, error: OSError) -> None:
        self.error = error
        self._enter(Stage.FAILED)
        self._clear_away()

    def _clear_away(self) -> None:
        if self._file is not None:
            discard(self.log.fs, f"{self.log.folder}/{self._temp}", self._file)
            self._file = None
