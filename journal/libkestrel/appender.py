"""A file that is appended to in batches, and closed while it is not needed: the base of segments and reader files."""

from __future__ import annotations

from staniel.journal.disk.fs import File, Fs, write_whole
from staniel.journal.group_commit import GroupCommit
from staniel.queues.interfaces import Journal


class Appender(Journal):
    """A member of the commit group. `path` changes when the file is renamed, or the next segment follows. `queue`: the
    name of the family.
    """

    __slots__ = (
        "_closed_bytes",
        "_file",
        "_unwritten",
        "folder",
        "fs",
        "group",
        "is_erased",
        "path",
        "queue",
        "sync_ms",
    )

    batch = 0  # a slot in segments, a property in reader files

    def __init__(self, fs: Fs, folder: str, queue: str, group: GroupCommit, sync_ms: int) -> None:
        self.fs = fs
        self.folder = folder
        self.queue = queue
        self.path = ""
        self.group = group
        self.sync_ms = sync_ms
        self.is_erased = False
        self._file: File | None = None
        self._closed_bytes = 0  # the size while the file is not open
        self._unwritten = b""

    @property
    def file(self) -> File:
        if self._file is None:
            self._file = self.group.open_files.open(self.fs, self.path, must_write=bool(self._unwritten))
            self.group.open_files.opened(self)
        return self._file

    @property
    def written_bytes(self) -> int:
        """The size of the file, without pending bytes."""
        return self._closed_bytes if self._file is None else self._file.size

    @property
    def has_pending(self) -> bool:
        """True if anything is recorded and not yet written."""
        return bool(self._unwritten)

    def resume(self, size: int) -> None:
        """Continue with the file, which exists already and has `size` bytes."""
        self._closed_bytes = size

    def try_close(self, force: bool) -> bool:
        """Close the file if nothing is pending and no sync is due. It is opened again when needed. `force`: first make
        a sync that is due. Return False if the file stays open. Raises JournalFailure.
        """
        file = self._file
        if file is None:
            return True
        if self.has_pending or not self.group.try_close(file, False, force):
            return False
        self._closed_bytes = file.size
        self._file = None
        return True

    def close(self) -> None:
        """Close the file; everything must have been written and synced."""
        assert not self.has_pending
        if self._file is not None:
            self.group.open_files.closed(self)
            self.group.close_after_sync(self._file)
            self._file = None

    def abandon(self) -> None:
        """Forget the file and its pending bytes, because it is about to be removed."""
        self.is_erased = True
        self._unwritten = b""
        self.group.forget(self)
        self.group.open_files.closed(self)
        if self._file is not None:
            self.group.close_after_sync(self._file)
            self._file = None

    def write(self) -> File:
        """Write the pending bytes without a sync, and return the file that has them. After an OSError a second call
        continues where the first one failed. Raises OSError.
        """
        raise NotImplementedError

    def synced(self, now_ms: int) -> None:
        """Do nothing after a sync: no work of this file waits for one."""

    def _create(self, data: bytes, now_ms: int) -> None:
        """Create the file with `data` in it; the next sync includes it and its name. Raises OSError."""
        self.file.write(data)
        self.group.include(self.file, self.sync_ms, now_ms)
        self.group.change_folder(self.sync_ms, now_ms)

    def _append(self, data: bytes) -> None:
        """Write `data`. After an OSError a call with b"" tries again. Raises OSError."""
        self._unwritten += data
        write_whole(self.fs, self.path, self.file, self._unwritten)
        self._unwritten = b""

    def _switch_to(self, file: File | None) -> None:
        """Append to `file` from now on. The old file has been synced, or the caller has arranged for that."""
        if self._file is not None:
            self.group.open_files.closed(self)
        self._file = file
        self._closed_bytes = 0
        if file is not None:
            self.group.open_files.opened(self)
