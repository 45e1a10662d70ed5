"""Recovery of a family from its files: the only way to start.

Sources: "Filenames", "Write journal" and "Read checkpoint" of the libkestrel journal format. Where the library would
lose items, this recovery reads more: gaps in the ids are skipped, confirmed ids stay confirmed, and a reader whose file
cannot be read starts at the oldest item.
"""

from __future__ import annotations

from msgspec import Struct

from staniel.journal.disk.fs import Fs, try_to_remove
from staniel.journal.disk.quarantine import quarantine
from staniel.journal.disk.replace_file import replace_file
from staniel.journal.errors import CorruptRecord, Damage, TruncatedRecord
from staniel.journal.libkestrel.files import DEFAULT_READER, StreamFiles, temp_name
from staniel.journal.libkestrel.position import Position, ReaderFileScan, can_append, encode_reader_file
from staniel.journal.libkestrel.records import MAGIC_BYTES, READER_MAGIC, SEGMENT_MAGIC, RecordScan
from staniel.journal.libkestrel.scan import IdRun, SegmentScan
from staniel.journal.libkestrel.segments import StreamSegment, StreamSegments

CHUNK_BYTES = 256 << 10  # read at a time


class RecoveredStream(Struct):
    """The items and readers of one family. `files`: the files that exist after recovery. `ignored`: names of files that
    are not segments and are left alone. `stuck`: segments without items that the system refuses to remove, and why.
    `refused`: why temporary files remain.
    """

    segments: StreamSegments
    readers: dict[str, Position]
    files: StreamFiles
    damages: list[Damage]
    ignored: list[str]
    stuck: dict[str, OSError] = {}
    refused: list[OSError] = []


