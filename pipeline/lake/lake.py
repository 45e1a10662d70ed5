"""A lake: Parquet files in folders by queue and day, and the ledger of added batches.

A batch is added as a whole or not at all. Its files are written to a staging folder; the ledger's entry makes them
count; then they are moved to their folders. After a crash, staged files without an entry are removed; with it, the
moves are finished.

One job at a time adds to a lake. A local lake is locked. An object store has no locks, so a job writes its name into
`owner.json` and checks it before each entry: a replaced job adds nothing more. Its staged files stay until the next
entry, because its last entry may still be in flight; the new job would then find that the ledger has changed, and also
add nothing.
"""

from __future__ import annotations

import io
import os
import secrets
from collections.abc import Iterable, Mapping
from typing import Any, Protocol

import msgspec
import pyarrow as pa
from msgspec import Struct

from staniel.journal.disk.fs import AlreadyLocked
from staniel.journal.disk.os_fs import OsFs, is_folder, walk
from staniel.pipeline.lake.folders import FileVanished, LocalFolder, RemoteFolder, below, folder, without_secrets
from staniel.pipeline.lake.names import partition_name

OWN = "_archive"  # Spark's readers ignore names that begin with an underscore
STAGED = "staged"
LEDGER = "ledger.json"
OWNER = "owner.json"
SPARKS_LOG = "_spark_metadata"  # if Spark's stream wrote this log, its readers see only the files in it


class LakeTaken(Exception):
    """The lake belongs to another job, or the folder is no lake."""


class Gap(Struct, frozen=True):
    """The loss of a queue's records before they were read: how often it happened, how many items are known to be
    missing (only libkestrel's ids tell), and the batches after such a gap, which earlier versions did not note.
    """

    times: int = 0
    items: int = 0
    batches: list[int] = []


class ReadMark(Struct, frozen=True):
    """The progress of a reader: every id up to `head` was confirmed, and those in `done`."""

    head: int = 0
    done: list[int] = []


class FileNotOnDriver(Exception):
    """A task wrote a file to a folder that the driver does not see."""


class LedgerEntry(Struct):
    """The ledger of a lake.

    `batch` was added last; `end` is how far the journals were read; `days` has the day of each queue's newest record.
    `files` are the batch's files, which may still have to be moved. `gaps` has the losses of each queue, `rows` the
    rows of each queue that was counted from its first row on. `readers` has, by queue and name, each reader's progress
    when the queue was last archived, for formats with reader files.
    """

    batch: int = 0
    end: dict[str, Any] = {}
    days: dict[str, int] = {}
    files: list[str] = []
    gaps: dict[str, Gap] = {}
    rows: dict[str, int] = {}
    readers: dict[str, dict[str, ReadMark]] = {}


class LakeFolder(Protocol):
    """The folder of a lake. Names are relative, with slashes."""

    def create(self, name: str) -> Any:
        """Create a file for writing, and its folders. Its content is durable once it is closed."""

    def open(self, name: str) -> Any:
        """Open a file for reading with pyarrow. Raises FileNotFoundError."""

    def names(self, inside: str) -> list[str]:
        """Return the files in a folder and below. Raises OSError if one of them cannot be listed."""

    def move(self, moves: Iterable[tuple[str, str]]) -> None:
        """Rename files, durably."""

    def sync_names(self, names: Iterable[str]) -> None:
        """Make the names of files durable that a job has moved: it may have been killed before it synced them."""

    def clear(self, inside: str) -> None:
        """Remove a folder and everything in it."""


