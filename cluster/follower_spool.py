"""A follower's spool: it applies the numbered records of a leader's stream to its own files.

The place up to which all records are durable in files is in `.staniel/follower`. It is written after the data, never
before, so that a start after any accident continues from there, with the records that the member's log still has:

1. Data is written at the place that its record names. Behind the durable place a power cut may have kept any part of
   it, so the first write to a file after a start cuts off what is there, and all is written again.
2. A rename or removal cannot be done twice: the old name may be another file's by then. So all that came before is
   synced, then the place is written together with the number of changes of names that begin now; then they are done and
   synced, then the place behind them is written. After an accident between the two, and only there, a name that is not
   there any more means that its change is done.
3. A cut takes bytes that earlier records would need again. So all that came before is synced, and the place written,
   before it.
4. After a failed sync the system shows names and bytes that no later sync writes, unless they are changed anew
   (journal/disk/unsynced_names.py). An earlier process may have left any change behind the place so, and the place
   itself. So a start writes the place once more, and does each change behind it anew, although it seems to be done: a
   file or an empty folder is replaced by a new one, a removal repeated on a new empty file, a rename taken back and
   repeated. No mark of the failed sync is needed for that.

A file that is not as a record says it must be is an error: the spool is not the leader's, and must be repaired.
"""

from __future__ import annotations

from collections import OrderedDict
from contextlib import suppress
from enum import Enum
from struct import Struct as Layout
from typing import cast
from zlib import crc32

from msgspec import Struct

from staniel.cluster.places import NOWHERE, Place
from staniel.cluster.spool_changes import (
    Change,
    FileAppended,
    FileCreated,
    FileOverwritten,
    FileRemoved,
    FileRenamed,
    FileTruncated,
    decode_changes,
)
from staniel.cluster.spool_names import SpoolPaths
from staniel.journal.disk.fs import MISSING, Fs, Region, is_there, write_whole
from staniel.journal.disk.replace_file import replace_empty_folder
from staniel.journal.disk.unsynced_names import NamedFile, UnsyncedNames
from staniel.journal.kestrel.files import sidecar_path
from staniel.journal.redo.log import IN_USE

FILE = "follower"
OPEN_MAX = 256
SINGLE_SYNCS_MAX = 4  # of files; more are synced by one call for the whole file system

ALL = 1 << 63  # no record has such a number

MAGIC = b"STNPLAC1"
SLOT_BYTES = 4096  # a block of the disk: the two are never written together
_SLOT = Layout(">8sQQQIIB")
_CRC = Layout(">I")


class Applied(Enum):
    APPLIED = "applied"
    KNOWN = "the files have it already"
    GAP = "records before it are missing"
    OLD_EPOCH = "it is of an epoch before the last one"


class SpoolDiffers(Exception):
    """The error for a spool that is not what the stream says. It must be repaired: compared, and copied."""


class _StoredPlace(Struct, frozen=True):
    """The durable place. `done`: changes of the next record that are durable, too. `begun`: as many after these are
    changes of names, and each may be done. `is_clean`: nothing behind the place was ever begun.
    """

    serial: int
    place: Place
    done: int
    begun: int
    is_clean: bool

    def encode(self) -> bytes:
        body = _SLOT.pack(MAGIC, self.serial, *self.place, self.done, self.begun, self.is_clean)
        return body + _CRC.pack(crc32(body))


def _decode_place(slot: bytes) -> _StoredPlace | None:
    body, crc = slot[: _SLOT.size], slot[_SLOT.size : _SLOT.size + _CRC.size]
    if not body.startswith(MAGIC) or crc != _CRC.pack(crc32(body)):
        return None
    _, serial, epoch, number, done, begun, is_clean = _SLOT.unpack(body)
    return _StoredPlace(serial, Place(epoch, number), done, begun, bool(is_clean))


def place_path(paths: SpoolPaths) -> str:
    """Return the path of the file with the place of a spool."""
    return f"{paths.own}/{FILE}"


def store_first_place(fs: UnsyncedNames, paths: SpoolPaths, place: Place) -> None:
    """Store the place of files that are synced and have none. Raises OSError, JournalFailure."""
    _create_place_file(fs, place_path(paths))
    region = fs.overwrite(place_path(paths))
    try:
        region.stage(SLOT_BYTES, _StoredPlace(1, place, 0, 0, True).encode().ljust(SLOT_BYTES, b"\0"))
        fs.guard(region.sync)
    finally:
        region.close()


