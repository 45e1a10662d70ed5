"""The check that all bytes of backups exist and are unchanged."""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import sha256

from msgspec import Struct

from staniel.server.backup import store as stores
from staniel.server.backup.manifest import BackupError, CallRefused, FilePart
from staniel.server.backup.store import Progress, Store, data_name


class Fault(Struct, frozen=True):
    """A flaw of a backup. `file` is a file of the spool; empty for the whole backup."""

    backup: str
    file: str
    why: str


class Checked(Struct):
    """The amount read; each piece counts once, even if several backups use it."""

    backups: int = 0
    pieces: int = 0
    bytes: int = 0


def check(store: Store, ids: list[str], total: Checked, progress: Progress) -> Iterator[Fault]:
    """Read everything that these backups need. Raises BackupError: the store, or a part of it, cannot
    be read.
    """
    there = stores.stored_data(store)
    verdicts: dict[tuple[str, int], str] = {}
    for backup_id in ids:
        total.backups += 1
        try:
            manifest = stores.load(store, backup_id)
        except CallRefused:
            raise
        except BackupError as error:
            yield Fault(backup_id, "", str(error))
            continue
        for file in manifest.files:
            for part in file.parts:
                key = part.sha256, part.bytes
                if key not in verdicts:
                    total.pieces += 1
                    total.bytes += part.bytes
                    verdicts[key] = _find_flaw(store, part, progress) if part.sha256 in there else "it is missing"
            flaws = [verdicts[part.sha256, part.bytes] for part in file.parts]
            if why := next(filter(None, flaws), ""):
                yield Fault(backup_id, file.name, why)


def _find_flaw(store: Store, part: FilePart, progress: Progress) -> str:
    """Return what is wrong with the stored bytes; "" if nothing is. Raises CallRefused."""
    hashed, size = sha256(), 0
    try:
        for piece in store.pieces(data_name(part.sha256)):
            hashed.update(piece)
            size += len(piece)
            progress(len(piece))
    except CallRefused:
        raise
    except BackupError as error:
        return str(error)
    if size != part.bytes:
        return f"{size:,} bytes, and {part.bytes:,} were copied"
    if hashed.hexdigest() == part.sha256:
        return ""
    return f"its bytes are not those that were copied: remove {data_name(part.sha256)}, and the next backup mends it"
