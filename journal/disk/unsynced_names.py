"""An Fs that tracks which names and files a power cut may still change, and that syncs no more once a sync has failed.

After a failed sync the system shows the pages and names of its cache, and no later sync writes them: a renamed file can
have its old name again after the next power cut, and a removed one can be back. So every journal uses this Fs. It notes
each name that is made or removed until a sync has covered it, and each file with bytes that no sync has covered. A
failed sync, whatever its errno, "no room" too, becomes a JournalFailure, which is no OSError, so that no caller takes
it for a full disk; every later sync of the process raises it as well. failed_sync.py writes the notes down.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from operator import attrgetter
from typing import NoReturn

from staniel.journal.disk.fs import File, Fs, JournalFailure, SyncFailed

NAMES_MAX = 10_000  # where nothing is ever synced, the oldest are forgotten


class NamedFile:
    """A File under the name that it has now. Its sync raises JournalFailure. `safe_bytes`: so many were there
    when it was last synced, or opened. What writes is the other file itself: that is done for every batch.
    """

    __slots__ = ("_file", "_names", "path", "safe_bytes", "write")

    def __init__(self, names: UnsyncedNames, path: str, file: File) -> None:
        self._file = file
        self._names = names
        self.path = path
        self.safe_bytes = file.size
        self.write = file.write

    def _set_size(self, size: int) -> None:
        self._file.size = size

    size = property(attrgetter("_file.size"), _set_size)

    def sync(self) -> None:
        names, file = self._names, self._file
        size = file.size
        if names.failure:
            raise JournalFailure(names.failure)
        try:
            file.sync()
        except SyncFailed as error:
            names.fail(error)
        if names.failure:
            raise JournalFailure(names.failure)
        self.safe_bytes = size

    def close(self) -> None:
        self._names.closed(self)
        self._file.close()


class UnsyncedNames:
    """An Fs on another one; `fs` does the work.

    Some syncs run in another thread: what is noted meanwhile stays noted. Every change of the notes is one step of the
    interpreter.
    """

    def __init__(self, fs: Fs) -> None:
        self._fs = fs
        self.failed: Callable[[], None] = lambda: None
        """A sync has failed."""
        self.failure = ""
        """Why no sync is done any more."""
        self._changed: dict[str, int] = {}
        self._open: dict[str, NamedFile] = {}
        self._unsynced: dict[str, int] = {}  # files that were closed with bytes that no sync has covered
        self._steps = 0
        self.read, self.reader, self.size, self.list = fs.read, fs.reader, fs.size, fs.list
        self.allocate, self.set_aside = fs.allocate, fs.set_aside
        self.free_bytes, self.memory_bytes = fs.free_bytes, fs.memory_bytes
        self.lock, self.hold = fs.lock, fs.hold

    def changed_names(self) -> list[str]:
        """The paths that a power cut may bring back or take away."""
        return list(self._changed.copy())

    def unsynced_files(self) -> list[str]:
        """The files of which a power cut may take bytes."""
        there = [path for path, file in self._open.copy().items() if file.size]
        return list(dict.fromkeys([*self._unsynced.copy(), *there]))

    def unsynced_bytes(self, path: str) -> int:
        """How much of an open file no sync has covered. Not counted is what a sync of the whole file system has taken
        along unasked.
        """
        file = self._open.get(path)
        return 0 if file is None else file.size - file.safe_bytes

    def append(self, path: str) -> File:
        file = NamedFile(self, path, self._fs.append(path))
        if file.size == 0:
            self._note(path)
        self._open[path] = file
        return file

    def closed(self, file: NamedFile) -> None:
        """`file` is about to be closed."""
        if self._open.get(file.path) is file:
            del self._open[file.path]
            if file.size > file.safe_bytes:
                self._remember(self._unsynced, file.path)

    def rename(self, old: str, new: str) -> None:
        self._fs.rename(old, new)
        self._note(old)
        self._note(new)
        self._open.pop(new, None)
        self._unsynced.pop(new, None)
        file = self._open.pop(old, None)
        if file is not None:
            file.path = new
            self._open[new] = file
        if self._unsynced.pop(old, None) is not None:
            self._remember(self._unsynced, new)

    def remove(self, path: str) -> None:
        self._fs.remove(path)
        self._note(path)
        self._open.pop(path, None)
        self._unsynced.pop(path, None)

    def truncate(self, path: str, size: int) -> None:
        self.guard(lambda: self._fs.truncate(path, size))
        self._unsynced.pop(path, None)

    def make_folder(self, path: str) -> None:
        self.guard(lambda: self._fs.make_folder(path))

    def sync_folder(self, folder: str) -> None:
        within, before = f"{folder}/", self._steps
        self.guard(lambda: self._fs.sync_folder(folder))
        for path, step in self._changed.copy().items():
            if step <= before and path.startswith(within) and "/" not in path[len(within) :]:
                self._changed.pop(path, None)

    def sync_all_with(self, folder: str, files: Iterable[File]) -> None:
        """As `sync_all`, for the sake of `files`: what they have now is known to be safe then."""
        written = [(file, file.size) for file in files if isinstance(file, NamedFile)]
        self.sync_all(folder)
        for file, size in written:
            file.safe_bytes = max(size, file.safe_bytes)

    def sync_all(self, folder: str) -> None:
        within, before = f"{folder}/", self._steps
        self.guard(lambda: self._fs.sync_all(folder))
        for notes in (self._changed, self._unsynced):
            for path, step in notes.copy().items():
                if step <= before and path.startswith(within):
                    notes.pop(path, None)

    def guard(self, work: Callable[[], None]) -> None:
        """Do `work`, in which something may be synced. Raises JournalFailure if that fails, or has failed before."""
        if self.failure:
            raise JournalFailure(self.failure)
        try:
            work()
        except SyncFailed as error:
            self.fail(error)
        if self.failure:
            raise JournalFailure(self.failure)  # in the other thread, and it may have taken what was to be told here

    def fail(self, error: SyncFailed) -> NoReturn:
        """A sync has failed: so will every later one."""
        self.failure = f"sync failed: {error}"
        self.failed()
        raise JournalFailure(self.failure) from error

    def _note(self, path: str) -> None:
        self._remember(self._changed, path)

    def _remember(self, notes: dict[str, int], path: str) -> None:
        self._steps += 1
        notes.pop(path, None)
        notes[path] = self._steps
        if len(notes) > NAMES_MAX:
            del notes[next(iter(notes))]
