"""Journal files record by record, for people: rows, totals, and the loop that reads a file in pieces. Each format has
its own Dumper. Callers that only need to know whether a file can be read use `runs`, which makes no object for a
record.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol, TypeVar

from msgspec import Struct

from staniel.journal.disk.fs import Fs
from staniel.journal.errors import CorruptRecord, IncompleteRecord, TruncatedRecord

PIECE_BYTES = 1 << 20


class Row(Struct, frozen=True):
    """A record: its first byte in the file, its length, its name, its numbers and its payload. `number` identifies the
    record: an item's id, an open read's xid; None if it has none. Only records that add an item have `added_ms` and
    `expires_ms`. `more` has everything else, by name.
    """

    at: int
    size: int
    op: str
    number: int | None = None
    data: bytes | None = None
    added_ms: int | None = None
    expires_ms: int | None = None
    more: dict[str, int | list[int]] = {}


class Run(Struct, frozen=True, gc=False):
    """Whole records in a row: the first byte of the first one in the file, their length, and their number. The last one
    begins at byte `last_at` of `data`, and ends at byte `stop`.
    """

    at: int
    size: int
    records: int
    data: bytes
    last_at: int
    stop: int


class Dumper(Protocol):
    """The reader of the files of one format."""

    start: int
    """The first byte of the first record."""
    format: str

    def row(self, data: bytes, at: int, end: int, rest_bytes: int, offset: int) -> Row | None:
        """Return the record at byte `at` of `data`, which is byte `offset` of the file; None if the data ends before
        the file does. Raises IncompleteRecord if the record continues behind `data`, CorruptRecord if it is damaged.
        """

    def skip(self, data: bytes, at: int, end: int) -> tuple[int, int, int]:
        """Skip the undamaged whole records in a row from byte `at` of `data` on. Return their number, and where the
        last one begins and ends. Rare and damaged records are left to `row`. After skipping, a dumper gives later
        records wrong numbers; everything else about them is right.
        """

    def summary(self, totals: Totals) -> str:
        """Return what to report after the last record."""


class Totals(Struct):
    """The totals of the records read from one file."""

    records: int = 0
    bytes: int = 0
    items: int = 0
    item_bytes: int = 0
    first_id: int | None = None
    last_id: int | None = None

    def count(self, row: Row) -> None:
        self.records += 1
        self.bytes += row.size
        if row.data is None:
            return
        self.items += 1
        self.item_bytes += len(row.data)
        if row.number is not None:
            self.first_id = row.number if self.first_id is None else min(self.first_id, row.number)
            self.last_id = row.number if self.last_id is None else max(self.last_id, row.number)


Read = TypeVar("Read", Row, Run)


def rows(fs: Fs, path: str, dumper: Dumper) -> Iterator[Row]:
    """Yield every record of a file. Raises CorruptRecord at the first damaged one, with its byte in the file; raises
    OSError.
    """
    return _pieces(fs, path, dumper.start, dumper.row)


def runs(fs: Fs, path: str, dumper: Dumper) -> Iterator[Run]:
    """Yield the same records as `rows`, as many at a time as possible. Raises what `rows` raises."""

    def read(data: bytes, at: int, end: int, rest_bytes: int, offset: int) -> Run | None:
        count, last_at, stop = dumper.skip(data, at, end)
        if count:
            return Run(offset, stop - at, count, data, last_at, stop)
        row = dumper.row(data, at, end, rest_bytes, offset)
        return None if row is None else Run(offset, row.size, 1, data, at, at + row.size)

    return _pieces(fs, path, dumper.start, read)


def _pieces(fs: Fs, path: str, start: int, read: Callable[[bytes, int, int, int, int], Read | None]) -> Iterator[Read]:
    """Yield the results of `read` for a file from byte `start` on. The arguments of `read` are those of
    `Dumper.row`.
    """
    size = fs.size(path)
    offset, want = start, PIECE_BYTES
    while offset < size:
        piece = fs.read(path, offset, min(want, size - offset))
        at, end = 0, len(piece)
        rest_bytes = size - offset - end
        try:
            while at < end:
                record = read(piece, at, end, rest_bytes, offset + at)
                if record is None:
                    return
                yield record
                at += record.size
        except IncompleteRecord:
            if not rest_bytes:
                raise TruncatedRecord(at=offset + at) from None
        except CorruptRecord as error:
            error.at = offset + at
            raise
        offset += at
        want = PIECE_BYTES if at else 2 * want