class Lake:
    """A lake for one writing job at a time. Raises LakeTaken."""

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        self.place = lake_folder_of(self.url)
        self._own = folder(below(self.url, OWN))
        self._lock = OsFs()
        self._name = secrets.token_hex(8)
        self.entry = LedgerEntry()

    def __enter__(self) -> Lake:
        if isinstance(self._own, LocalFolder):
            self._lock.make_folder(self._own.path)
            try:
                self._lock.lock(f"{self._own.path}/lock")
            except AlreadyLocked as locked:
                raise LakeTaken(f"{locked.holder} adds to {self.url}") from None
        else:
            self._own.write(OWNER, self._name.encode())
        try:
            self._open_entry()
        except BaseException:
            self._lock.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._lock.close()

    def commit(
        self,
        end: dict[str, Any],
        files: list[str],
        days: dict[str, int],
        gaps: Mapping[str, Gap] | None = None,
        rows: Mapping[str, int] | None = None,
        readers: Mapping[str, dict[str, ReadMark]] | None = None,
    ) -> None:
        """Make the staged `files` of the next batch count, with so many `rows` of each queue. The files of the previous
        batch have been published.

        Raises FileNotOnDriver if one is missing: an executor has written it to a disk of its own; LakeTaken if another
        job has taken over.
        """
        self._check_owner()
        if missing := {staged_name(name) for name in files} - set(self.place.names(f"{OWN}/{STAGED}")):
            raise FileNotOnDriver(
                f"{min(missing)} was written, and is not in {self.url}: every executor must see this folder under the"
                " same path, or it must lie in an object store"
            )
        known = {**self.entry.gaps, **(gaps or {})}
        counted = self._counted(rows or {})
        marks = {**self.entry.readers, **(readers or {})}
        self.entry = LedgerEntry(self.entry.batch + 1, end, self.entry.days | days, files, known, counted, marks)
        self._own.write(LEDGER, msgspec.json.encode(self.entry))
        self._publish()
        self._clear()

    def _counted(self, rows: Mapping[str, int]) -> dict[str, int]:
        """Return the rows of each queue, the next batch included. A queue with uncounted rows has no count."""
        before = self.entry.rows
        known = {queue: count for queue, count in rows.items() if queue in before or queue not in self.entry.days}
        return before | {queue: before.get(queue, 0) + count for queue, count in known.items()}

    def _check_owner(self) -> None:
        """Check that no other job has taken over since this one began; a locked lake excludes others. Raises
        LakeTaken.
        """
        if isinstance(self._own, LocalFolder):
            return
        if self._content(OWNER) != self._name.encode() or self._read() != self.entry:
            raise LakeTaken(f"another job adds to {without_secrets(self.url)} now")

    def _open_entry(self) -> None:
        if folder(below(self.url, SPARKS_LOG)).list():
            raise LakeTaken(
                f"{self.url} is the table of a stream, whose readers would not see what is added; name another"
            )
        self.entry = self._read()
        self._publish()
        if isinstance(self._own, LocalFolder):
            self._clear()

    def _read(self) -> LedgerEntry:
        data = self._content(LEDGER)
        return msgspec.json.decode(data, type=LedgerEntry) if data else LedgerEntry()

    def _content(self, name: str) -> bytes:
        """Return the content of a file of the lake's own; b"" if it does not exist."""
        try:
            file = self._own.open(name)
        except FileVanished:
            return b""
        try:
            return file.read(0, dict(self._own.list())[name])
        finally:
            file.close()

    def _publish(self) -> None:
        """Finish the moves of the last batch."""
        waiting = set(self.place.names(f"{OWN}/{STAGED}"))
        self.place.move([(staged_name(name), name) for name in self.entry.files if staged_name(name) in waiting])
        self.place.sync_names([name for name in self.entry.files if staged_name(name) not in waiting])

    def _clear(self) -> None:
        """Remove staged files that no entry names."""
        if self.place.names(f"{OWN}/{STAGED}"):
            self.place.clear(f"{OWN}/{STAGED}")


def staged_name(name: str) -> str:
    return f"{OWN}/{STAGED}/{name}"


def table_folder(queue: str | None, day: str) -> str:
    """Return the folder for the rows of a queue and day, in Hive's naming, which Spark, pyarrow and others read."""
    return f"queue={partition_name(queue)}/day={day}"


def lake_folder_of(url: str) -> LakeFolder:
    place = folder(url)
    if isinstance(place, LocalFolder):
        return LocalLakeFolder(place.path)
    assert isinstance(place, RemoteFolder)
    return RemoteLakeFolder(place)


