"""The search for the copies of transfers: items that were added after a position of a journal, without a replay."""

from __future__ import annotations

from collections.abc import Iterator

from staniel.journal.disk.fs import Fs
from staniel.journal.errors import CorruptRecord
from staniel.journal.kestrel import files as kestrel_files
from staniel.journal.kestrel.files import Kind
from staniel.journal.kestrel.records import ADDX, FIXED_BYTES, decode
from staniel.journal.transfer_log import FilePosition
from staniel.queues.item import Item

CURRENT = 10**255
"""The number that stands for the current file. A file name is shorter than 255 digits, so no archive has this
number.
"""


class Search:
    """The files of one queue at the time of the search."""

    def __init__(self, fs: Fs, folder: str, queue: str) -> None:
        self.fs = fs
        self.folder = folder
        self.files = sorted(_numbered(fs.list(folder), queue))

    def position_after(self, after: int, at: int) -> FilePosition:
        """Return byte `at` of the first file with a number above `after`."""
        return FilePosition(next((number for number, _ in self.files if number > after), CURRENT), at)

    def added_since(self, start: FilePosition) -> Iterator[tuple[FilePosition, Item]]:
        """Yield the items that ADDX records added from `start` onwards, with their positions.

        After its start this program writes only ADDX and records of fixed length, so only these are read. Any other
        record ends the search of its file.
        """
        for number, name in self.files:
            if number < start.file:
                continue
            begin = start.at if number == start.file else 0
            path = f"{self.folder}/{name}"
            data = self.fs.read(path, begin, max(0, self.fs.size(path) - begin))
            for at, item in _added(data):
                yield FilePosition(number, begin + at), item


def _numbered(entries: list[tuple[str, bool]], queue: str) -> Iterator[tuple[int, str]]:
    for file_name, regular in entries:
        name = kestrel_files.parse(file_name)
        if name.queue == queue and regular and name.kind in (Kind.ARCHIVE, Kind.CURRENT):
            yield (name.number if name.kind is Kind.ARCHIVE else CURRENT), file_name


def _added(data: bytes) -> Iterator[tuple[int, Item]]:
    at = 0
    while at < len(data):
        op = data[at]
        try:
            record = decode(data, at, len(data), 0)
        except CorruptRecord:
            return
        if op == ADDX:
            yield at, Item(record.payload(data), record.added_ms, record.expires_ms)
        elif op not in FIXED_BYTES:
            return
        at = record.stop
