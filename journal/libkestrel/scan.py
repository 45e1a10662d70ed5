"""A scan of one segment: its ids, and offsets for finding them again.

Bytes come in pieces. Runs of consecutive PUTs are counted without building items. Source: "Write journal" of the
libkestrel journal format.
"""

from __future__ import annotations

import struct

from msgspec import Struct

from staniel.journal.libkestrel.put_record import size_of_puts
from staniel.journal.libkestrel.records import (
    PUT,
    PUT_COMMAND,
    PUT_EXPIRING,
    PUT_EXPIRING_HEAD,
    PUT_EXPIRING_WORDS,
    PUT_HEAD,
    PUT_PREFIX,
    RecordScan,
    decode_put_id,
    read_record,
)

# A mark is set after this many items or bytes. A look-up reads at most this much and one record.
MARK_ITEMS = 512
MARK_BYTES = 256 << 10
Records = list[bytes]
STEP_ITEMS = 64  # written records that are indexed together


class ScanMark(Struct, gc=False):
    """The item at byte `offset` of the segment. `index` items precede it in its run, with `bytes` bytes of data;
    `expiring` of them have an expiry.
    """

    index: int
    offset: int
    bytes: int
    expiring: int


class IdRun(Struct):
    """Items of one segment with consecutive ids. `stop`: the byte after the last item."""

    segment: str
    first_id: int
    marks: list[ScanMark]
    count: int = 0
    bytes: int = 0
    expiring: int = 0
    stop: int = 0

    @property
    def next_id(self) -> int:
        return self.first_id + self.count

    @property
    def last_id(self) -> int:
        return self.first_id + self.count - 1

    def add(self, offset: int, stop: int, data_bytes: int, expiring: bool) -> None:
        """Count one more item, whose record has the bytes `offset` to `stop`."""
        mark = self.marks[-1] if self.marks else None
        if mark is None or self.count - mark.index >= MARK_ITEMS or offset - mark.offset >= MARK_BYTES:
            self.marks.append(ScanMark(self.count, offset, self.bytes, self.expiring))
        self.count += 1
        self.bytes += data_bytes
        self.expiring += expiring
        self.stop = stop

    def extend(self, offset: int, records: Records) -> None:
        """Count consecutive PUT records from byte `offset` on."""
        for at in range(0, len(records), STEP_ITEMS):
            step = records[at : at + STEP_ITEMS]
            size = size_of_puts(step)
            if not 0 <= size <= MARK_BYTES:
                for record in step:
                    expiring = record[0] == PUT_EXPIRING
                    head_bytes = PUT_EXPIRING_HEAD.size if expiring else PUT_HEAD.size
                    self.add(offset, offset + len(record), len(record) - head_bytes, expiring)
                    offset += len(record)
                continue
            self.add(offset, offset + len(step[0]), len(step[0]) - PUT_HEAD.size, False)
            self.count += len(step) - 1
            self.bytes += size - len(step[0]) - (len(step) - 1) * PUT_HEAD.size
            offset += size
            self.stop = offset


class SegmentScan(RecordScan):
    """The scan of one segment. `runs`: its runs of ids in file order."""

    def __init__(self, segment: str, offset: int) -> None:
        super().__init__(offset)
        self.segment = segment
        self.runs: list[IdRun] = []
        self.unknown_records = 0

    def read_from(self, data: bytes, at: int, end: int, rest_bytes: int) -> int:
        if self.runs and (stop := self._follow(self.runs[-1], data, at, end)) > at:
            return stop
        return self._read_one(data, at, end, rest_bytes)

    def _follow(self, run: IdRun, data: bytes, at: int, end: int) -> int:
        """Skip PUTs with consecutive ids, at most to where the next mark is due."""
        mark = run.marks[-1]
        limit = min(end, mark.offset - self.offset + MARK_BYTES)
        expected, total, expiring = run.next_id, run.bytes, run.expiring
        unpack = PUT_PREFIX.unpack_from
        try:
            for _ in range(mark.index + MARK_ITEMS - run.count):
                command, size, item_id = unpack(data, at)
                if command == PUT:
                    stop = at + 25 + size
                elif command == PUT_EXPIRING:
                    stop = at + 33 + size
                else:
                    break
                if item_id != expected or size < 0 or stop > limit:
                    break
                if command != PUT:
                    expiring += 1
                total += size
                expected += 1
                at = stop
        except struct.error:
            pass  # too few bytes for another prefix
        run.count, run.bytes, run.expiring = expected - run.first_id, total, expiring
        run.stop = self.offset + at
        return at

    def _read_one(self, data: bytes, at: int, end: int, rest_bytes: int) -> int:
        record = read_record(data, at, end, rest_bytes)
        if record is None:
            self.has_ended = True
            return at
        if record.command != PUT_COMMAND:
            self.unknown_records += 1
            return record.stop
        item_id = decode_put_id(data, record)
        if not self.runs or self.runs[-1].next_id != item_id:
            self.runs.append(IdRun(self.segment, item_id, []))
        expiring = record.words == PUT_EXPIRING_WORDS
        self.runs[-1].add(self.offset + at, self.offset + record.stop, record.data_bytes, expiring)
        return record.stop


assert (PUT_HEAD.size, PUT_EXPIRING_HEAD.size) == (25, 33)
