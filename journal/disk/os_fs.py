"""The real disk: the only file of the synchronous packages that calls `os` on files."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import stat
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import wraps
from typing import ParamSpec, TypeVar

from staniel.journal.disk.file_system import Mount, find_mount, mount_id_in
from staniel.journal.disk.fs import (
    MISSING,
    UNKNOWN_BYTES,
    UNKNOWN_INODES,
    AlreadyLocked,
    File,
    Reader,
    Region,
    SyncFailed,
    sync_name,
)
from staniel.journal.disk.memory_limit import limit_files, limit_in

LIBC = ctypes.CDLL(None, use_errno=True)  # for calls that `os` does not have; they release the interpreter
FALLOC_FL_KEEP_SIZE = 1  # linux/falloc.h
ZEROS = bytes(1 << 20)
ALIGNED_BYTES = 4096  # direct writes begin and end at multiples of this
STAGED_BYTES = 1 << 20  # size of the buffer that is kept
USUAL_NAME_BYTES = 255
NEVER = -2  # in place of a descriptor
LARGE_BYTES = 8 << 20  # freeing the blocks and pages of such a file takes the kernel a millisecond
CloseGone = Callable[[int], None]
P = ParamSpec("P")
T = TypeVar("T")


IS_UTF8 = sys.getfilesystemencoding().replace("-", "").lower() == "utf8"


def to_native(path: str) -> str:
    """Return `path` in the form for calls of `os`. Names on the disk are UTF-8 in every locale; other bytes are
    surrogates, as in PEP 383.
    """
    return path if IS_UTF8 else os.fsdecode(path.encode("utf-8", "surrogateescape"))


def from_native(name: str) -> str:
    """Return a name from `os` in our form: the reverse of `to_native`."""
    return name if IS_UTF8 else os.fsencode(name).decode("utf-8", "surrogateescape")


def _sync(sync: Callable[[int], None], fd: int, path: str = "") -> None:
    """Call `sync(fd)`. Raises SyncFailed."""
    try:
        sync(fd)
    except OSError as error:
        raise SyncFailed(error.errno, error.strerror, path or None) from error


def _text_of(path: str) -> str:
    """Return the text of a file of the kernel's; "" if it does not exist."""
    try:
        with open(path) as file:
            return file.read()
    except OSError:
        return ""


def _lock_holder(fd: int, path: str) -> str:
    """Return a text that names the holder of the lock on the open file at `path`. A server writes its process number
    into the file. Another program that has locked it does not, and the number of an earlier server may still be there.
    """
    said = os.pread(fd, 200, 0).decode("utf-8", "replace").partition("\n")[0].strip()  # the progress of a start follows
    status = os.fstat(fd)
    device_and_inode = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    held = [words for line in _text_of("/proc/locks").splitlines() if device_and_inode in (words := line.split())]
    pids = [words[4] for words in held if "FLOCK" in words[:3] and words[4].isdecimal() and words[4] != "0"]
    if said and (not pids or any(said.endswith(f"process {pid}") for pid in pids)):
        return said
    names = [f"process {pid} ({_text_of(f'/proc/{pid}/comm').strip() or 'unknown'})" for pid in pids]
    return f"{' and '.join(names) or 'another process'}, which holds {path} locked"


def _is_named(fd: int, path: str, size: int = 0) -> bool:
    """Tell whether `path` is the open file, and has at least `size` bytes. Raises OSError if the disk cannot say."""
    try:
        status = os.stat(to_native(path))
    except (FileNotFoundError, NotADirectoryError):
        return False
    return status.st_size >= size and os.path.samestat(status, os.fstat(fd))


def _is_large_and_gone(fd: int) -> bool:
    """Tell whether closing the file makes the kernel free a large file."""
    try:
        status = os.fstat(fd)
    except OSError:
        return False
    return status.st_size >= LARGE_BYTES and not status.st_nlink


def _mode_of(path: str, *, follows: bool = True) -> int:
    """Return the mode of the file at `path`; 0 if there is none. Raises OSError if the system cannot say, where the
    functions of os.path would return that there is no file.
    """
    try:
        return os.stat(to_native(path), follow_symlinks=follows).st_mode
    except MISSING:
        return 0


