"""A limit on the files that journals keep open: the least recently used ones are closed first, so that thousands of
queues do not need thousands of file descriptors.
"""

from __future__ import annotations

import errno
from collections import OrderedDict
from collections.abc import Callable
from typing import Protocol

from staniel.journal.disk.fs import BROKEN_ERRNOS, FULL_ERRNOS, File, Fs

LIMIT = 1024  # beyond this, files that can be closed without a cost are closed
MOST = 4096
LOOKS = 8
NO_DESCRIPTORS = (errno.EMFILE, errno.ENFILE)
FINAL_ERRNOS = BROKEN_ERRNOS | FULL_ERRNOS | {errno.ENOENT, errno.ENOTDIR}  # waiting is in vain, or callers do better


class FileHolder(Protocol):
    """A journal with an open file."""

    def try_close(self, force: bool) -> bool:
        """Close the file if it can be closed now; it is opened again when needed. `force`: also if it must be synced
        first.
        """


class OpenFiles:
    """The journals with an open file, the least recently used first: about `limit` while most are idle, and never more
    than `most`, not counting those that a running sync uses.
    """

    def __init__(self, limit: int = LIMIT, most: int = MOST) -> None:
        self.limit = limit
        self.most = most
        self.wait: Callable[[str, OSError, int], bool] = lambda path, error, tries: False
        """A function of the server that waits for a moment, because the system refuses to open this path, after so many
        tries. It returns False when it has been tried for long enough.
        """
        self._holders: OrderedDict[FileHolder, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._holders)

    def allow(self, most: int) -> None:
        """Allow `most` journals to be open."""
        self.limit, self.most = min(LIMIT, most), most

    def open(self, fs: Fs, path: str, *, must_write: bool) -> File:
        """Open the file of a journal. If the process or the machine has no more descriptors, close files of other
        journals. `must_write`: the journal has unwritten changes. Then other refusals are not final either: the call
        tries again, and all replies wait, because some may depend on those changes. Raises OSError, JournalFailure.
        """
        tries = 0
        while True:
            try:
                return fs.append(path)
            except OSError as error:
                if error.errno in NO_DESCRIPTORS and self._close_one():
                    continue
                if not must_write or error.errno in FINAL_ERRNOS or not self.wait(path, error, tries):
                    raise
                tries += 1

    def _close_one(self) -> bool:
        """Close the least recently used journal that needs no sync first, or else any. Return False if none can be
        closed.
        """
        return any(self._ask_oldest(force) for force in (False, True) for _ in range(len(self._holders)))

    def opened(self, holder: FileHolder) -> None:
        """Note that `holder` has just opened its file, and close others if necessary. Raises JournalFailure."""
        if len(self._holders) >= self.limit:
            self._close_some()
        self._holders[holder] = None

    def closed(self, holder: FileHolder) -> None:
        self._holders.pop(holder, None)

    def _close_some(self) -> None:
        """Try to close a few of the least recently used; those that stay open go to the end."""
        for _ in range(LOOKS):
            if len(self._holders) < self.limit:
                return
            self._ask_oldest(force=False)
        for _ in range(len(self._holders)):
            if len(self._holders) < self.most or self._ask_oldest(force=True):
                return

    def _ask_oldest(self, force: bool) -> bool:
        holder, _ = self._holders.popitem(last=False)
        is_closed = holder.try_close(force)
        if not is_closed:
            self._holders[holder] = None
        return is_closed
