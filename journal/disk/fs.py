"""The disk as the journal uses it: the protocols Fs, File and Reader, and small helpers.

os_fs.py is the real disk, sim/disk/disk.py a simulated one that loses unsynced bytes. Paths are strings. Every OSError
passes unchanged; the caller decides what to do about it.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

FULL_ERRNOS = frozenset((errno.ENOSPC, errno.EDQUOT))
SHORT_ERRNOS = frozenset((errno.EMFILE, errno.ENFILE, errno.ENOMEM))
"""The machine is short of descriptors or memory. Work that has not begun can be tried again."""


BROKEN_ERRNOS = frozenset((errno.EIO, errno.EROFS, errno.ESTALE, errno.ENXIO, errno.ENODEV, errno.EUCLEAN))
"""The disk or its file system is broken or gone. Any other error of a call that writes nothing is a refusal: nothing
has happened, and the purpose of the call can wait.
"""


class JournalFailure(Exception):
    """The error after the disk has refused a sync for any reason, or a write for another reason than a lack of room. No
    later change may be acknowledged: the process ends. The class is not an OSError, so no caller mistakes it for a full
    disk.
    """


class FilesMisplaced(JournalFailure):
    """The failure after another program has removed, moved, cut short, unmounted or mounted over files that are open
    for writing. No later start would find what is written to them from now on.
    """


class SyncFailed(OSError):
    """The error of a sync. It is unknown how many of the bytes are durable, and the kernel may treat them as clean from
    now on. Another try would succeed although it synced nothing.
    """

    def __init__(self, *args: object) -> None:
        super().__init__(*args)
        self.call = "sync"  # the call's name in messages, see refusals.py


class AlreadyLocked(Exception):
    """The refusal of a lock that another process holds; `holder` is what that process wrote into the lock file."""

    def __init__(self, holder: str) -> None:
        super().__init__(holder)
        self.holder = holder


MISSING = (FileNotFoundError, NotADirectoryError)  # an answer, where other errors are refusals
UNSYNCABLE = frozenset({errno.EINVAL, errno.EOPNOTSUPP, errno.EROFS})
"""Errors of a file system that has no sync of folders, or in which nothing can have been created."""
UNKNOWN_BYTES = 1 << 62
UNKNOWN_INODES = 1 << 62
"""Free and total bytes of a file system that does not report them."""


class File(Protocol):
    """A file open for appending. `size` is the number of bytes written, also after a write that failed half way."""

    size: int

    def write(self, data: bytes) -> None: ...

    def read(self, at: int, count: int) -> bytes:
        """Return at most `count` bytes from offset `at`; fewer only at the end of the file. Raises OSError."""

    def sync(self) -> None:
        """Sync the file. Raises SyncFailed."""

    def is_at(self, path: str) -> bool:
        """Tell whether `path` is this file, with everything that was written to it. Raises OSError if the disk cannot
        say.
        """

    def close(self) -> None: ...


class Region(Protocol):
    """A file open for overwriting its bytes. `size`: its size when it was opened."""

    size: int

    def write_at(self, at: int, data: bytes) -> None:
        """Write all of `data` at byte `at`, as a rule within the file."""

    def stage(self, at: int, data: bytes) -> None:
        """Let the next `sync` write `data` first, after what was staged before. Nothing is written yet."""

    def sync(self) -> None:
        """Sync the staged and written bytes. Raises SyncFailed."""

    def is_at(self, path: str) -> bool:
        """Tell whether `path` is this file. Raises OSError if the disk cannot say."""

    def close(self) -> None: ...


class Reader(Protocol):
    """A file open for reading. It stays the same file if its name is moved or removed."""

    def read(self, at: int, count: int) -> bytes:
        """Return at most `count` bytes from offset `at`; fewer only at the end of the file."""

    def close(self) -> None: ...


class Fs(Protocol):
    """The disk as the journal uses it. A sync that fails raises SyncFailed, also inside another call."""

    def append(self, path: str) -> File:
        """Open `path` for appending, created empty if missing."""

    def read(self, path: str, at: int, count: int) -> bytes:
        """Return at most `count` bytes from offset `at`; fewer only at the end of the file."""

    def reader(self, path: str) -> Reader: ...

    def size(self, path: str) -> int: ...

    def modified_ms(self, path: str) -> int:
        """Return when `path` was last changed, by the wall clock; 0 if that is unknown."""

    def list(self, folder: str) -> list[tuple[str, bool]]:
        """Return (name, is a regular file) of each entry, sorted."""

    def rename(self, old: str, new: str) -> None: ...

    def link(self, path: str, other: str) -> None:
        """Give the file at `path` another name, `other`, on the same file system. The file keeps it if its first name
        is moved or removed.
        """

    def remove(self, path: str) -> None: ...

    def truncate(self, path: str, size: int) -> None:
        """Cut `path` to `size` bytes and make the cut durable."""

    def sync_folder(self, folder: str) -> None:
        """Make creations, renames and removals in `folder` durable."""

    def sync_all(self, folder: str) -> None:
        """Make all changes durable that were made on the file system of `folder`, in files and folders alike."""

    def make_folder(self, path: str) -> None:
        """Make `path` and every missing folder above it, durably."""

    def allocate(self, path: str, size: int) -> None:
        """Make `path` occupy `size` bytes of real disk, or raise OSError and leave nothing."""

    def set_aside(self, path: str, size: int) -> None:
        """Allocate disk space for the first `size` bytes of `path` without making it longer; create it empty if it is
        missing. Raises OSError: no room, or the file system cannot do it.
        """

    def overwrite(self, path: str) -> Region:
        """Open `path`, which exists, for overwriting its bytes."""

    def fill(self, path: str, size: int) -> None:
        """Make `path` at least `size` bytes long with written and synced zeros; create it if it is missing. Raises
        OSError; its length is unchanged then.
        """

    def boot_id(self) -> bytes:
        """Return 16 bytes that change with each start of the machine; zeros if the machine cannot say."""

    def unique_id(self) -> bytes:
        """Return 16 bytes that differ from all returned before."""

    def is_same_device(self, path: str, folder: str) -> bool:
        """Tell whether both are on one file system. Raises OSError."""

    def free_bytes(self, folder: str) -> tuple[int, int]:
        """Return (free, total) bytes of the file system that holds `folder`; UNKNOWN_BYTES for both if the system does
        not report them.
        """

    def free_inodes(self, folder: str) -> tuple[int, int]:
        """Return how many more files the file system of `folder` has room for, and how many in total; UNKNOWN_INODES
        for both if it has no such limit or does not report it.
        """

    def name_bytes_max(self, folder: str) -> int:
        """Return the length of the longest name of a file in `folder`, in bytes."""

    def memory_bytes(self) -> int:
        """Return the machine's memory, or the part that a control group allows."""

    def lock(self, path: str) -> None:
        """Hold `path` locked until the process ends; its content names this process. Raises AlreadyLocked."""

    def is_locked(self, path: str) -> bool:
        """Tell whether `path` is still the file that `lock` has locked. Raises OSError if the disk cannot say."""

    def hold(self, path: str, *, shared: bool) -> Callable[[], None]:
        """Lock `path`, created empty if missing, until the returned function is called. Raises AlreadyLocked."""


