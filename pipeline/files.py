"""Files of a spool, wherever they lie: a local folder, s3:, hdfs:, or whatever else pyarrow's file systems know.

Knows how to list, size, read and write. Refuses to know what is in them. A local folder is read without the detour over
pyarrow, and written by the journal's own disk, which syncs.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from threading import get_ident
from typing import Any, Protocol

from journal.fs import OsFs, replace
from journal.replay import Bad

PIECE_BYTES = 1 << 20
SCHEME = re.compile(r"[a-z][a-z0-9+.-]+:", re.IGNORECASE)


GONE = "the file was rotated, packed, rewritten or removed meanwhile"


class Vanished(Exception):
    """A file became shorter or disappeared while it was read: it was rotated, packed or removed."""


class Opened(Protocol):
    """One file, open for reading."""

    def read(self, at: int, count: int) -> bytes: ...

    def close(self) -> None: ...


class Folder(Protocol):
    """One folder, without its sub-folders."""

    url: str

    def list(self) -> list[tuple[str, int]]:
        """(name, size in bytes) of each regular file, sorted."""

    def open(self, name: str) -> Opened:
        """Raises Vanished if it is not there."""

    def write(self, name: str, data: bytes) -> None:
        """Make `data` the content of a file, durably; a crash leaves the old content or the new."""

    def remove(self, name: str) -> None: ...


class LocalOpened:
    def __init__(self, path: str) -> None:
        self.fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

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
        try:
            with os.scandir(self.path) as entries:
                return sorted((entry.name, entry.stat().st_size) for entry in entries if entry.is_file())
        except FileNotFoundError:
            return []

    def open(self, name: str) -> Opened:
        try:
            return LocalOpened(os.path.join(self.path, name))
        except FileNotFoundError:
            raise Vanished(f"{name} is not there: {GONE}") from None

    def write(self, name: str, data: bytes) -> None:
        self._fs.make_folder(self.path)
        path = os.path.join(self.path, name)
        # Two tasks may be at the same file.
        replace(self._fs, path, data, f"{path}.{os.getpid()}.{get_ident()}.new")

    def remove(self, name: str) -> None:
        os.unlink(os.path.join(self.path, name))


class RemoteOpened:
    def __init__(self, handle: Any) -> None:
        self.handle = handle

    def read(self, at: int, count: int) -> bytes:
        data: bytes = self.handle.read_at(count, at)
        return data

    def close(self) -> None:
        self.handle.close()


class RemoteFolder:
    """A folder of one of pyarrow's file systems. An object store makes an object visible whole, or not at all."""

    def __init__(self, url: str) -> None:
        from pyarrow import fs

        self.url = url
        self.fs, self.path = fs.FileSystem.from_uri(url)
        self.path = self.path.rstrip("/")

    def list(self) -> list[tuple[str, int]]:
        from pyarrow import fs

        found = self.fs.get_file_info(fs.FileSelector(self.path, allow_not_found=True))
        return sorted((each.base_name, each.size) for each in found if each.type == fs.FileType.File)

    def open(self, name: str) -> Opened:
        try:
            return RemoteOpened(self.fs.open_input_file(f"{self.path}/{name}"))
        except FileNotFoundError:
            raise Vanished(f"{name} is not there: {GONE}") from None

    def write(self, name: str, data: bytes) -> None:
        self.fs.create_dir(self.path, recursive=True)
        with self.fs.open_output_stream(f"{self.path}/{name}") as stream:
            stream.write(data)

    def remove(self, name: str) -> None:
        self.fs.delete_file(f"{self.path}/{name}")


class FolderFs(OsFs):
    """The reading half of journal/fs.py over any folder, for readers that take an Fs. Files end at `end` bytes."""

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


def absolute(url: str) -> str:
    """The same for every process, wherever it runs: executors have folders of their own."""
    return url if SCHEME.match(url) else os.path.abspath(url)


def folder(url: str) -> Folder:
    """The folder that a path or URL names. Raises ValueError for a scheme that pyarrow does not know."""
    if url.startswith("file:"):
        return LocalFolder(re.sub("^file:(//[^/]*)?", "", url))
    if SCHEME.match(url):
        try:
            return RemoteFolder(url.replace("s3a:", "s3:", 1))
        except Exception as error:  # pyarrow's errors have no common base but Exception
            raise ValueError(f"cannot use {url}: {error}") from error
    return LocalFolder(url)


def feed(file: Opened, begin: int, end: int, consume: Callable[[bytes, int], int]) -> int:
    """Give the bytes `begin` to `end` to `consume` in pieces; where it stopped.

    `consume` takes a piece and how many bytes follow it, and says how far it came: less than the piece to get it again,
    longer; more than the piece to step over what nobody reads. Raises Vanished if the file is shorter than `end`, and
    what `consume` raises; the `at` of a Bad becomes an offset of the file.
    """
    at, want = begin, PIECE_BYTES
    while at < end:
        piece = file.read(at, min(want, end - at))
        if len(piece) < min(want, end - at):
            raise Vanished(f"only {at + len(piece)} of {end} bytes are left: {GONE}")
        try:
            used = consume(piece, end - at - len(piece))
        except Bad as bad:
            raise Bad(bad.why, at + bad.at) from None
        at += used
        want = PIECE_BYTES if used else 2 * want
    return at
