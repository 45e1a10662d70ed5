"""The journal of one queue with its fan-out children, and all such journals of a spool.

A put is written once, by the `StreamWriter` of the `StreamJournal`. Each reader is an ordinary `Queue` whose line
follows the `Stream` of the journal: it takes items from the newest ones in memory or, if it lags, from the segments. So
a put costs the same with any number of readers, except those that wait or have limits. A reader's own file has its
`Position`, which `Removed` and `Confirmed` move; other changes are not recorded there. An item that is not meant for a
reader is confirmed for it at once. After each batch broker/streams.py asks which segments no reader needs any more.

Source: "Filenames" of the libkestrel journal format. `orders` alone is the default reader, whose name is empty. When
the first named reader is added, the default reader is renamed to `orders`, so it keeps its backlog to itself.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from staniel.journal.background import CallbackTask, TaskQueue
from staniel.journal.disk.fs import BROKEN_ERRNOS, FULL_ERRNOS, Fs, SyncFailed, remove_each
from staniel.journal.disk.removal import FileRemoval, RemovalList, Unremoved
from staniel.journal.disk.unsynced_names import is_held
from staniel.journal.group_commit import GroupCommit, is_stricter
from staniel.journal.libkestrel.cutting import CutSegment
from staniel.journal.libkestrel.files import DEFAULT_READER, StreamFiles, archived_name, queue_of_reader, temp_name
from staniel.journal.libkestrel.position import Position
from staniel.journal.libkestrel.reader import ReaderLog
from staniel.journal.libkestrel.recovery import RecoveredStream, StreamRecovery
from staniel.journal.libkestrel.segments import StreamSegments
from staniel.journal.libkestrel.writer import StreamWriter
from staniel.queues.config import QueueConfig
from staniel.queues.names import family_of
from staniel.queues.stream.stream import Stream, StreamLine

TRIED_AT_ONCE = 16  # segments that could not be removed before


class RemoveSegments(CallbackTask):
    """A background task that removes segments, or moves them to the folder `archive` if there is one. `failed`: the
    remaining segments, and why they remain.
    """

    def __init__(
        self,
        fs: Fs,
        folder: str,
        names: list[str],
        archive: str,
        then: Callable[[RemoveSegments, OSError | None, int], None],
    ) -> None:
        super().__init__(lambda error, now_ms: then(self, error, now_ms))
        self._fs, self._folder = fs, folder
        self.names, self.archive = names, archive
        self.failed: dict[str, OSError] = {}

    def work(self) -> None:
        # Under a name of its own: the queue may be deleted meanwhile, and its files are listed then.
        removal_list = RemovalList(self._fs, self._folder, self.names[0]) if self.names else None
        if removal_list is not None:
            try:
                removal_list.write(self.names)
            except SyncFailed:
                raise
            except OSError as refused:  # a retention hold needs them, and they cannot be kept
                self.failed = dict.fromkeys(self.names, refused)
                return
        for name in self.names:
            try:
                self._remove_one(name)
            except FileNotFoundError:
                continue  # the queue has been deleted meanwhile
            except OSError as error:
                self.failed[name] = error
        if self.archive:
            self._fs.sync_folder(self.archive)
        self._fs.sync_folder(self._folder)
        if removal_list is not None:
            removal_list.drop()

    def _remove_one(self, name: str) -> None:
        if self.archive:
            self._fs.rename(f"{self._folder}/{name}", f"{self.archive}/{archived_name(name)}")
        else:
            self._fs.remove(f"{self._folder}/{name}")


class StreamJournal:
    """A queue with its fan-out children: the segments, and the readers by the name in their files' names."""

    __slots__ = (
        "_being_removed",
        "_cutting",
        "_own_sync_ms",
        "_retry",
        "archive",
        "folder",
        "fs",
        "group",
        "on_stuck",
        "queue",
        "readers",
        "segments",
        "stream",
        "stuck",
        "tasks",
        "writer",
    )

    def __init__(
        self, queue: str, group: GroupCommit, config: QueueConfig, segments: StreamSegments, tasks: TaskQueue
    ) -> None:
        self.fs = segments.fs
        self.folder = segments.folder
        self.queue = queue
        self.group = group
        self.tasks = tasks
        self.segments = segments
        self.writer = StreamWriter(queue, group, config, segments)
        self.stream = Stream(self.writer, segments.last_id, config.max_memory_bytes)
        self.readers: dict[str, ReaderLog] = {}
        self._being_removed: dict[str, None] = {}  # segments whose removal may not have run yet
        self._cutting: CutSegment | None = None
        self._retry: RemoveSegments | None = None
        self.stuck: dict[str, None] = {}
        """Segments that all readers have passed and that the system has refused to remove. The first of them has waited
        longest for another try.
        """
        self.on_stuck: Callable[[str, OSError, int], None] = lambda name, error, now_ms: None
        self.configure(config)

    def configure(self, config: QueueConfig) -> None:
        """Apply changed settings of the queue itself; readers have their own."""
        self.archive = config.archive_path
        self.writer.segment_bytes = self.writer.usual_bytes = config.default_journal_bytes
        self._own_sync_ms = config.sync_ms
        self.update_sync_policy()

    def update_sync_policy(self) -> None:
        """Sync segments as the strictest reader requires, because all share them."""
        policies = [self._own_sync_ms, *(reader.sync_ms for reader in self.readers.values() if reader.has_file)]
        writer = self.writer
        before, writer.sync_ms = writer.sync_ms, min(policies, key=lambda sync_ms: (sync_ms < 0, sync_ms))
        if writer.path and is_stricter(writer.sync_ms, before):
            self.group.tighten(writer)

    def start(self, newest_number: int, now_ms: int) -> None:
        """Open the newest segment for appending. `newest_number`: the highest number of a file. Raises OSError."""
        if not self.writer.path:
            self.writer.start(newest_number, now_ms)

    @property
    def last_number_in_removal(self) -> int:
        """The highest number of the files that are being removed, as an upper bound; 0 if there are none."""
        return self.writer.newest_number if self._being_removed or self._retry is not None else 0

    def discard(self) -> None:
        """Remove the segment of a journal whose creation has failed."""
        names = self.writer.names()
        self.writer.forget_files()
        with suppress(OSError):  # the disk still fails; recovery removes a segment without items
            remove_each(self.fs, self.folder, names)

    def resume(self, reader: str, position: Position, config: QueueConfig) -> ReaderLog:
        """Add a recovered reader, and count its unconfirmed items into its line. Raises OSError."""
        reader_log = self._add_reader(reader, position, config)
        segments = self.segments
        unconfirmed = segments.sums_through(segments.last_id) - segments.sums_through(position.head)
        for first, last in position.done.intervals():
            unconfirmed = unconfirmed - (segments.sums_through(last) - segments.sums_through(first - 1))
        reader_log.line.expect(unconfirmed.items, unconfirmed.bytes, unconfirmed.expiring)
        return reader_log

    def add(self, queue_name: str, config: QueueConfig, now_ms: int) -> ReaderLog:
        """Add a new reader, at the newest item. Raises OSError; the reader does not exist then."""
        _, plus, reader = queue_name.partition("+")
        if plus:
            default = self.readers.get(DEFAULT_READER)
            if default is not None:
                self._rename_default(default)
        elif self.readers:
            reader = self.queue
        is_first = not self.readers
        reader_log = self._add_reader(reader, Position(self.stream.last_id), config)
        try:
            if not plus and config.fanout_only:
                reader_log.has_file = False
            elif plus or not is_first:
                # If a crash lost or emptied this file, recovery would find other readers than there were.
                reader_log.create_synced(now_ms)
            else:
                reader_log.create(now_ms)
        except OSError:
            del self.readers[reader]
            reader_log.discard()
            raise
        return reader_log

    def _rename_default(self, default: ReaderLog) -> None:
        default.rename(self.queue)
        self.readers[self.queue] = self.readers.pop(DEFAULT_READER)

    def _add_reader(self, reader: str, position: Position, config: QueueConfig) -> ReaderLog:
        reader_log = ReaderLog(self.writer, reader, config, position)
        reader_log.line = StreamLine(self.stream, position)
        reader_log.readers = self.readers
        reader_log.on_policy_change = self.update_sync_policy
        self.readers[reader] = reader_log
        self.update_sync_policy()
        return reader_log

    def erase(self, reader: ReaderLog) -> None:
        """Remove a reader that is not the last one. Raises OSError; nothing has changed then. If it has a file, another
        one has, too: recovery reads segments without any reader file from the oldest item on.
        """
        assert not reader.has_file or any(other.has_file for other in self.readers.values() if other is not reader)
        # If a crash brought the file back, the queue would get items put while it did not exist.
        removal_list = RemovalList(self.fs, self.folder, reader.file_name)
        if reader.is_there:
            removal_list.write([reader.file_name])
        reader.erase()
        del self.readers[reader.name]
        self.update_sync_policy()
        self.fs.sync_folder(self.folder)
        removal_list.drop()

    def erase_all(self, reader: ReaderLog) -> Unremoved | None:
        """Remove the last reader and the segments, in an order in which a crash leaves everything or nothing. Return
        the files that could not be removed; recovery finds only confirmed items in them. Raises OSError if the system
        refuses the removal, and nothing has changed then; raises JournalFailure.
        """
        # Remove the segments first, and sync: without the reader file, remaining segments would be read as new.
        names = [*self.writer.names(), *self._being_removed, *self.stuck]
        # If a crash brought the reader file back, that queue would get items of a new family of this name.
        last = reader.file_name if reader.is_there else ""
        removal = FileRemoval(self.fs, self.folder, self.queue, names, last)
        is_confirmed = len(names) > 1 and reader.is_there and self._is_confirmed_first(reader)
        left = None
        try:
            removal.carry_out()
        except OSError as error:
            if not removal.has_begun and (not is_confirmed or self._is_taken_back(reader)):
                raise
            if not is_confirmed:
                self._confirm_all(reader)
            left = Unremoved(removal, error)
        del self.readers[reader.name]
        self.update_sync_policy()
        self.stuck = {}
        self.writer.forget_files()
        reader.forget_file()
        return left

    def _confirm_all(self, reader: ReaderLog) -> None:
        """Confirm all items, because some of the segments are removed. If the reader has no file, the segments have no
        items.
        """
        if not reader.is_there:
            return
        try:
            reader.confirm_all(self.stream.last_id)
        except OSError as error:
            raise self.group.failure(f"cannot remove the files of queue {self.queue}", error) from error

    def _is_confirmed_first(self, reader: ReaderLog) -> bool:
        """Make the reader's file say that all items are confirmed: some of the segments without the others would be a
        queue that has lost its first items. False if there is no room for that: it must be possible to delete a queue
        on a full disk. Raises OSError.
        """
        try:
            self.group.try_or_release_ballast(lambda: reader.confirm_all(self.stream.last_id))
        except OSError as error:
            if error.errno in FULL_ERRNOS:
                return False
            raise
        return True

    def _is_taken_back(self, reader: ReaderLog) -> bool:
        """Write the reader's file as it was before `confirm_all`. False if the system refuses that, too: the items stay
        confirmed.
        """
        try:
            reader.create_synced(self.stream.last_id)
        except OSError:
            return False
        return True

    def trim(self) -> None:
        """Release memory after a batch, and remove segments that every reader has passed. Raises OSError."""
        self.stream.trim()
        if len(self.segments.files) > 1:
            self._remove_read_segments()

    def _remove_read_segments(self) -> None:
        head = self._head()
        if head < self.segments.files[0].last_id:
            return
        if self.writer.open_transfers:
            self.writer.blocks_transfers = True
            return
        dropped = self.segments.drop_through(head)
        if dropped:
            self.stream.forget_flags(dropped[-1].last_id)
            self._remove([segment.name for segment in dropped])

    def _remove(self, names: list[str]) -> RemoveSegments:
        self._being_removed |= dict.fromkeys(names)
        task = RemoveSegments(self.fs, self.folder, names, self.archive, self._removed)
        self.tasks.submit(task)
        return task

    def _removed(self, task: RemoveSegments, error: OSError | None, now_ms: int) -> None:
        """Note which segments remain. `remove_stuck` and every start try again. Of several that remain for the same
        reason, one is reported.
        """
        for name in task.names:
            self._being_removed.pop(name, None)
            self.stuck.pop(name, None)
        self.stuck |= dict.fromkeys(task.failed)
        reasons = {why.errno: (name, why) for name, why in reversed(task.failed.items())}
        for name, why in reasons.values():
            self.on_stuck(name, why, now_ms)
        if error is not None:
            self.on_stuck(task.archive or self.folder, error, now_ms)
        if task is self._retry:
            self._retry = None
            if not task.failed and error is None:
                self.remove_stuck()

    def remove_stuck(self) -> None:
        """Try again to remove a few of the segments that could not be removed. If that succeeds, remove all."""
        if self.stuck and self._retry is None:
            self._retry = self._remove(list(self.stuck)[:TRIED_AT_ONCE])

    def _head(self) -> int:
        """Return the id up to which every reader has confirmed all items."""
        heads = [reader.position.head for reader in self.readers.values() if reader.has_file]
        return min(heads, default=self.segments.last_id)

    def reclaimable(self) -> tuple[int, int]:
        """Return roughly how many bytes `reclaim` frees, and how many it needs meanwhile; (0, 0) if it cannot do
        anything now. An archive keeps whole segments.
        """
        segments = self.segments
        if is_held(self.fs, self.queue):
            return 0, 0  # nothing would be freed
        if self._cutting is not None or self.archive or self.writer.has_pending or not segments.files:
            return 0, 0
        if self.writer.open_transfers or self.group.is_sealing(f"{self.folder}/{segments.files[0].name}"):
            return 0, 0
        dead_bytes = segments.dead_bytes(self._head())
        return dead_bytes, segments.files[0].size - dead_bytes

    def reclaim(self, now_ms: int) -> None:
        """Cut off the part of the oldest segment that all readers have read. If that is the current segment, only begin
        another one; call this again once that is written.
        """
        if len(self.segments.files) == 1:
            self.writer.begin_segment(now_ms)
            return
        with suppress(OSError):  # a segment that cannot be read stays as it is
            cut = self.segments.cut_through(self._head())
            if cut is not None:
                temp = temp_name(cut.segment.name, now_ms)
                self._cutting = CutSegment(self.fs, self.folder, temp, cut, self._cut_is_written)
                self.tasks.submit(self._cutting)

    def _cut_is_written(self, error: OSError | None, now_ms: int) -> None:
        task, self._cutting = self._cutting, None
        assert task is not None
        segment = task.cut.segment
        if error is None:
            try:
                if segment in self.segments.files and not self.writer.open_transfers:
                    self.fs.rename(task.temp, task.path)
                    self.segments.cut(task.cut)
                    self._remove([])  # the temporary name must be removed for good
                    return
            except OSError as refused:
                if refused.errno in BROKEN_ERRNOS:
                    raise self.group.failure(f"cannot cut {task.path}", refused) from refused
                error = refused
            with suppress(OSError):
                self.fs.remove(task.temp)
        if error is not None and error.errno not in FULL_ERRNOS:
            self.group.on_refused(task.path, error, now_ms)

    def close(self) -> None:
        """Close the files. Everything must have been written and synced."""
        if self._cutting is not None and not self.tasks.drop(self._cutting):
            self.tasks.complete(self._cutting, 0)
        self.writer.close()
        for reader in self.readers.values():
            reader.close()


