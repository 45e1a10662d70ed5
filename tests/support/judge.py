"""A second reader of Kestrel journals, written from the format's document alone, for whole files and with lists.

It is the judge of the real one: slow, without pieces, without ids of items. Opcodes 8 and 9 as Kestrel 2.1 to 2.4 mean
them; 8 also as the document does.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

Content = tuple[bytes, int, int, int]
"""data, add time, expiry (both ms), flags"""


class Bad(Exception):
    pass


class Ends(Bad):
    """The file ends inside the record."""


@dataclass
class Entry:
    content: Content
    remembered: int | None = None


@dataclass
class Cursor:
    """Reads numbers off a file."""

    data: bytes
    at: int = 0

    def take(self, count: int) -> bytes:
        if self.at + count > len(self.data):
            raise Ends
        self.at += count
        return self.data[self.at - count : self.at]

    def number(self, layout: str) -> int:
        return int(struct.unpack("<" + layout, self.take(struct.calcsize("<" + layout)))[0])

    def block(self, size_min: int) -> bytes:
        size = self.number("i")
        if size < size_min:
            raise Bad
        return self.take(size)


@dataclass
class Judge:
    """The state after the files read so far."""

    now_ms: int = 0
    line: list[Entry] = field(default_factory=list)
    open: dict[int, Content] = field(default_factory=dict)
    counter: int = 0
    _saved: list[tuple[int, int]] = field(default_factory=list)

    def read(self, data: bytes, is_sealed: bool = True) -> int:
        """One file; the length of its valid prefix. `is_sealed`: it was whole once, so each SAVE_XID counts."""
        cursor = Cursor(data)
        self._saved = []
        end = 0
        while cursor.at < len(data):
            try:
                self._record(cursor)
            except Bad:
                break
            end = cursor.at
        if not is_sealed:
            self._take_back(leads=len(self._saved) * 5 == end)
        return end

    def _take_back(self, leads: bool) -> None:
        """Forget the numbers of SAVE_XID records at the end that do not say the counter. `leads`: the file begins with
        them.
        """
        saved = self._saved
        pairs = [at + 2 for at in range(len(saved) - 1) if saved[at][1] in (0, saved[at + 1][1])]
        told = max(pairs, default=int(leads and bool(saved)))
        if saved[told:]:
            self.counter = saved[told][0]

    def _record(self, cursor: Cursor) -> None:
        opcode = cursor.number("B")
        if opcode > 9:
            raise Bad
        if opcode == 4:
            xid = cursor.number("i")
            self._saved.append((self.counter, xid))
            self.counter = xid
            return
        getattr(self, f"_op{opcode}")(cursor)
        self._saved = []

    def _flags(self) -> int:
        """Two SAVE_XID in front of an item, the second of which restores what stood before the first."""
        if len(self._saved) < 2:
            return 0
        (before, flags), (_, after) = self._saved[-2:]
        return flags % 2**32 if before == after else 0

    def _op0(self, cursor: Cursor) -> None:
        block = cursor.block(4)
        (expires_s,) = struct.unpack("<i", block[:4])
        self.line.append(Entry((block[4:], self.now_ms, expires_s * 1000, self._flags())))

    def _op1(self, cursor: Cursor) -> None:
        del self.line[:1]

    def _op2(self, cursor: Cursor) -> None:
        self.line.append(Entry(self._content(cursor)))

    def _op3(self, cursor: Cursor) -> None:
        if not self.line:
            return
        xid = self.line[0].remembered
        if xid is None:
            xid = self.counter = self._next()
        self._reserve(xid)

    def _op5(self, cursor: Cursor) -> None:
        xid = cursor.number("i")
        if xid in self.open:
            self.line.insert(0, Entry(self.open.pop(xid)))

    def _op6(self, cursor: Cursor) -> None:
        self.open.pop(cursor.number("i"), None)

    def _op7(self, cursor: Cursor) -> None:
        xid = cursor.number("i")
        self.line.append(Entry(self._content(cursor), xid))

    def _op8(self, cursor: Cursor) -> None:
        start = cursor.at
        xid, count = cursor.number("i"), cursor.number("i")
        if count < 0:
            raise Bad
        try:
            listed = self._list(cursor, count)
        except Bad:
            if count < 16:
                raise
            cursor.at = start
            self._continue(cursor)
            return
        self.counter = xid
        for each, content in listed:
            self.open.setdefault(each, content)

    def _list(self, cursor: Cursor, count: int) -> list[tuple[int, Content]]:
        listed = []
        for _ in range(count):
            if cursor.number("B") != 7:
                raise Bad
            xid = cursor.number("i")
            block = cursor.block(16)
            listed.append((xid, (block[16:], *struct.unpack("<qq", block[:16]), 0)))
            if cursor.number("B") != 3:
                raise Bad
        return listed

    def _continue(self, cursor: Cursor) -> None:
        xid = cursor.number("i")
        block = cursor.block(16)
        self.open.pop(xid, None)
        self.line.append(Entry((block[16:], *struct.unpack("<qq", block[:16]), 0)))

    def _op9(self, cursor: Cursor) -> None:
        self.counter = cursor.number("i")
        if self.line:
            self._reserve(self.counter)

    def _content(self, cursor: Cursor) -> Content:
        block = cursor.block(16)
        added_ms, expires_ms = struct.unpack("<qq", block[:16])
        return block[16:], added_ms, expires_ms, self._flags()

    def _next(self) -> int:
        xid = self.counter
        while True:
            xid = (xid + 1 + 2**31) % 2**32 - 2**31
            if xid != 0 and xid not in self.open:
                return xid

    def _reserve(self, xid: int) -> None:
        if xid in self.open:
            self.line.insert(0, Entry(self.open.pop(xid)))
        self.open[xid] = self.line.pop(0).content

    def state(self) -> tuple[list[Content], dict[int, Content], int]:
        return [entry.content for entry in self.line], dict(self.open), self.counter
