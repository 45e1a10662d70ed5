"""The making of a backup: data that no earlier one has is copied, then the manifest is written."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from contextlib import suppress
from hashlib import sha256

from staniel.journal.disk.refusals import refused_tool
from staniel.server.backup import store as stores
from staniel.server.backup.manifest import FORMAT, BackedUpFile, BackupError, FilePart, Manifest, encode, new_id
from staniel.server.backup.source import BackupSource, SourceFile
from staniel.server.backup.store import LocalFile, Progress, Store
from staniel.server.backup.tidy import tidy

NO_NEWS = -1
PIECE_BYTES = 1 << 20
PARTS_MAX = 50  # beyond this a slowly growing file is copied whole again
GROWN_BYTES_MIN = 1 << 20  # a smaller file is not worth a second part


class EarlierFiles:
    """The files of an earlier backup of the same spool, by their inodes."""

    def __init__(self, files: list[BackedUpFile]) -> None:
        self._files = {file.known_by[:2]: file for file in files}

    def find_unchanged(self, size: int, known_by: tuple[int, int, int]) -> BackedUpFile | None:
        """Return the file with this inode, length and time of change; it is not read again. Journals only grow, so an
        equal length would be enough.
        """
        earlier = self._files.get(known_by[:2])
        return earlier if earlier is not None and (earlier.bytes, earlier.known_by) == (size, known_by) else None

    def find_shorter(self, size: int, known_by: tuple[int, int, int]) -> BackedUpFile | None:
        """Return a file that may be the beginning of one that has grown. Compare its bytes, because inodes are
        reused.
        """
        earlier = self._files.get(known_by[:2])
        if earlier is None or not GROWN_BYTES_MIN <= earlier.bytes < size or len(earlier.parts) >= PARTS_MAX:
            return None
        return earlier


def make_backup(store: Store, source: BackupSource, steady_ms: Callable[[], int], progress: Progress) -> Manifest:
    """Make a backup. Raises BackupError: then there is no such backup, and the next one uses the copied data."""
    began_ms = steady_ms()
    held = source.held
    origin = f"{socket.gethostname()}:{os.path.realpath(held.spool)}"
    earlier = stores.ids(store)
    backup_id = new_id(held.made_at_ms, {*earlier, *_unfinished_ids(store)}, origin if store.quiet_ms else "")
    if _unfinished_ids(store):
        with suppress(BackupError):  # an unreadable manifest: `staniel backup verify` reports it
            tidy(store, held.made_at_ms)
    store.write(f"{stores.RUNNING}{backup_id}", b"")
    known = _files_of_last_backup(store, earlier, origin)
    files = list[BackedUpFile]()
    copied_files = copied_bytes = 0
    for file in source.files:
        try:
            backed_up, news_bytes = _back_up(store, file, known, progress)
        except BackupError:
            source.check()  # if the server has ended, its error is the better one
            raise
        files.append(backed_up)
        copied_files += news_bytes != NO_NEWS
        copied_bytes += max(0, news_bytes)
    source.check()
    if store.quiet_ms:
        _refuse_removed(store, files)
    manifest = Manifest(
        format=FORMAT,
        id=backup_id,
        made_at_ms=held.made_at_ms,
        took_ms=steady_ms() - began_ms,
        version=held.version,
        origin=origin,
        was_running=source.was_running,
        queues=held.queues,
        items=held.items,
        jobs=held.jobs,
        sync=held.sync,
        other_syncs=held.other_syncs,
        bytes=held.bytes,
        copied_files=copied_files,
        copied_bytes=copied_bytes,
        files=files,
    )
    store.write(f"{stores.BACKUPS}{backup_id}.json", encode(manifest))
    store.remove([f"{stores.RUNNING}{backup_id}"])
    return manifest


def _refuse_removed(store: Store, files: list[BackedUpFile]) -> None:
    """Check that another process has not removed data that this one has found stored: no lock prevents it. Raises
    BackupError.
    """
    there = stores.stored_data(store)
    if not all(part.sha256 in there for file in files for part in file.parts):
        raise BackupError(f"another process has removed parts of backups from {store.where}: make the backup again")


def _unfinished_ids(store: Store) -> list[str]:
    return [name.removeprefix(stores.RUNNING) for name in store.names(stores.RUNNING)]


def _files_of_last_backup(store: Store, earlier: list[str], origin: str) -> EarlierFiles:
    """Return the files of the newest backup of the same spool, without those whose bytes are missing."""
    for backup_id in reversed(earlier):
        try:
            manifest = stores.load(store, backup_id)
        except BackupError:
            continue  # `staniel backup verify` reports it
        if manifest.origin == origin:
            sizes = {checksum: stored.bytes for checksum, stored in stores.stored_data(store).items()}
            whole = [
                file for file in manifest.files if all(sizes.get(part.sha256) == part.bytes for part in file.parts)
            ]
            return EarlierFiles(whole)
    return EarlierFiles([])


def _back_up(store: Store, file: SourceFile, known: EarlierFiles, progress: Progress) -> tuple[BackedUpFile, int]:
    """Return the file's entry in the backup, and how many of its bytes are new; -1: none."""
    local = file.local
    try:
        status = os.stat(local.path)
        known_by = (status.st_dev, status.st_ino, status.st_mtime_ns)
        if (unchanged := known.find_unchanged(local.bytes, known_by)) is not None:
            progress(local.bytes)
            return BackedUpFile(file.name, unchanged.parts, known_by), NO_NEWS
        begun = known.find_shorter(local.bytes, known_by)
        if begun is not None and not _begins_with(local, begun.parts, progress):
            begun = None
    except OSError as error:
        raise BackupError(refused_tool(error, local.path)) from error
    parts, at = (begun.parts, begun.bytes) if begun is not None else ([], 0)
    left = local.bytes - at
    checksum, is_news = store.add(LocalFile(local.path, left, at), progress)
    return BackedUpFile(file.name, [*parts, FilePart(left, checksum)], known_by), left if is_news else NO_NEWS


def _begins_with(local: LocalFile, parts: list[FilePart], progress: Progress) -> bool:
    """Return True if the file begins with these parts. Raises OSError."""
    with open(local.path, "rb") as file:
        for part in parts:
            hashed, left = sha256(), part.bytes
            while left and (piece := file.read(min(PIECE_BYTES, left))):
                hashed.update(piece)
                left -= len(piece)
            if hashed.hexdigest() != part.sha256:
                return False
            progress(part.bytes)
    return True