def is_folder(path: str) -> bool:
    """Tell whether there is a folder at `path`. Raises OSError if the system cannot say."""
    return stat.S_ISDIR(_mode_of(path))


def is_file(path: str) -> bool:
    """Tell whether there is a regular file at `path`. Raises OSError if the system cannot say."""
    return stat.S_ISREG(_mode_of(path))


def is_named(path: str) -> bool:
    """Tell whether `path` is the name of anything, including a broken link. Raises OSError if the system cannot say."""
    return bool(_mode_of(path, follows=False))


def walk(top: str, *, topdown: bool = True) -> Iterator[tuple[str, list[str], list[str]]]:
    """Walk a folder as os.walk does. Raises OSError for a folder that cannot be listed; os.walk would treat it as
    empty. A missing folder is empty.
    """
    return os.walk(top, topdown=topdown, onerror=_unless_missing)


def _unless_missing(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):
        raise error


def _is_there(folder: str) -> bool:
    """Tell whether there is such a folder. Raises OSError if something else is there, or the system cannot say."""
    path = to_native(folder)
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        if os.path.islink(path):
            why = f"a symbolic link to {from_native(os.readlink(path))}, which is not there"
            raise OSError(errno.ENOENT, why, folder) from None
        return False
    if not stat.S_ISDIR(mode):
        raise OSError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), folder)
    return True


class OsFile:
    """A file descriptor in append mode."""

    __slots__ = ("_close_gone", "fd", "size")

    def __init__(self, path: str, close_gone: CloseGone = os.close) -> None:
        # O_NONBLOCK: a FIFO in a journal's place must not block the server. Regular files ignore the flag.
        self.fd = os.open(to_native(path), os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK | os.O_CLOEXEC, 0o640)
        status = os.fstat(self.fd)
        if not stat.S_ISREG(status.st_mode):
            os.close(self.fd)
            raise OSError(errno.EINVAL, "not a regular file", path)
        self.size = status.st_size
        self._close_gone = close_gone

    def write(self, data: bytes) -> None:
        written = os.write(self.fd, data)
        self.size += written
        if written < len(data):
            self._write_rest(memoryview(data)[written:])

    def _write_rest(self, rest: memoryview) -> None:
        while len(rest):
            written = os.write(self.fd, rest)
            self.size += written
            rest = rest[written:]

    def read(self, at: int, count: int) -> bytes:
        return os.pread(self.fd, count, at)

    def sync(self) -> None:
        try:
            os.fdatasync(self.fd)
        except OSError as error:
            raise SyncFailed(error.errno, error.strerror) from error

    def is_at(self, path: str) -> bool:
        return _is_named(self.fd, path, self.size)

    def close(self) -> None:
        (self._close_gone if _is_large_and_gone(self.fd) else os.close)(self.fd)


