"""The disk of a member, which knows the calls that have begun and not ended: syncs, and what recovery waits for. A
member whose disk hangs must not keep its lease.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from threading import get_ident
from typing import Any

from staniel.journal.disk.fs import File, Reader, Region
from staniel.journal.disk.os_fs import CloseGone, OsFile, OsReader, OsRegion, naming
from staniel.server.start_notice import StartFs, StartNotice


class DiskCalls:
    """The calls under way: by thread, the number of the call. Every change is one step of the interpreter."""

    def __init__(self) -> None:
        self.running: dict[object, object] = {}
        self._numbers = count(1)

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Note a call of this thread, perhaps within another one."""
        thread = get_ident()
        outer = self.running.get(thread)
        self.running[thread] = next(self._numbers)
        try:
            yield
        finally:
            if outer is None:
                del self.running[thread]
            else:
                self.running[thread] = outer


class NotingFile(OsFile):
    """A file whose syncs are noted."""

    __slots__ = ("_calls",)

    def __init__(self, path: str, close_gone: CloseGone, calls: DiskCalls) -> None:
        super().__init__(path, close_gone)
        self._calls = calls

    def sync(self) -> None:
        with self._calls.noted():
            super().sync()


class NotingRegion(OsRegion):
    """A region whose syncs are noted."""

    __slots__ = ("_calls",)

    def __init__(self, path: str, calls: DiskCalls) -> None:
        super().__init__(path)
        self._calls = calls

    def sync(self) -> None:
        with self._calls.noted():
            super().sync()


class NotingReader(OsReader):
    """A reader whose reads are noted."""

    __slots__ = ("_calls",)

    def __init__(self, path: str, close_gone: CloseGone, calls: DiskCalls) -> None:
        super().__init__(path, close_gone)
        self._calls = calls

    def read(self, at: int, count: int) -> bytes:
        with self._calls.noted():
            return super().read(at, count)


def _noted(name: str) -> Callable[..., Any]:
    """Return the method of a disk with this name, noted."""

    def call(self: NotingFs, *arguments: Any) -> Any:
        with self.calls.noted():
            return getattr(super(NotingFs, self), name)(*arguments)

    return call


class NotingFs(StartFs):
    """The disk of a member. Writes into the page cache are not noted: they are those of the loop, or of threads that
    sync soon. Neither are calls that reserve space, which sync many times.
    """

    def __init__(self, close_gone: CloseGone, notice: StartNotice, lock_name: str) -> None:
        super().__init__(close_gone, notice, lock_name)
        self.calls = DiskCalls()

    read, size, list = _noted("read"), _noted("size"), _noted("list")
    rename, link, remove = _noted("rename"), _noted("link"), _noted("remove")
    truncate, sync_folder, sync_all = _noted("truncate"), _noted("sync_folder"), _noted("sync_all")

    @naming("open")
    def append(self, path: str) -> File:
        with self.calls.noted():
            return NotingFile(path, self._close_gone, self.calls)

    @naming("open")
    def overwrite(self, path: str) -> Region:
        with self.calls.noted():
            return NotingRegion(path, self.calls)

    @naming("open")
    def reader(self, path: str) -> Reader:
        with self.calls.noted():
            return NotingReader(path, self._close_gone, self.calls)
