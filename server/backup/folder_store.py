"""Backups in a folder of this machine, or of a file system mounted there. One process at a time writes to it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256

from staniel.journal.disk.fs import AlreadyLocked
from staniel.journal.disk.os_fs import OsFs, is_folder, walk
from staniel.journal.disk.refusals import refused_tool
from staniel.journal.disk.replace_file import replace_file
from staniel.server.backup.manifest import BackupError, CallRefused
from staniel.server.backup.store import MARKER, LocalFile, Progress, Stored, data_name

PIECE_BYTES = 1 << 20
LOCK, TEMPORARY = "lock", "unfinished"
# Files get their names once they are synced; one sync serves so many.
PENDING_FILES_MAX, PENDING_BYTES_MAX = 1_000, 1 << 30
OURS = (LOCK, TEMPORARY, "lost+found")


class FolderStore:
    """A Store in a folder. With `writes` it makes the folder if needed, and locks it."""

    quiet_ms = 0  # the lock keeps others out

    def __init__(self, folder: str, *, writes: bool) -> None:
        self.where = folder
        self._folder = folder
        self._fs = OsFs()
        self._pending: dict[str, str] = {}  # temporary name -> name
        self._pending_bytes = 0
        self._numbers = 0
        self._made: set[str] = set()
        with self._refusals_as_errors():
            if writes:
                self._fs.make_folder(folder)
                self._lock()
            elif not is_folder(folder):
                raise BackupError(f"folder {folder} does not exist: name the place that `staniel backup` was given")

    def _lock(self) -> None:
        others = [name for name in os.listdir(self._folder) if name not in OURS]
        if others and MARKER not in others:
            raise BackupError(f"{self.where} is not empty and has no backups: give a new or empty folder")
        try:
            self._fs.lock(f"{self._folder}/{LOCK}")
        except AlreadyLocked as locked:
            holder = locked.holder or "another process"
            raise BackupError(f"{holder} is making a backup in {self.where}: wait until it ends") from None
        self._fs.make_folder(f"{self._folder}/{TEMPORARY}")
        for name, _ in self._fs.list(f"{self._folder}/{TEMPORARY}"):
            if name.isdigit():  # left by a killed process
                self._fs.remove(f"{self._folder}/{TEMPORARY}/{name}")

    def names(self, prefix: str) -> dict[str, Stored]:
        entries: dict[str, Stored] = {}
        top = f"{self._folder}/{prefix}".rstrip("/")
        with self._refusals_as_errors():
            for folder, folders, names in walk(top):
                if folder == self._folder:
                    folders[:] = [name for name in folders if name not in OURS]
                    names = [name for name in names if name not in OURS]
                for name in names:
                    path = f"{folder}/{name}"
                    entries[path.removeprefix(f"{self._folder}/")] = Stored(os.stat(path).st_size)
        return entries

    def read(self, name: str) -> bytes | None:
        path = f"{self._folder}/{name}"
        with self._refusals_as_errors():
            try:
                return self._fs.read(path, 0, self._fs.size(path))
            except FileNotFoundError:
                return None

    def pieces(self, name: str) -> Iterator[bytes]:
        with self._refusals_as_errors():
            reader = self._fs.reader(f"{self._folder}/{name}")
            at = 0
            try:
                while piece := reader.read(at, PIECE_BYTES):
                    at += len(piece)
                    yield piece
            finally:
                reader.close()

    def write(self, name: str, data: bytes) -> None:
        with self._refusals_as_errors():
            self._name_copies()
            folder = f"{self._folder}/{name}".rpartition("/")[0]
            self._fs.make_folder(folder)
            replace_file(self._fs, f"{self._folder}/{name}", data, f"{self._folder}/{TEMPORARY}/{self._next_number()}")

    def add(self, file: LocalFile, progress: Progress) -> tuple[str, bool]:
        with self._refusals_as_errors():
            temporary = f"{self._folder}/{TEMPORARY}/{self._next_number()}"
            checksum = self._copy(file, temporary, progress)
            name = f"{self._folder}/{data_name(checksum)}"
            if name in self._pending.values() or self._is_stored(name, file.bytes):
                self._fs.remove(temporary)
                return checksum, False
            self._pending[temporary] = name
            self._pending_bytes += file.bytes
            if len(self._pending) > PENDING_FILES_MAX or self._pending_bytes > PENDING_BYTES_MAX:
                self._name_copies()
            return checksum, True

    def _is_stored(self, name: str, size: int) -> bool:
        """Return True if these bytes are stored; a file of another size is written again."""
        try:
            return self._fs.size(name) == size
        except FileNotFoundError:
            return False

    def _copy(self, file: LocalFile, temporary: str, progress: Progress) -> str:
        hashed, at = sha256(), 0
        reader = self._fs.reader(file.path)
        try:
            copy = self._fs.append(temporary)
            try:
                while at < file.bytes:
                    piece = reader.read(file.at + at, min(PIECE_BYTES, file.bytes - at))
                    if not piece:
                        raise BackupError(f"{file.path} was truncated while it was copied: make the backup again")
                    hashed.update(piece)
                    copy.write(piece)
                    at += len(piece)
                    progress(len(piece))
            finally:
                copy.close()
        finally:
            reader.close()
        return hashed.hexdigest()

    def _name_copies(self) -> None:
        """Sync the copied files, then give them their names: a file with its name is whole, whatever happens."""
        if not self._pending:
            return
        self._fs.sync_all(self._folder)
        folders = set()
        for temporary, name in self._pending.items():
            folder = name.rpartition("/")[0]
            if folder not in self._made:
                self._fs.make_folder(folder)
                self._made.add(folder)
            self._fs.rename(temporary, name)
            folders.add(folder)
        self._fs.sync_all(self._folder)
        self._pending.clear()
        self._pending_bytes = 0

    def _next_number(self) -> str:
        self._numbers += 1
        return str(self._numbers)

    def remove(self, names: list[str]) -> None:
        with self._refusals_as_errors():
            for name in names:
                try:
                    self._fs.remove(f"{self._folder}/{name}")
                except FileNotFoundError:
                    pass

    def abort_uploads(self, before_ms: int) -> None:
        """Do nothing: a folder has no uploads."""

    def close(self) -> None:
        self._fs.close()

    @contextmanager
    def _refusals_as_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            about_content = isinstance(error, FileNotFoundError | IsADirectoryError)
            kind = BackupError if about_content else CallRefused
            raise kind(refused_tool(error, self._folder)) from error
