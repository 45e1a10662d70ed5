"""An Fs that records what is changed in a spool, for its followers.

It stands between the disk and UnsyncedNames. Each change of a replicated file becomes a Change once it has taken
effect, also one that took effect in part: a write that failed half way. A lock makes the order of the changes that in
which they took effect: the server's threads write files of packs while its loop appends to journals. Files of the
server's own are handed out as they are, so their reads and writes cost nothing.

A rename out of the replicated files is a removal to followers. A file that comes the other way is sent whole, under
the name ARRIVING, and gets its name when it is complete.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from operator import attrgetter
from typing import Any, cast

from staniel.cluster.spool_changes import (
    PIECE_BYTES,
    Change,
    FileAppended,
    FileCreated,
    FileOverwritten,
    FileRemoved,
    FileRenamed,
    FileTruncated,
)
from staniel.cluster.spool_names import ARRIVING, SpoolPaths
from staniel.journal.disk.fs import File, Fs, Region, SyncFailed


class ChangeRecorder:
    """The changes that the driver has not taken yet, oldest first. `lock`: held while a change takes effect and is
    added; a driver with threads gives one of its own. `size`: bytes of data in the changes.
    """

    def __init__(self, lock: AbstractContextManager[object] | None = None) -> None:
        self.lock = nullcontext() if lock is None else lock
        self.size = 0
        self._changes: list[Change] = []

    @property
    def has_changes(self) -> bool:
        return bool(self._changes)

    def add(self, change: Change) -> None:
        """Add a change. The caller has the lock."""
        self._changes.append(change)

    def add_data(self, change: FileAppended | FileOverwritten) -> None:
        """Add a change with data. The caller has the lock."""
        self._changes.append(change)
        self.size += len(change.data)

    def take_changes(self) -> list[Change]:
        """Return the changes so far, which are the caller's then."""
        with self.lock:
            return self.take_changes_locked()

    def take_changes_locked(self) -> list[Change]:
        """Return the changes so far, as `take_changes` does. The caller has the lock, so that none follows."""
        taken, self._changes, self.size = self._changes, [], 0
        return taken


class FileName:
    """The present name of files that are open under it; "" if it is gone."""

    __slots__ = ("name", "open")

    def __init__(self, name: str) -> None:
        self.name = name
        self.open = 0


class RecordingFile:
    """A File whose writes are recorded under its present name."""

    __slots__ = ("_add", "_file", "_fs", "_lock", "_named", "close", "is_at", "read", "sync")

    def __init__(self, fs: RecordingFs, file: File, named: FileName) -> None:
        self._fs = fs
        self._file = file
        self._named = named
        self._lock = fs.recorder.lock
        self._add = fs.recorder.add_data
        named.open += 1
        self.read, self.sync, self.is_at = file.read, file.sync, file.is_at
        self.close = self._close

    size = cast(int, property(attrgetter("_file.size"), lambda self, size: self._set_size(size)))

    def _set_size(self, size: int) -> None:
        self._file.size = size

    def write(self, data: bytes) -> None:
        file = self._file
        with self._lock:
            at = file.size
            try:
                file.write(data)
            finally:
                written = file.size - at
                if written > 0 and self._named.name:
                    self._add(FileAppended(self._named.name, at, bytes(data[:written])))

    def _close(self) -> None:
        with self._lock:
            self._fs.forget(self._named)
        self._file.close()


class RecordingRegion:
    """A Region whose bytes are recorded once they are written."""

    def __init__(self, fs: RecordingFs, region: Region, named: FileName) -> None:
        self._fs = fs
        self._region = region
        self._named = named
        self._staged: list[tuple[int, bytes]] = []
        named.open += 1
        self.size = region.size
        self.is_at = region.is_at

    def write_at(self, at: int, data: bytes) -> None:
        with self._fs.recorder.lock:
            self._region.write_at(at, data)
            self._record(at, data)

    def stage(self, at: int, data: bytes) -> None:
        self._region.stage(at, data)
        self._staged.append((at, bytes(data)))

    def sync(self) -> None:
        with self._fs.recorder.lock:
            self._region.sync()
            for at, data in self._staged:
                self._record(at, data)
            self._staged.clear()

    def _record(self, at: int, data: bytes) -> None:
        if data and self._named.name:
            self._fs.recorder.add_data(FileOverwritten(self._named.name, at, bytes(data)))

    def close(self) -> None:
        with self._fs.recorder.lock:
            self._fs.forget(self._named)
        self._region.close()