class StreamJournals:
    """The families of one spool, by the queue's name without `+`."""

    def __init__(self, fs: Fs, folder: str, damaged: str, group: GroupCommit) -> None:
        self.fs = fs
        self.folder = folder
        self.group = group
        self.recovery = StreamRecovery(fs, folder, damaged)
        self.families: dict[str, StreamJournal] = {}
        self._reserved_numbers: dict[str, int] = {}  # by deleted queue: the highest number that must not be used again
        self.tasks = TaskQueue()  # replaced by the broker's
        self.on_stuck: Callable[[str, OSError, int], None] = lambda name, error, now_ms: None

    def recover(
        self, files: StreamFiles, config_of: Callable[[str], QueueConfig], now_ms: int
    ) -> tuple[RecoveredStream, list[tuple[str, ReaderLog]]]:
        """Recover a family. Return the findings, and (queue name, journal) of each reader. Raises OSError.

        Segments without any reader file are read from the oldest item on: an operator has copied them there, or the
        reader file is lost. If the queue only feeds its children, they are never delivered.
        """
        recovered = self.recovery.recover(files, now_ms)
        config = config_of(files.queue)
        family = self._family(files.queue, config, recovered.segments)
        family.start(files.newest_number(), now_ms)
        self.fs.append(family.writer.path).close()  # find out before the first request whether the file can be written
        family.stuck |= dict.fromkeys(recovered.stuck)
        for name, error in recovered.stuck.items():
            self.on_stuck(name, error, now_ms)
        readers = []
        for reader, position in recovered.readers.items():
            journal = family.resume(reader, position, config_of(queue_of_reader(files.queue, reader)))
            self.fs.append(journal.path).close()
            journal.resume(self.fs.size(journal.path))
            readers.append((journal.queue_name, journal))
        if not readers:
            readers.append((files.queue, self._resume_without_reader_file(family, config, now_ms)))
        return recovered, readers

    def _resume_without_reader_file(self, family: StreamJournal, config: QueueConfig, now_ms: int) -> ReaderLog:
        segments = family.segments
        if not config.fanout_only:
            journal = family.resume(DEFAULT_READER, Position(segments.first_id - 1), config)
            journal.create(now_ms)
            return journal
        journal = family.resume(DEFAULT_READER, Position(segments.last_id), config)
        journal.has_file = False
        if segments.last_id:
            # Without the file, a later start would deliver these items once fanout_only is revoked.
            journal.create_at_end(now_ms)
        return journal

    def create(self, name: str, config: QueueConfig, config_of: Callable[[str], QueueConfig], now_ms: int) -> ReaderLog:
        """Create the journal of a new queue, in a new family or as a reader of its parent's. Raises OSError."""
        parent = family_of(name)
        family = self.families.get(parent)
        if family is None:
            family = self._family(parent, config_of(parent), StreamSegments(self.fs, self.folder))
        try:
            family.start(self._reserved_numbers.get(parent, 0), now_ms)
            return family.add(name, config, now_ms)
        except OSError:
            if not family.readers:
                del self.families[parent]
                family.discard()
            raise

    def erase(self, journal: ReaderLog, now_ms: int) -> Unremoved | None:
        """Remove a reader's file; with the last one, remove all files of the family. Return what could not be removed.
        Raises OSError, and nothing has changed then; raises JournalFailure.
        """
        family = self.families[journal.queue]
        if len(family.readers) > 1:
            family.erase(journal)
            return None
        left = family.erase_all(journal)
        del self.families[family.queue]
        # A background task may still remove files by names that a new queue of this name must not use.
        self._reserved_numbers[family.queue] = family.last_number_in_removal
        self._reserved_numbers = {name: number for name, number in self._reserved_numbers.items() if number >= now_ms}
        return left

    def _family(self, queue: str, config: QueueConfig, segments: StreamSegments) -> StreamJournal:
        family = StreamJournal(queue, self.group, config, segments, self.tasks)
        family.on_stuck = self.on_stuck
        self.families[queue] = family
        return family
