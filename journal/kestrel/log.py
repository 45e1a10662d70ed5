"""The journal of one queue. It encodes changes and keeps their bytes in memory until the commit group writes them.

It rotates the current file, and rewrites small journals in one step. policy.py decides when. The group writes and
syncs. pack.py rewrites journals that are too large for one step.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

from staniel.journal.disk.fs import File, Fs, remove_each, take_back
from staniel.journal.disk.removal import FileRemoval, Unremoved
from staniel.journal.disk.replace_file import create_empty, discard
from staniel.journal.disk.unsynced_names import is_held as is_held_queue
from staniel.journal.group_commit import GroupCommit, is_stricter
from staniel.journal.kestrel import files as layout
from staniel.journal.kestrel.addx import joined, size_of, waiting_record, xid_record
from staniel.journal.kestrel.derived_effect import segment_of_rewrite
from staniel.journal.kestrel.encoder import REMOVE_RECORD, Encoder
from staniel.journal.kestrel.install import UnfinishedPack, remove_sidecars, try_to_finish
from staniel.journal.kestrel.policy import Usage
from staniel.journal.kestrel.records import ADDX_HEAD_BYTES, SAVE_XID, WITH_XID_BYTES
from staniel.journal.kestrel.segments import SAMPLE_BYTES, IndexEntry, LogSegment, Segments, index_records
from staniel.queues.changes import Added, Change, Opened, Removed, added, confirmed, opened, removed
from staniel.queues.checkpoint import Checkpoint
from staniel.queues.config import QueueConfig
from staniel.queues.interfaces import Journal
from staniel.queues.item import Delivery, Item, ItemWithPast

_ADDX_HEAD_BYTES, _WITH_XID_BYTES = ADDX_HEAD_BYTES, WITH_XID_BYTES  # C numbers in the compiled build


class QueueView(Protocol):
    """The queue as the journal sees it."""

    def checkpoint(self) -> Checkpoint: ...

    def tip(self) -> tuple[int, int, int] | None:
        """Return (seq of the next item, payload bytes, how many with an expiry), counted over all items ever added."""

    def alive(self) -> dict[int, Item]:
        """Return, by seq, the items that have left the fresh part of the line and are not removed for good."""

    def unread(self) -> int:
        """Return the seq of the first item that is only in the files."""


class NoQueueView:
    """The view of a journal that serves no queue yet."""

    def checkpoint(self) -> Checkpoint:
        return Checkpoint(0, 0)

    def tip(self) -> tuple[int, int, int] | None:
        return None

    def alive(self) -> dict[int, Item]:
        return {}

    def unread(self) -> int:
        return 0


class Log(Journal):
    """The files of one queue in the Kestrel format. `queue_view` must be set before the journal may be rotated."""

    __slots__ = (  # without slots Python finds more than thirty attributes slowly
        "_counted",
        "_counted_bytes",
        "_file",
        "_pending",
        "_restoring",
        "_size",
        "_unwritten",
        "batch",
        "blocks_transfers",
        "config",
        "encoder",
        "folder",
        "fs",
        "group",
        "growth_max_bytes",
        "is_deferred",
        "is_erased",
        "kept_bytes",
        "listener",
        "name",
        "newest_number",
        "next_look_seq",
        "open_transfers",
        "path",
        "policy_bytes",
        "policy_threshold_bytes",
        "queue_view",
        "rewrites",
        "rewritten_ms",
        "rotations",
        "seal_wanted",
        "segments",
        "stuck",
        "sync_ms",
        "transfers_in",
        "unfinished",
    )

    def __init__(self, fs: Fs, folder: str, name: str, group: GroupCommit, config: QueueConfig) -> None:
        self.fs = fs
        self.folder = folder
        self.name = name
        self.group = group
        self.path = f"{folder}/{name}"
        self.encoder = Encoder(config.journal_dialect)
        self.batch = 0
        self.newest_number = 0
        self.segments = Segments(fs, folder, name)
        self.segments.writer = self
        self.queue_view: QueueView = NoQueueView()
        self.is_erased = False
        self.is_deferred = False  # until a reply depends on them, records of an operation wait for a later sync
        # A pack was installed half way: only recovery can finish that.
        self.unfinished: UnfinishedPack | None = None
        self.stuck: list[str] = []  # empty packs that a start could not move away
        self.next_look_seq = 0  # when the reader reaches this seq, a pack may be worth it
        self.seal_wanted = False  # rotate after the next sync, however small the file is
        self.policy_bytes = 0
        self.kept_bytes = 0
        self.rewrites = 0
        self.rewritten_ms = 0
        self.rotations = 0
        self.sync_ms = config.sync_ms
        self._file: File | None = None
        self.open_transfers = 0  # transfers from or to this journal: recovery must find their copies in place
        self.transfers_in = 0  # copies from other queues that are not durable yet
        self.blocks_transfers = False  # a step waits for the end of open transfers: no transfer begins until it is done
        self._pending: list[bytes] = []  # see waiting_record
        self._counted, self._counted_bytes = 0, 0  # how many of them have been counted, and their bytes
        self._size = 0  # bytes in the current file, open or not
        self._unwritten = b""
        self._restoring = b""  # records to write before the next ones, see restore_counter
        self.listener: Callable[[Change], None] | None = None  # set by the simulator
        self.configure(config)

    def configure(self, config: QueueConfig) -> None:
        """Take over changed settings."""
        self.config = config
        before, self.sync_ms = self.sync_ms, config.sync_ms
        if is_stricter(self.sync_ms, before) and (self._pending or self._file is not None):
            self.group.tighten(self)
        # The policy has nothing to do while `policy_bytes` and the sealed files together are below this.
        self.policy_threshold_bytes = min(
            config.default_journal_bytes, config.max_memory_bytes, config.max_journal_bytes
        )
        # The policy also has nothing to do while a queue with items has a single file of at most this size.
        self.growth_max_bytes = min(config.max_memory_bytes, config.max_journal_bytes)
        self.encoder.dialect = config.journal_dialect

    @property
    def file(self) -> File:
        if self._file is None:
            self._file = self.group.open_files.open(self.fs, self.path, must_write=bool(self._unwritten))
            self._size = self._file.size
            self.group.open_files.opened(self)
        return self._file

    @property
    def archives(self) -> list[str]:
        """The names of the sealed files, in order."""
        return [segment.name for segment in self.segments.sealed]

    def files_through(self, last: LogSegment) -> list[str]:
        """Return the names of all files up to `last`, the oldest first, including those that an unfinished pack has
        replaced.
        """
        left = self.unfinished.covered if self.unfinished else []
        return [*left, *(segment.name for segment in self.segments.covered_by(last))]

    def covered_files(self, last: LogSegment) -> list[str]:
        """Return the names of all files that a pack of everything up to `last` replaces, the oldest first. If `last` is
        an unfinished pack, the new one takes its name, and so its place.
        """
        pack = layout.pack_name(self.name, last.number)
        return [name for name in self.files_through(last) if name != pack]

    @property
    def archived_bytes(self) -> int:
        return self.segments.sealed_bytes

    @property
    def written_bytes(self) -> int:
        """The present size of the current file."""
        return self._size

    def unwritten(self) -> bytes:
        """Return the bytes that are recorded and not yet in the file."""
        return self._restoring + self._unwritten + joined(self._pending)

    def try_close(self, force: bool) -> bool:
        """Close the current file, if nothing is pending and no sync is due. It is opened again when needed. `force`:
        make that sync first. Raises JournalFailure.
        """
        file = self._file
        if file is None:
            return True
        if not self.group.try_close(file, bool(self._pending or self._unwritten), force):
            return False
        self._file = None
        return True

    def resume(self, current_bytes: int) -> None:
        """Continue with the current file, which exists already and has `current_bytes`."""
        self._size = current_bytes

    def restore_counter(self) -> None:
        """Restore the counter before the next write. The file ends with a change that was cut off, after which a reader
        would have another counter.
        """
        self._restoring = self.encoder.restored()

    @property
    def pending_bytes(self) -> int:
        """The number of recorded bytes that are not written. They are counted at each call, which is rare."""
        self._counted_bytes += size_of(self._pending[self._counted :])
        self._counted = len(self._pending)
        return self._counted_bytes

    @property
    def current_bytes(self) -> int:
        """The size of the current file once everything recorded is written."""
        return self.written_bytes + len(self._restoring) + len(self._unwritten) + self.pending_bytes

    def reply_batch(self) -> int:
        if self.is_deferred:
            self.group.sync_with_batch(self)
        return self.batch

    def record(self, change: Change) -> None:
        """Record a change. It is written with the current batch."""
        kind = type(change)
        if kind is Added:
            self.record_added(change.item)  # type: ignore[union-attr]
        elif kind is Removed:
            self.record_removed(change.id)  # type: ignore[union-attr]
        elif kind is Opened:
            self.record_opened(change.id, change.xid)  # type: ignore[union-attr]
        else:
            if self.listener is not None:
                self.listener(change)
            self._append(self.encoder.encode(change))

    def record_added(self, item: Item) -> None:
        if self.listener is not None:
            self.listener(added(item))
        if item.flags or type(item) is ItemWithPast:
            self._append_group(self.encoder.counter, self.encoder.addx(item))
            return
        pending, group = self._pending, self.group
        if not pending:
            group.mark_dirty(self)
        pending.append(waiting_record(item))
        group.pending_bytes += _ADDX_HEAD_BYTES + len(item.data)

    def record_removed(self, item_id: int) -> None:
        if self.listener is not None:
            self.listener(removed(item_id))
        self.encoder.took = True
        self._append(REMOVE_RECORD)

    def record_opened(self, item_id: int, xid: int) -> None:
        if self.listener is not None:
            self.listener(opened(item_id, xid))
        counter = self.encoder.counter
        data = self.encoder.opened(xid)
        if len(data) > _WITH_XID_BYTES:
            self._append_group(counter, data)
        else:
            self._append(data)

    def record_confirmed(self, item_id: int, xid: int) -> None:
        if self.listener is not None:
            self.listener(confirmed(item_id, xid))
        self._append(self.encoder.confirmed(xid))

    def _append_group(self, counter: int, data: bytes) -> None:
        """Add records that begin with a SAVE_XID. If a file began with them and was cut off after the first, that would
        be taken for the counter; so they are never the first records of a file.
        """
        if not (self._size or self._unwritten or self._pending):
            data = xid_record(SAVE_XID, counter) + data
        self._append(data)

    def _append(self, data: bytes) -> None:
        """Add a record to the current batch. `record_added` adds an item without flags as it is."""
        pending, group = self._pending, self.group
        if not pending:
            group.mark_dirty(self)
        pending.append(data)
        group.pending_bytes += len(data)

    def write(self) -> File:
        records = self._pending
        if records:
            self._unwritten += joined(records)
            self._pending = []
            self._counted = self._counted_bytes = 0
        file = self._file or self.file
        before, data = self._size, self._restoring + self._unwritten
        try:
            file.write(data)
        except OSError:
            take_back(self.fs, self.path, file, before)
            raise
        self._size = size = before + len(data)
        self._unwritten = self._restoring = b""
        # Kestrel checks a journal before each put and after each removal. This log checks after batches, and ignores
        # those with only puts, because they leave no records that a rewrite could save.
        self.policy_bytes = size if self.encoder.took else before
        self.encoder.took = False
        index = self.segments.current.index
        if size - (index[-1].at if index else 0) >= SAMPLE_BYTES:
            self._note_places(records if len(data) >= SAMPLE_BYTES else [], size)
        return file

    def _note_places(self, records: list[bytes], at: int) -> None:
        """Note record boundaries after a write. `records` are the last bytes written and end at byte `at`."""
        tip = self.queue_view.tip()
        if tip is not None:
            index_records(self.segments.current, records, IndexEntry(at, *tip))

    @property
    def is_written(self) -> bool:
        """True if the files have everything that was recorded."""
        return not self._pending and not self._unwritten

    def usage(self, items: int, item_bytes: int, behind_items: int) -> Usage:
        """Return the figures that the policy needs, as of the last removal or the beginning of a batch of puts."""
        sealed_bytes = self.segments.sealed_bytes
        return Usage(
            self.policy_bytes, self.kept_bytes, items, item_bytes, sealed_bytes, self.rewritten_ms, behind_items
        )

    def synced(self, now_ms: int) -> None:
        """Rotate the current file if it is large enough. It has just been synced, so rotating it now delays no
        client.
        """
        if self.is_erased or self.group.is_stopping:
            return  # another journal may have the name by now
        if self.seal_wanted or self.file.size > self.config.max_memory_bytes:
            # Records that were added during the sync still belong to this file, because its checkpoint is the queue's
            # present state.
            if self._pending or self._unwritten:
                if self.group.before_write is not None:
                    self.group.before_write()
                self.write()
            self.rotate(now_ms)

    def rotate(self, now_ms: int) -> None:
        """Seal the current file under the next number and start a new one.

        Sealed files are complete: a later file never has records that depend on bytes that are not durable. Raises
        OSError if there is no room for another file; nothing has changed then.
        """
        assert not self._unwritten and not self._pending
        self._restore_counter_now()
        number = max(now_ms, self.newest_number + 1)
        sealed, temp = layout.archive_name(self.name, number), layout.temp_name(self.name, number)
        fresh = create_empty(self.fs, f"{self.folder}/{temp}")
        self.file.sync()
        self._rename_current(fresh, f"{self.folder}/{temp}", f"{self.folder}/{sealed}")
        self.fs.sync_folder(self.folder)
        self.segments.seal(sealed, number, self.file.size, self.queue_view.checkpoint(), self.encoder.counter)
        self._go_on_with(fresh)
        self.newest_number = number
        self.policy_bytes = 0
        self.seal_wanted = False
        self.rotations += 1

    def _restore_counter_now(self) -> None:
        """Write the records of `restore_counter`, because every SAVE_XID in a sealed file counts. Raises OSError."""
        if not self._restoring:
            return
        file, before = self.file, self._size
        try:
            file.write(self._restoring)
        except OSError:
            take_back(self.fs, self.path, file, before)
            raise
        self._size = before + len(self._restoring)
        self._restoring = b""

    def _rename_current(self, fresh: File, temp: str, sealed: str) -> None:
        try:
            self.fs.rename(self.path, sealed)
            try:
                self.fs.rename(temp, self.path)
            except OSError:
                self._take_back(sealed)
                raise
        except OSError:
            discard(self.fs, temp, fresh)
            raise

    def _take_back(self, sealed: str) -> None:
        try:
            self.fs.rename(sealed, self.path)
        except OSError as error:
            raise self.group.failure(f"cannot rename {sealed} back to {self.path}", error) from error

    def rewrite(self, open_reads: dict[int, Delivery], items: list[Item], now_ms: int) -> None:
        """Replace all files by one with the given state, which must be that of everything recorded and written.

        Without archives: a new file is renamed over the current one. With archives: the current file is sealed first,
        and the new file becomes a pack that covers it, so a crash at any point leaves files that replay to the same
        state. Raises OSError if there is no room; the state is unchanged then.
        """
        assert not self._pending and not self._unwritten
        is_held = self._size > 0 and is_held_queue(self.fs, self.name)
        encoder = Encoder(self.config.journal_dialect)
        checkpoint = self.queue_view.checkpoint()
        if self.segments.sealed or is_held:  # a retention hold keeps sealed files
            self.rotate(now_ms)
        records = list(encoder.snapshot(self.encoder.counter, open_reads, items))
        if self.segments.sealed and not records:
            records = [encoder.encode_empty(0)]
        temp, file = self._write_synced(records, max(now_ms, self.newest_number))
        kept_bytes = file.size
        rewritten = segment_of_rewrite(self.name, checkpoint, encoder.counter, open_reads, items, records)
        if self.segments.sealed:
            self._install_pack(file, temp, rewritten)
            self.segments.current.entered = encoder.counter
        else:
            self._rename(file, temp, self.path)
            self.fs.sync_folder(self.folder)
            self._go_on_with(file)
            rewritten.checkpoint = None
            self.segments.start_over(rewritten)
        self.kept_bytes = kept_bytes
        self.encoder = encoder
        self._restoring = b""
        self.rewrites += 1

    def erase(self, now_ms: int) -> Unremoved | None:
        """Remove every file, in an order in which a crash leaves everything or nothing. Return the files that could not
        be removed; recovery finds an empty queue in them. Raises OSError if the system refuses the removal; nothing has
        changed then.
        """
        left = None
        if not self.segments.sealed and self.current_bytes and is_held_queue(self.fs, self.name):
            self._seal_now(now_ms)
        remove_each(self.fs, self.folder, self.stuck)  # recovery would make an empty queue of them
        self.stuck = []
        if self.segments.sealed:
            remove_sidecars(self.fs, self.folder, self.files_through(self.segments.sealed[-1]))
            left = self._remove_all()
        else:
            FileRemoval(self.fs, self.folder, self.name, [self.name], "").carry_out()
        self._pending.clear()
        self._counted = self._counted_bytes = 0
        self.group.forget(self)
        self.group.open_files.closed(self)
        if self._file is not None:
            self.group.close_after_sync(self._file)
            self._file = None
        self.is_erased = True
        self.segments.sealed.clear()
        return left

    def _seal_now(self, now_ms: int) -> None:
        """Seal the current file, because a retention hold keeps sealed files. Raises OSError."""
        if self._pending or self._unwritten:
            if self.group.before_write is not None:
                self.group.before_write()
            self.write()
        self.rotate(now_ms)

    def _remove_all(self) -> Unremoved | None:
        """Remove all files, archives included. Some of the files without the others would be another queue, so an empty
        pack first replaces all of them; it is removed last. Raises OSError; nothing has changed then.
        """
        self._complete_current()
        number = self.newest_number + 1
        last, temp = layout.archive_name(self.name, number), layout.temp_name(self.name, number)
        pack = layout.pack_name(self.name, number)
        # The counter stays: recovery tells by it which items of an undo file have left the queue.
        records = [Encoder(self.config.journal_dialect).encode_empty(self.encoder.counter)]
        # It must be possible to delete a queue even on a full disk.
        self.group.try_or_release_ballast(lambda: self._write_synced(records, number)[1].close())
        self._rename_to_pack(f"{self.folder}/{temp}", f"{self.folder}/{last}", f"{self.folder}/{pack}")
        self.fs.sync_folder(self.folder)
        names = [*self.files_through(self.segments.sealed[-1]), last]
        removal = FileRemoval(self.fs, self.folder, self.name, names, pack)
        try:
            removal.carry_out()
        except OSError as error:
            return Unremoved(removal, error)
        return None

    def _complete_current(self) -> None:
        """Make the current file as complete as a sealed one, because it has the name of one until the pack is there: a
        power cut would leave a sealed file with a torn end. Raises OSError.
        """
        self.group.try_or_release_ballast(self._restore_counter_now)
        self.file.sync()

    def _rename_to_pack(self, temp: str, last: str, pack: str) -> None:
        try:
            self.fs.rename(self.path, last)
            try:
                self.fs.sync_folder(self.folder)
                self.fs.rename(temp, pack)
            except OSError:
                self._take_back(last)
                raise
        except OSError:
            with suppress(OSError):  # the next start removes it
                self.fs.remove(temp)
            raise

    def close(self) -> None:
        """Close the journal. Everything must have been written and synced."""
        assert not self._pending and not self._unwritten
        if self._file is not None:
            self.group.open_files.closed(self)
            self.group.close_after_sync(self._file)
            self._file = None

    def _go_on_with(self, file: File) -> None:
        if self._file is not None:
            self.group.close_after_sync(self._file)
        else:
            self.group.open_files.opened(self)
        self._file = file
        self._size = file.size

    def _write_synced(self, records: list[bytes], number: int) -> tuple[str, File]:
        """Write a synced temporary file. Return its path and the file, still open. If that fails, remove the file and
        raise the OSError.
        """
        temp = f"{self.folder}/{layout.temp_name(self.name, number)}"
        file = create_empty(self.fs, temp)
        try:
            file.write(b"".join(records))
            file.sync()
        except OSError:
            discard(self.fs, temp, file)
            raise
        return temp, file

    def _rename(self, file: File, temp: str, name: str) -> None:
        try:
            self.fs.rename(temp, name)
        except OSError:
            discard(self.fs, temp, file)
            raise

    def _install_pack(self, file: File, temp: str, segment: LogSegment) -> None:
        last = self.segments.sealed[-1]
        pack, covered = layout.pack_name(self.name, last.number), self.covered_files(last)
        try:
            remove_sidecars(self.fs, self.folder, covered)  # first, because the system may refuse it
        except OSError:
            discard(self.fs, temp, file)
            raise
        self._rename(file, temp, f"{self.folder}/{pack}")
        file.close()
        self.fs.sync_folder(self.folder)
        try:
            unfinished = try_to_finish(self.fs, self.folder, pack, last.name, covered)
        except OSError as error:
            # Only recovery can find out how far the installation came, and finish it.
            raise self.group.failure(f"cannot put the pack of {self.path} in place", error) from error
        self.covered(last, segment, unfinished)

    def covered(self, last: LogSegment, pack: LogSegment, unfinished: UnfinishedPack | None) -> None:
        """Put `pack` in place of the files up to `last`, which it has replaced on the disk. `unfinished`: the pack, if
        some of these files are still there.
        """
        pack.name, pack.number = layout.archive_name(self.name, last.number), last.number
        if unfinished is not None:
            pack.name = unfinished.pack
        self.unfinished = unfinished
        self.segments.replace_through(last, pack)
