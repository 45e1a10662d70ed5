"""A file that is appended to by batches, and closed while nobody needs it.

Knows its handle, and what of it is not yet written. Refuses to know records.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from staniel.journal.disk.fs import File, Fs, write_whole
from staniel.journal.group_commit import CommitGroup

if TYPE_CHECKING:
    from staniel.journal.libkestrel.family import StreamJournal


class Appender:
    """A member of the commit group. `path` may change: the file goes on under another name."""

    family: StreamJournal
    batch: int

    def __init__(self, fs: Fs, path: str, group: CommitGroup, sync_ms: int) -> None:
        self.fs = fs
        self.path = path
        self.group = group
        self.sync_ms = sync_ms
        self.batch = 0
        self.is_erased = False
        self._file: File | None = None
        self._closed_bytes = 0  # of the file while it is not open
        self._unwritten = b""

    @property
    def file(self) -> File:
        if self._file is None:
            self._file = self.fs.append(self.path)
            self.group.handles.opened(self)
        return self._file

    @property
    def written_bytes(self) -> int:
        """The size of the file as it is."""
        return self._closed_bytes if self._file is None else self._file.size

    @property
    def has_pending(self) -> bool:
        """Whether something is recorded and not yet written."""
        return bool(self._unwritten)

    def resume(self, size: int) -> None:
        """The file exists already, and is so long."""
        self._closed_bytes = size

    def let_go(self, force: bool) -> bool:
        """Close the file, if nothing is pending and no sync is owed; it is opened again when needed. `force`: pay the
        debt here and now. Raises JournalFailure.
        """
        file = self._file
        if file is None:
            return True
        if self.has_pending or not self.group.let_go(file, False, force):
            return False
        self._closed_bytes = file.size
        self._file = None
        return True

    def close(self) -> None:
        """Everything must have been written and synced."""
        assert not self.has_pending
        if self._file is not None:
            self.group.handles.closed(self)
            self.group.retire(self._file)
            self._file = None

    def abandon(self) -> None:
        """The file is going away with whatever was pending."""
        self.is_erased = True
        self._unwritten = b""
        self.group.forget(self)
        self.group.handles.closed(self)
        if self._file is not None:
            self.group.retire(self._file)
            self._file = None

    def write(self) -> None:
        """Put what is pending into the page cache. After an OSError a second call goes on where the first one
        failed.
        """
        raise NotImplementedError

    def synced(self, now_ms: int) -> None:
        """The sync that was asked for is done."""

    def _create(self, data: bytes, now_ms: int) -> None:
        """Make the file, `data` in it, at once; the next sync takes it along. Raises OSError."""
        self.file.write(data)
        self.group.include(self.file, self.sync_ms, now_ms)
        self.group.change_folder(self.sync_ms, now_ms)

    def _append(self, data: bytes) -> None:
        """Write `data`. After an OSError a call with b"" writes it again."""
        self._unwritten += data
        write_whole(self.fs, self.path, self.file, self._unwritten)
        self._unwritten = b""

    def _switch_to(self, file: File | None) -> None:
        """The old file has been synced, or somebody else sees to that."""
        if self._file is not None:
            self.group.handles.closed(self)
        self._file = file
        self._closed_bytes = 0
        if file is not None:
            self.group.handles.opened(self)
