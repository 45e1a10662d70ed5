"""The making of a new spool from a backup. Until all of it is durable, a mark in it keeps servers away. A refused one
is removed.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256

from staniel.journal.copy_mark import UNFINISHED, VERSION, clear_mark, set_mark
from staniel.journal.disk.fs import AlreadyLocked, File, Fs, sync_name
from staniel.journal.disk.os_fs import OsFs, is_folder, is_named, walk
from staniel.journal.disk.refusals import refused_tool
from staniel.journal.kestrel.files import OWN_FOLDER, sidecar_folder
from staniel.journal.spool import FORMAT_VERSION, LOCK
from staniel.journal.spool_listing import CMDLOG, OPERATIONS, PUT_KEYS
from staniel.journal.tools.unfinished import Unfinished, Work, unfinished_work
from staniel.server.backup.manifest import BackedUpFile, BackupError, FilePart, Manifest
from staniel.server.backup.store import Progress, Store, data_name

SPARE_BYTES = 1 << 20
CARRIED = (Work.TRANSFERS, Work.PUT_KEYS, Work.OPERATION)  # unfinished work that backups hold completely


class NewSpool:
    """A folder that is becoming a spool: new, empty, or left unfinished by an earlier attempt. It is locked, and marked
    until `complete_spool`. Raises BackupError.
    """

    def __init__(self, folder: str, size: int) -> None:
        self.folder = folder
        self.own = f"{folder}/{OWN_FOLDER}"
        self.fs: Fs = OsFs()
        try:
            self._was_there = is_named(folder)
            self._prepare_folder(size)
        except OSError as error:
            raise failure(error, folder) from error

    def _prepare_folder(self, size: int) -> None:
        fs = self.fs
        refuse_used(self.folder)
        fs.make_folder(self.own)
        for folder in (self.own, self.folder):  # an earlier attempt may have been killed before these syncs
            sync_name(fs, folder)
        self._lock()
        with removed_if_refused(self):
            set_mark(fs, self.own)
            self._remove_files()
            free = fs.free_bytes(self.folder)[0]
            if size + SPARE_BYTES > free:
                raise BackupError(
                    f"{self.folder} has room for {free:,} bytes, {size:,} are needed: make room, or use another"
                )
            for folder in self._subfolders:
                fs.make_folder(folder)

    @property
    def _subfolders(self) -> list[str]:
        return [sidecar_folder(self.folder), *(f"{self.folder}/{name}" for name in (CMDLOG, OPERATIONS, PUT_KEYS))]

    def _lock(self) -> None:
        try:
            self.fs.lock(f"{self.own}/{LOCK}")
        except AlreadyLocked as locked:
            raise BackupError(f"{locked.holder or 'another process'} has {self.folder} open") from None

    def open_again(self) -> None:
        """Open the spool again after `close`, to continue with its files. Raises BackupError."""
        self.fs = OsFs()
        try:
            self._lock()
        except OSError as error:
            raise failure(error, self.folder) from error

    def _remove_files(self) -> None:
        """Remove the files of an earlier attempt, which began with an empty folder."""
        for folder, kept in ((self.folder, (OWN_FOLDER, "lost+found")), (self.own, (LOCK, VERSION))):
            for name in os.listdir(folder):
                path = f"{folder}/{name}"
                if name not in kept:
                    shutil.rmtree(path) if os.path.isdir(path) and not os.path.islink(path) else os.unlink(path)

    def complete_spool(self) -> None:
        """Make the complete copy a spool. Raises BackupError: then it has the mark, or the error says that it may not
        have it.
        """
        try:
            for folder in self._subfolders:
                if not os.listdir(folder):
                    os.rmdir(folder)
            self._give_to_owner()
            self.fs.sync_all(self.folder)
            clear_mark(self.fs, self.own, f"{FORMAT_VERSION}\n".encode())
            self._own_version()
        except OSError as error:
            raise failure(error, self.folder) from error

    def _own_version(self) -> None:
        """Give the new version file to the owner, too. Raises OSError: then the copy has the mark again."""
        try:
            self._give_to_owner()
        except OSError:
            set_mark(self.fs, self.own)
            raise

    def _give_to_owner(self) -> None:
        """Give the files that root has copied to the owner of the folder, whose server must write to them."""
        status = os.stat(self.folder)
        if os.geteuid() or not status.st_uid:
            return
        for folder, folders, names in walk(self.folder):
            for name in [*folders, *names]:
                os.chown(f"{folder}/{name}", status.st_uid, status.st_gid, follow_symlinks=False)

    def remove(self) -> None:
        """Remove everything except a folder that existed before. The mark is removed last. Raises OSError, also for a
        spool whose mark could not be set again.
        """
        if not is_unfinished(self.folder):
            raise OSError(errno.ENOTEMPTY, "it has no mark of an unfinished copy", self.folder)
        self._remove_files()
        for folder in (self.folder, self.own):  # a power cut may bring back no file without the mark
            self.fs.sync_folder(folder)
        shutil.rmtree(self.own)
        if not self._was_there:
            os.rmdir(self.folder)

    def close(self) -> None:
        assert isinstance(self.fs, OsFs)
        self.fs.close()


@contextmanager
def removed_if_refused(spool: NewSpool) -> Iterator[None]:
    """Remove the copied files after a BackupError, because they may have filled the disk; or say that they remain. Any
    other error is raised as a BackupError.
    """
    try:
        yield
    except (BackupError, OSError) as error:
        refused = error if isinstance(error, BackupError) else failure(error, spool.folder)
        try:
            spool.remove()
        except OSError as kept:
            starts = "a server may start" if kept.errno == errno.ENOTEMPTY else "no server starts"
            raise BackupError(f"{refused}. {spool.folder} is not complete, and {starts} on it: remove it") from error
        raise refused from error


def refuse_used(folder: str) -> None:
    """Refuse a folder whose contents must stay, with BackupError. Raises OSError."""
    if not is_named(folder):
        return
    if not is_folder(folder):
        raise BackupError(f"{folder} is not a folder: give a new or empty folder")
    there = [name for name in os.listdir(folder) if name != "lost+found"]
    if there and not is_unfinished(folder):
        raise BackupError(f"{folder} is not empty: give a new or empty folder")


def is_unfinished(folder: str) -> bool:
    """Return True if the folder has the mark of an interrupted copy, or only the files that are made before
    that mark.
    """
    try:
        with open(f"{folder}/{OWN_FOLDER}/{VERSION}", "rb") as file:
            return file.read(100).strip() == UNFINISHED.encode()
    except FileNotFoundError:
        own = f"{folder}/{OWN_FOLDER}"
        there = set(os.listdir(own)) if is_folder(own) else {""}
        return set(os.listdir(folder)) <= {OWN_FOLDER, "lost+found"} and there <= {LOCK, f"{VERSION}.new"}
    except NotADirectoryError:
        return False


def restore(store: Store, manifest: Manifest, folder: str, progress: Progress) -> list[Unfinished]:
    """Write a backup into a new or empty folder. Return the unfinished work in it, which a server's start continues.

    Raises BackupError: then the written files are removed.
    """
    spool = NewSpool(folder, manifest.bytes)
    try:
        with removed_if_refused(spool):
            for file in manifest.files:
                _restore_file(store, file, spool, progress)
            left = _check_unfinished(spool)
            spool.complete_spool()
    finally:
        spool.close()
    return left


def _check_unfinished(spool: NewSpool) -> list[Unfinished]:
    """Return the unfinished work of the new spool. Raises BackupError if a backup does not hold all parts of it, or
    this version does not know it: without them items would be in two queues, or in none.
    """
    try:
        left = unfinished_work(spool.fs, spool.folder)
    except OSError as error:
        raise failure(error, spool.folder) from error
    left = [unfinished for unfinished in left if unfinished.work is not Work.COPY]
    for unfinished in left:
        if unfinished.work not in CARRIED or (unfinished.work is Work.OPERATION and not unfinished.queue):
            why = f"{unfinished.path} says that {unfinished.work.value}, in a way that this version does not know"
            raise BackupError(f"{why}: use the version that made the backup")
    return left


def _restore_file(store: Store, file: BackedUpFile, spool: NewSpool, progress: Progress) -> None:
    try:
        made = spool.fs.append(f"{spool.folder}/{file.name}")
        try:
            is_good = all(_append_part(store, part, made, progress) for part in file.parts)
        finally:
            made.close()
    except OSError as error:
        raise failure(error, spool.folder) from error
    if not is_good:
        why = "is not what was copied: name another with --backup; `staniel backup verify` says which are sound"
        raise BackupError(f"{file.name} in {store.where} {why}")


def _append_part(store: Store, part: FilePart, made: File, progress: Progress) -> bool:
    """Append the bytes of a part. Return True if they are the copied ones. Raises OSError."""
    hashed, size = sha256(), 0
    for piece in store.pieces(data_name(part.sha256)):
        hashed.update(piece)
        made.write(piece)
        size += len(piece)
        progress(len(piece))
    return (size, hashed.hexdigest()) == (part.bytes, part.sha256)


def failure(error: OSError, folder: str) -> BackupError:
    return BackupError(refused_tool(error, folder))