class LocalLakeFolder:
    """A folder of this machine, or one that every machine mounts under the same path."""

    def __init__(self, path: str) -> None:
        self.path = path

    def create(self, name: str) -> Any:
        path = os.path.join(self.path, name)
        disk = OsFs()
        where = os.path.dirname(path)
        _make_folder(disk, where)
        _sync_names(disk, self.path, where)
        return SyncedFile(disk, path)

    def open(self, name: str) -> Any:
        return pa.OSFile(os.path.join(self.path, name))

    def names(self, inside: str) -> list[str]:
        top = os.path.join(self.path, inside)
        return sorted(
            os.path.relpath(os.path.join(where, name), self.path) for where, _, names in walk(top) for name in names
        )

    def move(self, moves: Iterable[tuple[str, str]]) -> None:
        by_folder: dict[str, list[tuple[str, str]]] = {}
        for old, new in moves:
            by_folder.setdefault(os.path.dirname(os.path.join(self.path, new)), []).append((old, new))
        for where, pairs in by_folder.items():
            disk = OsFs()  # one a folder, because it keeps descriptors of folders open
            try:
                disk.make_folder(where)
                for old, new in pairs:
                    disk.rename(os.path.join(self.path, old), os.path.join(self.path, new))
                disk.sync_folder(where)
                _sync_names(disk, self.path, where)
            finally:
                disk.close()

    def sync_names(self, names: Iterable[str]) -> None:
        for where in sorted({os.path.dirname(os.path.join(self.path, name)) for name in names}):
            if is_folder(where):  # an operator may have removed the rows of a queue
                disk = OsFs()
                try:
                    disk.sync_folder(where)
                    _sync_names(disk, self.path, where)
                finally:
                    disk.close()

    def clear(self, inside: str) -> None:
        for where, folders, names in walk(os.path.join(self.path, inside), topdown=False):
            for name in names:
                os.unlink(os.path.join(where, name))
            for name in folders:
                os.rmdir(os.path.join(where, name))


def _make_folder(disk: OsFs, path: str) -> None:
    """Make a folder that other tasks of the batch may make at the same time."""
    while not is_folder(path):
        try:
            disk.make_folder(path)
        except FileExistsError:
            continue  # another task was faster; what is below may still be missing


def _sync_names(disk: OsFs, top: str, path: str) -> None:
    """Sync the names of the folders from `path` up to `top`: another task, or one that was killed, may have made them
    and not synced them yet.
    """
    while len(path) > len(top):
        path = os.path.dirname(path)
        disk.sync_folder(path)


class SyncedFile(io.RawIOBase):
    """A file of the journal's own disk, for pyarrow. It and its name are durable once it is closed."""

    def __init__(self, disk: OsFs, path: str) -> None:
        super().__init__()
        self._disk = disk
        self._path = path
        self._file = disk.append(path)

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self._file.write(data)
        return len(data)

    def close(self) -> None:
        if self.closed:
            return
        try:
            self._file.sync()
            self._disk.sync_folder(os.path.dirname(self._path))
        finally:  # a second call must not sync again: that would succeed, and the bytes be lost
            self._file.close()
            self._disk.close()
            super().close()


class RemoteLakeFolder:
    """A folder of one of pyarrow's file systems."""

    def __init__(self, place: RemoteFolder) -> None:
        self.fs, self.path = place.fs, place.path

    def create(self, name: str) -> Any:
        path = f"{self.path}/{name}"
        self.fs.create_dir(os.path.dirname(path), recursive=True)
        return self.fs.open_output_stream(path)

    def open(self, name: str) -> Any:
        return self.fs.open_input_file(f"{self.path}/{name}")

    def names(self, inside: str) -> list[str]:
        from pyarrow import fs

        selector = fs.FileSelector(f"{self.path}/{inside}".rstrip("/"), allow_not_found=True, recursive=True)
        infos = self.fs.get_file_info(selector)
        return sorted(info.path.removeprefix(f"{self.path}/") for info in infos if info.type == fs.FileType.File)

    def move(self, moves: Iterable[tuple[str, str]]) -> None:
        for old, new in moves:
            self.fs.create_dir(os.path.dirname(f"{self.path}/{new}"), recursive=True)
            self.fs.move(f"{self.path}/{old}", f"{self.path}/{new}")

    def sync_names(self, names: Iterable[str]) -> None:
        """Do nothing: an object store has a name once it has answered."""

    def clear(self, inside: str) -> None:
        self.fs.delete_dir_contents(f"{self.path}/{inside}", missing_dir_ok=True)