def remove_each(fs: Fs, folder: str, names: list[str]) -> None:
    """Remove these files; some may be gone already. Raises OSError."""
    for name in names:
        with suppress(FileNotFoundError):
            fs.remove(f"{folder}/{name}")


def try_to_remove(fs: Fs, folder: str, names: list[str]) -> list[OSError]:
    """Remove those of these files that the system allows to remove. Return the ones that it refuses."""
    refused = []
    for name in names:
        try:
            remove_each(fs, folder, [name])
        except OSError as error:
            refused.append(error)
    return refused


def sync_name(fs: Fs, folder: str) -> None:
    """Sync the name of `folder` in its parent folder. A process may have created it, and been killed before it synced
    the name. Raises OSError, SyncFailed.
    """
    around = folder.rstrip("/").rpartition("/")[0] or ("/" if folder.startswith("/") else "")
    try:
        fs.sync_folder(around)
    except PermissionError:  # another user has created `folder`, so no server has
        return
    except SyncFailed as failed:
        if failed.errno not in UNSYNCABLE:
            raise


def is_there(fs: Fs, path: str) -> bool:
    """Tell whether there is a file at `path`. Raises OSError if the disk cannot say."""
    try:
        fs.size(path)
    except MISSING:
        return False
    return True


def is_missing(fs: Fs, path: str, least_bytes: int = 0) -> bool:
    """Tell whether the file at `path` is missing or too short. If the disk cannot say, return False."""
    with suppress(OSError):
        try:
            return fs.size(path) < least_bytes
        except MISSING:
            return True
    return False


def write_whole(fs: Fs, path: str, file: File, data: bytes) -> None:
    """Append all of `data` to `file`, which is at `path`, or nothing. Raises OSError, or JournalFailure if a part of it
    cannot be removed again.
    """
    before = file.size
    try:
        file.write(data)
    except OSError:
        take_back(fs, path, file, before)
        raise


def take_back(fs: Fs, path: str, file: File, size: int) -> None:
    """Cut `file`, which is at `path`, back to `size` bytes after a partial write. Raises JournalFailure if that
    fails.
    """
    if file.size > size:
        # After a power cut, a record in two pieces could have zeros in place of its second piece.
        try:
            fs.truncate(path, size)
        except OSError as error:
            raise JournalFailure(f"cannot undo a partial write to {path}: {error}") from error
        file.size = size
