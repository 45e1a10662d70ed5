"""A file of the spool's own folder that is appended to. Its first sync makes its name durable, too."""

from __future__ import annotations

from typing import TYPE_CHECKING

from staniel.journal.group_commit import SeparateDevice

if TYPE_CHECKING:
    from staniel.journal.disk.fs import Fs


class NewFile(SeparateDevice):
    """A file whose first sync also makes its name durable, and that of the file that had the name before. `sync` may
    run in another thread.
    """

    def __init__(self, fs: Fs, folder: str, path: str) -> None:
        self._fs = fs
        self._folder = folder
        self._file = fs.append(path)
        self._is_named = False  # an earlier run may have been killed before it synced the name
        self.size = self._file.size

    def write(self, data: bytes) -> None:
        try:
            self._file.write(data)
        finally:
            self.size = self._file.size

    def sync(self) -> None:
        self._file.sync()
        if not self._is_named:
            self._fs.sync_folder(self._folder)
            self._is_named = True

    def is_on(self, folder: str) -> bool:
        return True  # the own folder is on the spool's file system; otherwise the start was refused

    def is_at(self, path: str) -> bool:
        return self._file.is_at(path)

    def close(self) -> None:
        self._file.close()
