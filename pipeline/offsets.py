"""Places in the files of a queue that survive rotation: what the checkpoint of a stream over journals holds.

A place is a file's name, a byte, and a print of the bytes before it. A file that was rotated since has another name and
the same bytes, so the print finds it. Refuses to know Spark and formats.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from pipeline.files import GONE, Folder, Opened, Vanished
from pipeline.segments import Part, Segment

PRINT_BYTES = 256  # of the beginning, and of what stands before the place


class DataLoss(Exception):
    """Records that the stream had not read yet are gone, or may be."""


class Place(Struct, frozen=True):
    """Byte `at` of a file whose bytes before it have the print `mark`."""

    file: str
    at: int
    mark: int


def place_of(folder: Folder, segment: Segment, at: int) -> Place:
    """Raises Vanished if the file is shorter, or gone."""
    return Place(segment.file, at, mark_of(folder, segment.file, at))


def mark_of(folder: Folder, name: str, at: int) -> int:
    file = folder.open(name)
    try:
        return _mark(file, at)
    finally:
        file.close()


def find(folder: Folder, segments: list[Segment], place: Place) -> int | None:
    """Which of a queue's segments holds the place: under its old name, or renamed since. None: it is gone."""
    named = [at for at, each in enumerate(segments) if each.file == place.file]
    others = [at for at in range(len(segments)) if at not in named]
    for at in named + others:
        segment = segments[at]
        if segment.end < place.at or (place.at == 0 and at not in named):
            continue
        try:
            if mark_of(folder, segment.file, place.at) == place.mark:
                return at
        except Vanished:
            continue
    return None


def pin(folder: Folder, part: Part) -> Part:
    """The part with prints of the files that may have other names, or other bytes, when a task comes to read them: all
    whose name does not say that they are sealed. Raises Vanished."""

    def pinned(segment: Segment) -> Segment:
        return segment if segment.sealed_ms else replace(segment, mark=mark_of(folder, segment.file, segment.end))

    return _each(part, pinned)


def still_there(folder: Folder, part: Part, list_queue: Callable[[], list[Segment]]) -> Part:
    """The part with the names that its pinned files have now. Raises Vanished if the bytes are gone."""

    def now(segment: Segment) -> Segment:
        if segment.mark is None:
            return segment
        place = Place(segment.file, segment.end, segment.mark)
        if find(folder, [segment], place) is not None:
            return segment
        found = list_queue()
        at = find(folder, found, place)
        if at is None:
            raise Vanished(f"bytes {segment.begin} to {segment.end} of {segment.file} are gone: {GONE}")
        return replace(segment, file=found[at].file)

    return _each(part, now)


def _each(part: Part, change: Callable[[Segment], Segment]) -> Part:
    return Part(part.queue, [change(each) for each in part.segments])


def from_json(place: dict[str, Any]) -> Place:
    return msgspec.convert(place, Place)


def to_json(place: Place) -> dict[str, Any]:
    return {"file": place.file, "at": place.at, "mark": place.mark}


def _mark(file: Opened, at: int) -> int:
    count = min(PRINT_BYTES, at)
    head, tail = file.read(0, count), file.read(at - count, count)
    if len(head) < count or len(tail) < count:
        raise Vanished("the file became shorter")
    return zlib.crc32(tail, zlib.crc32(head))
