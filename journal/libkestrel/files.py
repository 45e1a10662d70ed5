"""The file names of a libkestrel spool: which file is what, and whose.

Knows names alone; opens nothing. Source: "Filenames" of the libkestrel journal format. Kestrel's archives are named
like segments: their first bytes tell them apart, not their names.
"""

from __future__ import annotations

import re
from enum import Enum

from msgspec import Struct

PATTERN = re.compile(r"([A-Za-z0-9:_-]+)\.(?:([0-9]{1,18})(~~[0-9]{1,19})?|read\.([^/]*))", re.DOTALL)
NAME = re.compile(r"[A-Za-z0-9:_-]+")


class StreamFileKind(Enum):
    SEGMENT = "segment"  # QUEUE.<ms>
    READER = "reader"  # QUEUE.read.<reader>, which may be empty and may hold dots
    TEMP = "temp"  # a segment with ~~<ms>, a reader's file with any ~~: unfinished, deleted at start
    FOREIGN = "foreign"


class StreamFileName(Struct, frozen=True):
    """One file name, read. `number` is a segment's <ms>, `reader` a reader file's last part."""

    kind: StreamFileKind
    queue: str = ""
    number: int = 0
    reader: str = ""


FOREIGN = StreamFileName(StreamFileKind.FOREIGN)


def parse(file_name: str) -> StreamFileName:
    """What `file_name` is."""
    match = PATTERN.fullmatch(file_name)
    if match is None:
        return FOREIGN
    queue, number, segment_temp, reader = match.groups()
    if segment_temp or "~~" in (reader or ""):
        return StreamFileName(StreamFileKind.TEMP, queue)
    if reader is None:
        return StreamFileName(StreamFileKind.SEGMENT, queue, int(number))
    return FOREIGN if "~" in reader else StreamFileName(StreamFileKind.READER, queue, 0, reader)


def segment_name(queue: str, number: int) -> str:
    return f"{queue}.{number}"


def reader_name(queue: str, reader: str) -> str:
    return f"{queue}.read.{reader}"


def temp_name(file_name: str, number: int) -> str:
    """A name beside `file_name` for what is to replace it."""
    return f"{file_name}~~{number}"


def archived_name(file_name: str) -> str:
    """What a segment that nobody reads any more is called in the archive."""
    return f"archive~{file_name}"


def name_error(name: str) -> str:
    """Why this format cannot keep a queue or reader called `name`; empty if it can."""
    if NAME.fullmatch(name):
        return ""
    return "a libkestrel journal allows only letters, digits and : _ - in a queue name"


class StreamFiles(Struct):
    """What a spool holds of one queue. `segments`: file name to number. `readers`: reader to file name."""

    queue: str
    segments: dict[str, int]
    readers: dict[str, str]
    temps: list[str]

    def names(self) -> list[str]:
        """Every file."""
        return [*self.segments, *self.readers.values(), *self.temps]

    def newest_number(self) -> int:
        return max(self.segments.values(), default=0)


def group_by_queue(entries: list[tuple[str, bool]]) -> dict[str, StreamFiles]:
    """From a folder's (name, is regular file) entries: the files of each queue that could be libkestrel's."""
    queues: dict[str, StreamFiles] = {}
    for file_name, regular in entries:
        name = parse(file_name)
        if name.kind is not StreamFileKind.FOREIGN and regular:
            _note(queues.setdefault(name.queue, StreamFiles(name.queue, {}, {}, [])), name, file_name)
    return queues


def _note(files: StreamFiles, name: StreamFileName, file_name: str) -> None:
    if name.kind is StreamFileKind.SEGMENT:
        files.segments[file_name] = name.number
    elif name.kind is StreamFileKind.READER:
        files.readers[name.reader] = file_name
    else:
        files.temps.append(file_name)
