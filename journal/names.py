"""A disk that remembers which names it may not have yet.

After a failed sync of a folder the system shows the names of its cache, and no later sync writes them: a renamed file
can have its old name again after the next power cut, and a removed one can be back. So every journal goes through this
disk, which notes each name that is made or removed until a sync has taken it over. Knows names; refuses to know what is
in the files, and what is done about names that may be wrong (doubt.py).
"""

from __future__ import annotations

from collections.abc import Callable

from journal.fs import FULL_ERRNOS, File, Fs, replace

NAMES_MAX = 10_000  # where nobody ever syncs, the oldest are forgotten


class Names:
    """journal.fs.Fs on another one; `fs` does the work.

    Some syncs run in another thread: what is noted meanwhile stays noted. Every change of the notes is one step of the
    interpreter.
    """

    def __init__(self, fs: Fs) -> None:
        self._fs = fs
        self.failed: Callable[[], None] = lambda: None
        """A sync of names has failed."""
        self._changed: dict[str, int] = {}
        self._lost: dict[str, None] = {}
        self._steps = 0
        self.read, self.reader, self.size, self.list = fs.read, fs.reader, fs.size, fs.list
        self.allocate, self.free_bytes, self.memory_bytes = fs.allocate, fs.free_bytes, fs.memory_bytes
        self.lock, self.hold = fs.lock, fs.hold

    def unsure(self) -> list[str]:
        """The paths that a power cut may bring back or take away."""
        return list(dict.fromkeys([*self._lost.copy(), *self._changed.copy()]))

    def append(self, path: str) -> File:
        file = self._fs.append(path)
        if file.size == 0:
            self._note(path)
        return file

    def rename(self, old: str, new: str) -> None:
        self._fs.rename(old, new)
        self._note(old)
        self._note(new)

    def remove(self, path: str) -> None:
        self._fs.remove(path)
        self._note(path)

    def truncate(self, path: str, size: int) -> None:
        self._watched(lambda: self._fs.truncate(path, size), "")

    def replace(self, path: str, data: bytes) -> None:
        replace(self, path, data)

    def make_folder(self, path: str) -> None:
        self._watched(lambda: self._fs.make_folder(path), "")

    def sync_folder(self, folder: str) -> None:
        self._watched(lambda: self._fs.sync_folder(folder), f"{folder}/")

    def sync_all(self, folder: str) -> None:
        self._watched(lambda: self._fs.sync_all(folder), f"{folder}/", deep=True)

    def _note(self, path: str) -> None:
        self._steps += 1
        self._changed.pop(path, None)
        self._changed[path] = self._steps
        if len(self._changed) > NAMES_MAX:
            del self._changed[next(iter(self._changed))]

    def _watched(self, work: Callable[[], None], within: str, *, deep: bool = False) -> None:
        """Do `work`, which syncs the names that begin with `within`, if that is not empty."""
        before = self._steps
        try:
            work()
        except OSError as error:
            if error.errno not in FULL_ERRNOS:
                self._lost |= dict.fromkeys(self._changed.copy())
                self.failed()
            raise
        if not within:
            return
        for path, step in self._changed.copy().items():
            if step <= before and path.startswith(within) and (deep or "/" not in path[len(within) :]):
                self._changed.pop(path, None)
