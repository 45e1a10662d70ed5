"""Making a backup: what no earlier one has is copied, then the manifest is written."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from contextlib import suppress

from staniel.server.backup import store as stores
from staniel.server.backup.manifest import FORMAT, BackedUpFile, BackupError, Manifest, encode, new_id
from staniel.server.backup.source import BackupSource, SourceFile
from staniel.server.backup.store import Progress, Store
from staniel.server.backup.tidy import tidy

Known = dict[tuple[int, tuple[int, int, int]], str]
"""The checksums of files of an earlier backup, by their lengths and what they are known by."""


def take(store: Store, source: BackupSource, steady_ms: Callable[[], int], progress: Progress) -> Manifest:
    """Raises BackupError: then there is no such backup, and the next one makes use of what was copied."""
    began_ms = steady_ms()
    held = source.held
    origin = f"{socket.gethostname()}:{os.path.realpath(held.spool)}"
    earlier = stores.ids(store)
    backup_id = new_id(held.made_at_ms, {*earlier, *_unfinished(store)})
    if _unfinished(store):
        with suppress(BackupError):  # a manifest that cannot be read: `staniel backup verify` tells
            tidy(store, held.made_at_ms)
    store.write(f"{stores.RUNNING}{backup_id}", b"")
    known = _known(store, earlier, origin)
    files = list[BackedUpFile]()
    copied_files = copied_bytes = 0
    for each in source.files:
        try:
            found, is_news = _back_up(store, each, known, progress)
        except BackupError:
            source.check()  # that the server is gone is the better reason
            raise
        files.append(found)
        copied_files += is_news
        copied_bytes += found.bytes if is_news else 0
    source.check()
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


def _unfinished(store: Store) -> list[str]:
    return [name.removeprefix(stores.RUNNING) for name in store.names(stores.RUNNING)]


def _known(store: Store, earlier: list[str], origin: str) -> Known:
    """The files of the newest backup of the same spool, without those whose bytes are missing: whatever has the same
    inode, length and time of change is not read again. Journals only grow, so an equal length would do.
    """
    for backup_id in reversed(earlier):
        try:
            manifest = stores.load(store, backup_id)
        except BackupError:
            continue  # `staniel backup verify` tells
        if manifest.origin == origin:
            there = stores.stored_data(store)
            whole = [each for each in manifest.files if each.sha256 in there and there[each.sha256].bytes == each.bytes]
            return {(each.bytes, each.known_by): each.sha256 for each in whole}
    return {}


def _back_up(store: Store, file: SourceFile, known: Known, progress: Progress) -> tuple[BackedUpFile, bool]:
    """The file in the backup, and whether its bytes are news."""
    try:
        status = os.stat(file.local.path)
    except OSError as error:
        raise BackupError(f"cannot read {file.local.path}: {error.strerror}") from error
    known_by = (status.st_dev, status.st_ino, status.st_mtime_ns)
    size, is_news = file.local.bytes, False
    checksum = known.get((size, known_by), "")
    if checksum:
        progress(size)
    else:
        checksum, is_news = store.add(file.local, progress)
    return BackedUpFile(file.name, size, checksum, known_by), is_news