class OsRegion:
    """A descriptor for writing at given places, and a second one that bypasses the page cache, if the file system
    supports that. Where the blocks are written already, such a write takes two thirds of the time of a write and an
    fdatasync. `flushed`: the errno of a write of the staged bytes that was made elsewhere and counts for the next
    `sync`; 0 if it succeeded; None if there was none.
    """

    __slots__ = ("_buffer", "_is_dirty", "_path", "_through", "fd", "flushed", "size", "staged_at", "staged_bytes")

    def __init__(self, path: str) -> None:
        self.fd = os.open(to_native(path), os.O_WRONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        status = os.fstat(self.fd)
        if not stat.S_ISREG(status.st_mode):
            os.close(self.fd)
            raise OSError(errno.EINVAL, "not a regular file", path)
        self.size = status.st_size
        self.flushed: int | None = None
        self.staged_at = self.staged_bytes = 0
        self._path = path
        self._is_dirty = False  # the page cache has bytes that no sync has written
        self._through = -1
        self._buffer: mmap.mmap | None = None  # whole pages, as direct writes require

    def write_at(self, at: int, data: bytes) -> None:
        self._is_dirty = True
        self._write(self.fd, at, memoryview(data))

    def stage(self, at: int, data: bytes) -> None:
        if not self.staged_bytes:
            self.staged_at = at
        assert at == self.staged_at + self.staged_bytes
        end = self.staged_bytes + len(data)
        buffer = self._buffer
        if buffer is None or len(buffer) < end:
            before = buffer[: self.staged_bytes] if buffer is not None else b""
            self._buffer = buffer = mmap.mmap(-1, max(STAGED_BYTES, 1 << (end - 1).bit_length()))
            buffer[: len(before)] = before
        buffer[self.staged_bytes : end] = data
        self.staged_bytes = end

    @property
    def staged(self) -> mmap.mmap:
        """The buffer with the staged bytes at its beginning."""
        assert self._buffer is not None
        return self._buffer

    @property
    def direct_fd(self) -> int:
        """The descriptor for writing staged bytes such that they are durable afterwards; -1 if they must be written the
        other way.
        """
        if self._is_dirty or not self.staged_bytes or (self.staged_at | self.staged_bytes) % ALIGNED_BYTES:
            return -1
        if self._through == -1:
            try:
                self._through = os.open(to_native(self._path), os.O_WRONLY | os.O_CLOEXEC | os.O_DIRECT | os.O_DSYNC)
            except OSError:
                self._through = NEVER
        return self._through if self._through >= 0 else -1

    def sync(self) -> None:
        if self.flushed is not None:
            flushed, self.flushed = self.flushed, None
            if flushed:
                raise SyncFailed(flushed, os.strerror(flushed), self._path)
        else:
            try:
                self._write_staged()
            except OSError as error:
                raise SyncFailed(error.errno, error.strerror, self._path) from error
        self.staged_bytes = 0
        if self._buffer is not None and len(self._buffer) > STAGED_BYTES:
            self._buffer = None

    def _write_staged(self) -> None:
        if self.staged_bytes:
            with memoryview(self.staged) as whole, whole[: self.staged_bytes] as data:
                if (fd := self.direct_fd) >= 0:
                    try:
                        self._write(fd, self.staged_at, data)
                        return
                    except OSError as error:
                        if error.errno != errno.EINVAL:
                            raise
                        os.close(fd)  # the device has larger blocks, or the file system does not support direct writes
                        self._through = NEVER
                self._write(self.fd, self.staged_at, data)
        os.fdatasync(self.fd)
        self._is_dirty = False

    def is_at(self, path: str) -> bool:
        return _is_named(self.fd, path)

    @staticmethod
    def _write(fd: int, at: int, data: memoryview) -> None:
        written = os.pwrite(fd, data, at)
        while written < len(data):
            written += os.pwrite(fd, data[written:], at + written)

    def close(self) -> None:
        os.close(self.fd)
        if self._through >= 0:
            os.close(self._through)


class OsReader:
    """A file descriptor to read from. Its errors name the file."""

    __slots__ = ("_close_gone", "_fd", "_path")

    def __init__(self, path: str, close_gone: CloseGone = os.close) -> None:
        self._fd = os.open(to_native(path), os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        self._path = path
        self._close_gone = close_gone

    def read(self, at: int, count: int) -> bytes:
        try:
            return os.pread(self._fd, count, at)
        except OSError as error:
            error.filename = self._path
            raise

    def close(self) -> None:
        (self._close_gone if _is_large_and_gone(self._fd) else os.close)(self._fd)


def naming(verb: str) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Make the OSErrors of a method name the refused call (refusals.py)."""

    def named(method: Callable[P, T]) -> Callable[P, T]:
        @wraps(method)
        def call(*args: P.args, **kwargs: P.kwargs) -> T:
            try:
                return method(*args, **kwargs)
            except OSError as error:
                error.__dict__.setdefault("call", verb)
                if error.filename is None and len(args) > 1:  # from a call on a descriptor
                    error.filename = args[1]
                raise

        return call

    return named


class OsFs:
    """The real disk."""

    def __init__(self, close_gone: CloseGone = os.close) -> None:
        """Take `close_gone`, which closes a large file without a name. The kernel frees its blocks and pages then,
        which takes 10 ms for 100 MB; a server must not wait for that.
        """
        self._close_gone = close_gone
        self._locks: dict[str, int] = {}  # by path; held while the process lives
        self._folders: dict[str, int] = {}  # kept open: a sync must not fail because there are no descriptors left

    @naming("open")
    def append(self, path: str) -> File:
        return OsFile(path, self._close_gone)

    @naming("read")
    def read(self, path: str, at: int, count: int) -> bytes:
        reader = OsReader(path)
        try:
            return reader.read(at, count)
        finally:
            reader.close()

    @naming("open")
    def reader(self, path: str) -> Reader:
        return OsReader(path, self._close_gone)

    @naming("stat")
    def size(self, path: str) -> int:
        return os.stat(to_native(path)).st_size

    @naming("stat")
    def modified_ms(self, path: str) -> int:
        return os.stat(to_native(path)).st_mtime_ns // 1_000_000

    @naming("list")
    def list(self, folder: str) -> list[tuple[str, bool]]:
        with os.scandir(to_native(folder)) as entries:
            return sorted((from_native(entry.name), entry.is_file(follow_symlinks=True)) for entry in entries)

    @naming("rename")
    def rename(self, old: str, new: str) -> None:
        os.rename(to_native(old), to_native(new))

    @naming("link")
    def link(self, path: str, other: str) -> None:
        os.link(to_native(path), to_native(other))

    @naming("remove")
    def remove(self, path: str) -> None:
        os.unlink(to_native(path))

    @naming("truncate")
    def truncate(self, path: str, size: int) -> None:
        fd = os.open(to_native(path), os.O_WRONLY | os.O_CLOEXEC)
        try:
            os.ftruncate(fd, size)
            _sync(os.fsync, fd, path)
        finally:
            os.close(fd)

    def sync_folder(self, folder: str) -> None:
        _sync(os.fsync, self._folder_fd(folder), folder)

    def sync_all(self, folder: str) -> None:
        if LIBC.syncfs(self._folder_fd(folder)) != 0:
            number = ctypes.get_errno()
            if number in (errno.ENOSYS, errno.EPERM):  # no such call, or a filter refuses it: no sync has failed
                self._sync_each(folder)
                return
            raise SyncFailed(number, os.strerror(number), folder)

    def _sync_each(self, folder: str) -> None:
        """Sync every file below `folder`, then the folders. This does the same as syncfs, but takes longer."""
        for name, is_file in self.list(folder):
            path = f"{folder}/{name}"
            if is_folder(path):
                self._sync_each(path)
            elif is_file:
                with suppress(FileNotFoundError):  # removed meanwhile, by another thread
                    fd = os.open(to_native(path), os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
                    try:
                        _sync(os.fsync, fd, path)
                    finally:
                        os.close(fd)
        fd = os.open(to_native(folder), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            _sync(os.fsync, fd, folder)
        finally:
            os.close(fd)

    def _folder_fd(self, folder: str) -> int:
        if folder not in self._folders:
            self._folders[folder] = os.open(to_native(folder) or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        return self._folders[folder]

    @naming("make")
    def make_folder(self, path: str) -> None:
        missing = []
        while not _is_there(path):
            missing.append(path)
            path = os.path.dirname(path.rstrip("/")) or "."
        if missing:  # a process may have created the parent folder, and been killed before it could sync its name
            sync_name(self, path)
        for folder in reversed(missing):
            os.mkdir(to_native(folder), 0o750)
            try:
                self.sync_folder(os.path.dirname(folder.rstrip("/")) or ".")
            except OSError:
                # No later sync would write this name. Without the folder the next start makes it anew.
                with suppress(OSError):
                    os.rmdir(to_native(folder))
                raise

    @naming("allocate space for")
    def allocate(self, path: str, size: int) -> None:
        fd = os.open(to_native(path), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o640)
        try:
            os.posix_fallocate(fd, 0, size)
            os.fsync(fd)  # it syncs no data: a failure means that there is no room, and nothing was promised
        except OSError:
            os.unlink(to_native(path))
            raise
        finally:
            os.close(fd)

    @naming("allocate space for")
    def set_aside(self, path: str, size: int) -> None:
        fd = os.open(to_native(path), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o640)
        try:
            if LIBC.fallocate(fd, FALLOC_FL_KEEP_SIZE, ctypes.c_int64(0), ctypes.c_int64(size)) != 0:
                number = ctypes.get_errno()
                raise OSError(number, os.strerror(number), path)
        finally:
            os.close(fd)

    @naming("open")
    def overwrite(self, path: str) -> Region:
        return OsRegion(path)

    @naming("write")
    def fill(self, path: str, size: int) -> None:
        fd = os.open(to_native(path), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK, 0o640)
        try:
            before = at = os.fstat(fd).st_size
            try:
                # The blocks are written, not only allocated: the first write to an unwritten block changes metadata.
                # The sync after each piece keeps other syncs of the file short.
                while at < size:
                    at += os.pwrite(fd, memoryview(ZEROS)[: size - at], at)
                    os.fsync(fd)
            except OSError:
                os.ftruncate(fd, before)
                raise
        finally:
            os.close(fd)

    def boot_id(self) -> bytes:
        try:
            with open("/proc/sys/kernel/random/boot_id") as file:
                return bytes.fromhex(file.read().strip().replace("-", ""))
        except (OSError, ValueError):
            return bytes(16)

    def unique_id(self) -> bytes:
        return os.urandom(16)

    @naming("stat")
    def is_same_device(self, path: str, folder: str) -> bool:
        return os.stat(to_native(path)).st_dev == os.stat(to_native(folder)).st_dev

    def free_bytes(self, folder: str) -> tuple[int, int]:
        try:
            numbers = os.statvfs(to_native(folder))
        except (FileNotFoundError, NotADirectoryError):
            raise
        except OSError:
            return UNKNOWN_BYTES, UNKNOWN_BYTES
        return numbers.f_bavail * numbers.f_frsize, numbers.f_blocks * numbers.f_frsize

    def free_inodes(self, folder: str) -> tuple[int, int]:
        try:
            numbers = os.statvfs(to_native(folder))
        except OSError:
            return UNKNOWN_INODES, UNKNOWN_INODES
        return (numbers.f_favail, numbers.f_files) if numbers.f_files else (UNKNOWN_INODES, UNKNOWN_INODES)

    def name_bytes_max(self, folder: str) -> int:
        try:
            return os.statvfs(to_native(folder)).f_namemax or USUAL_NAME_BYTES
        except OSError:
            return USUAL_NAME_BYTES

    def mount_of(self, path: str) -> Mount | None:
        """Return the file system of `path`, or of the nearest existing folder above it; None if the system
        cannot say.
        """
        while not os.path.isdir(to_native(path)):
            path = os.path.dirname(from_native(os.path.abspath(to_native(path))))
        try:
            fd = os.open(to_native(path), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                with open(f"/proc/self/fdinfo/{fd}") as info, open("/proc/self/mountinfo", errors="replace") as mounts:
                    return find_mount(mounts.read(), mount_id_in(info.read()))
            finally:
                os.close(fd)
        except OSError:
            return None

    def memory_bytes(self) -> int:
        limits = [limit_in(_text_of(path)) for path in limit_files(_text_of("/proc/self/cgroup"))]
        pages = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        return min([pages, *(limit for limit in limits if limit is not None)])

    @naming("lock")
    def lock(self, path: str) -> None:
        fd = os.open(to_native(path), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
        try:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise OSError(errno.EINVAL, "not a regular file", path)
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = _lock_holder(fd, path)
            os.close(fd)
            raise AlreadyLocked(holder) from None
        except OSError:
            os.close(fd)
            raise
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"staniel, process {os.getpid()}\n".encode(), 0)
        self._locks[path] = fd

    def is_locked(self, path: str) -> bool:
        return path in self._locks and _is_named(self._locks[path], path)

    @naming("lock")
    def hold(self, path: str, *, shared: bool) -> Callable[[], None]:
        fd = os.open(to_native(path), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK, 0o640)
        try:
            fcntl.flock(fd, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            raise AlreadyLocked("") from None
        return lambda: os.close(fd)

    def close(self) -> None:
        """Release every lock and folder."""
        for fd in [*self._locks.values(), *self._folders.values()]:
            os.close(fd)
        self._locks.clear()
        self._folders.clear()
