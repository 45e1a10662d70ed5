"""An Fs that tracks which names and files a power cut may still change, and that refuses to sync once a sync has
failed.

After a failed sync the system shows the pages and names of its cache, and no later sync writes them: after the next
power cut a renamed file can have its old name again, and a removed one can be back. So every journal uses this Fs. It
notes each created or removed name until a sync has covered it, and each file with bytes that no sync has covered. A
failed sync, whatever its errno is, even "no room", becomes a JournalFailure. That is not an OSError, so no caller
mistakes it for a full disk. Every later sync of the process raises it, too. failed_sync.py writes the notes down.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator
from contextlib import contextmanager
from operator import attrgetter
from typing import NoReturn, ParamSpec, Protocol, cast

from staniel.journal.disk.fs import File, Fs, JournalFailure, SyncFailed

NAMES_MAX = 10_000  # if nothing is synced for a long time, the oldest names are dropped
LOOKS_MAX = 100  # files checked at a time: 3 us each
P = ParamSpec("P")


class WriteLog(Protocol):
    """A log that gets every write and every change of a name, so that bytes can be durable before their file is synced
    (journal/redo).
    """

    @property
    def bindings(self) -> Container[str]:
        """The paths of the files whose writes are logged."""

    @property
    def released(self) -> Container[str]:
        """Paths that such files had. Other files must not get them without asking the log."""

    def wrote(self, file: NamedFile, at: int, data: bytes) -> None: ...

    def opened(self, file: NamedFile) -> None: ...

    def closed(self, file: NamedFile) -> None: ...

    def end_file(self, path: str) -> None: ...

    def removed(self, path: str) -> None: ...

    def free_name(self, path: str) -> None: ...

    def unsynced_bytes(self, file: NamedFile) -> int: ...


class NamedFile:
    """A File under its present name. Its sync raises JournalFailure. `safe_bytes`: its size when it was last synced, or
    opened; `is_in_doubt`: not even those bytes may be durable. `cuts`: how often it was made shorter. `binding`: what a
    WriteLog knows of it. Without a binding, `write` is the method of the wrapped file, because it is called for every
    batch.
    """

    __slots__ = ("_file", "_names", "binding", "cuts", "is_in_doubt", "path", "safe_bytes", "write")

    def __init__(self, names: UnsyncedNames, path: str, file: File) -> None:
        self._file = file
        self._names = names
        self.path = path
        self.safe_bytes = file.size
        self.is_in_doubt = False
        self.cuts = 0
        self.binding: object = None
        self.write = file.write

    def bind(self, binding: object, *, tell: bool) -> None:
        """Note that the log knows this file. `tell`: the log gets each write from now on; otherwise it reads back what
        was written.
        """
        self.binding = binding
        self.write = self._write_and_tell if tell else self._file.write

    def unbind(self) -> None:
        self.binding = None
        self.write = self._file.write

    def _write_and_tell(self, data: bytes) -> None:
        file = self._file
        at = file.size
        file.write(data)
        log = self._names.write_log
        assert log is not None
        log.wrote(self, at, data)

    def _set_size(self, size: int) -> None:
        self.cuts += 1
        self._file.size = size
        self.safe_bytes = min(size, self.safe_bytes)  # cut off: the next bytes written there are not durable

    def read(self, at: int, count: int) -> bytes:
        return self._file.read(at, count)

    size = cast(int, property(attrgetter("_file.size"), _set_size))

    def sync(self) -> None:
        names, file = self._names, self._file
        cuts, size = self.cuts, file.size
        if names.failure:
            names.raise_failure()
        try:
            file.sync()
        except SyncFailed as error:
            error.filename = error.filename or self.path
            names.fail(error)
        if names.failure:
            names.raise_failure()
        # If the file has been cut meanwhile, `size` may include a write of the other thread that failed and was undone.
        if self.cuts == cuts and size > self.safe_bytes:
            self.safe_bytes = size
        self.is_in_doubt = False

    def is_at(self, path: str) -> bool:
        return self._file.is_at(path)

    def close(self) -> None:
        self._names.closed(self)
        self._file.close()


class Keeper(Protocol):
    """The retention holds, asked before a file loses its name, see journal/kept_files.py."""

    def keep(self, folder: str, names: Iterable[str]) -> None:
        """Keep those of these files that a hold needs. Raises OSError; the files must stay then."""

    def is_held(self, queue: str) -> bool: ...

    def last_number(self, queue: str) -> int: ...


class UnsyncedNames:
    """An Fs that wraps another one, `fs`. Some syncs run in another thread: names that are noted meanwhile stay noted.
    Every change of the notes is one step of the interpreter.
    """

    def __init__(self, fs: Fs) -> None:
        self._fs = self.beneath = fs
        """Files that recovery does not read, so that no sync need cover their names."""
        self.failed: Callable[[], None] = lambda: None
        """True once a sync has failed."""
        self.failure = ""
        self._cause: SyncFailed | None = None
        """The reason why nothing is synced any more."""
        self.write_log: WriteLog | None = None
        self._changed: dict[str, int] = {}
        self._open: dict[str, NamedFile] = {}
        self._shadowed: dict[NamedFile, None] = {}
        """Open files whose path has been opened once more since. They are in `_open` again when that file is closed."""
        self._unsynced: dict[str, int] = {}  # files that were closed with bytes that no sync has covered
        self.has_dropped = False
        """True once a note was dropped: the notes are not the whole list any more."""
        self._steps = 0
        self.keeper: Keeper | None = None
        self._to_look_at: list[str] = []
        self._changing: set[str] = set()
        """Paths that this process is renaming, removing or cutting now. On the disk that may be done although `_open`
        does not show it.
        """
        self.unwatched: tuple[str, ...] = ()
        """Beginnings of paths that `find_misplaced` leaves out: no reply depends on these files."""
        self.suspect: tuple[str, NamedFile] | None = None
        """A file that the last check did not find at its path."""
        self.read, self.reader, self.size, self.list = fs.read, fs.reader, fs.size, fs.list
        self.allocate, self.set_aside = fs.allocate, fs.set_aside
        self.free_bytes, self.memory_bytes = fs.free_bytes, fs.memory_bytes
        self.lock, self.hold, self.link, self.is_locked = fs.lock, fs.hold, fs.link, fs.is_locked
        self.overwrite, self.boot_id, self.unique_id = fs.overwrite, fs.boot_id, fs.unique_id
        self.is_same_device, self.name_bytes_max = fs.is_same_device, fs.name_bytes_max
        self.free_inodes, self.modified_ms = fs.free_inodes, fs.modified_ms

    def changed_names(self) -> list[str]:
        """Return the paths whose names a power cut may bring back or remove."""
        return list(self._changed.copy())

    def unsynced_files(self) -> list[str]:
        """Return the files that may lose bytes in a power cut."""
        # First those: the other thread may be moving one of them to `_open`.
        shadowed = [file.path for file in self._shadowed.copy()]
        paths = [path for path, file in self._open.copy().items() if file.size]
        return list(dict.fromkeys([*self._unsynced.copy(), *paths, *shadowed]))

    def is_synced(self, path: str) -> bool:
        """Tell whether syncs have covered all bytes that this process has written to the file at `path`. False if that
        is not known.
        """
        files = [file for file in (self._open.get(path), *self._shadowed_at(path)) if file is not None]
        if self.has_dropped or path in self._unsynced:
            return False
        return not any(file.is_in_doubt or file.size > file.safe_bytes for file in files)

    def unsynced_bytes(self, path: str) -> int:
        """Return how many bytes of an open file no sync has covered. A sync of the whole file system counts only for
        the files that it was meant for.
        """
        file = self._open.get(path)
        if file is None:
            return 0
        if file.binding is not None and self.write_log is not None:
            return self.write_log.unsynced_bytes(file)
        return file.size - file.safe_bytes

    def has_its_name(self, file: NamedFile) -> bool:
        """Tell whether `file` is at its path. After its removal it is not."""
        return self._open.get(file.path) is file

    def find_misplaced(self) -> str:
        """Return the path of a file that is open for writing, but was missing at its path in two successive checks or
        has been cut short; "" if there is none. Each call checks some files.
        """
        before, self.suspect = self.suspect, None
        if before is not None and self._is_misplaced(before[0]) is before[1]:
            return before[0]
        if not self._to_look_at:
            self._to_look_at = list(self._open.copy())
        looks, self._to_look_at = self._to_look_at[-LOOKS_MAX:], self._to_look_at[:-LOOKS_MAX]
        for path in looks:
            if (file := self._is_misplaced(path)) is not None:
                self.suspect = path, file
                break
        return ""

    def _is_misplaced(self, path: str) -> NamedFile | None:
        """Return the open file that should be at `path` but is not."""
        file = None if path.startswith(self.unwatched) else self._open.get(path)
        try:
            if file is None or file.is_at(path):
                return None
        except OSError:  # the disk cannot say, or the file has just been closed
            return None
        # Check the names last: by now, any change that another thread makes to the file has ended or is noted.
        return None if path in self._changing or self._open.get(path) is not file else file

    @contextmanager
    def _change(self, path: str) -> Iterator[None]:
        self._changing.add(path)
        try:
            yield
        finally:
            self._changing.discard(path)

    def append(self, path: str) -> File:
        log = self.write_log
        if log is not None and path in log.released and not self._has_content(path):
            log.free_name(path)
        file = NamedFile(self, path, self._fs.append(path))
        if file.size == 0:
            self._remember(self._changed, path)
        if (before := self._open.get(path)) is not None:
            self._shadowed[before] = None
        self._open[path] = file
        file.is_in_doubt = path in self._unsynced
        if log is not None and path in log.bindings:
            log.opened(file)
        return file

    def _has_content(self, path: str) -> bool:
        """Tell whether the file at `path`, which is in `left`, is still the file that the log knew. Other files begin
        empty, or by a rename, which frees the name. The log records the end of the old file before any write to the new
        one.
        """
        try:
            return self._fs.size(path) > 0
        except FileNotFoundError:
            return False

    def closed(self, file: NamedFile) -> None:
        """Note that `file` is about to be closed."""
        if file.binding is not None and self.write_log is not None:
            self.write_log.closed(file)
        is_shadowed = file in self._shadowed
        self._shadowed.pop(file, None)
        if self._open.get(file.path) is file:
            del self._open[file.path]
            for other in self._shadowed_at(file.path)[-1:]:
                self._open[file.path] = other
                self._shadowed.pop(other, None)
        elif not is_shadowed:
            return  # the file was removed, or another one has taken its name
        if file.size > file.safe_bytes:
            self._remember(self._unsynced, file.path)

    def _shadowed_at(self, path: str) -> list[NamedFile]:
        return [file for file in self._shadowed.copy() if file.path == path]

    def rename(self, old: str, new: str) -> None:
        log = self.write_log
        if log is not None:
            if old in log.bindings:
                log.end_file(old)
            if new in log.bindings or new in log.released:
                log.free_name(new)
        if self.keeper is not None:
            self._keep_before_rename(old, new)
        with self._change(old), self._change(new):
            self._fs.rename(old, new)
            self._remember(self._changed, old)
            self._remember(self._changed, new)
            self._forget(new)
            file = self._open.pop(old, None)
            for other in self._shadowed_at(old):
                other.path = new
            if file is not None:
                file.path = new
                self._open[new] = file
        if self._unsynced.pop(old, None) is not None:
            self._remember(self._unsynced, new)

    def _keep_before_rename(self, old: str, new: str) -> None:
        """Keep the file that `new` replaces, and one that leaves its folder. Raises OSError."""
        assert self.keeper is not None
        folder, _, name = new.rpartition("/")
        self.keeper.keep(folder, (name,))
        left, _, name = old.rpartition("/")
        if left != folder:
            self.keeper.keep(left, (name,))

    def remove(self, path: str) -> None:
        if self.keeper is not None:
            folder, _, name = path.rpartition("/")
            self.keeper.keep(folder, (name,))
        with self._change(path):
            self._fs.remove(path)
            if self.write_log is not None and path in self.write_log.bindings:
                self.write_log.removed(path)
            self._remember(self._changed, path)
            self._forget(path)

    def _forget(self, path: str) -> None:
        """Forget the file at `path`, which has no name any more."""
        self._open.pop(path, None)
        self._unsynced.pop(path, None)
        for file in self._shadowed_at(path):
            self._shadowed.pop(file, None)

    def truncate(self, path: str, size: int) -> None:
        log = self.write_log
        if log is not None and (path in log.bindings or path in log.released):
            log.free_name(path)
        with self._change(path):
            self.guard(self._fs.truncate, path, size)
            self._unsynced.pop(path, None)
            for file in [*self._shadowed_at(path), self._open.get(path)]:
                if file is not None:
                    file._set_size(min(file.size, size))

    def fill(self, path: str, size: int) -> None:
        self.guard(self._fs.fill, path, size)

    def make_folder(self, path: str) -> None:
        self.guard(self._fs.make_folder, path)

    def sync_folder(self, folder: str) -> None:
        within, before = f"{folder}/", self._steps
        self.guard(self._fs.sync_folder, folder)
        for path, step in self._changed.copy().items():
            if step <= before and path.startswith(within) and "/" not in path[len(within) :]:
                self._changed.pop(path, None)

    def sync_all_with(self, folder: str, files: Iterable[File]) -> None:
        """Sync as `sync_all` does, and note that what `files` have now is durable."""
        named_files = [file for file in files if type(file) is NamedFile]
        before = [(file.cuts, file.size) for file in named_files]  # the size last, so that a cut in between is noticed
        self.sync_all(folder)
        for file, (cuts, size) in zip(named_files, before, strict=True):
            if file.cuts == cuts and size > file.safe_bytes:  # as in `NamedFile.sync`
                file.safe_bytes = size

    def sync_all(self, folder: str) -> None:
        within, before = f"{folder}/", self._steps
        self.guard(self._fs.sync_all, folder)
        for notes in (self._changed, self._unsynced):
            for path, step in notes.copy().items():
                if step <= before and path.startswith(within):
                    notes.pop(path, None)
                    if notes is self._unsynced and (file := self._open.get(path)) is not None:
                        file.is_in_doubt = False  # the file has been opened meanwhile

    def guard(self, work: Callable[P, None], *args: P.args, **kwargs: P.kwargs) -> None:
        """Do `work`, which may sync. Raises JournalFailure if a sync fails, or has failed before."""
        if self.failure:
            self.raise_failure()
        try:
            work(*args, **kwargs)
        except SyncFailed as error:
            self.fail(error)
        if self.failure:
            self.raise_failure()  # a sync in the other thread has failed, and this error may be its consequence

    def fail(self, error: SyncFailed) -> NoReturn:
        """Raise the failure of a sync. Every later sync will raise it, too."""
        self._cause = error  # set first, because the other thread reads `failure`
        self.failure = f"sync failed: {error}"
        self.failed()
        raise JournalFailure(self.failure) from error

    def raise_failure(self) -> NoReturn:
        """Raise JournalFailure if a sync has failed in any thread. Its remedy is that of the failed sync."""
        raise JournalFailure(self.failure) from self._cause

    def _remember(self, notes: dict[str, int], path: str) -> None:
        self._steps += 1
        notes.pop(path, None)
        notes[path] = self._steps
        if len(notes) > NAMES_MAX:
            del notes[next(iter(notes))]
            self.has_dropped = True


def keep_first(fs: Fs, folder: str, names: Iterable[str]) -> None:
    """Keep those of these files that a retention hold needs, before they are removed one by one. Raises OSError if the
    system refuses it: the files must stay then. Raises JournalFailure.
    """
    if isinstance(fs, UnsyncedNames) and fs.keeper is not None:
        fs.keeper.keep(folder, names)


def is_held(fs: Fs, queue: str) -> bool:
    """Tell whether a retention hold is about the files of `queue`."""
    return isinstance(fs, UnsyncedNames) and fs.keeper is not None and fs.keeper.is_held(queue)


def last_held_number(fs: Fs, queue: str) -> int:
    """Return the highest number of a file of `queue` that a hold keeps or that a holder has passed; 0 if there is
    none.
    """
    return fs.keeper.last_number(queue) if isinstance(fs, UnsyncedNames) and fs.keeper is not None else 0