def forget_place(fs: Fs, paths: SpoolPaths) -> None:
    """Remove the place, durably: from here on the files change without it. A member does so before it leads, and before
    its files are copied. A place that is not there is removed anew, because a process whose sync failed may have
    removed it in the cache alone. Raises OSError, JournalFailure.
    """
    with suppress(*MISSING):
        if not is_there(fs, place_path(paths)):
            fs.append(place_path(paths)).close()
        fs.remove(place_path(paths))
        fs.sync_folder(paths.own)


def has_place(fs: Fs, paths: SpoolPaths) -> bool:
    """Tell whether the files have a place. A power cut while it is first stored, or forgotten, may leave a file that
    is empty or has zeros.
    """
    try:
        return bool(fs.read(place_path(paths), 0, 2 * SLOT_BYTES).strip(b"\0"))
    except MISSING:
        return False


def _create_place_file(fs: UnsyncedNames, path: str) -> None:
    own = path.rpartition("/")[0]
    fs.make_folder(own)
    with suppress(*MISSING):
        fs.remove(path)  # it has no place, and may have its name in the cache alone
    fs.fill(path, 2 * SLOT_BYTES)
    fs.sync_folder(own)


class PlaceFile:
    """The file with the place: two slots that are written in turn, so that a power cut leaves one of them."""

    def __init__(self, fs: UnsyncedNames, paths: SpoolPaths) -> None:
        """Open the file. The place is written once more, over itself, because an earlier process may have failed to
        sync it: either that changes nothing on the disk, or nothing has been done that depends on it. Raises OSError,
        JournalFailure, SpoolDiffers if there is no place and the spool has files.
        """
        self._fs = fs
        self._path = place_path(paths)
        stored = self._read()
        if stored is None:
            if paths.replicated_files(fs):
                raise SpoolDiffers(f"{paths.folder} has files, and no place in a stream: {self._path} is missing")
            stored = _StoredPlace(0, NOWHERE, 0, 0, True)
            _create_place_file(fs, self._path)
        self.stored = stored
        self._region: Region = fs.overwrite(self._path)
        self._write(stored)

    def _read(self) -> _StoredPlace | None:
        """Return what is stored; None if nothing ever was. Raises OSError, SpoolDiffers."""
        try:
            data = self._fs.read(self._path, 0, 2 * SLOT_BYTES)
        except MISSING:
            return None
        slots = [_decode_place(data[at : at + SLOT_BYTES]) for at in (0, SLOT_BYTES)]
        known = [slot for slot in slots if slot is not None]
        if not known and data.strip(b"\0"):
            raise SpoolDiffers(f"{self._path} is damaged: the place of this spool in the stream is unknown")
        return max(known, key=lambda slot: slot.serial, default=None)

    def store(self, place: Place, done: int = 0, begun: int = 0, *, is_clean: bool = False) -> None:
        """Make this the durable place. Raises OSError, JournalFailure."""
        new = _StoredPlace(self.stored.serial + 1, place, done, begun, is_clean)
        self._write(new)
        self.stored = new

    def _write(self, stored: _StoredPlace) -> None:
        self._region.stage(stored.serial % 2 * SLOT_BYTES, stored.encode().ljust(SLOT_BYTES, b"\0"))
        self._fs.guard(self._region.sync)

    def close(self) -> None:
        self._region.close()


