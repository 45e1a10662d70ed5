"""The removal of a deleted queue's files: if the system refuses it now, it is tried again later."""

from __future__ import annotations

from typing import NamedTuple

from staniel.journal.disk.fs import Fs, remove_each


class FileRemoval:
    """The removal of the files `names` in their order, and of `last` once that is durable ("": there is none). The
    removal of `last` is durable at the end, too: a power cut that brought it back would harm the next queue of that
    name, even if the file has no more than a transaction number.
    """

    def __init__(self, fs: Fs, folder: str, names: list[str], last: str) -> None:
        self._fs = fs
        self._folder = folder
        self._names = names
        self._last = last
        self.has_begun = False
        """True once a file is removed. Before that an error has changed nothing."""

    def carry_out(self) -> None:
        """Remove the remaining files. Raises OSError, JournalFailure. A second call continues where the first one
        failed.
        """
        while self._names:
            self._remove(self._names[0])
            if len(self._names) == 1:
                self._fs.sync_folder(self._folder)
            del self._names[0]
        if self._last:
            self._remove(self._last)
            self._fs.sync_folder(self._folder)
            self._last = ""

    def _remove(self, name: str) -> None:
        remove_each(self._fs, self._folder, [name])
        self.has_begun = True


class Unremoved(NamedTuple):
    """A removal that has begun, and the error that stopped it."""

    removal: FileRemoval
    error: OSError
