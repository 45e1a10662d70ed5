"""The member's file, `.staniel/member`: what a member keeps on its disk (cluster/durable.py), appended to and synced.

It is rewritten when it has grown to several times what it must hold, or while the disk has no room. A thread runs the
syncs, one at a time, and each covers all that was written before it began.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable

from msgspec import Struct

from staniel.cluster.durable import (
    ALL_FIXED,
    Entries,
    Kept,
    compacted,
    encode_entry,
    new_file,
    read_file,
    record_bytes_max,
)
from staniel.journal.disk.fs import (
    FULL_ERRNOS,
    MISSING,
    File,
    FilesMisplaced,
    Fs,
    JournalFailure,
    SyncFailed,
    write_whole,
)
from staniel.journal.disk.refusals import described
from staniel.journal.disk.replace_file import replace_and_open, replace_file
from staniel.journal.spool import SpoolError
from staniel.server.sync_thread import WorkerThread

FILE = "member"
RESERVE = "ballast"
REWRITE_BYTES_MIN = 32 << 20
REWRITE_FULL_BYTES_MIN = 1 << 20  # on a full disk
REWRITE_TIMES = 3


class FileSync(Struct):
    """A sync of the file. `number`: of the last Sync effect that it covers."""

    file: File
    number: int

    def run(self) -> None:
        self.file.sync()


class MemberFile:
    """The file, open for appending. `kept` is what it says; the member changes it together with the file. `damage`:
    "" or why the member is marked HALF since this start. `make_room`: frees a reserve on a full disk, and tells
    whether there was one; a leader sets its own. `is_short_of_room`: since then it was not written anew.
    `_refused_at`: its size when the disk had no room to rewrite it.
    """

    def __init__(self, fs: Fs, own: str) -> None:
        """Open the file, or make it for a new member. Raises OSError, SpoolError."""
        self._fs = fs
        self._path = f"{own}/{FILE}"
        try:
            data = fs.read(self._path, 0, fs.size(self._path))
        except MISSING:
            data = new_file(fs.unique_id())
            replace_file(fs, self._path, data)
        content = read_file(data)
        if isinstance(content, str):
            raise SpoolError(f"{self._path}: {content}; see docs/replication.md before you remove it")
        self.kept, self.damage = content.kept, content.damage
        self._file = self._open_anew(data[: content.whole], len(data))
        self._worker: WorkerThread[FileSync] = WorkerThread("member")
        self._running: FileSync | None = None
        self._wanted = 0
        self._refused_at = 0
        self.is_short_of_room = False
        self.make_room: Callable[[], bool] = self.remove_reserve

    def remove_reserve(self) -> bool:
        """Remove the ballast of a leader that this member was. Return False if there is none."""
        try:
            self._fs.remove(f"{os.path.dirname(self._path)}/{RESERVE}")
        except OSError:
            return False
        return True

    def _open_anew(self, whole: bytes, size: int) -> File:
        """Write the file anew, as at each start: a torn end is gone, and what was read is durable, whatever an earlier
        process could not sync. If the disk has no room for a second copy, the same bytes are written over themselves.
        """
        try:
            return replace_and_open(self._fs, self._path, compacted(self.kept), f"{self._path}.new")
        except OSError as error:
            # A sync that failed may be that of the folder: the file is another one by then.
            if self.damage or isinstance(error, SyncFailed) or error.errno not in FULL_ERRNOS:
                raise
        if len(whole) < size:
            self._fs.truncate(self._path, len(whole))
        region = self._fs.overwrite(self._path)
        try:
            region.write_at(0, whole)
            region.sync()
        finally:
            region.close()
        self._fs.sync_folder(os.path.dirname(self._path))
        return self._fs.append(self._path)

    @property
    def fd(self) -> int:
        """The descriptor that is readable when a sync has ended."""
        return self._worker.fd

    @property
    def running(self) -> FileSync | None:
        """The sync that runs now."""
        return self._running

    def write(self, entries: Iterable[Entries]) -> None:
        """Append entries. On a full disk they take the place of the reserve. Raises JournalFailure."""
        data = b"".join([encode_entry(entry) for entry in entries])
        while True:
            try:
                return write_whole(self._fs, self._path, self._file, data)
            except OSError as error:
                if error.errno not in FULL_ERRNOS or not self.make_room():
                    raise JournalFailure(f"cannot write {self._path}: {described(error)}") from error
                self.is_short_of_room = True

    def want_sync(self, number: int) -> None:
        """Sync all that was written so far. `take_synced` returns the number once that is done."""
        self._wanted = number
        self._start_sync()

    def _start_sync(self) -> None:
        if self._running is None and self._wanted:
            self._running, self._wanted = FileSync(self._file, self._wanted), 0
            self._worker.start(self._running)

    def take_synced(self) -> int:
        """Return the number of the sync that has ended, 0 if none has. Raises JournalFailure."""
        try:
            ended = self._worker.finished()
        except OSError as error:
            raise JournalFailure(f"cannot sync {self._path}: {described(error)}") from error
        if ended is None:
            return 0
        self._running = None
        self._start_sync()
        return ended.number

    def sync_now(self) -> None:
        """Sync all that was written, and wait for it. Raises JournalFailure."""
        try:
            self._file.sync()
        except OSError as error:
            raise JournalFailure(f"cannot sync {self._path}: {described(error)}") from error

    def check_in_place(self) -> None:
        """Verify that no other program has removed or replaced the file: what is promised in it from then on no start
        would find. Raises FilesMisplaced.
        """
        if not self._file.is_at(self._path):
            raise FilesMisplaced(f"{self._path} was removed, moved or cut short by another program")

    def rewrite_if_large(self) -> None:
        """Write the file anew if most of it is out of date. If the disk is full, that waits. Raises JournalFailure."""
        size = self._file.size
        least = REWRITE_FULL_BYTES_MIN if self.is_short_of_room else REWRITE_BYTES_MIN
        if self._running is not None or not is_large(size, self.kept, least):
            return
        if self._refused_at and size < self._refused_at + least:
            return
        try:
            file = replace_and_open(self._fs, self._path, compacted(self.kept), f"{self._path}.new")
        except OSError as error:
            if error.errno in FULL_ERRNOS and not isinstance(error, SyncFailed):
                self._refused_at = self._file.size
                return
            raise JournalFailure(f"cannot rewrite {self._path}: {described(error)}") from error
        self._file.close()
        self._file, self._refused_at, self.is_short_of_room = file, 0, False

    def close(self) -> None:
        self._worker.close()
        self._file.close()


def is_large(size: int, kept: Kept, bytes_min: int = REWRITE_BYTES_MIN) -> bool:
    """Tell whether a file of this size would be several times smaller if it were written anew."""
    return size >= bytes_min and size >= REWRITE_TIMES * record_bytes_max(kept)


def is_ahead(kept: Kept) -> bool:
    """Tell whether the member led and did not end cleanly: its files may have changes that no record has."""
    return kept.fixed == ALL_FIXED
