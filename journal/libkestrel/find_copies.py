"""The search for the copies of transfers: the items of a segment from a given position on."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from contextlib import suppress
from operator import itemgetter

from staniel.journal.disk.fs import Fs
from staniel.journal.dump import Row, rows
from staniel.journal.errors import CorruptRecord
from staniel.journal.libkestrel.dump import LibkestrelDumper
from staniel.journal.libkestrel.files import StreamFileKind, parse
from staniel.journal.libkestrel.records import MAGIC_BYTES, SEGMENT_MAGIC
from staniel.journal.transfer_log import BY_ID, FilePosition
from staniel.queues.item import Item
from staniel.queues.names import family_of


class StreamSearch:
    """The segments of `queue`'s family at the time of the search."""

    def __init__(self, fs: Fs, folder: str, queue: str) -> None:
        self.fs = fs
        self.folder = folder
        family = family_of(queue)
        names = [(parse(file_name), file_name) for file_name, regular in fs.list(folder) if regular]
        segments = [(name.number, file_name) for name, file_name in names if name.kind is StreamFileKind.SEGMENT]
        self.files = sorted((number, file_name) for number, file_name in segments if parse(file_name).queue == family)
        self._end = FilePosition(max([0, *(number for number, _ in self.files)]) + 1, 0)
        self._ids: list[tuple[int, FilePosition]] = []
        self._ids_from: int | None = None

    def position_after(self, after: int, at: int) -> FilePosition:
        """Return the position of the first item with the id `at - BY_ID` or a higher one, in a segment with a number
        above `after`; or, as earlier versions noted it, the position `at` bytes into that segment. A transfer notes as
        `after` the number, minus 1, of a segment; no other segment ever gets that number. If `at` is 0 the target had
        no journal: no item is behind the position returned. Raises OSError.
        """
        if not at:
            return self._end
        if at < BY_ID:
            return FilePosition(after + 1, at)
        if self._ids_from is None or after + 1 < self._ids_from:
            self._read_ids(after + 1)
        index = bisect_left(self._ids, at - BY_ID, key=itemgetter(0))
        if index < len(self._ids):
            return self._ids[index][1]
        return max(self._end, FilePosition(after + 1, 0))

    def _read_ids(self, first: int) -> None:
        """Read the ids of the segments from number `first` on. What is left of an item after a power cut may have too
        low an id: it gets the one that it should have.
        """
        self._ids.clear()
        self._ids_from, last_id = first, 0
        for position, row in self._rows(first):
            last_id = max(last_id + 1, row.number or 0)
            self._ids.append((last_id, position))

    def added_since(self, start: FilePosition) -> Iterator[tuple[FilePosition, Item]]:
        """Yield the items at `start` and later, with their positions. A segment is read up to any damage.
        Raises OSError.
        """
        for position, row in self._rows(start.file):
            if position >= start:
                yield position, Item(row.data or b"", row.added_ms or 0, row.expires_ms or 0)

    def _rows(self, first: int) -> Iterator[tuple[FilePosition, Row]]:
        for number, name in self.files:
            path = f"{self.folder}/{name}"
            if number < first or self.fs.read(path, 0, MAGIC_BYTES) != SEGMENT_MAGIC:
                continue
            with suppress(CorruptRecord):
                for row in rows(self.fs, path, LibkestrelDumper(SEGMENT_MAGIC)):
                    if row.data is not None:
                        yield FilePosition(number, row.at), row
