"""The format of the redo log: its bytes and what they mean.

The log is two files of preallocated, zero-written blocks, `.staniel/redo.0` and `.staniel/redo.1`, its segments. Each
is a row of batches that begin at multiples of BLOCK_BYTES, from its first byte on; batches are numbered, over both
segments, without gaps. Numbers are little-endian.

    batch   8   "STNREDO1"; another digit is another version
            4   crc32c of all that follows in the batch
            4   bytes of records
            8   number of the batch
            8   oldest: no batch before this one is needed any more
            8   synced: each batch up to this one was on the disk when this one was written
            16  the spool's id, as in `.staniel/version`
            16  the boot id of the machine, zeros if it has none
            records, then zeros up to the next multiple of BLOCK_BYTES

    record  1   kind
            4   number of a file, in the order of BIND records
        BIND    8  bytes of the file that are known to be on the disk; 2 length of its path; the path below the spool
        DATA    8  at; 8 bytes known to be on the disk; 4 length; the bytes that were written there
        EXTENT  8  at; 8 bytes known to be on the disk; 4 length; 4 crc32c of the bytes that were written there
        DONE       what the log says of this file does not hold any more: it is safe, and its name may be another's
        SAFE    8  bytes of the file that are known to be on the disk
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import Enum
from functools import cache
from struct import Struct as Layout
from struct import error as LayoutError

from msgspec import Struct

MAGIC = b"STNREDO1"
BLOCK_BYTES = 4096
ID_BYTES = 16

HEAD = Layout("<8sIIQQQ16s16s")
_TAIL = Layout("<IQQQ16s16s")  # the part of the head that the checksum covers
CHECKED_AT = 12
BIND = Layout("<BIQH")
DATA = Layout("<BIQQI")
EXTENT = Layout("<BIQQII")
DONE = Layout("<BI")
SAFE = Layout("<BIQ")
FILES_MAX = 2**32 - 1  # file numbers have 32 bits
FIRST_FILE = 1
FIRST_BATCH = 1  # the first number of each log; no log is ever written 2**64 times
pack_data_head = DATA.pack  # called for every write; a function around it would take three times as long
"""The packer of the bytes before the data: DATA_KIND, the file's number, at, durable bytes, length."""


class RedoKind(Enum):
    BIND = 1
    DATA = 2
    EXTENT = 3
    DONE = 4
    SAFE = 5


BIND_KIND, DATA_KIND, EXTENT_KIND, DONE_KIND, SAFE_KIND = (kind.value for kind in RedoKind)

PlainRecord = tuple[int, int, int, int, int, int, int]
"""A record's kind as a number, file, at, safe_bytes, length and crc, as in RedoRecord; and where its data or its path
begins in the batch, 0 if it has none.
"""


class BatchHead(Struct, frozen=True):
    """The head of a batch. `number`, `oldest` and `synced` count batches; `records_bytes` is the size of its
    records.
    """

    records_bytes: int
    number: int
    oldest: int
    synced: int
    spool_id: bytes
    boot_id: bytes


class RedoRecord(Struct, frozen=True):
    """A record. `at`: for BIND and SAFE, the bytes known to be safe. `data`: DATA's, as a part of the batch, or a
    path.
    """

    kind: RedoKind
    file: int
    at: int = 0
    safe_bytes: int = 0
    length: int = 0
    crc: int = 0
    data: memoryview | bytes = b""


class BadBatch(Exception):
    """The error for a batch with a right checksum that cannot be decoded."""


@cache
def _checksums() -> tuple[Callable[[int, bytes], int], Callable[[bytes], int]]:
    from google_crc32c import extend, value  # imported here: a server without a log does not load it

    return extend, value


def crc_of(data: bytes) -> int:
    """Return the crc32c of `data`."""
    return _checksums()[1](data)


