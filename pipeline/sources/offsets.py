"""Offsets in a queue's files that stay valid over rotation, for the checkpoints of streams over journals; and folders
that show each task the files that the query was planned with.

An offset is a byte of a file. The file is identified by its `id` if the file system has ids. In object stores, a
fingerprint of the bytes before the offset identifies it, if these contain anything that no other file of the queue has
at the same position, such as the time of an item; files that begin with plain removals may be indistinguishable.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from staniel.pipeline.formats.base import FormatAdapter, JournalSegment, Part
from staniel.pipeline.lake.folders import (
    GONE,
    Entries,
    FileVanished,
    Folder,
    FolderMissing,
    OpenFile,
    folder_missing,
    task_host,
)

PRINT_BYTES = 256  # of the file's beginning, and of the bytes before the offset
WIDE_PRINT_BYTES = 64 << 10  # the same for a file without an id


class DataLoss(Exception):
    """Records that the stream had not read are gone, or may be."""


class FileOffset(Struct, frozen=True, rename={"as_of": "asOf", "last_id": "lastId"}):
    """The byte `at` of a file whose bytes before it have the fingerprint `mark`. `as_of`, `last_id`: see BatchEnd; -1:
    unknown.
    """

    file: str
    at: int
    mark: int = 0
    id: str = ""
    as_of: int = -1
    last_id: int = 0


def offset_in(folder: Folder, segment: JournalSegment, at: int, as_of: int = -1, last_id: int = 0) -> FileOffset:
    """Return the offset at a byte of a file. Raises FileVanished if the file is shorter, gone, or another one."""
    file = folder.open(segment.file)
    try:
        mark = _mark(file, at, PRINT_BYTES if segment.id else WIDE_PRINT_BYTES)
        return FileOffset(segment.file, at, mark, segment.id, as_of, last_id)
    finally:
        file.close()


def segment_of(
    folder: Folder, form: FormatAdapter, segments: list[JournalSegment], place: FileOffset, is_fresh: bool = False
) -> int | None:
    """Return which of a queue's segments holds the offset, under its old name or renamed; None if it is gone.
    `is_fresh`: the offset is the end of a batch about to be read, so a file of that name is still the same.
    """
    for at in sorted(range(len(segments)), key=lambda at: segments[at].file != place.file):
        segment = segments[at]
        if segment.end < place.at or (place.id and segment.id and place.id != segment.id):
            continue
        try:
            file = folder.open(segment.file)
        except FileVanished:
            continue
        try:
            if segment.id and place.id:
                if _mark(file, place.at) == place.mark:
                    return at
            elif _is_known(form, file, segment, place, is_fresh):
                return at
        except FileVanished:
            continue
        finally:
            file.close()
    return None


def _is_known(form: FormatAdapter, file: OpenFile, segment: JournalSegment, place: FileOffset, is_fresh: bool) -> bool:
    """Return True if a file's bytes identify it: they match, and its name or the bytes themselves rule out others."""
    is_named = segment.file == place.file and (is_fresh or bool(segment.sealed_ms))
    for width in (WIDE_PRINT_BYTES, PRINT_BYTES):  # places of earlier versions have narrow prints
        if _mark(file, place.at, width) == place.mark:
            return is_named or form.tells(file.read(0, min(width, place.at)))
    return False


def pin(folder: Folder, part: Part) -> Part:
    """Return the part with fingerprints of the files whose bytes may differ when a task reads them: all without an id,
    and all whose names do not mark them as sealed. Raises FileVanished.
    """

    def pinned(segment: JournalSegment) -> JournalSegment:
        if segment.id and segment.sealed_ms:
            return segment
        return replace(segment, mark=offset_in(folder, segment, segment.end).mark)

    fates = None if part.fates is None else [pinned(fate) for fate in part.fates]
    return replace(part, segments=[pinned(segment) for segment in part.segments], fates=fates)


class PinnedFolder:
    """A folder in which certain files are those that a query was planned with, under any present name."""

    def __init__(self, inner: Folder, form: FormatAdapter, segments: Iterable[JournalSegment]) -> None:
        self.inner, self.url = inner, inner.url
        self._form = form
        self._pinned = {segment.file: segment for segment in segments if segment.id or segment.mark is not None}
        self._names: dict[str, str] = {}

    def list(self) -> list[tuple[str, int]]:
        return self.inner.list()

    def scan(self) -> Entries:
        return self.inner.scan()

    def size(self, name: str) -> int:
        return self.inner.size(name)

    def exists(self) -> bool:
        return self.inner.exists()

    def open(self, name: str) -> OpenFile:
        """Open a file. Raises FileVanished also if it has become another one."""
        pinned = self._pinned.get(name)
        if pinned is None:
            return self.inner.open(name)
        file = self._open(self._names.get(name, name), pinned)
        entries = self.inner.scan() if file is None else []
        for entry in entries:
            if entry.id == pinned.id if pinned.id else entry.name.startswith(f"{pinned.queue}."):
                file = file or self._open(entry.name, pinned)
                self._names[name] = entry.name
        if file is None and not entries and task_host():
            raise folder_missing(self.url, "are no files in")  # as below a mount that failed
        if file is None:
            raise FileVanished(f"bytes {pinned.begin} to {pinned.end} of {name} are gone: {GONE}")
        return file

    def _open(self, name: str, pinned: JournalSegment) -> OpenFile | None:
        """Return the file of this name if it is the planned one."""
        try:
            file = self.inner.open(name)
        except FolderMissing:
            raise
        except FileVanished:
            return None
        try:
            if file.id == pinned.id and self._is_alike(file, name, pinned):
                return file
        except FileVanished:
            pass
        file.close()
        return None

    def _is_alike(self, file: OpenFile, name: str, pinned: JournalSegment) -> bool:
        if pinned.mark is None:
            return True
        if pinned.id:
            return _mark(file, pinned.end) == pinned.mark
        place = FileOffset(pinned.file, pinned.end, pinned.mark)
        return _is_known(self._form, file, replace(pinned, file=name), place, True)

    def write(self, name: str, data: bytes) -> None:
        self.inner.write(name, data)

    def remove(self, name: str) -> None:
        self.inner.remove(name)


def pinned_to(folder: Folder, form: FormatAdapter, segments: Iterable[JournalSegment]) -> Folder:
    """Return the folder pinned to these segments, for a query over them."""
    return PinnedFolder(folder, form, segments)


def from_json(place: str | dict[str, Any]) -> FileOffset:
    """Return an offset of a checkpoint: a text, or an object as in options and in checkpoints of earlier versions.
    Raises ValueError.
    """
    if isinstance(place, str):
        try:
            at, mark, id, as_of, last_id, file = place.split(" ", 5)
            return FileOffset(file, int(at), int(mark, 16), "" if id == "-" else id, int(as_of), int(last_id))
        except ValueError:
            raise ValueError(f"{place!r} is no offset of a checkpoint") from None
    return msgspec.convert(place, FileOffset)


def to_json(place: FileOffset) -> str:
    """Return an offset for a checkpoint. Spark sends those of all queues to and fro with every poll, and a text takes a
    fifth of the time of an object.
    """
    return f"{place.at} {place.mark:x} {place.id or '-'} {place.as_of} {place.last_id} {place.file}"


def _mark(file: OpenFile, at: int, width: int = PRINT_BYTES) -> int:
    count = min(width, at)
    head, tail = file.read(0, count), file.read(at - count, count)
    if len(head) < count or len(tail) < count:
        raise FileVanished("the file became shorter")
    return zlib.crc32(tail, zlib.crc32(head))
