"""The file of a running operation as a member of the commit group. Its frames are written with a turn's commit and
synced together with what clients wait for, so no client waits for a sync of its own.
"""

from __future__ import annotations

from contextlib import suppress

from staniel.journal.disk.fs import File
from staniel.journal.group_commit import GroupCommit
from staniel.journal.new_file import NewFile


class OperationFile:
    """The appender of frames to one undo file. Items depend on the frames as on transfer_log's intents, so a failed
    write ends the process, unless releasing the reserve makes room. `is_lost`: another program has removed or cut the
    file.
    """

    batch = 0
    sync_ms = -1
    is_erased = False

    def __init__(self, group: GroupCommit, folder: str, path: str) -> None:
        """Create the file at `path`. Raises OSError."""
        self.path = path
        self._group = group
        self._file = NewFile(group.fs, folder, path)
        self._pending: list[bytes] = []
        self._unwritten = b""
        self.is_closed = False

    @property
    def file(self) -> File:
        return self._file

    @property
    def is_lost(self) -> bool:
        with suppress(OSError):  # the disk cannot say
            return not self._file.is_at(self.path)
        return False

    def append(self, data: bytes) -> None:
        """Add a frame. `GroupCommit.call_when_durable` tells when it is durable."""
        if not self._pending:
            self._group.mark_dirty(self)
        self._pending.append(data)
        self._group.pending_bytes += len(data)

    def write(self) -> File:
        self._unwritten += b"".join(self._pending)
        self._pending.clear()
        before = self._file.size
        try:
            self._file.write(self._unwritten)
        finally:
            self._unwritten = self._unwritten[self._file.size - before :]
        return self._file

    def synced(self, now_ms: int) -> None:
        """Do nothing after a sync: no work of this file waits for one."""

    def close(self) -> None:
        """Close the file. All frames are written; nothing more is appended."""
        self.is_closed = True
        self._group.forget(self)
        self._group.close_after_sync(self._file)
