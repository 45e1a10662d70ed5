"""Traces of single items through the records of journal files, for tools that show the history of an item, or the
content of a queue at a moment. Each format has a trace.py that reads its files in order. The events of all formats are
here.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from errno import EAGAIN
from typing import Any

from msgspec import Struct

from staniel.journal.disk.fs import Fs, Reader

TRIES = 20  # a server renames files of a queue a few times a second at most
TIMES_FROM_MS = 1_000_000_000_000  # the year 2001: smaller numbers in file names are not times
Progress = Callable[[int], None]
"""A function that is called with the number of bytes that have been read since the last call."""


class Happened(Enum):
    """The effect of a record on an item. A queue's items are added, opened, aborted, closed or removed. A job's events
    have the words of workq.
    """

    ADDED = "added"
    OPENED = "opened"
    ABORTED = "aborted"
    CLOSED = "closed"
    REMOVED = "removed"
    SCHEDULED = "scheduled"
    LEASED = "leased"
    TIMED_OUT = "timed out"
    COMPLETED = "completed"
    FAILED = "failed"
    DELETED = "deleted"
    EXPIRED = "expired"


class Event(Struct, frozen=True, gc=False):
    """An event of the item `id`, by the record `record` of `size` bytes from byte `at` of `file` on.

    It was not before `from_ms` nor after `until_ms`, as far as the files show; 0 and None if they do not. If the record
    has its time, the two are equal. `queue`: the item's queue, if files are of several. `xid`: of an open read.
    """

    happened: Happened
    id: str
    file: str
    at: int
    size: int
    record: str
    from_ms: int = 0
    until_ms: int | None = None
    xid: int | None = None
    queue: str = ""


class Payload(Struct, frozen=True, gc=False):
    """The place of an item's bytes."""

    file: str
    at: int
    size: int


def _refuse(*args: Any, **kwargs: Any) -> Any:
    raise AssertionError("a tool that looks must not change anything")


class FrozenFs:
    """Files of a folder as they are when this is made, even if a server renames or removes them meanwhile: they stay
    open until `close`. They can only be read. Raises OSError.
    """

    append = rename = link = remove = truncate = sync_folder = sync_all = make_folder = allocate = overwrite = _refuse
    modified_ms = set_aside = fill = free_bytes = memory_bytes = boot_id = unique_id = _refuse
    is_same_device = name_bytes_max = free_inodes = _refuse
    lock = is_locked = hold = _refuse

    def __init__(self, fs: Fs, folder: str, is_wanted: Callable[[str], bool], listed: list[str] | None = None) -> None:
        """Open the files. `listed`: their names from an earlier listing. If all of them exist, the folder is not listed
        again, and the caller must find out whether other files have come.
        """
        self._readers: dict[str, Reader] = {}
        self._sizes: dict[str, int] = {}
        self._entries: list[tuple[str, bool]] = []
        if listed is not None and self._open(fs, folder, listed):
            return
        for _ in range(TRIES):
            names = self._listed(fs, folder, is_wanted)
            if self._open(fs, folder, names) and self._listed(fs, folder, is_wanted) == names:
                return
            self.close()
        raise OSError(EAGAIN, f"the files change faster than they can be opened, {TRIES} times in a row", folder)

    def _open(self, fs: Fs, folder: str, names: list[str]) -> bool:
        """Open the files. Return False, with none open, if one of them is missing."""
        self._entries = [(name, True) for name in names]
        try:
            for name in names:
                path = f"{folder}/{name}"
                self._readers[path] = fs.reader(path)
                self._sizes[path] = fs.size(path)
        except FileNotFoundError:
            self.close()
            return False
        return True

    def _listed(self, fs: Fs, folder: str, is_wanted: Callable[[str], bool]) -> list[str]:
        return [name for name, regular in fs.list(folder) if regular and is_wanted(name)]

    def list(self, folder: str) -> list[tuple[str, bool]]:
        return self._entries

    def reader(self, path: str) -> Reader:
        return self._readers[path]

    def read(self, path: str, at: int, count: int) -> bytes:
        return self._readers[path].read(at, min(count, max(0, self._sizes[path] - at)))

    def size(self, path: str) -> int:
        return self._sizes[path]

    def close(self) -> None:
        for reader in self._readers.values():
            reader.close()
        self._readers.clear()
