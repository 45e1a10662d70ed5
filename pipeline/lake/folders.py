"""The files of a spool in a local folder, in s3:, hdfs:, or another file system of pyarrow.

A local folder is read directly, and written with journal/disk/fs.py, which syncs.
"""

from __future__ import annotations

import ctypes
import os
import re
import socket
import stat
import struct
import sys
import time
from collections.abc import Callable
from threading import get_ident
from typing import Any, NamedTuple, Protocol

from staniel.journal.disk.os_fs import LIBC, OsFs, is_folder
from staniel.journal.disk.replace_file import replace_file
from staniel.journal.errors import CorruptRecord
from staniel.pipeline.lake.names import real_name

PIECE_BYTES = 1 << 20
SCHEME = re.compile(r"[a-z][a-z0-9+.-]+:", re.IGNORECASE)


SCAN_SECONDS = 10.0  # a listing of ten thousand files takes a twentieth of a second
AT_FDCWD, AT_EMPTY_PATH = -100, 0x1000
STATX_WANTED = 0xFFF  # the basic fields and the time of birth
STATX_BIRTH = 0x800
STATX = struct.Struct("I24xH2xQQ32xqI")  # mask, mode, inode, size, birth in s and ns

GONE = "the file was rotated, packed, rewritten or removed meanwhile"


class FileVanished(Exception):
    """A file got shorter or disappeared during a read, because it was rotated, packed or removed."""


class FolderMissing(FileVanished):
    """The folder does not exist, or not on the machine that runs the task."""


def folder_missing(url: str, what: str = "is no folder") -> FolderMissing:
    host = task_host()
    on = f" on {host}: every executor must see it under this path, or it must lie in an object store"
    return FolderMissing(f"there {what} {without_secrets(url)}{on if host else ''}")


def task_host() -> str:
    """Return the machine that runs this task of Spark; "" outside of a task."""
    module = sys.modules.get("pyspark.taskcontext")  # not to be loaded for this
    return socket.gethostname() if module is not None and module.TaskContext.get() is not None else ""


class FolderEntry(NamedTuple):
    """A file of a folder. `id` identifies the file under any name, among all that were ever in the folder; "" if the
    file system has no such ids.
    """

    name: str
    size: int
    id: str = ""


Entries = list[FolderEntry]  # where a class has a method `list`


class OpenFile(Protocol):
    """A file, open for reading. `id` is that of FolderEntry."""

    id: str

    def read(self, at: int, count: int) -> bytes: ...

    def close(self) -> None: ...


class Folder(Protocol):
    """A folder, without its sub-folders. A file's name may be given in its real or in its shown form (names.py)."""

    url: str

    def list(self) -> list[tuple[str, int]]:
        """Return (name, size in bytes) of each regular file, sorted. Raises FileVanished, see `scan`."""

    def scan(self) -> Entries:
        """Return the regular files at one moment, sorted. Raises FileVanished if names keep changing."""

    def size(self, name: str) -> int:
        """Return the size of a regular file, in bytes. Raises FileVanished if it does not exist."""

    def exists(self) -> bool:
        """Return True if the folder exists; in an object store, if any object is below it."""

    def open(self, name: str) -> OpenFile:
        """Open a file. Raises FileVanished if it does not exist, FolderMissing if the folder does not."""

    def write(self, name: str, data: bytes) -> None:
        """Make `data` the content of a file, durably; a crash leaves the old content or the new."""

    def remove(self, name: str) -> None: ...


class LocalOpenFile:
    def __init__(self, path: str) -> None:
        self.fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self.id = stat_of(self.fd)[2]

    def read(self, at: int, count: int) -> bytes:
        return os.pread(self.fd, count, at)

    def close(self) -> None:
        os.close(self.fd)


