"""The file names of a libkestrel spool.

Source: "Filenames" of the libkestrel journal format. Kestrel's archives have names like segments; only their first
bytes distinguish them.
"""

from __future__ import annotations

import re
from enum import Enum

from msgspec import Struct

from staniel.queues.names import FILE_NAME_MAX

# Any number of digits: the next segment's number is one above the largest, however large that is.
PATTERN = re.compile(r"([A-Za-z0-9:_-]+)\.(?:([0-9]+)(~~[0-9]+)?|read\.([^/]*))", re.DOTALL)
NAME = re.compile(r"[A-Za-z0-9:_-]+")
DEFAULT_READER = ""


class StreamFileKind(Enum):
    SEGMENT = "segment"  # QUEUE.<ms>
    READER = "reader"  # QUEUE.read.<reader>, where the reader may be empty or contain dots
    TEMP = "temp"  # a segment with ~~<ms>, a reader's file with any ~~: unfinished, deleted at start
    FOREIGN = "foreign"


class StreamFileName(Struct, frozen=True):
    """A parsed file name. `number`: <ms> of a segment; `reader`: the last part of a reader file's name."""

    kind: StreamFileKind
    queue: str = ""
    number: int = 0
    reader: str = ""


FOREIGN = StreamFileName(StreamFileKind.FOREIGN)


def parse(file_name: str) -> StreamFileName:
    """Parse a file name. Return FOREIGN if it is not a name of this format."""
    match = PATTERN.fullmatch(file_name) if len(file_name) <= FILE_NAME_MAX else None
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


def queue_of_reader(queue: str, reader: str) -> str:
    """Return the name of the queue of a reader of the family `queue`."""
    return queue if reader in (DEFAULT_READER, queue) else f"{queue}+{reader}"


def temp_name(file_name: str, number: int) -> str:
    """Return the name of an unfinished replacement of `file_name`."""
    return f"{file_name}~~{number}"


def archived_name(file_name: str) -> str:
    """Return the name in the archive folder of a segment that every reader has passed."""
    return f"archive~{file_name}"


def name_error(name: str) -> str:
    """Return why `name` cannot be a queue or reader in this format; "" if it can."""
    if NAME.fullmatch(name):
        return ""
    return "a libkestrel journal allows only letters, digits and : _ - in a queue name"


class StreamFiles(Struct):
    """The files of one family. `segments`: file name to number. `readers`: reader to file name."""

    queue: str
    segments: dict[str, int]
    readers: dict[str, str]
    temps: list[str]

    def names(self) -> list[str]:
        """Return the names of all files."""
        return [*self.segments, *self.readers.values(), *self.temps]

    def newest_number(self) -> int:
        return max(self.segments.values(), default=0)


def group_by_queue(entries: list[tuple[str, bool]]) -> dict[str, StreamFiles]:
    """Return by queue the files whose names fit this format, from a folder's (name, is a regular file) entries."""
    queues: dict[str, StreamFiles] = {}
    for file_name, regular in entries:
        name = parse(file_name)
        if name.kind is not StreamFileKind.FOREIGN and regular:
            _add(queues.setdefault(name.queue, StreamFiles(name.queue, {}, {}, [])), name, file_name)
    return queues


def _add(files: StreamFiles, name: StreamFileName, file_name: str) -> None:
    if name.kind is StreamFileKind.SEGMENT:
        files.segments[file_name] = name.number
    elif name.kind is StreamFileKind.READER:
        files.readers[name.reader] = file_name
    else:
        files.temps.append(file_name)
