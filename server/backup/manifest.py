"""The manifest of a backup: its files by name, length and checksum, and facts about the backup. Each is one JSON file
with a checksum of its own; without it the copied bytes are no backup.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from hashlib import sha256

import msgspec
from msgspec import Struct, structs

from staniel.journal.disk.quarantine import UNDECODABLE
from staniel.journal.spool_listing import may_be_in_spool

FORMAT = 1
SHA256_LETTERS = 64


class BackupError(Exception):
    """The operation failed; one line says why, and what to do."""


class CallRefused(BackupError):
    """The error after the system has refused a call on a store. The stored bytes may be sound."""


class FilePart(Struct, frozen=True, forbid_unknown_fields=True):
    """`bytes` bytes of a file, stored under their checksum."""

    bytes: int
    sha256: str


class BackedUpFile(Struct, frozen=True, forbid_unknown_fields=True):
    """A file of the spool: its parts in order, each of which was new in some backup. `known_by` is the device, the
    inode and the time of change that the file had, so that the next backup recognizes it without reading it.
    """

    name: str
    parts: list[FilePart]
    known_by: tuple[int, int, int] = (0, 0, 0)

    @property
    def bytes(self) -> int:
        return sum(part.bytes for part in self.parts)


class Manifest(Struct, frozen=True, kw_only=True):
    """A backup of the moment `made_at_ms`. `origin` is the host and the folder of the spool. `was_running`: a server
    held the files; else no server had the spool open, and `queues`, `items` and `jobs` were not counted, -1. `sync` is
    the queues' sync policy unless `other_syncs` names them. `copied_bytes` counts bytes that no earlier backup had.
    """

    format: int
    id: str
    made_at_ms: int
    took_ms: int
    version: str
    origin: str
    was_running: bool
    queues: int
    items: int
    jobs: int
    sync: str
    other_syncs: dict[str, str]
    bytes: int
    copied_files: int
    copied_bytes: int
    files: list[BackedUpFile]


def new_id(made_at_ms: int, used_ids: set[str], origin: str = "") -> str:
    """Return a name for a backup, by its time, so that names sort by age. `origin` names the spool, for stores in which
    a backup of another spool may be made in the same second without being seen.
    """
    moment = datetime.fromtimestamp(made_at_ms / 1000, UTC).strftime("%Y%m%dT%H%M%SZ")
    if origin:
        moment += f"-{sha256(origin.encode('utf-8', 'surrogateescape')).hexdigest()[:6]}"
    wanted, number = moment, 1
    while wanted in used_ids:
        number += 1
        wanted = f"{moment}-{number:02}"
    return wanted


def encode(manifest: Manifest) -> bytes:
    """Encode a manifest: a line, and its checksum. File names need not be UTF-8, so letters beyond ASCII are
    escaped.
    """
    fields = msgspec.to_builtins(structs.replace(manifest, files=[]))
    fields["files"] = [
        structs.asdict(file) | {"parts": [structs.asdict(part) for part in file.parts]} for file in manifest.files
    ]
    line = json.dumps(fields, separators=(",", ":")).encode()
    return line + b"\n" + sha256(line).hexdigest().encode() + b"\n"


def decode(data: bytes) -> Manifest:
    """Decode a manifest. Raises BackupError: it is damaged, or of another version."""
    line, _, checksum = data.partition(b"\n")
    if sha256(line).hexdigest().encode() != checksum.strip():
        raise BackupError("it is damaged: its checksum does not match")
    try:
        fields = json.loads(line)
        if isinstance(fields, dict) and fields.get("format") != FORMAT:
            raise BackupError(f"it is of format {fields.get('format')}, this program knows {FORMAT}; use a later one")
        manifest = msgspec.convert(fields, Manifest)
    except UNDECODABLE as error:
        raise BackupError(f"it cannot be read: {error}") from error
    for file in manifest.files:
        is_good = all(is_sha256(part.sha256) and part.bytes >= 0 for part in file.parts)
        if not may_be_in_spool(file.name) or not is_good:
            raise BackupError(f"it names a file that no spool has: {file.name!r}")
    return manifest


def is_sha256(text: str) -> bool:
    return len(text) == SHA256_LETTERS and set(text) <= set("0123456789abcdef")
