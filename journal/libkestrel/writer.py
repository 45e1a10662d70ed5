"""The writer of a family's segments: each item is written once, however many readers there are.

Sources: "Filenames" and "Write journal" of the libkestrel journal format. As in the library, a new segment begins
before an item that would make the current one longer than allowed.
"""

from __future__ import annotations

from staniel.journal.disk.fs import BROKEN_ERRNOS, FULL_ERRNOS, File
from staniel.journal.disk.unsynced_names import is_held, last_held_number
from staniel.journal.group_commit import GroupCommit
from staniel.journal.libkestrel.appender import Appender
from staniel.journal.libkestrel.files import segment_name
from staniel.journal.libkestrel.put_record import put_record
from staniel.journal.libkestrel.records import MAGIC_BYTES, SEGMENT_MAGIC, encode_put
from staniel.journal.libkestrel.scan import IdRun
from staniel.journal.libkestrel.segments import StreamSegment, StreamSegments
from staniel.queues.config import QueueConfig
from staniel.queues.item import Numbered


class StreamWriter(Appender):
    """The writer of a family's segments. `segments` indexes every item when it is written. A segment is planned with
    the item that needs it, and created when the batch is written.
    """

    __slots__ = (
        "_entered_id",
        "_is_dirty",
        "_pending_records",
        "_planned",
        "_rotated_ms",
        "_run",
        "_size",
        "batch",
        "blocks_transfers",
        "left_out",
        "newest_number",
        "open_transfers",
        "rotations",
        "segment_bytes",
        "segments",
        "transfers_in",
        "usual_bytes",
        "written_id",
    )

    def __init__(self, queue: str, group: GroupCommit, config: QueueConfig, segments: StreamSegments) -> None:
        super().__init__(segments.fs, segments.folder, queue, group, config.sync_ms)
        self.batch = 0
        self.segments = segments
        self.newest_number = 0
        self.open_transfers = 0  # transfers whose copies recovery would search for here
        self.transfers_in = 0  # copies from other queues that are not durable yet
        self.blocks_transfers = False  # a step waits for the end of open transfers: no transfer begins until it is done
        self.rotations = 0
        self.left_out: dict[Appender, None] = {}  # reader files that must first say which new items are not for them
        self.written_id = segments.readable_id = segments.last_id
        self._entered_id = segments.last_id
        self._pending_records: list[list[bytes]] = [
            []
        ]  # pending records of the current segment, then of each later one
        self._planned: list[StreamSegment] = []  # segments whose files are not created yet
        self._is_dirty = False
        self._size = 0  # bytes of the newest segment, including pending records
        self.segment_bytes = self.usual_bytes = config.default_journal_bytes

    @property
    def has_pending(self) -> bool:
        return self._is_dirty or bool(self._unwritten)

    @property
    def current_bytes(self) -> int:
        """The size of the newest segment, including pending records."""
        return self._size

    def next_item(self) -> tuple[int, int]:
        """Return the number of the newest segment that has a file, and the id of the next item, which is written there
        or to a later segment. Items of planned segments go on in the segment before if the system refuses to create
        theirs, so a byte would not tell the next item from those that were put before it in this turn. A file that is
        no segment may have a higher number (`newest_number`).
        """
        pending = sum([len(records) for records in self._pending_records])
        return self.segments.files[-1 - len(self._planned)].number, self._entered_id + pending + 1

    @property
    def archived_bytes(self) -> int:
        """The size of all older segments together."""
        return sum(segment.size for segment in self.segments.files) - self._size

    def start(self, newest_number: int, now_ms: int) -> None:
        """Append to the newest segment, or create the first. `newest_number`: the highest number that a file has had.
        With a retention hold, a segment of an earlier run gets no more items: its holder may have seen a later one,
        which a crash has lost, and taken it for sealed. Raises OSError.
        """
        fs = self.segments.fs
        self.newest_number = max(newest_number, last_held_number(fs, self.queue))
        is_new = not self.segments.files or is_held(fs, self.queue)
        if is_new:
            self.segments.files.append(self._next_segment(now_ms))
        current = self.segments.files[-1]
        self.path = f"{self.folder}/{current.name}"
        self._size = current.size
        self._run = next((run for run in self.segments.runs[-1:] if run.segment == current.name), None)
        if is_new:
            self._create(SEGMENT_MAGIC, now_ms)
        else:
            self.resume(current.size)

    def put(self, item: Numbered, now_ms: int) -> None:
        """Record an item. It is written with the current batch."""
        if item.expires_ms:
            record = encode_put(item, item.id, item.errors)
        else:
            record = put_record(item)
        size = len(record)
        after = self._size + size
        if after > self.segment_bytes and after > size + MAGIC_BYTES:
            self._plan_segment(now_ms)
            after = MAGIC_BYTES + size
        if not self._is_dirty:
            self._mark_dirty()
        self._size = after
        self._pending_records[-1].append(record)
        self.group.pending_bytes += size

    def begin_segment(self, now_ms: int) -> None:
        """Begin another segment for the items that are put from now on. It is created with the current batch."""
        if not self._planned:
            self._plan_segment(now_ms)

    def read(self, item_id: int) -> list[Numbered]:
        """Read items, as StreamSegments.read does."""
        return self.segments.read(item_id)

    def write(self) -> File:
        if self.left_out:
            self._write_left_out()
        while True:
            records = self._pending_records[0]
            if records:
                self._index_records(records)
                magic = b"" if self.written_bytes or self._unwritten else SEGMENT_MAGIC
                self._pending_records[0] = []
                self._append(magic + b"".join(records))
            elif self._unwritten:
                self._append(b"")
            if not self._planned:
                break
            self._rotate_or_grow()
        if not self.written_bytes:  # the segment has no item yet
            self._append(SEGMENT_MAGIC)
        self._is_dirty = False
        self.written_id = self.segments.readable_id = self._entered_id
        return self.file

    def _write_left_out(self) -> None:
        """Write which new items are not for some readers, so that no reader gets such an item if the process is killed
        now. A start drops ids that no item has (StreamRecovery). Raises OSError.
        """
        for reader in self.left_out:
            if not reader.is_erased:
                reader.write()
        self.left_out.clear()

    def _index_records(self, records: list[bytes]) -> None:
        """Index the items of the current segment that are about to be written."""
        segment = self.segments.files[-1 - len(self._planned)]
        first_id = self._entered_id + 1
        if self._run is None or self._run.segment != segment.name or self._run.next_id != first_id:
            self._run = IdRun(segment.name, first_id, [])
            self._run.extend(segment.size, records)
            self.segments.append_run(self._run)
            segment.first_id = segment.first_id or first_id
        else:
            self._run.extend(segment.size, records)
        self._entered_id = segment.last_id = self._run.last_id
        segment.size = self._run.stop

    def names(self) -> list[str]:
        """Return the file names of the segments that exist, the oldest first."""
        created = [segment for segment in self.segments.files if segment not in self._planned]
        if not (self._file or self._closed_bytes):
            created.remove(self.segments.files[-1 - len(self._planned)])
        return [segment.name for segment in created]

    def forget_files(self) -> None:
        """Forget the pending records and all segments, which are removed or about to be."""
        self._pending_records = [[]]
        self._planned.clear()
        self.left_out.clear()
        self._is_dirty = False
        self.abandon()
        self.segments.files.clear()

    def _mark_dirty(self) -> None:
        self._is_dirty = True
        self.group.mark_dirty(self)

    def _next_segment(self, now_ms: int) -> StreamSegment:
        """Return a segment numbered by the clock, but above the one before, even if the clock steps back."""
        self.newest_number = max(now_ms, self.newest_number + 1)
        return StreamSegment(segment_name(self.queue, self.newest_number), self.newest_number, MAGIC_BYTES)

    def _plan_segment(self, now_ms: int) -> None:
        if not self._is_dirty:
            self._mark_dirty()
        segment = self._next_segment(now_ms)
        self.segments.files.append(segment)
        self._planned.append(segment)
        self._pending_records.append([])
        self._size = MAGIC_BYTES
        self._rotated_ms = now_ms

    def _rotate_or_grow(self) -> None:
        """Continue with the next planned segment. If the system refuses to create it, the current segment takes the
        planned items, and twice its size before the next try. Raises OSError.
        """
        try:
            self._rotate()
        except OSError as error:
            if error.errno in FULL_ERRNOS or error.errno in BROKEN_ERRNOS:
                raise
            self.group.on_refused(self.path, error, self._rotated_ms)
            self.segments.files.remove(self._planned.pop(0))
            self._pending_records[0] += self._pending_records.pop(1)
            if not self._planned:
                self._size += self.written_bytes - MAGIC_BYTES
            self.segment_bytes = 2 * self._size

    def _rotate(self) -> None:
        """Seal the current segment and switch to the next planned one. Raises OSError; nothing has changed then.

        If replies wait for syncs, or recovery may search here for copies, which it distinguishes by their order, the
        segment is synced before the next one is created, so a power cut leaves no gap. Otherwise the next sync includes
        it, and after a power cut its last items may be missing while later ones exist.
        """
        file, path = self.file, f"{self.folder}/{self._planned[0].name}"
        is_gapless = self.sync_ms == 0 or self.open_transfers > 0
        if is_gapless:
            file.sync()
            self.fs.sync_folder(self.folder)
        following = self.fs.append(path)
        if is_gapless:
            self.group.complete(file)
            self.group.close_after_sync(file)
        else:
            self.group.seal(file, self._rotated_ms)
        self.group.change_folder(self.sync_ms, self._rotated_ms)
        self._switch_to(following)
        self.path = path
        self._planned.pop(0)
        self._pending_records.pop(0)
        self.segment_bytes = self.usual_bytes
        self.rotations += 1