class StreamRecovery:
    """The recovery of the families of one spool folder. `damaged`: the folder for copies of bytes that are cut off."""

    def __init__(self, fs: Fs, folder: str, damaged: str) -> None:
        self.fs = fs
        self.folder = folder
        self.damaged = damaged

    def recover(self, files: StreamFiles, now_ms: int) -> RecoveredStream:
        """Read every segment, cut off damaged ends, then read every reader file. Raises OSError."""
        refused = self.tidy(files)
        recovered = RecoveredStream(StreamSegments(self.fs, self.folder), {}, files, [], [], refused=refused)
        newest = files.newest_number()
        segments = [
            self._segment(name, number, recovered, is_newest=number == newest)
            for name, number in sorted(files.segments.items())
        ]
        recovered.segments.load(entry for entry in segments if entry is not None)
        for reader, name in sorted(files.readers.items()):
            self._reader(reader, name, recovered, now_ms)
        self._drop_default(recovered)
        self.fs.sync_folder(self.folder)
        return recovered

    def tidy(self, files: StreamFiles) -> list[OSError]:
        """Remove unfinished replacements. Return what the system refuses. Such a file is never read; code that writes
        one first removes an old one, or does without.
        """
        refused = try_to_remove(self.fs, self.folder, files.temps)
        files.temps.clear()
        return refused

    def _segment(
        self, name: str, number: int, recovered: RecoveredStream, *, is_newest: bool
    ) -> tuple[StreamSegment, list[IdRun]] | None:
        path = f"{self.folder}/{name}"
        size = self.fs.size(path)
        if not size:
            self._remove_empty(name, recovered)  # a crash came between the segment's creation and its first bytes
            return None
        begin = self.fs.read(path, 0, MAGIC_BYTES)
        if is_newest and is_partial_magic(begin, SEGMENT_MAGIC):
            recovered.damages.append(self._cut(name, size, TruncatedRecord(), is_newest))
            self._remove_empty(name, recovered)
            return None
        if begin != SEGMENT_MAGIC:
            recovered.ignored.append(name)
            return None
        scan = SegmentScan(name, MAGIC_BYTES)
        try:
            read_pieces(self.fs, path, MAGIC_BYTES, size, scan)
        except CorruptRecord as error:
            recovered.damages.append(self._cut(name, size, error, is_newest))
            scan.offset = size = error.at
        if scan.offset < size:
            self._cut_padding(name, scan.offset, size, recovered)
        if not scan.runs and not scan.unknown_records:
            self._remove_empty(name, recovered)
            return None
        return StreamSegment(name, number, scan.offset), scan.runs

    def _remove_empty(self, name: str, recovered: RecoveredStream) -> None:
        """Remove a segment without items. If the system refuses that, it stays among the files, so that no other
        segment gets its number, and the next start ignores it again.
        """
        refused = try_to_remove(self.fs, self.folder, [name])
        if refused:
            recovered.stuck = recovered.stuck | {name: refused[0]}
        else:
            del recovered.files.segments[name]

    def _cut_padding(self, name: str, at: int, size: int, recovered: RecoveredStream) -> None:
        """Cut off zeros at the end. The library allocates a whole segment, and a crash leaves it with zeros."""
        if is_zero(self.fs, f"{self.folder}/{name}", at, size):
            self.fs.truncate(f"{self.folder}/{name}", at)
        else:
            recovered.damages.append(self._cut(name, size, CorruptRecord("bytes after the end of the data", at), False))

    def _reader(self, reader: str, name: str, recovered: RecoveredStream, now_ms: int) -> None:
        path = f"{self.folder}/{name}"
        size = self.fs.size(path)
        read = ReaderFileScan()
        sound = False
        try:
            begin = self.fs.read(path, 0, MAGIC_BYTES)
            if size and begin != READER_MAGIC:
                raise TruncatedRecord if is_partial_magic(begin, READER_MAGIC) else CorruptRecord("not a reader file")
            read.offset = MAGIC_BYTES
            read_pieces(self.fs, path, MAGIC_BYTES, size, read)
            sound = read.offset == size and can_append(size)
        except CorruptRecord as error:
            saved_as = quarantine(self.fs, path, 0, size, self.damaged)
            recovered.damages.append(_damage(name, size, error, saved_as))
        position = read.position
        as_read = Position(position.head, position.done)
        position.reconcile(recovered.segments)
        if not sound or position != as_read:
            # The file must not name ids above the newest item, because new items will get them.
            temp = f"{self.folder}/{temp_name(name, now_ms)}"
            replace_file(self.fs, path, encode_reader_file(position), temp)
        recovered.readers[reader] = position

    def _drop_default(self, recovered: RecoveredStream) -> None:
        """Remove the default reader if there are named ones, because a crash came while it was being renamed. Raises
        OSError if the system refuses that. If the file stayed there, it would outlive the queue, and a new queue of the
        same name would treat its items up to that old position as read.
        """
        if DEFAULT_READER in recovered.readers and len(recovered.readers) > 1:
            self.fs.remove(f"{self.folder}/{recovered.files.readers.pop(DEFAULT_READER)}")
            del recovered.readers[DEFAULT_READER]

    def _cut(self, name: str, size: int, error: CorruptRecord, is_newest: bool) -> Damage:
        """Copy the unreadable end of a file, then cut it off. `is_newest`: the segment is the current one."""
        path = f"{self.folder}/{name}"
        saved_as = quarantine(self.fs, path, error.at, size - error.at, self.damaged)
        self.fs.truncate(path, error.at)
        return _damage(name, size, error, saved_as, is_newest)


def _damage(name: str, size: int, error: CorruptRecord, saved_as: str, is_newest: bool = True) -> Damage:
    is_torn = is_newest and isinstance(error, TruncatedRecord)
    return Damage(name, error.at, size - error.at, error.why, saved_as, is_torn)


def is_partial_magic(begin: bytes, magic: bytes) -> bool:
    """Tell whether `begin`, all bytes of a file, is the start of `magic`: a crash came during its creation."""
    return 0 < len(begin) < len(magic) and magic.startswith(begin)


def is_zero(fs: Fs, path: str, at: int, size: int) -> bool:
    """Tell whether bytes `at` to `size` of a file are all zero. Raises OSError."""
    while at < size:
        piece = fs.read(path, at, CHUNK_BYTES)
        if piece.count(0) != len(piece):
            return False
        at += len(piece)
    return True


def read_pieces(fs: Fs, path: str, at: int, size: int, scan: RecordScan) -> None:
    """Feed bytes `at` to `size` of a file to `scan`, at least one record at a time. Raises OSError, CorruptRecord."""
    want = CHUNK_BYTES
    while at < size and not scan.has_ended:
        piece = fs.read(path, at, min(want, size - at))
        used = scan.consume(piece, size - at - len(piece))
        at += used
        # A record is longer than the piece: read twice as much.
        want = CHUNK_BYTES if used else 2 * want
