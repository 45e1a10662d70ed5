"""The table of adapters, the detection of a folder's format, and the assignment of its files to formats.

A new format is an adapter and a line here. A spool may hold queues in Kestrel's and in libkestrel's format; each
adapter gets the files of its own format only.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable

from msgspec.structs import replace

from staniel.journal.copy_mark import has_mark
from staniel.journal.disk.os_fs import OsFs, is_named
from staniel.journal.kestrel import files as kestrel_files
from staniel.journal.kestrel.files import OWN_FOLDER, plan_path
from staniel.journal.libkestrel import files as libkestrel_files
from staniel.journal.libkestrel.records import MAGIC_BYTES, SEGMENT_MAGIC
from staniel.journal.workq.files import segment_numbers
from staniel.pipeline.formats.base import FormatAdapter, JournalSegment
from staniel.pipeline.lake.folders import Entries, FileVanished, Folder, FolderMissing, LocalFolder, folder_missing
from staniel.pipeline.lake.names import shown_name

Listing = list[tuple[str, int]]
Listed = tuple[FormatAdapter, dict[str, list[JournalSegment]]]
TRIES = 5


def _kestrel() -> FormatAdapter:
    from staniel.pipeline.formats.kestrel.adapter import KestrelAdapter

    return KestrelAdapter()


def _workq() -> FormatAdapter:
    from staniel.pipeline.formats.workq import CmdLogAdapter

    return CmdLogAdapter()


def _libkestrel() -> FormatAdapter:
    from staniel.pipeline.formats.libkestrel.adapter import LibkestrelAdapter
    from staniel.pipeline.formats.libkestrel.history import read_history

    return LibkestrelAdapter(read_history)


FORMATS: dict[str, Callable[[], FormatAdapter]] = {"kestrel": _kestrel, "libkestrel": _libkestrel, "workq": _workq}


def list_segments(folder: Folder, name: str) -> Listed:
    """Return the adapter of a named format, or of the folder's format if `name` is `auto`, and each queue's files. All
    names are in the form for tables.

    The folder is read again if a file vanishes meanwhile. Raises FolderMissing; ValueError if `auto` finds queues of
    two formats, which have different columns, and during a conversion; FileVanished if files keep vanishing.
    """
    (listed,) = _again_if_changed(
        folder, lambda listing, own: [guess(folder, listing, own) if name == "auto" else name]
    )
    return listed


def list_formats(folder: Folder, name: str) -> list[Listed]:
    """Return what `list_segments` does, but with `auto` for each format that has queues in the folder."""
    if name != "auto":
        return [list_segments(folder, name)]
    return _again_if_changed(folder, formats_in)


def queues_in(listed: Iterable[Listed]) -> dict[str, list[JournalSegment]]:
    """Return the queues of several formats."""
    return {queue: segments for _, queues in listed for queue, segments in queues.items()}


def _again_if_changed(folder: Folder, formats: Callable[[Listing, set[str]], list[str]]) -> list[Listed]:
    for _ in range(TRIES - 1):
        try:
            return _list_formats(folder, formats)
        except FolderMissing:
            raise
        except FileVanished:
            continue
    return _list_formats(folder, formats)


def _list_formats(folder: Folder, formats: Callable[[Listing, set[str]], list[str]]) -> list[Listed]:
    entries = _scan(folder)
    listing = [(entry.name, entry.size) for entry in entries]
    own = streams_of(folder, listing)
    return [_segments_of(name, entries, own) for name in formats(listing, own)]


def _scan(folder: Folder) -> Entries:
    check_converted(folder)
    entries = folder.scan()
    check_converted(folder)  # a conversion that has ended meanwhile has moved the listed files
    if not entries and not folder.exists():
        raise folder_missing(folder.url)
    return entries


def _segments_of(name: str, entries: Entries, own: set[str]) -> Listed:
    """Return a format's adapter, and its queues among the files of a folder; `own` are those of libkestrel's queues."""
    listing, ids = [(entry.name, entry.size) for entry in entries], {entry.name: entry.id for entry in entries}
    form = FORMATS[name]()
    if form.name == "libkestrel":
        listing = [file for file in listing if file[0] in own]
    elif form.name == "kestrel":
        listing = [file for file in listing if file[0] not in own]
    segments = form.queues(listing)
    return form, {
        shown_name(queue): [
            replace(part, id=ids[part.file], queue=shown_name(queue), file=shown_name(part.file)) for part in some
        ]
        for queue, some in segments.items()
    }


def check_converted(folder: Folder) -> None:
    """Refuse a folder during a conversion, with ValueError: some items would be in neither format. Refuse an unfinished
    copy, too. Raises OSError.
    """
    if isinstance(folder, LocalFolder) and has_mark(OsFs(), os.path.join(folder.path, OWN_FOLDER)):
        raise ValueError(f"{folder.url} is not complete, what was copied into it was interrupted: copy it again")
    if isinstance(folder, LocalFolder) and is_named(plan := plan_path(os.path.join(folder.path, OWN_FOLDER))):
        raise ValueError(
            f"a conversion in {folder.url} is not over, its queue's files are between two places: wait for it; if"
            f" no conversion is running, convert again or start a server, which finish it ({plan} says what is left)"
        )


def guess(folder: Folder, listing: Listing, own: set[str]) -> str:
    """Return the format of a folder. Kestrel's files have no magic: files of no other format are Kestrel's. Raises
    ValueError, see `list_segments`.
    """
    formats = formats_in(listing, own)
    if len(formats) > 1:
        raise ValueError(
            f"{folder.url} holds queues of two formats, {_kestrel_queues(listing, own)[0]} of kestrel's and others of"
            " libkestrel's: say which with option format=kestrel or format=libkestrel"
        )
    return formats[0]


def formats_in(listing: Listing, own: set[str]) -> list[str]:
    """Return the formats of the queues in a folder; Kestrel's if there are none."""
    if segment_numbers((name, True) for name, _ in listing):
        return ["workq"]
    return ["kestrel"] * bool(_kestrel_queues(listing, own) or not own) + ["libkestrel"] * bool(own)


def _kestrel_queues(listing: Listing, own: set[str]) -> list[str]:
    names, _ = kestrel_files.sort_out([(name, True) for name, _ in listing if name not in own])
    return [queue for queue, files in names.items() if not files.holds_nothing]


def streams_of(folder: Folder, listing: Listing) -> set[str]:
    """Return the files of libkestrel's queues. Kestrel's archives are named like libkestrel's segments: the first bytes
    decide, and they are read only if neither a reader's file nor a current one decides.
    """
    sizes = dict(listing)
    named, _ = kestrel_files.sort_out([(name, True) for name, _ in listing])
    own: set[str] = set()
    for queue, files in libkestrel_files.group_by_queue([(name, True) for name, _ in listing]).items():
        kestrel = named.get(queue)
        plain = kestrel is not None and (kestrel.current or bool(kestrel.packs))
        filled = [name for name in sorted(files.segments) if sizes[name]]
        if files.readers or (filled and not plain and _magic(folder, filled[0]) == SEGMENT_MAGIC):
            own |= set(files.names())
    return own


def _magic(folder: Folder, name: str) -> bytes:
    file = folder.open(name)
    try:
        return file.read(0, MAGIC_BYTES)
    finally:
        file.close()
