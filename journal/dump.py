"""Journal files record by record, for people: rows, totals, and the loop that reads a file in pieces. Each format has a
Dumper of its own. Who only wants to know whether a file can be read takes `runs`, which make no object for a record.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Protocol, TypeVar

from msgspec import Struct

from staniel.journal.disk.fs import Fs
from staniel.journal.errors import Corrupt, NeedMore, Truncated

PIECE_BYTES = 1 << 20


class Row(Struct, frozen=True):
    """A record: its first byte in the file and its length, what it is called, its numbers and its payload. `number` is
    what the record can be found by: an item's id, an open read's xid; None if it has none. `added_ms`, `expires_ms`
    only of records that add an item; `more` is everything else, by name.
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
    """Whole records that follow each other: the first byte of the first in the file, how long and how many they are.
    The last of them begins at byte `last_at` of `data`, and ends at byte `stop`.
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
        """Return the record at byte `at` of `data`, which is byte `offset` of the file; None where the data ends before
        the file does. Raises NeedMore if the record goes on behind `data`, Corrupt if it is damaged.
        """

    def skip(self, data: bytes, at: int, end: int) -> tuple[int, int, int]:
        """Skip the whole records that follow each other from byte `at` of `data` on and are as they should be. Returns
        how many they are, where the last begins, and where it ends. What is rare or damaged is left to `row`. A dumper
        that has skipped records gives those behind them the wrong numbers, and nothing else that is wrong.
        """

    def summary(self, totals: Totals) -> str:
        """Return what to say when the file is through."""


class Totals(Struct):
    """The totals of what has been seen of one file."""

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
    """Yield every record of a file. Raises Corrupt at the first that is damaged, with its byte in the file; OSError."""
    return _pieces(fs, path, dumper.start, dumper.row)


def runs(fs: Fs, path: str, dumper: Dumper) -> Iterator[Run]:
    """Yield as `rows` does, as many records at a time as there are. Raises what `rows` raises."""

    def read(data: bytes, at: int, end: int, rest_bytes: int, offset: int) -> Run | None:
        count, last_at, stop = dumper.skip(data, at, end)
        if count:
            return Run(offset, stop - at, count, data, last_at, stop)
        row = dumper.row(data, at, end, rest_bytes, offset)
        return None if row is None else Run(offset, row.size, 1, data, at, at + row.size)

    return _pieces(fs, path, dumper.start, read)


def _pieces(fs: Fs, path: str, start: int, read: Callable[[bytes, int, int, int, int], Read | None]) -> Iterator[Read]:
    """Yield what `read` makes of a file from byte `start` on; its arguments are those of `Dumper.row`."""
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
        except NeedMore:
            if not rest_bytes:
                raise Truncated(at=offset + at) from None
        except Corrupt as error:
            error.at = offset + at
            raise
        offset += at
        want = PIECE_BYTES if at else 2 * want