class LocalFolder:
    """A folder of this machine's disk, or of one that every machine mounts under the same path."""

    def __init__(self, path: str) -> None:
        self.path = os.path.abspath(path)
        self.url = self.path
        self._fs = OsFs()

    def list(self) -> list[tuple[str, int]]:
        return [(entry.name, entry.size) for entry in self.scan()]

    def scan(self) -> Entries:
        """List the folder until two listings in a row show the same files under the same names, not counting temporary
        ones. A rename during a listing may show a file under both names, or under none.
        """
        give_up = time.monotonic() + SCAN_SECONDS
        before = self._entries()
        while (after := self._entries()) is not None and before is not None and _names(before) != _names(after):
            if time.monotonic() > give_up:
                raise FileVanished(f"the names in {self.path} change faster than they can be listed")
            before = after
        if before is None or after is None:
            return []
        return [entry for _, entry in sorted(after.items())]

    def _entries(self) -> dict[str, FolderEntry] | None:
        """Return the entries by name, None if there is no such folder."""
        by_name = {}
        try:
            with os.scandir(self.path) as entries:
                for entry in entries:
                    try:
                        is_file, size, id = stat_of(entry.path)
                    except FileNotFoundError:
                        if entry.is_symlink():
                            continue  # a dangling link
                        # The file was renamed, maybe to a listed name: make this listing differ from others.
                        is_file, size, id = True, 0, f"gone at {time.monotonic_ns()}"
                    if is_file:
                        by_name[entry.name] = FolderEntry(entry.name, size, id)
        except FileNotFoundError:
            return None
        return by_name

    def size(self, name: str) -> int:
        try:
            is_file, size, _ = stat_of(os.path.join(self.path, real_name(name)))
        except FileNotFoundError:
            is_file, size = False, 0
        if not is_file:
            raise FileVanished(f"{name} is not there: {GONE}")
        return size

    def open(self, name: str) -> OpenFile:
        try:
            return LocalOpenFile(os.path.join(self.path, real_name(name)))
        except FileNotFoundError:
            if not self.exists():
                raise folder_missing(self.url) from None
            host = task_host()
            raise FileVanished(
                f"{name} is not there: {GONE}{f', or {host} has another folder' if host else ''}"
            ) from None

    def exists(self) -> bool:
        return is_folder(self.path)

    def write(self, name: str, data: bytes) -> None:
        self._fs.make_folder(self.path)
        path = os.path.join(self.path, real_name(name))
        # Two tasks may be at the same file.
        replace_file(self._fs, path, data, f"{path}.{os.getpid()}.{get_ident()}.new")

    def remove(self, name: str) -> None:
        os.unlink(os.path.join(self.path, real_name(name)))


def _names(entries: dict[str, FolderEntry]) -> set[tuple[str, str]]:
    return {(entry.name, entry.id) for entry in entries.values() if "~~" not in entry.name}


def stat_of(file: str | int) -> tuple[bool, int, str]:
    """Return of a path or descriptor whether it is a regular file, its size, and its id (see FolderEntry).

    The id is the inode and its time of birth, because inode numbers are reused. The device is left out: machines that
    mount the same folder number it differently. Raises FileNotFoundError.
    """
    answer = ctypes.create_string_buffer(256)
    at, path, flags = (file, b"", AT_EMPTY_PATH) if isinstance(file, int) else (AT_FDCWD, os.fsencode(file), 0)
    if hasattr(LIBC, "statx") and LIBC.statx(at, path, flags, STATX_WANTED, answer) == 0:
        mask, mode, inode, size, born_s, born_ns = STATX.unpack_from(answer)
        id = f"{inode:x}.{born_s * 10**9 + born_ns:x}" if mask & STATX_BIRTH else ""
        return stat.S_ISREG(mode), size, id
    status = os.stat(file)
    return stat.S_ISREG(status.st_mode), status.st_size, ""


class RemoteOpenFile:
    id = ""

    def __init__(self, handle: Any) -> None:
        self.handle = handle

    def read(self, at: int, count: int) -> bytes:
        data: bytes = self.handle.read_at(count, at)
        return data

    def close(self) -> None:
        self.handle.close()


class RemoteFolder:
    """A folder of one of pyarrow's file systems. An object store shows an object whole or not at all."""

    def __init__(self, url: str) -> None:
        from pyarrow import fs

        from staniel.pipeline.lake.stores import open_store

        self.url = url
        opened: tuple[Any, str] = open_store(url) or fs.FileSystem.from_uri(url)
        self.fs, self.path = opened[0], opened[1].rstrip("/")

    def list(self) -> list[tuple[str, int]]:
        from pyarrow import fs

        infos = self.fs.get_file_info(fs.FileSelector(self.path, allow_not_found=True))
        return sorted((info.base_name, info.size) for info in infos if info.type == fs.FileType.File)

    def scan(self) -> Entries:
        return [FolderEntry(name, size) for name, size in self.list()]

    def size(self, name: str) -> int:
        from pyarrow import fs

        info = self.fs.get_file_info(f"{self.path}/{name}")
        if info.type != fs.FileType.File:
            raise FileVanished(f"{name} is not there: {GONE}")
        return int(info.size)

    def exists(self) -> bool:
        from pyarrow import fs

        return bool(self.fs.get_file_info(self.path).type != fs.FileType.NotFound)

    def open(self, name: str) -> OpenFile:
        try:
            return RemoteOpenFile(self.fs.open_input_file(f"{self.path}/{name}"))
        except FileNotFoundError:
            raise FileVanished(f"{name} is not there: {GONE}") from None

    def write(self, name: str, data: bytes) -> None:
        self.fs.create_dir(self.path, recursive=True)
        with self.fs.open_output_stream(f"{self.path}/{name}") as stream:
            stream.write(data)

    def remove(self, name: str) -> None:
        self.fs.delete_file(f"{self.path}/{name}")


