"""The records of segments and reader files: encoding, decoding, and finding the end of a record.

Sources: "Low-level format", "Write journal" and "Read checkpoint" of the libkestrel journal format. Where that text
differs from files that the library wrote, the files are followed: the header word of a READ_DONE counts bytes, and a
zero command byte ends a file's data.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

from msgspec import Struct

from staniel.journal.errors import CorruptRecord, IncompleteRecord, TruncatedRecord
from staniel.queues.item import Item, Numbered

SEGMENT_MAGIC = b"\x27\x64\x26\x03"
READER_MAGIC = b"\x26\x3c\x26\x03"
MAGIC_BYTES = 4

PUT, PUT_EXPIRING = 0x86, 0x88
READ_HEAD, READ_DONE = 0x02, 0x91
PUT_COMMAND, READ_HEAD_COMMAND, READ_DONE_COMMAND = 8, 0, 9
DATA_FLAG = 0x80  # commands 8 to 15 carry data, and their first header word is its size

DATA_BYTES_MAX = 16 << 20
ID_MAX = 2**63 - 1
WORD_BYTES = 4

PUT_HEAD = struct.Struct("<Biiqq")
PUT_EXPIRING_HEAD = struct.Struct("<Biiqqq")
PUT_PREFIX = struct.Struct("<Bi4xq")  # command, data size and id of a PUT, at the same offsets in both its forms
READ_HEAD_RECORD = struct.Struct("<Bq")
READ_DONE_HEAD = struct.Struct("<Bi")
SIZE_WORD = struct.Struct("<i")
ID = struct.Struct("<q")
PUT_WORDS, PUT_EXPIRING_WORDS = 6, 8
LONG_AGO_MS = 1  # replaces the expiries 0 and -1, which in an Item mean never and lost


class RecordScan:
    """The base of scans that read a file piece by piece. `has_ended`: a zero command byte has ended the data."""

    def __init__(self, offset: int) -> None:
        self.offset = offset  # the byte of the file at which the next piece begins
        self.has_ended = False

    def consume(self, data: bytes, rest_bytes: int) -> int:
        """Read whole records from the start of `data`. Return how many bytes they have.

        `rest_bytes`: how many bytes of the file follow. If `data` ends inside a record, or the file's data has ended,
        the rest is not used. Raises CorruptRecord with `at` counted from the start of the file.
        """
        at, end = 0, len(data)
        try:
            while at < end and not self.has_ended:
                at = self.read_from(data, at, end, rest_bytes)
        except IncompleteRecord:
            pass
        except CorruptRecord as error:
            error.at += self.offset
            raise
        self.offset += at
        return at

    def read_from(self, data: bytes, at: int, end: int, rest_bytes: int) -> int:
        """Read one or more records from byte `at` on. Return where the next one begins, before raising IncompleteRecord
        for records that were counted: after IncompleteRecord the same bytes come again.
        """
        raise NotImplementedError


class StreamRecord(Struct, frozen=True, gc=False):
    """A record. Offsets: `at` of the command byte, `header_at` and `data_at` of its parts, `stop` of the next
    record.
    """

    at: int
    command: int
    header_at: int
    data_at: int
    stop: int

    @property
    def words(self) -> int:
        return (self.data_at - self.header_at) // WORD_BYTES

    @property
    def data_bytes(self) -> int:
        return self.stop - self.data_at


def read_record(data: bytes, at: int, end: int, rest_bytes: int) -> StreamRecord | None:
    """Return the record at byte `at` of `data`, whatever its command is; None for the zero byte that ends a file's
    data.

    `rest_bytes`: how many bytes of the file follow `data[:end]`. Raises IncompleteRecord if the record continues there,
    CorruptRecord if it is damaged: cut off by the end of the file, a data command without a size, or a size outside 0
    to 16 MiB.
    """
    command = data[at]
    if not command:
        return None
    header_at = at + 1
    data_at = stop = header_at + (command & 15) * WORD_BYTES
    if command & DATA_FLAG:
        if data_at == header_at:
            raise CorruptRecord(f"command {command >> 4} without a data size", at)
        if header_at + WORD_BYTES > end:
            return _cut_off(rest_bytes, at)
        (size,) = SIZE_WORD.unpack_from(data, header_at)
        if not 0 <= size <= DATA_BYTES_MAX:
            raise CorruptRecord(f"a data size of {size} bytes", at)
        stop += size
    if stop > end + rest_bytes:
        raise TruncatedRecord(at=at)
    if stop > end:
        raise IncompleteRecord
    return StreamRecord(at, command >> 4, header_at, data_at, stop)


def _cut_off(rest_bytes: int, at: int) -> StreamRecord | None:
    if rest_bytes:
        raise IncompleteRecord
    raise TruncatedRecord(at=at)


def encode_put(item: Item, item_id: int, errors: int = 0) -> bytes:
    """Encode a PUT: `item` was added with the id `item_id`. The format has no field for memcache flags."""
    data = item.data
    if item.expires_ms:
        head = PUT_EXPIRING_HEAD.pack(PUT_EXPIRING, len(data), errors, item_id, item.added_ms, item.expires_ms)
        return head + data
    return PUT_HEAD.pack(PUT, len(data), errors, item_id, item.added_ms) + data


def encode_read_head(head: int) -> bytes:
    """Encode READ_HEAD: `head` and every id below it are confirmed."""
    return READ_HEAD_RECORD.pack(READ_HEAD, head)


def encode_read_done(ids: Iterable[int]) -> bytes:
    """Encode READ_DONE: `ids` are confirmed as well."""
    data = b"".join(map(ID.pack, ids))
    return READ_DONE_HEAD.pack(READ_DONE, len(data)) + data


def decode_item(data: bytes, record: StreamRecord) -> Numbered:
    """Return the item of a PUT that `decode_put_id` has validated."""
    _, errors, item_id, added_ms = struct.unpack_from("<iiqq", data, record.header_at)
    expires_ms = 0
    if record.words == PUT_EXPIRING_WORDS:
        (expires_ms,) = ID.unpack_from(data, record.header_at + 24)
        if -1 <= expires_ms <= 0:
            expires_ms = LONG_AGO_MS
    return Numbered(data[record.data_at : record.stop], added_ms, expires_ms, 0, item_id, errors)


def decode_put_id(data: bytes, record: StreamRecord) -> int:
    """Return the id of a PUT. Raises CorruptRecord unless its header has 6 or 8 words and the id is positive."""
    if record.words not in (PUT_WORDS, PUT_EXPIRING_WORDS):
        raise CorruptRecord(f"a PUT with {record.words} header words", record.at)
    (item_id,) = ID.unpack_from(data, record.header_at + 8)
    if item_id <= 0:
        raise CorruptRecord(f"a PUT with the id {item_id}", record.at)
    return int(item_id)


def decode_read_head(data: bytes, record: StreamRecord) -> int:
    """Return the id of a READ_HEAD. Raises CorruptRecord unless its header has 2 words."""
    if record.words != 2:
        raise CorruptRecord(f"a READ_HEAD with {record.words} header words", record.at)
    return int(ID.unpack_from(data, record.header_at)[0])


def decode_read_done(data: bytes, record: StreamRecord) -> tuple[int, ...]:
    """Return the ids of a READ_DONE. Raises CorruptRecord unless its header has 1 word and its data is a sequence of
    ids.
    """
    if record.words != 1:
        raise CorruptRecord(f"a READ_DONE with {record.words} header words", record.at)
    if record.data_bytes % ID.size:
        raise CorruptRecord(f"a READ_DONE of {record.data_bytes} bytes", record.at)
    return struct.unpack_from(f"<{record.data_bytes // ID.size}q", data, record.data_at)
