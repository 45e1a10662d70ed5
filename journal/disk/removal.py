"""The removal of journal files: the list of their names, and the removal of a deleted queue's files. If the system
refuses that now, it is tried again later.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from contextlib import suppress
from typing import NamedTuple

from staniel.journal.disk.fs import MISSING, Fs, SyncFailed, remove_each
from staniel.journal.disk.replace_file import replace_file
from staniel.journal.disk.unsynced_names import keep_first

LIST_FOLDER = ".staniel/segments"  # that of the sidecars: a start removes from it what belongs to no sealed file
LIST_SUFFIX = ".removed"
LIST_MAGIC = b"staniel-removed 1\n"
LIST_HEAD_BYTES = len(LIST_MAGIC) + 4


class RemovalList:
    """The list of files that are being removed: those of a deleted queue or reader, those that a pack has replaced, and
    segments that were read. `name`: of the list; one removal at a time may use it.

    It is durable before the first of them is removed. A killed process may have removed some in the page cache alone,
    and if the sync at the next start fails, no later sync covers these removals. The renewal after that finds the names
    in the list and removes them again; otherwise a power cut could bring the files back later, when nothing says any
    more that they count for nothing. A list without a removal does no harm.
    """

    def __init__(self, fs: Fs, folder: str, name: str) -> None:
        self._fs = fs
        self._folder = folder
        self._path = f"{folder}/{LIST_FOLDER}/{name}{LIST_SUFFIX}"

    def write(self, names: Iterable[str]) -> None:
        """Make `names` the list, durably. If the system refuses that, the files are removed without a list: it must be
        possible to remove them on a full disk. Files that a retention hold needs are kept first. Raises OSError if the
        system refuses that, SyncFailed, JournalFailure.
        """
        names = list(names)
        keep_first(self._fs, self._folder, names)
        try:
            self._fs.make_folder(self._path.rpartition("/")[0])
            replace_file(self._fs, self._path, _encode_names(names))
        except SyncFailed:
            raise
        except OSError:
            return

    def drop(self) -> None:
        """Remove the list, because the removals are durable. If the system refuses that, it stays until a start."""
        with suppress(OSError):
            self._fs.remove(self._path)


def listed_names(fs: Fs, folder: str) -> list[str]:
    """Return the names in all lists of removals of a spool. Raises OSError."""
    lists = f"{folder}/{LIST_FOLDER}"
    try:
        list_names = [name for name, regular in fs.list(lists) if regular and name.endswith(LIST_SUFFIX)]
    except MISSING:
        return []
    names = []
    for name in list_names:
        path = f"{lists}/{name}"
        names += _decode_names(fs.read(path, 0, fs.size(path)))
    return names


def _encode_names(names: Iterable[str]) -> bytes:
    body = "\0".join(names).encode("utf-8", "surrogateescape")
    return LIST_MAGIC + zlib.crc32(body).to_bytes(4, "little") + body


def _decode_names(data: bytes) -> list[str]:
    """Return the names in a list; none if it is not as it was written."""
    body = data[LIST_HEAD_BYTES:]
    if not body or data[:LIST_HEAD_BYTES] != LIST_MAGIC + zlib.crc32(body).to_bytes(4, "little"):
        return []
    return body.decode("utf-8", "surrogateescape").split("\0")


class FileRemoval:
    """The removal of the files `names` in their order, and of `last` once that is durable ("": there is none). The
    removal of `last` is durable at the end, too: a power cut that brought it back would harm the next queue of that
    name, even if the file has no more than a transaction number. `queue`: the name of the files' queue.
    """

    def __init__(self, fs: Fs, folder: str, queue: str, names: list[str], last: str) -> None:
        self._fs = fs
        self._folder = folder
        self._list = RemovalList(fs, folder, queue)
        self._names = names
        self._last = last
        self.has_begun = False
        """True once a file is removed. Before that an error has changed nothing."""

    def carry_out(self) -> None:
        """Remove the remaining files. Raises OSError, JournalFailure. A second call continues where the first one
        failed.
        """
        if not self.has_begun:
            self._list.write([*self._names, self._last] if self._last else self._names)
        while self._names:
            self._remove(self._names[0])
            if len(self._names) == 1:
                self._fs.sync_folder(self._folder)
            del self._names[0]
        if self._last:
            self._remove(self._last)
            self._fs.sync_folder(self._folder)
            self._last = ""
        self._list.drop()

    def _remove(self, name: str) -> None:
        remove_each(self._fs, self._folder, [name])
        self.has_begun = True


class Unremoved(NamedTuple):
    """A removal that has begun, and the error that stopped it."""

    removal: FileRemoval
    error: OSError
