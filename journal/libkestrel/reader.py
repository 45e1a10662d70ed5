"""The journal of one queue of a family: its reader file, which stores confirmations.

Source: "Read checkpoint" of the libkestrel journal format. The library replaces the file once a second; this server
appends changes with every batch, so a confirmation is as durable as the queue's sync policy says.
"""

from __future__ import annotations

from collections.abc import Callable

from staniel.journal.disk.fs import BROKEN_ERRNOS, File
from staniel.journal.disk.replace_file import replace_and_open, replace_file
from staniel.journal.group_commit import is_stricter
from staniel.journal.interval_set import IntervalSet
from staniel.journal.libkestrel.appender import Appender
from staniel.journal.libkestrel.files import queue_of_reader, reader_name, temp_name
from staniel.journal.libkestrel.position import Position, can_append, encode_position, encode_reader_file
from staniel.journal.libkestrel.writer import StreamWriter
from staniel.queues.changes import Change, Cleared, Confirmed, Removed
from staniel.queues.config import QueueConfig
from staniel.queues.stream.stream import StreamLine

START_OVER_BYTES = 64 << 10
RECORDS_ESTIMATE_BYTES = 64  # counted as pending for one reader's batch, before its records are encoded


class ReaderLog(Appender):
    """The journal of a reader. `name`: the reader's, "" for the default reader. `has_file` False: the parent only fans
    out.
    """

    __slots__ = (
        "__dict__",  # the simulator overrides `record`
        "_batch",
        "_done",
        "_is_dirty",
        "_start_over_bytes",
        "blocks_transfers",
        "has_file",
        "line",
        "name",
        "on_policy_change",
        "open_transfers",
        "position",
        "readers",
        "segments",
        "writer",
    )

    def __init__(self, writer: StreamWriter, name: str, config: QueueConfig, position: Position) -> None:
        """Make the journal of a reader of `writer`'s family."""
        self._batch = 0
        super().__init__(writer.fs, writer.folder, writer.queue, writer.group, config.sync_ms)
        self.name = name
        self.path = f"{writer.folder}/{self.file_name}"
        self.writer = writer
        self.segments = writer.segments
        self.position = position
        self.line: StreamLine
        self.readers: dict[str, ReaderLog]  # of the family, this one included, by name
        self.on_policy_change: Callable[[], None]  # the family must sync its segments as the strictest reader requires
        self.has_file = True
        self.open_transfers = 0  # transfers whose removal is still to be recorded here
        self.blocks_transfers = False
        self._is_dirty = False
        self._done = IntervalSet()  # ids above the head, confirmed since the last write
        self._start_over_bytes = START_OVER_BYTES

    @property
    def file_name(self) -> str:
        return reader_name(self.queue, self.name)

    @property
    def queue_name(self) -> str:
        """The name of the reader's queue."""
        return queue_of_reader(self.queue, self.name)

    @property
    def batch(self) -> int:
        """The batch that a reply waits for: this file's or the writer's, whichever is later, because delivered items
        are durable only when the writer has synced them.
        """
        batch, items = self._batch, self.writer.batch
        return items if items > batch else batch

    @batch.setter
    def batch(self, batch: int) -> None:
        self._batch = batch

    @property
    def current_bytes(self) -> int:
        """The size of the file."""
        return self.written_bytes

    @property
    def has_pending(self) -> bool:
        return self._is_dirty or bool(self._unwritten)

    def configure(self, config: QueueConfig) -> None:
        """Apply changed settings. A stricter sync policy also applies to earlier confirmations and items."""
        before, self.sync_ms = self.sync_ms, config.sync_ms
        self.on_policy_change()
        if self.has_file and is_stricter(self.sync_ms, before):
            self.group.tighten(self)

    def create_at_end(self, now_ms: int) -> None:
        """Create the file, with the head at the newest item, and sync it: a start reads an empty one as the head of a
        reader that wants all items. Raises OSError.
        """
        self.position.head = self.line.stream.last_id
        self.create_synced(now_ms)
        self.has_file = True
        self.on_policy_change()

    def create(self, now_ms: int) -> None:
        """Create the file; the next sync makes it durable, with or before any later item. Raises OSError."""
        self._create(encode_reader_file(self.position), now_ms)

    def create_synced(self, now_ms: int) -> None:
        """Create the file and sync it before returning. Raises OSError."""
        self._install(now_ms)

    def rename(self, name: str) -> None:
        """Rename the reader and its file to `name`; the new file name is synced. Raises OSError."""
        if self._file is not None or self._closed_bytes:
            self.fs.rename(self.path, f"{self.folder}/{reader_name(self.queue, name)}")
            # If a power cut kept another reader's file without this name, recovery would drop the default reader.
            self.fs.sync_folder(self.folder)
        self.name = name
        self.path = f"{self.folder}/{self.file_name}"

    def record(self, change: Change) -> None:
        """Record removals and confirmations. Open reads are not recorded: after a crash the items are in the queue
        again.
        """
        kind = type(change)
        if kind is Removed or kind is Confirmed:
            item_id: int = change.id  # type: ignore[union-attr]
            position = self.position
            if item_id == position.head + 1 and self._is_dirty and not position.done.starts:
                position.head = item_id
            else:
                self.confirm(item_id, item_id)
        else:
            assert kind is not Cleared, "a StreamQueue confirms the ids that it clears"

    def confirm(self, first: int, last: int) -> None:
        """Record that the ids from `first` to `last` are confirmed."""
        if not self.has_file:
            return
        position = self.position
        if first == position.head + 1 and not position.done:
            position.head = last
        else:
            self._done.add_interval(first, last)
            position.confirm(first, last, self.segments)
        if not self._is_dirty:
            self._mark_dirty()

    def leave_out(self, item_id: int) -> None:
        """Confirm a new item that is not for this reader. That is written before the item is."""
        self.confirm(item_id, item_id)
        if self._is_dirty:
            self.writer.left_out[self] = None

    def write(self) -> File:
        if self._is_dirty:
            self._is_dirty = False
            self._done.drop_through(self.position.head)
            done = list(self._done)
            self._done = IntervalSet()
            at = self.written_bytes + len(self._unwritten)
            self._append(b"".join(encode_position(self.position.head, done, at)))
        elif self._unwritten:
            self._append(b"")
        return self.file

    def start_over_if_large(self, now_ms: int) -> None:
        """Replace the file by a minimal one once it is too large. If the system refuses that, double the limit. Raises
        OSError.
        """
        if self.written_bytes < self._start_over_bytes or self.has_pending:
            return
        try:
            self._install(now_ms)
        except OSError as error:
            if error.errno in BROKEN_ERRNOS:
                raise
            self.group.on_refused(self.path, error, now_ms)
            self._start_over_bytes = 2 * self.written_bytes
            return
        self._start_over_bytes = max(START_OVER_BYTES, 4 * self.written_bytes)

    @property
    def is_there(self) -> bool:
        """True if the file exists."""
        return self._file is not None or bool(self._closed_bytes)

    def erase(self) -> None:
        """Remove the file, if it exists. Raises OSError; nothing has changed then."""
        if self.is_there:
            self.fs.remove(self.path)
        self.forget_file()

    def forget_file(self) -> None:
        """Forget the pending records and the file, which is removed or about to be."""
        self._is_dirty = False
        self.abandon()

    def confirm_all(self, last_id: int) -> None:
        """Make the file say durably that all items up to `last_id` are confirmed. No more changes are recorded after
        that. Raises OSError, JournalFailure.
        """
        temp = f"{self.folder}/{temp_name(self.file_name, last_id)}"
        replace_file(self.fs, self.path, encode_reader_file(Position(last_id)), temp)

    def discard(self) -> None:
        """Remove the file of a reader whose creation has failed. Otherwise the next start would recover that reader."""
        self.abandon()
        try:
            self.fs.remove(self.path)
        except OSError:
            pass  # the file was not created

    def _mark_dirty(self) -> None:
        self._is_dirty = True
        self.group.mark_dirty(self)
        self.group.pending_bytes += RECORDS_ESTIMATE_BYTES

    def _install(self, now_ms: int) -> None:
        old = self._file
        temp = f"{self.folder}/{temp_name(self.file_name, now_ms)}"
        file = replace_and_open(self.fs, self.path, encode_reader_file(self.position), temp)
        assert can_append(file.size)
        self._switch_to(file)
        if old is not None:
            self.group.close_after_sync(old)