class FolderFs(OsFs):
    """The reading half of journal/disk/fs.py over any folder, for readers that take an Fs. Files end at `end` bytes."""

    def __init__(self, place: Folder, end: int) -> None:
        super().__init__()
        self._place = place
        self._end = end

    def read(self, path: str, at: int, count: int) -> bytes:
        file = self._place.open(path)
        try:
            return file.read(at, max(0, min(count, self._end - at)))
        finally:
            file.close()

    def size(self, path: str) -> int:
        return self._end


class SpoolFs(OsFs):
    """The reading half of journal/disk/fs.py over a spool, with its sub-folders. Paths are relative to it."""

    def __init__(self, place: Folder) -> None:
        super().__init__()
        self._place = place

    def _opened(self, path: str) -> OpenFile:
        where, _, name = path.removeprefix("./").rpartition("/")
        place = folder(below(self._place.url, where)) if where else self._place
        try:
            return place.open(name)
        except FileVanished as error:
            raise FileNotFoundError(path) from error

    def reader(self, path: str) -> OpenFile:
        return self._opened(path)

    def read(self, path: str, at: int, count: int) -> bytes:
        file = self._opened(path)
        try:
            return file.read(at, count)
        finally:
            file.close()

    def size(self, path: str) -> int:
        where, _, name = path.removeprefix("./").rpartition("/")
        place = folder(below(self._place.url, where)) if where else self._place
        try:
            return place.size(name)
        except FileVanished as error:
            raise FileNotFoundError(path) from error


def absolute(url: str) -> str:
    """Return the path as an absolute one, the same in every process: executors have working folders of their own."""
    return url if SCHEME.match(url) else os.path.abspath(url)


def without_secrets(url: str) -> str:
    """Return a URL for a message, without names and keys of users, and without options."""
    return re.sub("//[^@/]*@", "//", url).partition("?")[0] if SCHEME.match(url) else url


def below(url: str, name: str) -> str:
    """Return the path or URL of a folder below another one. The options of a URL stay at its end; in a path a question
    mark is an ordinary letter.
    """
    if not SCHEME.match(url) or url.startswith("file:"):
        return f"{url.rstrip('/')}/{name}"
    path, mark, options = url.partition("?")
    return f"{path.rstrip('/')}/{name}{mark}{options}"


def as_local(url: str) -> str:
    """Return the path of a `file:` URL, and anything else as it is."""
    return re.sub("^file:(//[^/]*)?", "", url)


def folder(url: str) -> Folder:
    """Return the folder that a path or URL names. Raises ValueError for a scheme that pyarrow does not know."""
    url = as_local(url)
    if SCHEME.match(url):
        try:
            return RemoteFolder(url.replace("s3a:", "s3:", 1))
        except Exception as error:  # pyarrow's errors have no common base but Exception
            why = str(error).replace(url, without_secrets(url))
            raise ValueError(f"cannot use {without_secrets(url)}: {why}") from None
    return LocalFolder(url)


def feed(file: OpenFile, begin: int, end: int, consume: Callable[[bytes, int], int]) -> int:
    """Feed the bytes `begin` to `end` to `consume` in pieces. Return where it stopped.

    `consume` takes a piece and how many bytes follow it, and returns how far it came: less than the piece to get the
    rest again, longer; more than the piece to skip unread bytes. Raises FileVanished if the file is shorter than `end`,
    and what `consume` raises; the `at` of a CorruptRecord becomes an offset of the file.
    """
    at, want = begin, PIECE_BYTES
    while at < end:
        piece = file.read(at, min(want, end - at))
        if len(piece) < min(want, end - at):
            raise FileVanished(f"only {at + len(piece)} of {end} bytes are left: {GONE}")
        try:
            used = consume(piece, end - at - len(piece))
        except CorruptRecord as error:
            error.at += at
            raise
        at += used
        want = PIECE_BYTES if used else 2 * want
    return at
