"""The redo log in service: which bytes of which files it gets, its two segments, and their reuse.

A batch of durable queues is one write to the log and one sync of it. The log's blocks exist already, so this sync
commits nothing of the file system's own journal. The files of the queues have the same bytes in the page cache; they
are synced in the background when a segment is full. While the log is in use, `.staniel/version` names it, so that no
older server takes the files for complete.

For a queue that is synced later, or never by this server, the log has checksums of the written pieces (EXTENT): after a
power cut they show which bytes of its file are whole. A sync reads these pieces back to compute the checksums
(`piece_of`), so that writes cost nothing more, and many writes become one piece. A log can have only checksums
(CHECKSUMS_ONLY). Then no reply waits for it, and it is created once there is a queue that needs it.

Threads: `wrote` and everything else about files is called in the turn. The running Sync writes and syncs the log, from
its start to its end; at other times the turn may write, as much as there is room for. Background tasks sync other files
and fill segments that are not in use.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from enum import Enum

from msgspec import Struct

from staniel.journal.disk.fs import File, FilesMisplaced, Region
from staniel.journal.disk.replace_file import replace_file
from staniel.journal.disk.unsynced_names import NamedFile, UnsyncedNames
from staniel.journal.redo import records
from staniel.journal.redo.records import BLOCK_BYTES, DATA, DATA_KIND, HEAD, BatchHead, pack_data_head

NAMES = ("redo.0", "redo.1")
SEGMENTS = len(NAMES)
FIRST_SEGMENT_BYTES = 4 << 20  # doubled whenever the segments were full, so a spool that writes little needs little
SHARE_OF_DISK = 16
PIECE_SHARE = 4  # of a segment: a larger write is not worth a second copy
CATCH_UP_BYTES_MAX = 4 << 20  # of a file, read back so that the log has these bytes before later writes
SEGMENT_BYTES_MIN = 16 << 10
CHECKSUMS_ONLY = -1  # in place of a size
CHECKSUM_LOG_BYTES = 8 << 20
EXTENT_BYTES_MAX = 128 << 10  # bytes of a file in one EXTENT: if they are not whole, recovery cuts all of them off
IN_USE = "staniel-spool 2"  # in `.staniel/version`, before the log's id
UNUSED = "staniel-spool 1"  # also written by servers that do not know the log


class LogState(Enum):
    OFF = "off"  # because of its setting, or because it could not be created
    DORMANT = "dormant"  # until a journal is written whose sync comes after its replies
    UNUSED = "unused"  # before it is created and after a clean stop
    BEING_MADE = "being made"
    IN_USE = "in use"


LOG_NEXT = {
    LogState.OFF: (),
    LogState.DORMANT: (LogState.UNUSED,),
    LogState.UNUSED: (LogState.BEING_MADE,),
    LogState.BEING_MADE: (LogState.IN_USE, LogState.OFF),
    LogState.IN_USE: (LogState.UNUSED,),
}
"""The states of the log that may follow a state; `RedoLog.enter` asserts it."""


class SegmentState(Enum):
    FREE = "free"
    ACTIVE = "active"
    FULL = "full"
    RETIRING = "retiring"  # the files whose bytes the segment has are being synced
    SAFE = "safe"  # the files are synced, but no record says so yet


SEGMENT_NEXT = {  # one that is still needed becomes active at once if the other is full: all files are synced first
    SegmentState.FREE: (SegmentState.ACTIVE,),
    SegmentState.ACTIVE: (SegmentState.FULL,),
    SegmentState.FULL: (SegmentState.RETIRING, SegmentState.ACTIVE),
    SegmentState.RETIRING: (SegmentState.SAFE, SegmentState.ACTIVE),
    SegmentState.SAFE: (SegmentState.FREE, SegmentState.ACTIVE),
}
"""The states of a segment that may follow a state; `Segment.enter` asserts it."""


class Segment:
    """A segment: one of the two files. `at`: where the next batch goes. `last_batch`: its number. `last_flush`: the
    last flush with records in it. `safe_flush`: the flush that records that it is SAFE.
    """

    __slots__ = ("at", "file", "last_batch", "last_flush", "path", "safe_flush", "size", "state")

    def __init__(self, path: str) -> None:
        self.path = path
        self.file: Region | None = None
        self.size = 0
        self.at = 0
        self.last_batch = 0
        self.last_flush = 0
        self.safe_flush = 0
        self.state = SegmentState.FREE

    def enter(self, state: SegmentState) -> None:
        """Change the state, as SEGMENT_NEXT allows it."""
        assert state in SEGMENT_NEXT[self.state], f"{state} after {self.state}"
        self.state = state

    @property
    def region(self) -> Region:
        assert self.file is not None
        return self.file


class Binding:
    """A file that the log knows. `direct_bytes`: up to here the log has at most checksums, so the file itself must be
    synced. `noted_bytes`: up to here the log has records of a file without data. `bound_flush`: the flush with its
    BIND. `last_flush`: the last flush with a record of it.
    """

    __slots__ = (
        "bound_flush", "direct_bytes", "file", "has_data", "last_flush", "noted_bytes", "number", "path", "safe_bytes",
        "size",
    )  # fmt: skip

    def __init__(self, number: int, path: str, file: NamedFile, *, has_data: bool) -> None:
        self.number = number
        self.path = path
        self.file: NamedFile | None = file
        self.has_data = has_data
        self.size = file.size  # size and safe_bytes are kept while the file is closed
        self.safe_bytes = file.safe_bytes
        self.direct_bytes = 0
        self.noted_bytes = 0
        self.bound_flush = 0
        self.last_flush = 0

    def known_safe_bytes(self) -> int:
        file = self.file
        return self.safe_bytes if file is None else min(file.safe_bytes, file.size)

    def written_bytes(self) -> int:
        return self.size if self.file is None else self.file.size

    def mark_safe(self, size: int) -> None:
        """Note that the first `size` bytes have been synced. Do nothing if the file was released after that sync began,
        because it may have been cut.
        """
        self.safe_bytes = max(self.safe_bytes, size)
        if self.file is not None and self.file.binding is self:
            self.file.safe_bytes = max(self.file.safe_bytes, size)


class Piece(Struct):
    """The bytes of a file that a sync logs without their data: from `at` to `end`. The first `safe_bytes` were durable
    before. The group does not close the file while the sync is running.
    """

    number: int
    file: NamedFile
    at: int
    end: int
    safe_bytes: int

    def records(self) -> Iterator[bytes]:
        """Yield the checksum records of the bytes, which are read back for this. Raises OSError."""
        at, safe_bytes = self.at, self.safe_bytes
        while at < self.end:
            data = self.file.read(at, min(EXTENT_BYTES_MAX, self.end - at))
            if not data:
                raise OSError(errno.EIO, "what was written cannot be read back", self.file.path)
            yield records.encode_extent(self.number, at, safe_bytes, data)
            at += len(data)


class RedoLog:
    """The log of the spool in `folder`. `bytes_max`: the size of both segments together; 0: no log; CHECKSUMS_ONLY: a
    log without data.
    """

    def __init__(self, fs: UnsyncedNames, folder: str, own: str, bytes_max: int) -> None:
        self.fs = fs
        self.folder = folder
        self.own = own
        self.takes_data = bytes_max > 0
        self.state = LogState.UNUSED if bytes_max > 0 else LogState.DORMANT if bytes_max else LogState.OFF
        if bytes_max == CHECKSUMS_ONLY:
            bytes_max = CHECKSUM_LOG_BYTES
        self.segment_bytes_max = bytes_max // SEGMENTS // BLOCK_BYTES * BLOCK_BYTES
        self.segments = tuple(Segment(f"{own}/{name}") for name in NAMES)
        self.active = self.segments[0]
        self.spool_id = bytes(records.ID_BYTES)  # a new id each time that the log is taken into use
        self.boot_id = fs.boot_id() if bytes_max else bytes(records.ID_BYTES)
        if bytes_max:
            fs.write_log = self
        self.why_off = ""
        """The reason why there is no log, if it could not be created."""
        self.wait_for_sync: Callable[[], None] = lambda: None
        """A function that the group sets; it returns once the running sync, if there is one, has run."""
        self.is_due = self.takes_data
        """True if `tasks` must be called."""
        self.running: list[RedoTask] = []
        self.bindings: dict[str, Binding] = {}
        self.released: dict[str, Binding] = {}
        """By path: files that are gone or have another name. That must be durable before other files get the name."""
        self.flushes = 0  # how often a sync has been given records to write
        self.durable_flush = 0
        self.next_number = 1  # the number of the next batch
        self.synced = 0
        self._oldest = self._oldest_unsynced = 1
        self._files = records.FIRST_FILE - 1  # the last number given to a file
        self._table_bytes = 0  # bytes of a table of BIND records for all bound files
        self._piece_bytes = 0  # the largest piece of data in the log; a batch has at most two
        self._has_pieces = False  # pieces have been returned by `piece_of` since the last flush
        self.has_pending = False
        """True if the log has records that are not written yet."""
        self._pending: list[bytes] = []
        self._pending_bytes = 0
        self._sealed: list[tuple[bytes, int]] = []  # sealed batches: records, and the new oldest number or 0
        self._sealed_bytes = 0
        self._unsynced: dict[Segment, None] = {}
        self._to_grow: list[Segment] = []

    def enter(self, state: LogState) -> None:
        """Change the state, as LOG_NEXT allows it."""
        assert state in LOG_NEXT[self.state], f"{state} after {self.state}"
        self.state = state

    @property
    def is_in_use(self) -> bool:
        return self.state is LogState.IN_USE

    def covers(self, file: NamedFile) -> bool:
        """Tell whether a sync of the log, once all pending records are written, makes a sync of `file` unnecessary."""
        binding = file.binding
        return isinstance(binding, Binding) and binding.has_data and file.safe_bytes >= binding.direct_bytes

    def uncovered_files(self, files: Iterable[File]) -> list[File]:
        """Return those of `files` that must be synced themselves according to the log, including files outside the
        spool.
        """
        return [file for file in files if type(file) is not NamedFile or not self.covers(file)]

    def schedule_creation(self) -> None:
        """Schedule the creation of the log: there are writes to log."""
        self.enter(LogState.UNUSED)
        self.is_due = True

    def adopt(self, file: NamedFile, *, has_data: bool) -> bool:
        """Log the bytes that are written to `file` from now on, and those that no sync has covered yet. `has_data`: the
        bytes themselves, not only their checksums. Return True if the log did not know the file before and knows it
        now. If the disk does not allow the file to be read, it is not adopted: it is synced itself, and adopted with
        its next write.
        """
        binding = file.binding
        if isinstance(binding, Binding):
            if binding.has_data is not has_data:
                self._change_kind(binding, file, has_data=has_data)
            return False
        if not self._may_bind(file, has_data=has_data):
            return False
        at = min(file.safe_bytes, file.size)
        try:
            behind = list(self._read_behind(file, at)) if has_data else []
        except OSError:
            return False
        path = file.path[len(self.folder) + 1 :]
        self._files += 1
        binding = Binding(self._files, path, file, has_data=has_data)
        binding.bound_flush = self.flushes + 1
        record = records.bind(binding.number, binding.known_safe_bytes(), path)
        self._table_bytes += len(record)
        self._add_record(record)
        self.bindings[file.path] = binding
        file.bind(binding, tell=has_data)
        binding.noted_bytes = binding.known_safe_bytes()
        if has_data:
            self._catch_up(binding, file, at, behind)
        return True

    def _read_behind(self, file: NamedFile, at: int) -> Iterator[bytes]:
        """Yield the bytes that were written to `file` from byte `at` on. Raises OSError."""
        while at < file.size and (piece := file.read(at, min(self._piece_bytes, file.size - at))):
            yield piece
            at += len(piece)

    def _catch_up(self, binding: Binding, file: NamedFile, at: int, behind: Iterable[bytes]) -> None:
        """Log the bytes that were written to `file` but are not in the log: pieces from byte `at` on."""
        self._log_safe_bytes(binding)
        for piece in behind:
            self.wrote(file, at, piece)
            at += len(piece)
            binding.noted_bytes = max(binding.noted_bytes, at)

    def _change_kind(self, binding: Binding, file: NamedFile, *, has_data: bool) -> None:
        """Change what the log has of a file after its queue's sync policy has changed. If the bytes cannot be read
        back, the file keeps its state, and is synced itself.
        """
        if has_data:
            at = max(binding.noted_bytes, binding.known_safe_bytes())
            try:
                behind = list(self._read_behind(file, at))
            except OSError:
                return
            self._catch_up(binding, file, at, behind)
            binding.direct_bytes = max(binding.direct_bytes, binding.noted_bytes)
        else:
            binding.noted_bytes = file.size
        binding.has_data = has_data
        file.bind(binding, tell=has_data)

    def _may_bind(self, file: NamedFile, *, has_data: bool) -> bool:
        if not self.is_in_use or not file.path.startswith(f"{self.folder}/") or not self.fs.has_its_name(file):
            return False
        if self._files >= records.FILES_MAX:  # this takes months of a thousand new files a second
            return False
        if file.is_in_doubt or (has_data and file.size - file.safe_bytes > CATCH_UP_BYTES_MAX):
            return False
        # The table is also written to the other segment, which may be the smaller one.
        if self._table_bytes + len(file.path) + records.BIND.size > self._piece_bytes:
            return False
        try:
            return self.fs.is_same_device(file.path, self.folder)
        except OSError:
            return False  # another program has removed it; Spool.check_files_in_place finds out

    def wrote(self, file: NamedFile, at: int, data: bytes) -> None:
        """Log `data`, which has just been written at byte `at` to `file`. The file is bound."""
        binding = file.binding
        assert isinstance(binding, Binding)
        size = len(data)
        safe_bytes = min(file.safe_bytes, at)
        if binding.has_data and size <= self._piece_bytes:
            # This is one step of the interpreter, because a background task that renames a file may add a record of its
            # own.
            self._pending += (pack_data_head(DATA_KIND, binding.number, at, safe_bytes, size), data)
            self._pending_bytes += DATA.size + size
        else:
            binding.direct_bytes = at + size
            self._add_record(records.encode_extent(binding.number, at, safe_bytes, data))
        binding.last_flush = self.flushes + 1
        self.has_pending = True
        if self._pending_bytes > self._piece_bytes:
            self._seal()

    def opened(self, file: NamedFile) -> None:
        """Bind `file` again, which has been opened under a bound name. Raises FilesMisplaced."""
        binding = self.bindings[file.path]
        if file.size != binding.size:
            raise FilesMisplaced(f"{file.path} was removed, moved, cut short or written to by another program")
        file.safe_bytes = binding.safe_bytes
        binding.file = file
        file.bind(binding, tell=binding.has_data)

    def closed(self, file: NamedFile) -> None:
        """Note that `file`, which is bound, is about to be closed. Log the checksums that the log lacks."""
        binding = file.binding
        assert isinstance(binding, Binding)
        if not binding.has_data:
            with suppress(OSError):  # no sync will cover these bytes, so a power cut may take them
                at = max(binding.noted_bytes, binding.known_safe_bytes())
                self._catch_up(binding, file, at, self._read_behind(file, at))
        binding.size, binding.safe_bytes, binding.file = file.size, min(file.safe_bytes, file.size), None

    def end_file(self, path: str) -> None:
        """Release the file at `path` before it is renamed, cut or replaced: recovery must not use its records in the
        log after that. Raises OSError, JournalFailure.
        """
        binding = self._release(path)
        if binding is None:
            return
        if binding.known_safe_bytes() < binding.written_bytes():
            file = binding.file or self.fs.append(path)
            file.sync()
            if file is not binding.file:
                file.close()
        self._add_record(records.encode_done(binding.number))
        self.released[path] = binding

    def removed(self, path: str) -> None:
        """Note that the file at `path` has been removed. As long as a power cut may bring the file back, recovery may
        write the log's bytes into it.
        """
        binding = self._release(path)
        if binding is not None:
            self.released[path] = binding

    def free_name(self, path: str) -> None:
        """Free the name `path` before another file takes it or the file there is cut, so that after a power cut no
        bytes of the old file get into the new one. Raises OSError, JournalFailure.
        """
        self.end_file(path)
        binding = self.released.pop(path, None)
        if binding is None:
            return
        self.fs.sync_folder(path.rpartition("/")[0])
        self._add_record(records.encode_done(binding.number))
        self.wait_for_sync()
        self.carry_out(self.take_sealed())

    def complete(self, file: NamedFile) -> None:
        """Complete the log's records of `file`, to which nothing more is written and which has been synced. Recovery
        must not cut off bytes of it that the log does not have yet, because later bytes in other files depend on them.
        Raises JournalFailure.
        """
        self.end_file(file.path)
        self.wait_for_sync()
        self.carry_out(self.take_sealed())

    def _release(self, path: str) -> Binding | None:
        binding = self.bindings.pop(path, None)
        if binding is None:
            return None
        size = records.BIND.size + len(binding.path.encode("utf-8", "surrogateescape"))
        self._table_bytes -= size  # an atomic step, because a background task may be removing a file
        if binding.file is not None:
            binding.file.unbind()
        binding.last_flush = self.flushes + 1
        return binding

    def _add_record(self, record: bytes) -> None:
        size = len(record)  # first, so that no call follows the append: a background task may be renaming a file
        self._pending.append(record)
        self._pending_bytes += size
        self.has_pending = True

    def _seal(self, oldest: int = 0) -> None:
        self.has_pending = True
        pending, self._pending, self._pending_bytes = self._pending, [], 0  # in one step, see `_add_record`
        batch = b"".join(pending)
        self._sealed.append((batch, oldest))
        self._sealed_bytes += records.batch_bytes(len(batch))

    def piece_of(self, file: NamedFile, bytes_max: int) -> Piece | None:
        """Return the part of a file that the next sync logs by its checksum, up to `bytes_max` bytes; None if there is
        no such part.
        """
        binding = file.binding
        if not isinstance(binding, Binding) or binding.has_data:
            return None
        was_behind = self._log_safe_bytes(binding)
        at = binding.noted_bytes
        end = min(file.size, at + bytes_max)
        if at >= end and not was_behind:
            return None
        binding.noted_bytes = end
        binding.last_flush = self.flushes + 1
        self._has_pieces = True
        return Piece(binding.number, file, at, end, min(binding.known_safe_bytes(), at))

    def _log_safe_bytes(self, binding: Binding) -> bool:
        """Log how many bytes of a file have been synced, if the log has a lower number. Recovery would cut off the
        bytes above that number.
        """
        safe_bytes = binding.known_safe_bytes()
        if binding.noted_bytes >= safe_bytes:
            return False
        binding.noted_bytes = safe_bytes
        self._add_record(records.encode_safe(binding.number, safe_bytes))
        return True

    def take_sealed(self) -> list[tuple[bytes, int]]:
        """Return the sealed batches that are not written yet, for `carry_out`. The pieces returned before belong to
        them.
        """
        if self._pending:
            self._seal()
        sealed, self._sealed = self._sealed, []
        self._sealed_bytes = 0
        self.has_pending = False
        if sealed or self._has_pieces:
            self.flushes += 1
            self._has_pieces = False
        return sealed

    def unsynced_bytes(self, file: NamedFile) -> int:
        """Return how many bytes of a bound file a power cut may take."""
        binding = file.binding
        assert isinstance(binding, Binding)
        if binding.last_flush <= self.durable_flush and self.covers(file):
            return 0
        return file.size - binding.known_safe_bytes()

    # writing and syncing: the running Sync's, otherwise the turn's

    def stage(self) -> bool:
        """Let the next sync write all pending records. Return False, with nothing done, if files must be synced before
        there is room.
        """
        size = self._sealed_bytes + records.batch_bytes(self._pending_bytes)
        if not self._fits(size):
            other = self.segments[self.active is self.segments[0]]
            if other.state is not SegmentState.FREE or size > 2 * self._piece_bytes:
                return False
        self._stage_each(self.take_sealed())
        return True

    def region_to_sync(self) -> Region | None:
        """Return the region of the only segment with unsynced batches; None if there is not exactly one such
        segment.
        """
        if len(self._unsynced) != 1:
            return None
        (segment,) = self._unsynced
        return segment.region

    def carry_out(self, batches: list[tuple[bytes, int]], pieces: Sequence[Piece] = ()) -> None:
        """Write and sync `batches`, then the records of `pieces`. Raises OSError, JournalFailure."""
        self._stage_each(batches)
        batch: list[bytes] = []
        size = 0
        for piece in pieces:
            for record in piece.records():
                batch.append(record)
                size += len(record)
                if size > self._piece_bytes:
                    self._stage_each([(b"".join(batch), 0)])
                    batch, size = [], 0
        self._stage_each([(b"".join(batch), 0)] if batch else [])
        self._sync()
        self.durable_flush = self.flushes

    def _stage_each(self, batches: list[tuple[bytes, int]]) -> None:
        for batch, oldest in batches:
            if not self._fits(records.batch_bytes(len(batch))):
                self._switch()
            self._stage(batch, oldest)

    def _fits(self, size: int) -> bool:
        """Tell whether a batch of this size leaves room for the batch without records that may have to end a
        segment.
        """
        active = self.active
        return active.at + size + BLOCK_BYTES <= active.size

    def _stage(self, batch: bytes, oldest: int = 0) -> None:
        """Add a batch to the active segment. The next sync writes it. `oldest`: once this batch is durable, no batch
        before `oldest` is needed. Later batches may say so only after this one is durable, because a power cut may lose
        this one and keep them.
        """
        active, number = self.active, self.next_number
        self._oldest_unsynced = max(oldest, self._oldest_unsynced)
        head = BatchHead(len(batch), number, max(oldest, self._oldest), self.synced, self.spool_id, self.boot_id)
        data = records.encode_batch(head, batch)
        assert active.at + len(data) <= active.size
        active.region.stage(active.at, data)
        active.at += len(data)
        active.last_batch = number
        active.last_flush = self.flushes
        self._unsynced[active] = None
        self.next_number = number + 1

    def _sync(self) -> None:
        for segment in list(self._unsynced):
            self.fs.guard(segment.region.sync)
        self._unsynced.clear()
        self.synced = self.next_number - 1
        self._oldest = self._oldest_unsynced

    def _switch(self) -> None:
        """Continue in the other segment. If it is still needed, sync all files of the spool first."""
        full, other = self.active, self.segments[self.active is self.segments[0]]
        if other.state is not SegmentState.FREE:
            self._retire_now()
        full.enter(SegmentState.FULL)
        self.is_due = True
        other.enter(SegmentState.ACTIVE)
        other.at = 0
        self.active = other
        self._stage(b"".join(self._table()))

    def _retire_now(self) -> None:
        bindings = list(self.bindings.values())
        sizes = [binding.written_bytes() for binding in bindings]
        self.fs.sync_all(self.folder)
        for binding, size in zip(bindings, sizes, strict=True):
            binding.mark_safe(size)
        self._stage(b"", oldest=self.next_number)  # the table in the next batch says which bytes are safe
        self._sync()

    def _table(self) -> list[bytes]:
        return [
            records.bind(binding.number, binding.known_safe_bytes(), binding.path)
            for binding in list(self.bindings.values())
        ]

    def tasks(self) -> list[RedoTask]:
        """Return the background tasks that are due now."""
        self.is_due = False
        tasks: list[RedoTask] = []
        if self.state is LogState.UNUSED:
            self.enter(LogState.BEING_MADE)
            tasks.append(MakeLog(self))
        for segment in self.segments:
            if segment.state is SegmentState.FULL:
                segment.enter(SegmentState.RETIRING)
                tasks.append(RetireSegment(self, segment))
        tasks.extend(GrowSegment(self, segment) for segment in self._to_grow)
        self._to_grow.clear()
        self.running += tasks
        return tasks

    def find_lost(self) -> str:
        """Return the path of a segment that another program has removed or replaced; "" if there is none."""
        for segment in self.segments:
            with suppress(OSError):  # the disk cannot say
                if segment.file is not None and not segment.file.is_at(segment.path):
                    return segment.path
        return ""

    def begin_use(self) -> None:
        """Begin to use the segments, which exist now. The first of them has one batch without records."""
        for segment in self.segments:
            segment.at, segment.last_batch, segment.last_flush = 0, 0, self.flushes
            segment.size = segment.region.size
        self.active = self.segments[0]
        self.active.enter(SegmentState.ACTIVE)
        self.active.at = BLOCK_BYTES
        self.synced = records.FIRST_BATCH
        self.next_number = self.synced + 1
        self._oldest = self._oldest_unsynced = self.synced
        self.measure()
        self.enter(LogState.IN_USE)

    def measure(self) -> None:
        """Compute the size of a piece from the sizes of the segments: a table, two pieces and the batch that ends a
        segment must fit into one segment.
        """
        share = min(segment.size for segment in self.segments) // PIECE_SHARE // BLOCK_BYTES * BLOCK_BYTES
        self._piece_bytes = share - HEAD.size - DATA.size

    def retired(self, segment: Segment, sizes: list[tuple[Binding, int]]) -> None:
        """Release files after a sync of all of them, which makes `segment`, a full one, safe. `sizes`: the sizes of the
        files before that sync.
        """
        for binding, size in sizes:
            binding.mark_safe(size)
        if self._pending:
            self._seal()
        for path, binding in list(self.bindings.items()):
            if binding.last_flush <= segment.last_flush and binding.known_safe_bytes() == binding.written_bytes():
                self._release(path)
                self._add_record(records.encode_done(binding.number))
                self.released[path] = binding
            else:
                self._add_record(records.encode_safe(binding.number, binding.known_safe_bytes()))
        self._seal(oldest=segment.last_batch + 1)
        segment.enter(SegmentState.SAFE)
        segment.safe_flush = self.flushes + 1

    def free_retired(self) -> None:
        """Free the segments that nothing needs any more, after a sync of the log."""
        for segment in self.segments:
            if segment.state is SegmentState.SAFE and segment.safe_flush <= self.durable_flush:
                segment.enter(SegmentState.FREE)
                self._forget_released(segment.last_flush)
                if segment.size < self.segment_bytes_max:
                    self._to_grow.append(segment)
                    self.is_due = True

    def _forget_released(self, flush: int) -> None:
        """Forget the removed files without records since `flush`. Records of the same flush as the end of a segment may
        be in the other segment. A background task may be removing a file, so the dict stays the same object, and a
        binding that was added meanwhile stays in it.
        """
        for path, binding in list(self.released.items()):
            if binding.last_flush < flush and (popped := self.released.pop(path, binding)) is not binding:
                self.released.setdefault(path, popped)

    def end_use(self) -> None:
        """End the use of the log. All files of the spool are durable and nothing is written to them any more, so older
        servers may use them. Raises OSError, JournalFailure.
        """
        if self.state is LogState.IN_USE:
            replace_file(self.fs, f"{self.own}/version", f"{UNUSED}\n".encode())
        self.forget_files()

    def stay_in_use(self) -> None:
        """Log the synced sizes of the files with only checksums in the log, after a sync of all files. `version` cannot
        be written, so the log stays in use. Raises OSError, JournalFailure.
        """
        for binding in self.bindings.values():
            if not binding.has_data:
                binding.mark_safe(binding.written_bytes())
                self._log_safe_bytes(binding)
        self.carry_out(self.take_sealed())

    def forget_files(self) -> None:
        """Forget the files. `version` says that the log is not in use."""
        if self.state is LogState.IN_USE:
            self.enter(LogState.UNUSED)
        for path in list(self.bindings):
            self._release(path)
        for segment in self.segments:
            if segment.file is not None:
                segment.file.close()
                segment.file = None


class RedoTask:
    """A task for the background thread. `run` calls only the disk."""

    def __init__(self, log: RedoLog) -> None:
        self.log = log
        self.error: OSError | None = None

    def run(self) -> None:
        """Do the work. An OSError is kept for `done`. Raises JournalFailure."""
        try:
            self.work()
        except OSError as error:
            self.error = error

    def on_done(self, now_ms: int) -> None:
        self.log.running.remove(self)
        self.end()

    def work(self) -> None:
        """Do the work in the background thread. Raises OSError, JournalFailure."""
        raise NotImplementedError

    def end(self) -> None:
        """Finish the task, which has run without an error."""
        raise NotImplementedError


class MakeLog(RedoTask):
    """A task that creates the two files, and notes in `version` that they are in use. Files of an earlier run are not
    used again: if a sync failed in that run, their names may not be durable, and no later sync of the folder would
    write them.
    """

    def work(self) -> None:
        log, fs = self.log, self.log.fs
        total = fs.free_bytes(log.folder)[1]
        log.segment_bytes_max = min(
            log.segment_bytes_max, total // SHARE_OF_DISK // SEGMENTS // BLOCK_BYTES * BLOCK_BYTES
        )
        if log.segment_bytes_max < SEGMENT_BYTES_MIN:
            raise OSError(errno.ENOSPC, "the disk is too small for a redo log", log.own)
        for segment in log.segments:
            with suppress(FileNotFoundError):
                fs.remove(segment.path)
            fs.fill(segment.path, min(FIRST_SEGMENT_BYTES, log.segment_bytes_max))
            segment.file = fs.overwrite(segment.path)
        log.spool_id = fs.unique_id()
        number = records.FIRST_BATCH
        bare = BatchHead(0, number, number, number - 1, log.spool_id, log.boot_id)
        first = log.segments[0].region
        first.write_at(0, records.encode_batch(bare, b""))
        fs.guard(first.sync)
        fs.sync_folder(log.own)
        replace_file(fs, f"{log.own}/version", f"{IN_USE} {log.spool_id.hex()}\n".encode())

    def end(self) -> None:
        if self.error is None:
            self.log.begin_use()
        else:
            self.log.enter(LogState.OFF)
            self.log.why_off = str(self.error)
            self.log.is_due = True


class RetireSegment(RedoTask):
    """A task that syncs all files, so that a full segment is not needed any more."""

    def __init__(self, log: RedoLog, segment: Segment) -> None:
        super().__init__(log)
        self.segment = segment
        self.last_batch = segment.last_batch
        self.sizes: list[tuple[Binding, int]] = []

    def work(self) -> None:
        self.sizes = [(binding, binding.written_bytes()) for binding in list(self.log.bindings.values())]
        self.log.fs.sync_all(self.log.folder)

    def end(self) -> None:
        # Meanwhile the log may have had to continue in this segment.
        if self.segment.state is SegmentState.RETIRING and self.segment.last_batch == self.last_batch:
            self.log.retired(self.segment, self.sizes)


class GrowSegment(RedoTask):
    """A task that doubles a segment. The new part lies after all bytes that may be written there meanwhile."""

    def __init__(self, log: RedoLog, segment: Segment) -> None:
        super().__init__(log)
        self.segment = segment

    def work(self) -> None:
        log = self.log
        size = min(2 * self.segment.size, log.segment_bytes_max)
        if log.fs.free_bytes(log.folder)[0] > SHARE_OF_DISK * size:
            log.fs.fill(self.segment.path, size)

    def end(self) -> None:
        if self.error is None and self.segment.file is not None:
            self.segment.size = self.log.fs.size(self.segment.path)
            self.log.measure()
