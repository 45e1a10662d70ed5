"""Which queues a spool folder holds, and in which format each is kept, by names and the first bytes of files.

Kestrel's archives and libkestrel's segments have the same names, but a segment begins with a magic number that no
Kestrel record begins with.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from staniel.journal.disk.fs import Fs
from staniel.journal.kestrel import files as kestrel_files
from staniel.journal.kestrel.files import Files
from staniel.journal.libkestrel import files as libkestrel_files
from staniel.journal.libkestrel.records import MAGIC_BYTES, SEGMENT_MAGIC
from staniel.queues.names import parent_of

MIXED = "it has files of both journal formats; move those of one away, or finish `staniel journal convert`"


class SpoolListing(Struct):
    """By queue: Kestrel's files, libkestrel's files, and why a queue cannot be served. `foreign` is left alone."""

    kestrel: dict[str, Files]
    streams: dict[str, libkestrel_files.StreamFiles]
    mixed: dict[str, str]
    foreign: list[str]


def list_spool(fs: Fs, folder: str, held: Mapping[str, str] | None = None) -> SpoolListing:
    """One listing. `held`: queues, fan-out parents, of which nothing is served, and why. Raises OSError."""
    entries = fs.list(folder)
    kestrel, foreign = kestrel_files.sort_out(entries)
    streams = {
        name: files for name, files in libkestrel_files.group_by_queue(entries).items() if _is_stream(fs, folder, files)
    }
    mixed: dict[str, str] = {}
    for name, files in streams.items():
        if name in kestrel:
            if kestrel[name].current or kestrel[name].packs:
                mixed[name] = MIXED
            del kestrel[name]
        known = set(files.names())
        foreign = [file_name for file_name in foreign if file_name not in known]
    for name in [name for name in kestrel if parent_of(name) in streams]:
        mixed[name] = mixed[parent_of(name)] = MIXED
        del kestrel[name]
    for family, why in (held or {}).items():
        for name in [name for name in {family, *kestrel, *streams} if (parent_of(name) or name) == family]:
            mixed[name] = why
            kestrel.pop(name, None)
    return SpoolListing(kestrel, {name: files for name, files in streams.items() if name not in mixed}, mixed, foreign)


def _is_stream(fs: Fs, folder: str, files: libkestrel_files.StreamFiles) -> bool:
    """Whether the files are libkestrel's: one is called like a reader's, or begins like a segment."""
    if files.readers:
        return True
    return any(first_bytes(fs, f"{folder}/{name}") == SEGMENT_MAGIC for name in files.segments)


def first_bytes(fs: Fs, path: str) -> bytes:
    """As many as a magic has; none if they cannot be read, which is told when the file's turn comes."""
    try:
        return fs.read(path, 0, MAGIC_BYTES)
    except OSError:
        return b""
