"""The search for the copies of transfers: the items of a segment from a given position on."""

from __future__ import annotations

from collections.abc import Iterator

from staniel.journal.disk.fs import Fs
from staniel.journal.dump import rows
from staniel.journal.errors import CorruptRecord
from staniel.journal.libkestrel.dump import LibkestrelDumper
from staniel.journal.libkestrel.files import StreamFileKind, parse
from staniel.journal.libkestrel.records import MAGIC_BYTES, SEGMENT_MAGIC
from staniel.journal.transfer_log import FilePosition
from staniel.queues.item import Item
from staniel.queues.names import parent_of


class StreamSearch:
    """The segments of `queue`'s family at the time of the search."""

    def __init__(self, fs: Fs, folder: str, queue: str) -> None:
        self.fs = fs
        self.folder = folder
        family = parent_of(queue) or queue
        names = [(parse(file_name), file_name) for file_name, regular in fs.list(folder) if regular]
        segments = [(name.number, file_name) for name, file_name in names if name.kind is StreamFileKind.SEGMENT]
        self.files = sorted((number, file_name) for number, file_name in segments if parse(file_name).queue == family)

    def position_after(self, after: int, at: int) -> FilePosition:
        """Return the position `at` bytes into the first segment with a number above `after`. A transfer notes as
        `after` the number, minus 1, of the segment that is appended to; no other segment ever gets that number.
        """
        return FilePosition(after + 1, at)

    def added_since(self, start: FilePosition) -> Iterator[tuple[FilePosition, Item]]:
        """Yield the items at `start` and later, with their positions. A segment is read up to any damage.
        Raises OSError.
        """
        for number, name in self.files:
            path = f"{self.folder}/{name}"
            if number < start.file or self.fs.read(path, 0, MAGIC_BYTES) != SEGMENT_MAGIC:
                continue
            try:
                for row in rows(self.fs, path, LibkestrelDumper(SEGMENT_MAGIC)):
                    if row.data is not None and (number > start.file or row.at >= start.at):
                        yield FilePosition(number, row.at), Item(row.data, row.added_ms or 0, row.expires_ms or 0)
            except CorruptRecord:
                continue
