"""The places for backups: a folder, or a bucket of an object store. Both use the same names:

staniel-backup   marks a place for backups, and its format
backups/ID.json  a backup's manifest, written last
data/HH/SHA256   the bytes of files, under their checksum; HH are its first two digits
running/ID       an unfinished backup: in progress, or interrupted
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol

from msgspec import Struct

from staniel.server.backup.manifest import BackupError, Manifest, decode, is_sha256

MARKER, MARKER_TEXT = "staniel-backup", b"staniel-backup 1\n"
BACKUPS, DATA, RUNNING = "backups/", "data/", "running/"
Progress = Callable[[int], None]
"""A callback with the number of bytes read or written since the last call."""


class Stored(Struct, frozen=True):
    """An entry of a store. `changed_at_ms` 0: unknown."""

    bytes: int
    changed_at_ms: int = 0


class LocalFile(Struct, frozen=True):
    """`bytes` bytes of a file at `path`, from byte `at` on."""

    path: str
    bytes: int
    at: int = 0


class Store(Protocol):
    """The methods of a place for backups. All of them raise BackupError."""

    where: str
    """The store's name in messages."""
    quiet_ms: int
    """The age that unneeded data must have to be removed: another process may be about to use it."""

    def names(self, prefix: str) -> dict[str, Stored]:
        """Return all entries by name whose names begin with `prefix`."""

    def read(self, name: str) -> bytes | None:
        """Return the whole content of a small entry; None if there is none."""

    def pieces(self, name: str) -> Iterator[bytes]: ...

    def write(self, name: str, data: bytes) -> None:
        """Write a small entry as a whole. On return everything added before is durable too."""

    def add(self, file: LocalFile, progress: Progress) -> tuple[str, bool]:
        """Store a file's bytes. Return their checksum, and True if they were new. They may be durable only after the
        next `write`.
        """

    def remove(self, names: list[str]) -> None: ...

    def abort_uploads(self, before_ms: int) -> None:
        """Abort uploads begun before then, which no list shows."""

    def close(self) -> None: ...


def data_name(checksum: str) -> str:
    return f"{DATA}{checksum[:2]}/{checksum}"


def ids(store: Store) -> list[str]:
    """Return the ids of all backups, the oldest first."""
    names = [name.removeprefix(BACKUPS) for name in store.names(BACKUPS)]
    return sorted(name.removesuffix(".json") for name in names if name.endswith(".json") and "/" not in name)


def load(store: Store, backup_id: str) -> Manifest:
    """Return a backup's manifest. Raises BackupError."""
    data = store.read(f"{BACKUPS}{backup_id}.json")
    if data is None:
        raise BackupError(f"there is no backup {backup_id} in {store.where}; `staniel backup list` shows them")
    try:
        return decode(data)
    except BackupError as error:
        raise BackupError(f"backup {backup_id} in {store.where} cannot be used: {error}") from error


def stored_data(store: Store) -> dict[str, Stored]:
    """Return all stored bytes of files by checksum."""
    by_checksum = {name.rpartition("/")[2]: stored for name, stored in store.names(DATA).items()}
    return {checksum: stored for checksum, stored in by_checksum.items() if is_sha256(checksum)}


def check_marker(store: Store) -> None:
    """Check that this is a place for backups. Raises BackupError."""
    marker = store.read(MARKER)
    if marker is None:
        raise BackupError(f"{store.where} has no backups: name the place that `staniel backup` was given")
    if marker != MARKER_TEXT:
        raise BackupError(
            f"{store.where} has backups of another format, {marker[:40]!r}; use a later version of staniel"
        )


def prepare(store: Store) -> None:
    """Make the store one for backups if it is empty. Raises BackupError: it holds something else."""
    if store.read(MARKER) is None:
        if any(store.names("")):
            raise BackupError(f"{store.where} is not empty and has no backups: give a new or empty place")
        store.write(MARKER, MARKER_TEXT)
    check_marker(store)
