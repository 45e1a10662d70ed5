"""The judge: a small reader of Kestrel journals, written from the format's document alone.

It shares no code with the server, so that a mistake would have to be made twice. It reads a whole file at once and is
neither fast nor economical. Where the document and real journals disagree (opcodes 8 and 9) it follows Kestrel 2.4.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

XID_MAX = 2**31 - 1
XID_MIN = -(2**31)
FIXED_BYTES = {1: 1, 3: 1, 4: 5, 5: 5, 6: 5, 9: 5}
# opcode -> (offset of the size, bytes of the block that come before the data)
BLOCKS = {0: (1, 4), 2: (1, 16), 7: (5, 16), 8: (5, 16)}


class Record(NamedTuple):
    """One operation. `op` is "dump" for the other meaning of opcode 8, whose open reads are in `listed`."""

    at: int
    op: int | str
    xid: int = 0
    added_ms: int = 0
    expires_ms: int = 0
    data: bytes = b""
    listed: tuple[Record, ...] = ()


class Damaged(Exception):
    pass


def number(data: bytes, at: int, width: int) -> int:
    if at + width > len(data):
        raise Damaged
    return int.from_bytes(data[at : at + width], "little", signed=True)


def read_record(data: bytes, at: int) -> tuple[Record, int]:
    """The record at `at` and where the next one starts. Raises Damaged."""
    op = data[at]
    if op in FIXED_BYTES:
        width = FIXED_BYTES[op]
        return Record(at, op, number(data, at + 1, 4) if width == 5 else 0), at + width
    if op not in BLOCKS:
        raise Damaged
    if op == 8:
        try:
            return read_dump(data, at)
        except Damaged:
            pass
    return read_block(data, at)


def read_block(data: bytes, at: int) -> tuple[Record, int]:
    op = data[at]
    size_at, head = BLOCKS[op]
    size, block = number(data, at + size_at, 4), at + size_at + 4
    if size < head or block + size > len(data):
        raise Damaged
    xid = number(data, at + 1, 4) if size_at == 5 else 0
    content = data[block + head : block + size]
    if op == 0:
        return Record(at, op, 0, 0, number(data, block, 4) * 1000, content), block + size
    return Record(at, op, xid, number(data, block, 8), number(data, block + 8, 8), content), block + size


def read_dump(data: bytes, at: int) -> tuple[Record, int]:
    """`xid count`, then as many pairs of ADD_XID and REMOVE_TENTATIVE."""
    xid, count, end = number(data, at + 1, 4), number(data, at + 5, 4), at + 9
    listed = []
    if count < 0:
        raise Damaged
    for _ in range(count):
        if data[end : end + 1] != b"\x07":
            raise Damaged
        record, end = read_block(data, end)
        if data[end : end + 1] != b"\x03":
            raise Damaged
        listed.append(record)
        end += 1
    return Record(at, "dump", xid, listed=tuple(listed)), end


def read_file(data: bytes) -> tuple[list[Record], int]:
    """All records up to the first damaged one, and how many bytes they are."""
    records, at = [], 0
    try:
        while at < len(data):
            record, at = read_record(data, at)
            records.append(record)
    except Damaged:
        pass
    return records, at


@dataclass
class State:
    """A queue: what is ready, head first, and what is open, by id."""

    items: list[Record] = field(default_factory=list)
    open: dict[int, Record] = field(default_factory=dict)
    counter: int = 0

    def apply(self, record: Record) -> None:
        match record.op:
            case 0 | 2 | 7:
                self.items.append(record)
            case 1:
                del self.items[:1]
            case 3:
                self._reserve(None)
            case 9:
                self._reserve(record.xid)
            case 4:
                self.counter = record.xid
            case 5 if record.xid in self.open:
                self._give_back(record.xid)
            case 6:
                self.open.pop(record.xid, None)
            case 8:
                self.open.pop(record.xid, None)
                self.items.append(record._replace(op=2))
            case "dump":
                self.counter = record.xid
                for each in record.listed:
                    self.open.setdefault(each.xid, each)

    def _reserve(self, given: int | None) -> None:
        """Open the head. An id that is open already gives its item back first, which is the head then: its return has
        been lost.
        """
        if given is not None:
            self.counter = given
        if not self.items:
            return
        if given is not None:
            xid = given
        elif self.items[0].op == 7:
            xid = self.items[0].xid
        else:
            self.counter = xid = self._next()
        if xid in self.open:
            self._give_back(xid)
        self.open[xid] = self.items.pop(0)

    def _next(self) -> int:
        xid = self.counter
        while True:
            xid = xid + 1 if xid < XID_MAX else XID_MIN
            if xid and xid not in self.open:
                return xid

    def _give_back(self, xid: int) -> None:
        self.items.insert(0, self.open.pop(xid)._replace(op=2))

    def after_recovery(self) -> list[Record]:
        """The items once every open read has been put back."""
        return [self.open[xid] for xid in sorted(self.open)] + self.items


def files_of(queue: str, files: Mapping[str, bytes]) -> list[str]:
    """The names of a queue's files in the order of replay; what a finished pack covers is not among them."""
    pattern = re.compile(re.escape(queue) + r"\.(\d+)(\.pack)?")
    found = [(int(match[1]), bool(match[2]), name) for name in files if (match := pattern.fullmatch(name))]
    newest_pack = max((key for key, pack, _ in found if pack), default=-1)
    archives = sorted(
        (key, pack, name) for key, pack, name in found if key > newest_pack or (key == newest_pack and pack)
    )
    return [name for _, _, name in archives] + [queue] * (queue in files)


def replay(queue: str, files: Mapping[str, bytes]) -> State:
    """The state that the files of `queue` (name -> content) describe."""
    state = State()
    for name in files_of(queue, files):
        for record in read_file(files[name])[0]:
            state.apply(record)
    return state