class RecordingFs:
    """An Fs that passes all calls to `fs`, and hands each change of a replicated file in `paths` to `recorder`."""

    def __init__(self, fs: Fs, paths: SpoolPaths, recorder: ChangeRecorder) -> None:
        self._fs = self.beneath = fs
        self.recorder = recorder
        self._paths = paths
        self._open: dict[str, FileName] = {}
        self.read, self.reader, self.size, self.list = fs.read, fs.reader, fs.size, fs.list
        self.sync_folder, self.sync_all, self.make_folder = fs.sync_folder, fs.sync_all, fs.make_folder
        self.free_bytes, self.free_inodes, self.memory_bytes = fs.free_bytes, fs.free_inodes, fs.memory_bytes
        self.lock, self.hold, self.is_locked = fs.lock, fs.hold, fs.is_locked
        self.boot_id, self.unique_id, self.modified_ms = fs.boot_id, fs.unique_id, fs.modified_ms
        self.is_same_device, self.name_bytes_max = fs.is_same_device, fs.name_bytes_max

    def append(self, path: str) -> File:
        name = self._paths.replicated_name(path)
        if name is None:
            return self._fs.append(path)
        with self.recorder.lock:
            file = self._fs.append(path)
            if not file.size:
                self.recorder.add(FileCreated(name))
            return RecordingFile(self, file, self._named(name))

    def overwrite(self, path: str) -> Region:
        name = self._paths.replicated_name(path)
        if name is None:
            return self._fs.overwrite(path)
        with self.recorder.lock:
            return RecordingRegion(self, self._fs.overwrite(path), self._named(name))

    def rename(self, old: str, new: str) -> None:
        old_name, new_name = self._paths.replicated_name(old), self._paths.replicated_name(new)
        if old_name is None and new_name is None:
            self._fs.rename(old, new)
            return
        with self.recorder.lock:
            if new_name is None and not self._is_file(old):  # a folder that another program has put there
                self._fs.rename(old, new)
                return
            self._fs.rename(old, new)
            self._lose_name(new_name)
            if old_name is not None and new_name is not None:
                self._pass_name_on(old_name, new_name)
                self.recorder.add(FileRenamed(old_name, new_name))
            elif old_name is not None:
                self._lose_name(old_name)
                self.recorder.add(FileRemoved(old_name))
            elif new_name is not None:
                self._record_arrival(new, new_name)

    def link(self, path: str, other: str) -> None:
        assert self._paths.replicated_name(other) is None, f"a second replicated name: {other}"
        self._fs.link(path, other)

    def remove(self, path: str) -> None:
        name = self._paths.replicated_name(path)
        if name is None:
            self._fs.remove(path)
            return
        with self.recorder.lock:
            self._fs.remove(path)
            self._lose_name(name)
            self.recorder.add(FileRemoved(name))

    def truncate(self, path: str, size: int) -> None:
        name = self._paths.replicated_name(path)
        if name is None:
            self._fs.truncate(path, size)
            return
        with self.recorder.lock:
            try:
                self._fs.truncate(path, size)
            except SyncFailed:  # the file is cut, as far as this process can see
                self.recorder.add(FileTruncated(name, size))
                raise
            self.recorder.add(FileTruncated(name, size))

    def allocate(self, path: str, size: int) -> None:
        self._assert_own(path)
        self._fs.allocate(path, size)

    def set_aside(self, path: str, size: int) -> None:
        self._assert_own(path)
        self._fs.set_aside(path, size)

    def fill(self, path: str, size: int) -> None:
        self._assert_own(path)
        self._fs.fill(path, size)

    def forget(self, named: FileName) -> None:
        """Note that one of the files under this name is closed. The caller has the lock."""
        named.open -= 1
        if not named.open and self._open.get(named.name) is named:
            del self._open[named.name]

    def _assert_own(self, path: str) -> None:
        assert self._paths.replicated_name(path) is None, f"no record says that {path} is longer than what is in it"

    def _named(self, name: str) -> FileName:
        named = self._open.get(name)
        if named is None:
            named = self._open[name] = FileName(name)
        return named

    def _lose_name(self, name: str | None) -> None:
        named = self._open.pop(name, None) if name is not None else None
        if named is not None:
            named.name = ""

    def _pass_name_on(self, old: str, new: str) -> None:
        named = self._open.pop(old, None)
        if named is not None:
            named.name = new
            self._open[new] = named

    def _is_file(self, path: str) -> bool:
        """Tell whether `path` is a file. Raises OSError if there is nothing, or the disk cannot say."""
        try:
            self._fs.read(path, 0, 1)
        except IsADirectoryError:
            return False
        return True

    def _record_arrival(self, path: str, name: str) -> None:
        """Record a file whose bytes no record has yet. Raises OSError."""
        self.recorder.add(FileCreated(ARRIVING))
        at = 0
        while data := self._fs.read(path, at, PIECE_BYTES):
            self.recorder.add_data(FileAppended(ARRIVING, at, data))
            at += len(data)
        self.recorder.add(FileRenamed(ARRIVING, name))

    def __getattr__(self, name: str) -> Any:
        """Return what a disk has beyond the protocol: a server's has the notice of its start."""
        return getattr(self._fs, name)
