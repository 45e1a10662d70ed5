"""The real disk: the only file of the synchronous packages that calls `os` on files."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import stat
from collections.abc import Callable

from staniel.journal.disk.fs import File, Locked, Reader, Region, SyncFailed

LIBC = ctypes.CDLL(None, use_errno=True)  # for what `os` does not have; its calls release the interpreter
FALLOC_FL_KEEP_SIZE = 1  # linux/falloc.h
ZEROS = bytes(1 << 20)


def _sync(sync: Callable[[int], None], fd: int, path: str = "") -> None:
    """Call `sync(fd)`. Raises SyncFailed."""
    try:
        sync(fd)
    except OSError as error:
        raise SyncFailed(error.errno, error.strerror, path or None) from error


class OsFile:
    """A file descriptor in append mode."""

    __slots__ = ("fd", "size")

    def __init__(self, path: str) -> None:
        # O_NONBLOCK: a FIFO in a journal's place must not hold the server up. Regular files do not care.
        self.fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK | os.O_CLOEXEC, 0o640)
        status = os.fstat(self.fd)
        if not stat.S_ISREG(status.st_mode):
            os.close(self.fd)
            raise OSError(errno.EINVAL, "not a regular file", path)
        self.size = status.st_size

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

    def sync(self) -> None:
        try:
            os.fdatasync(self.fd)
        except OSError as error:
            raise SyncFailed(error.errno, error.strerror) from error

    def close(self) -> None:
        os.close(self.fd)


class OsRegion:
    """A file descriptor to write with at given places."""

    __slots__ = ("fd", "size")

    def __init__(self, path: str) -> None:
        self.fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        status = os.fstat(self.fd)
        if not stat.S_ISREG(status.st_mode):
            os.close(self.fd)
            raise OSError(errno.EINVAL, "not a regular file", path)
        self.size = status.st_size

    def write_at(self, at: int, data: bytes) -> None:
        written = os.pwrite(self.fd, data, at)
        while written < len(data):
            written += os.pwrite(self.fd, memoryview(data)[written:], at + written)

    def sync(self) -> None:
        _sync(os.fdatasync, self.fd)

    def close(self) -> None:
        os.close(self.fd)


class OsReader:
    """A file descriptor to read from. Its errors name the file."""

    __slots__ = ("_fd", "_path")

    def __init__(self, path: str) -> None:
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        self._path = path

    def read(self, at: int, count: int) -> bytes:
        try:
            return os.pread(self._fd, count, at)
        except OSError as error:
            error.filename = self._path
            raise

    def close(self) -> None:
        os.close(self._fd)


class OsFs:
    """The real disk."""

    def __init__(self) -> None:
        self._locks: list[int] = []  # held open for the life of the process
        self._folders: dict[str, int] = {}  # kept open: a sync must not fail for want of a descriptor

    def append(self, path: str) -> File:
        return OsFile(path)

    def read(self, path: str, at: int, count: int) -> bytes:
        reader = OsReader(path)
        try:
            return reader.read(at, count)
        finally:
            reader.close()

    def reader(self, path: str) -> Reader:
        return OsReader(path)

    def size(self, path: str) -> int:
        return os.stat(path).st_size

    def list(self, folder: str) -> list[tuple[str, bool]]:
        with os.scandir(folder) as entries:
            return sorted((entry.name, entry.is_file(follow_symlinks=True)) for entry in entries)

    def rename(self, old: str, new: str) -> None:
        os.rename(old, new)

    def link(self, path: str, other: str) -> None:
        os.link(path, other)

    def remove(self, path: str) -> None:
        os.unlink(path)

    def truncate(self, path: str, size: int) -> None:
        fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
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
            raise SyncFailed(number, os.strerror(number), folder)

    def _folder_fd(self, folder: str) -> int:
        if folder not in self._folders:
            self._folders[folder] = os.open(folder or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        return self._folders[folder]

    def make_folder(self, path: str) -> None:
        missing = []
        while not os.path.isdir(path):
            missing.append(path)
            path = os.path.dirname(path.rstrip("/")) or "."
        for folder in reversed(missing):
            os.mkdir(folder, 0o750)
            self.sync_folder(os.path.dirname(folder.rstrip("/")) or ".")

    def allocate(self, path: str, size: int) -> None:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o640)
        try:
            os.posix_fallocate(fd, 0, size)
            os.fsync(fd)  # of no data: where it fails, there is no room, and nothing was promised
        except OSError:
            os.unlink(path)
            raise
        finally:
            os.close(fd)

    def set_aside(self, path: str, size: int) -> None:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o640)
        try:
            if LIBC.fallocate(fd, FALLOC_FL_KEEP_SIZE, ctypes.c_int64(0), ctypes.c_int64(size)) != 0:
                number = ctypes.get_errno()
                raise OSError(number, os.strerror(number), path)
        finally:
            os.close(fd)

    def overwrite(self, path: str) -> Region:
        return OsRegion(path)

    def fill(self, path: str, size: int) -> None:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK, 0o640)
        try:
            before = at = os.fstat(fd).st_size
            try:
                while (
                    at < size
                ):  # written, not only allocated: the first write to such a block would be a change of its own
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

    def is_same_device(self, path: str, folder: str) -> bool:
        return os.stat(path).st_dev == os.stat(folder).st_dev

    def free_bytes(self, folder: str) -> tuple[int, int]:
        numbers = os.statvfs(folder)
        return numbers.f_bavail * numbers.f_frsize, numbers.f_blocks * numbers.f_frsize

    def memory_bytes(self) -> int:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")

    def lock(self, path: str) -> None:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
        try:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise OSError(errno.EINVAL, "not a regular file", path)
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(fd, 200, 0).decode("utf-8", "replace").strip()
            os.close(fd)
            raise Locked(holder) from None
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"staniel, process {os.getpid()}\n".encode(), 0)
        self._locks.append(fd)

    def hold(self, path: str, *, shared: bool) -> Callable[[], None]:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK, 0o640)
        try:
            fcntl.flock(fd, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            raise Locked("") from None
        return lambda: os.close(fd)

    def close(self) -> None:
        """Let go of every lock and folder."""
        for fd in [*self._locks, *self._folders.values()]:
            os.close(fd)
        self._locks.clear()
        self._folders.clear()
