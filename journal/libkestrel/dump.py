"""The rows that `staniel journal dump` shows of a segment or reader file.

Source: "Low-level format" of the libkestrel journal format; the row names are those of the library's own dumper.
"""

from __future__ import annotations

from staniel.journal.dump import Row, Totals
from staniel.journal.libkestrel.records import (
    DATA_BYTES_MAX,
    MAGIC_BYTES,
    PUT,
    PUT_COMMAND,
    PUT_EXPIRING,
    PUT_EXPIRING_HEAD,
    PUT_EXPIRING_WORDS,
    PUT_HEAD,
    PUT_PREFIX,
    READ_DONE_COMMAND,
    READ_HEAD_COMMAND,
    READER_MAGIC,
    SEGMENT_MAGIC,
    decode_item,
    decode_put_id,
    decode_read_done,
    decode_read_head,
    read_record,
)

PUT_HEAD_BYTES = {PUT: PUT_HEAD.size, PUT_EXPIRING: PUT_EXPIRING_HEAD.size}


class LibkestrelDumper:
    """The reader of the records of one file. `magic`: its first bytes, which say which kind of file it is."""

    format = "libkestrel"
    start = MAGIC_BYTES

    def __init__(self, magic: bytes) -> None:
        assert magic in (SEGMENT_MAGIC, READER_MAGIC)
        self.of_reader = magic == READER_MAGIC

    def row(self, data: bytes, at: int, end: int, rest_bytes: int, offset: int) -> Row | None:
        record = read_record(data, at, end, rest_bytes)
        if record is None:
            return None
        size = record.stop - at
        if record.command == PUT_COMMAND and not self.of_reader:
            decode_put_id(data, record)
            item = decode_item(data, record)
            expires_ms = item.expires_ms if record.words == PUT_EXPIRING_WORDS else None
            more: dict[str, int | list[int]] = {"errors": item.errors} if item.errors else {}
            return Row(offset, size, "PUT", item.id, item.data, item.added_ms, expires_ms, more)
        if record.command == READ_HEAD_COMMAND and self.of_reader:
            return Row(offset, size, "HEAD", decode_read_head(data, record))
        if record.command == READ_DONE_COMMAND and self.of_reader:
            return Row(offset, size, "DONE", more={"ids": sorted(decode_read_done(data, record))})
        return Row(offset, size, "Unknown", more={"command": record.command})

    def skip(self, data: bytes, at: int, end: int) -> tuple[int, int, int]:
        """Skip PUT records."""
        count, last_at, last_head_at = 0, at, end - PUT_HEAD.size
        unpack, head_bytes = PUT_PREFIX.unpack_from, PUT_HEAD_BYTES.get
        while at <= last_head_at:
            command, size, item_id = unpack(data, at)
            stop = at + head_bytes(command, end + 1) + size  # another command stops behind the end
            if not 0 <= size <= DATA_BYTES_MAX or item_id <= 0 or stop > end:
                break
            count += 1
            last_at, at = at, stop
        return count, last_at, at

    def summary(self, totals: Totals) -> str:
        text = f"Journal size: {totals.records} operations, {totals.bytes} bytes."
        if totals.first_id is not None:
            text += f"\nIds {totals.first_id} - {totals.last_id}."
        return text