def blocks(size: int) -> int:
    """Return `size` rounded up to the end of its last block, in bytes."""
    return -(-size // BLOCK_BYTES) * BLOCK_BYTES


def batch_bytes(records_bytes: int) -> int:
    """Return the size in the log of a batch with so many bytes of records."""
    return blocks(HEAD.size + records_bytes)


def encode_batch(head: BatchHead, records: bytes) -> bytes:
    """Encode a whole batch, with the zeros after it."""
    tail = _TAIL.pack(head.records_bytes, head.number, head.oldest, head.synced, head.spool_id, head.boot_id)
    extend, value = _checksums()
    crc = extend(value(tail), records)
    size = HEAD.size + len(records)
    return b"".join((MAGIC, crc.to_bytes(4, "little"), tail, records, bytes(blocks(size) - size)))


def decode_head(data: bytes | memoryview) -> BatchHead | None:
    """Return the head of a batch of this version; None if there is none. The checksum is not verified."""
    if len(data) < HEAD.size:
        return None
    magic, _, size, number, oldest, synced, spool_id, boot_id = HEAD.unpack_from(data)
    return BatchHead(size, number, oldest, synced, spool_id, boot_id) if magic == MAGIC else None


def other_version(data: bytes | memoryview) -> str:
    """Return the version of a log of another version; "" if the data is no log, or one of this version."""
    magic = bytes(data[: len(MAGIC)])
    version = magic[-1:]
    # Without a digit, the write of this magic was cut short.
    return version.decode() if magic != MAGIC and magic[:-1] == MAGIC[:-1] and version.isdigit() else ""


def is_whole(data: bytes | memoryview, head: BatchHead) -> bool:
    """Tell whether the batch at the beginning of `data` is whole and unchanged."""
    end = HEAD.size + head.records_bytes
    if len(data) < end:
        return False
    return crc_of(bytes(data[CHECKED_AT:end])) == int.from_bytes(data[8:CHECKED_AT], "little")


def bind(file: int, safe_bytes: int, path: str) -> bytes:
    raw = path.encode("utf-8", "surrogateescape")
    return BIND.pack(1, file, safe_bytes, len(raw)) + raw


def encode_extent(file: int, at: int, safe_bytes: int, data: bytes) -> bytes:
    return EXTENT.pack(3, file, at, safe_bytes, len(data), crc_of(data))


def encode_done(file: int) -> bytes:
    return DONE.pack(4, file)


def encode_safe(file: int, safe_bytes: int) -> bytes:
    return SAFE.pack(5, file, safe_bytes)


def is_below(path: str) -> bool:
    """Tell whether `path` has the form of the log's paths within the spool: relative, and made of plain names."""
    return "\0" not in path and not {"", ".", ".."} & {*path.split("/")}


def decode(records: memoryview) -> Iterator[RedoRecord]:
    """Yield the records of a batch. Raises BadBatch."""
    for kind, file, at, safe_bytes, length, crc, begin in decode_plain(records):
        data = records[begin : begin + length] if begin else b""
        if kind == BIND_KIND:
            yield RedoRecord(RedoKind.BIND, file, at, data=bytes(data))
        else:
            yield RedoRecord(RedoKind(kind), file, at, safe_bytes, length, crc, data)


def decode_plain(records: memoryview) -> Iterator[PlainRecord]:
    """Yield the records of a batch as tuples, because a full log has so many of them. Raises BadBatch."""
    at, end = 0, len(records)
    unpack_data, data_bytes = DATA.unpack_from, DATA.size
    try:
        while at < end:
            kind = records[at]
            if kind == DATA_KIND:
                _, file, where, safe_bytes, length = unpack_data(records, at)
                begin = at + data_bytes
                record = kind, file, where, safe_bytes, length, 0, begin
                at = begin + length
            else:
                record, at = _decode_other(kind, records, at)
            if at > end:
                raise BadBatch("a record reaches beyond its batch")
            yield record
    except (ValueError, LayoutError) as error:
        raise BadBatch(str(error)) from error


def _decode_other(kind: int, records: memoryview, at: int) -> tuple[PlainRecord, int]:
    """Return a record of any kind except DATA, and where the next one begins. Raises ValueError, LayoutError."""
    if kind == EXTENT_KIND:
        _, file, where, safe_bytes, length, crc = EXTENT.unpack_from(records, at)
        return (kind, file, where, safe_bytes, length, crc, 0), at + EXTENT.size
    if kind == BIND_KIND:
        _, file, safe_bytes, length = BIND.unpack_from(records, at)
        begin = at + BIND.size
        return (kind, file, safe_bytes, 0, length, 0, begin), begin + length
    if kind == DONE_KIND:
        return (kind, DONE.unpack_from(records, at)[1], 0, 0, 0, 0, 0), at + DONE.size
    if kind == SAFE_KIND:
        _, file, safe_bytes = SAFE.unpack_from(records, at)
        return (kind, file, safe_bytes, 0, 0, 0, 0), at + SAFE.size
    raise BadBatch(f"a record of the unknown kind {kind}")
