"""A reader of libkestrel's journals, whole files at once, written from the format's document.

Where the document is silent or contradicts real files: a zero command byte ends the data, the READ_DONE header word
counts bytes, and ids are delivered once, in rising order, past any gap.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

SEGMENT, READER = bytes.fromhex("27642603"), bytes.fromhex("263c2603")
DATA_MAX = 16 * 1024 * 1024
PUT, READ_HEAD, READ_DONE = 8, 0, 9


class Damaged(Exception):
    pass


class Record(NamedTuple):
    """One record: `words` is the header without the command byte, `data` the block behind it."""

    at: int
    command: int
    words: bytes
    data: bytes


class Put(NamedTuple):
    """An item. `expires_ms` None: never."""

    id: int
    errors: int
    added_ms: int
    expires_ms: int | None
    data: bytes


def record_at(data: bytes, at: int) -> tuple[Record, int]:
    """The record at byte `at`, and where the next one begins. Raises Damaged."""
    command, word_count = data[at] >> 4, data[at] & 15
    end = at + 1 + 4 * word_count
    if end > len(data):
        raise Damaged
    words, block = data[at + 1 : end], b""
    if command >= 8:
        if not word_count:
            raise Damaged
        size = int.from_bytes(words[:4], "little", signed=True)
        if not 0 <= size <= DATA_MAX or end + size > len(data):
            raise Damaged
        block = data[end : end + size]
        end += size
    return Record(at, command, words, block), end


def records(data: bytes, is_segment: bool) -> tuple[list[Record], int]:
    """The records behind the magic, and where they end: at a zero byte, at a damaged record, or with the file."""
    found, at = [], 4
    try:
        while at < len(data) and data[at]:
            record, end = record_at(data, at)
            check(record, is_segment)
            found.append(record)
            at = end
    except Damaged:
        pass
    return found, at


def check(record: Record, is_segment: bool) -> None:
    """Raises Damaged if a record that counts in this kind of file is not as the document has it."""
    count = len(record.words) // 4
    if is_segment and record.command == PUT:
        if count not in (6, 8) or put_of(record).id <= 0:
            raise Damaged
    elif not is_segment and record.command == READ_HEAD:
        if count != 2:
            raise Damaged
    elif not is_segment and record.command == READ_DONE and (count != 1 or len(record.data) % 8):
        raise Damaged


def put_of(record: Record) -> Put:
    errors, item_id, added_ms = struct.unpack_from("<iqq", record.words, 4)
    expires_ms = struct.unpack_from("<q", record.words, 24)[0] if len(record.words) == 32 else None
    return Put(item_id, errors, added_ms, expires_ms, record.data)


@dataclass
class Family:
    """One queue and its readers. `readers`: the ids that each is still to get, in order. `damaged`: of each segment
    that is damaged, the byte at which its reading ends.
    """

    items: dict[int, Put] = field(default_factory=dict)
    readers: dict[str, list[int]] = field(default_factory=dict)
    damaged: dict[str, int] = field(default_factory=dict)

    @property
    def last_id(self) -> int:
        return max(self.items, default=0)


def read_segments(queue: str, files: Mapping[str, bytes], family: Family) -> None:
    """Segments in the order of their first ids, then of their numbers; of an id that two have the first one counts."""
    found: list[tuple[int, int, str, list[Put]]] = []
    for name, data in files.items():
        match = re.fullmatch(re.escape(queue) + r"\.([0-9]+)", name)
        if match is None or data[:4] != SEGMENT:
            continue
        rows, end = records(data, is_segment=True)
        if end < len(data) and data[end]:
            family.damaged[name] = end
        puts = [put_of(record) for record in rows if record.command == PUT]
        if puts:
            found.append((min(put.id for put in puts), int(match[1]), name, puts))
    for *_, puts in sorted(found, key=lambda row: row[:3]):
        for put in puts:
            family.items.setdefault(put.id, put)
    family.items = dict(sorted(family.items.items()))


def read_checkpoint(data: bytes) -> tuple[int, set[int]]:
    """(head, ids done out of order): what was readable before any damage."""
    head, done = 0, set[int]()
    if data[:4] != READER:
        return head, done
    for record in records(data, is_segment=False)[0]:
        if record.command == READ_HEAD:
            (head,) = struct.unpack("<q", record.words)
        elif record.command == READ_DONE:
            done.update(number for (number,) in struct.iter_unpack("<q", record.data))
    return head, done


def read(queue: str, files: Mapping[str, bytes]) -> Family:
    """What the files (name to content) of `queue` say."""
    family = Family()
    read_segments(queue, files, family)
    prefix = f"{queue}.read."
    names = [name for name in files if name.startswith(prefix) and "~" not in name]
    first_id = min(family.items, default=1)
    for name in names:
        head, done = read_checkpoint(files[name])
        head = max(min(head, family.last_id), first_id - 1)
        family.readers[name.removeprefix(prefix)] = [at for at in family.items if at > head and at not in done]
    if len(family.readers) > 1:
        family.readers.pop("", None)
    return family