class FollowerSpool:
    """The files of a follower, up to the record `last`. The caller owns the spool: no server has it open. After a
    JournalFailure or SpoolDiffers nothing more may be applied.
    """

    def __init__(self, fs: Fs, paths: SpoolPaths, repeated: int = ALL) -> None:
        """Open the spool where the last run has left it. `repeated`: the last record that an earlier process may have
        applied since the machine has started; records behind it need not be done anew. Raises OSError, JournalFailure,
        SpoolDiffers.
        """
        self._repeated = repeated
        self._fs = UnsyncedNames(fs)
        self._paths = paths
        self._refuse_redo_log()
        self._file = PlaceFile(self._fs, paths)
        stored = self._file.stored
        self.last = stored.place
        self._done = stored.done  # changes of the record behind `last`
        self._may_be_done = stored.done + stored.begun  # up to here, changes of names may be done
        self._is_exact = stored.is_clean  # no file has bytes behind its records, nor a name that may not be durable
        self._touched: set[str] = set()  # files that have none, if the others may have some
        self._renewed: set[str] = set()  # folders whose names are durable, if those of others may not be
        self._open: OrderedDict[str, NamedFile] = OrderedDict()
        self._dirty: dict[str, NamedFile] = {}
        self._folders: dict[str, None] = {}  # with unsynced names

    @property
    def durable(self) -> Place:
        """The record up to which all are durable in files."""
        return self._file.stored.place

    @property
    def has_begun_names(self) -> bool:
        """True if changes of names in the record behind `last` were begun, and may be done in the cache alone."""
        return self._may_be_done > self._done

    def apply(self, place: Place, record: bytes) -> Applied:
        """Apply a record, unless the files have it, or it cannot be the next one; an empty one changes nothing. If the
        disk refuses, the same record can be given again. Raises BadRecord with nothing done, OSError, JournalFailure,
        SpoolDiffers.
        """
        if place.number <= self.last.number:
            return Applied.KNOWN
        if place.number > self.last.number + 1:
            return Applied.GAP
        if place.epoch < self.last.epoch:
            return Applied.OLD_EPOCH
        changes = decode_changes(record) if record else []
        if self._file.stored.is_clean:
            self._store()
        while self._done < len(changes):
            change = changes[self._done]
            if isinstance(change, FileRenamed | FileRemoved):
                self._change_names(changes)
            else:
                self._change_data(change)
                self._done += 1
        self.last, self._done, self._may_be_done = place, 0, 0
        return Applied.APPLIED

    def sync(self) -> Place:
        """Make all that is applied durable in files, then the place. Return it. Raises OSError, JournalFailure."""
        self._sync_files()
        if (self._file.stored.place, self._file.stored.done) != (self.last, self._done):
            self._store()
        return self.durable

    def close(self) -> None:
        """Sync, and close all files. Raises OSError, JournalFailure."""
        self.sync()
        if self._is_exact:  # else files may have what earlier runs have written, of records that this one had not
            self._file.store(self.last, self._done, is_clean=True)
        for name in list(self._open):
            self._close(name)
        self._file.close()

    def _refuse_redo_log(self) -> None:
        """Check that no redo log is in use: the next start would write its bytes over those of the stream."""
        with suppress(FileNotFoundError, NotADirectoryError):
            if self._fs.read(f"{self._paths.own}/version", 0, 100).startswith(IN_USE.encode()):
                raise SpoolDiffers(f"{self._paths.folder} has a redo log in use: start and stop its server first")

    def _store(self, begun: int = 0) -> None:
        self._file.store(self.last, self._done, begun)

    # names

    def _change_names(self, changes: list[Change]) -> None:
        """Do the changes of names from `_done` on that do not depend on each other."""
        group: list[FileRenamed | FileRemoved] = []
        names: set[str] = set()
        for change in changes[self._done :]:
            if not isinstance(change, FileRenamed | FileRemoved):
                break
            touched = {change.name, change.new} if isinstance(change, FileRenamed) else {change.name}
            if names & touched:
                break
            names |= touched
            group.append(change)
        may_be_done = self._may_be_done
        self._sync_files()
        for number, change in enumerate(group, self._done):
            if isinstance(change, FileRenamed) and number >= may_be_done:
                self._make_folder(change.new)
        self._store(len(group))
        self._may_be_done = max(may_be_done, self._done + len(group))
        for number, change in enumerate(group, self._done):
            self._change_name(change, may_be_done=number < may_be_done)
        self._sync_files()
        self._done += len(group)
        self._store()

    def _change_name(self, change: FileRenamed | FileRemoved, *, may_be_done: bool) -> None:
        name = change.name
        names = [name, change.new] if isinstance(change, FileRenamed) else [name]
        for changed in names:
            self._close(changed)
            self._drop_sidecar(changed)
        path = self._paths.path_of(name)
        if not is_there(self._fs, path):
            if not may_be_done:
                raise SpoolDiffers(f"{path} is missing: the leader has {'renamed' if len(names) > 1 else 'removed'} it")
            if isinstance(change, FileRenamed) and not is_there(self._fs, self._paths.path_of(change.new)):
                raise SpoolDiffers(f"{path} is missing, and so is {change.new}, which it was renamed to")
            self._undo_name(change)
        if isinstance(change, FileRenamed):
            self._fs.rename(path, self._paths.path_of(change.new))
        else:
            self._fs.remove(path)
        for changed in names:
            self._folders[self._folder_of(changed)] = None
        if name in self._touched and isinstance(change, FileRenamed):
            self._touched.add(change.new)
        self._touched.discard(name)

    def _undo_name(self, change: FileRenamed | FileRemoved) -> None:
        """Take back a change of a name that seems to be done, so that it can be done anew. An empty file in place of a
        removed one does as well.
        """
        path = self._paths.path_of(change.name)
        if isinstance(change, FileRenamed):
            self._fs.rename(self._paths.path_of(change.new), path)
        else:
            self._fs.append(path).close()

    def _drop_sidecar(self, name: str) -> None:
        """Remove the index that this server made of a sealed file when it led. It is gone durably before the place is
        behind the change of the file.
        """
        if "/" in name:
            return
        path = sidecar_path(self._paths.folder, name)
        with suppress(*MISSING):
            if not self._is_exact and self.last.number < self._repeated and not is_there(self._fs, path):
                self._fs.append(path).close()  # an earlier process may have removed it in the cache alone
            self._fs.remove(path)
            self._folders[path.rpartition("/")[0]] = None

    # data

    def _change_data(self, change: FileCreated | FileAppended | FileOverwritten | FileTruncated) -> None:
        match change:
            case FileAppended(name, at, data):
                file = self._at_end(name, at)
                write_whole(self._fs, self._paths.path_of(name), file, data)
                self._dirty[name] = file
            case FileCreated(name):
                self._create(name)
            case FileTruncated(name, size):
                self._truncate(name, size)
            case FileOverwritten(name, at, data):
                self._overwrite(name, at, data)

    def _create(self, name: str) -> None:
        self._make_folder(name)
        self._drop_sidecar(name)
        if not self._is_exact and name not in self._touched:
            with suppress(*MISSING):
                self._fs.remove(self._paths.path_of(name))
            self._touched.add(name)
        file = self._opened(name)
        if file.size:
            self._cut_behind(name, file, 0)
        self._dirty[name] = file
        self._folders[self._folder_of(name)] = None

    def _at_end(self, name: str, at: int) -> NamedFile:
        """Return the file, which ends at byte `at`. Raises SpoolDiffers."""
        file = self._open.get(name)
        if file is None:
            path = self._paths.path_of(name)
            if not is_there(self._fs, path):
                raise SpoolDiffers(f"{path} is missing: the leader has written to it")
            file = self._opened(name)
        if file.size != at or not self._is_exact:
            self._cut_behind(name, file, at)
        return file

    def _cut_behind(self, name: str, file: NamedFile, at: int) -> None:
        """Cut off what an earlier run has written behind byte `at`. Raises SpoolDiffers."""
        if file.size > at and not self._is_exact and name not in self._touched:
            self._fs.truncate(self._paths.path_of(name), at)
        if file.size != at:
            raise SpoolDiffers(f"{self._paths.path_of(name)} has {file.size} bytes where the leader's had {at}")
        self._touched.add(name)

    def _truncate(self, name: str, size: int) -> None:
        path = self._paths.path_of(name)
        self.sync()
        self._drop_sidecar(name)
        if not is_there(self._fs, path) or self._fs.size(path) < size:
            raise SpoolDiffers(f"{path} is missing or shorter than {size} bytes, to which the leader has cut it")
        self._fs.truncate(path, size)
        self._touched.add(name)

    def _overwrite(self, name: str, at: int, data: bytes) -> None:
        path = self._paths.path_of(name)
        if not is_there(self._fs, path) or self._fs.size(path) < at:
            raise SpoolDiffers(f"{path} is missing or shorter than {at} bytes, where the leader has written")
        self._close(name)
        self._drop_sidecar(name)
        region = self._fs.overwrite(path)
        try:
            region.write_at(at, data)
            self._fs.guard(region.sync)
        finally:
            region.close()

    # files

    def _opened(self, name: str) -> NamedFile:
        file = self._open.get(name)
        if file is None:
            if len(self._open) >= OPEN_MAX:
                self._close(next(iter(self._open)))
            file = self._open[name] = cast(NamedFile, self._fs.append(self._paths.path_of(name)))
        return file

    def _close(self, name: str) -> None:
        file = self._open.pop(name, None)
        if file is not None:
            if self._dirty.pop(name, None) is not None:
                file.sync()
            file.close()

    def _make_folder(self, name: str) -> None:
        """Make the folder of a new name, durably. All changes of names before are synced: if no file is seen in it, it
        has none, and may be replaced.
        """
        folder = self._folder_of(name)
        if "/" not in name or folder in self._renewed:
            return
        self._fs.make_folder(folder)
        if not self._is_exact and folder.startswith(f"{self._paths.own}/") and not self._fs.list(folder):
            replace_empty_folder(self._fs, folder)
        self._renewed.add(folder)

    def _folder_of(self, name: str) -> str:
        return self._paths.path_of(name).rpartition("/")[0]

    def _sync_files(self) -> None:
        """Sync the files that were written, then the names."""
        if len(self._dirty) > SINGLE_SYNCS_MAX:
            self._fs.sync_all(self._paths.folder)
            if self._paths.jobs_outside:
                self._fs.sync_all(self._paths.jobs)
        else:
            for file in self._dirty.values():
                file.sync()
            for folder in self._folders:
                self._fs.sync_folder(folder)
        self._dirty.clear()
        self._folders.clear()
