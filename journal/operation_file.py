"""The file of a running operation as a member of the commit group: its frames are written with a turn's commit and
synced with what clients wait for, so no client waits for a sync of its own.
"""

from __future__ import annotations

from staniel.journal.disk.fs import File, take_back
from staniel.journal.group_commit import GroupCommit
from staniel.journal.new_file import NewFile


class OperationFile:
    """Appends frames to one undo file. A write that fails is kept in `error`: nothing more is written then, and the
    operation ends.
    """

    batch = 0
    sync_ms = -1
    is_erased = False

    def __init__(self, group: GroupCommit, folder: str, path: str) -> None:
        """Raises OSError."""
        self.path = path
        self.error: OSError | None = None
        self._group = group
        self._file = NewFile(group.fs, folder, path)
        self._pending: list[bytes] = []
        self.is_closed = False

    @property
    def file(self) -> File:
        return self._file

    def append(self, data: bytes) -> None:
        """Add a frame; `GroupCommit.after` tells when it is durable."""
        if not self._pending:
            self._group.touch(self)
        self._pending.append(data)
        self._group.pending_bytes += len(data)

    def write(self) -> File:
        data, self._pending = b"".join(self._pending), []
        if self.error is None:
            before = self._file.size
            try:
                self._file.write(data)
            except OSError as error:
                self.error = error
                take_back(self._group.fs, self.path, self._file, before)
        return self._file

    def synced(self, now_ms: int) -> None:
        """Nothing follows."""

    def close(self) -> None:
        """All frames are written; nothing more is appended."""
        self.is_closed = True
        self._group.forget(self)
        self._group.close_after_sync(self._file)
