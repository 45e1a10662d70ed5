"""The Kestrel journal's records, read: bytes to the state of a queue.

Knows every opcode that any Kestrel or Starling ever wrote, and what is damage. Refuses to know files: bytes come in
pieces. Source: the Kestrel journal format document; where it and real journals disagree (opcodes 8 and 9) what
Kestrel 1.x to 2.4 wrote.
"""

from __future__ import annotations

import struct
from collections.abc import Callable

from staniel.journal.errors import Corrupt, NeedMore, Truncated, past_end
from staniel.journal.kestrel.encoder import (
    ADD,
    ADD_XID,
    ADDX,
    CONFIRM_REMOVE,
    REMOVE,
    REMOVE_TENTATIVE,
    REMOVE_TENTATIVE_XID,
    SAVE_XID,
    STATE_DUMP,
    UNREMOVE,
)
from staniel.queues.checkpoint import Checkpoint
from staniel.queues.item import Delivery, Item
from staniel.queues.line import Line
from staniel.queues.xids import next_xid

ADDX_BODY = struct.Struct("<iqq")
ADDX_BYTES = 21  # of the record before its data
ADD_BODY = struct.Struct("<ii")
NAMED_BODY = struct.Struct("<iiqq")
XID_BODY = struct.Struct("<i")
DUMP_BODY = struct.Struct("<ii")
BLOCK_MIN = 16
TWO_REMOVES = bytes((REMOVE, REMOVE))
REMOVES_AT_ONCE = 4096
FLAGS_MASK = 0xFFFFFFFF


class ItemWithXid(Item, gc=False):
    """An item that came with a transaction id of its own (ADD_XID); a plain item again once it has been reserved."""

    xid: int = 0


class Replay:
    """The state of one queue after the records read so far, over all of its files."""

    def __init__(self, now_ms: int, line: Line | None = None) -> None:
        self.line = Line() if line is None else line
        self.open: dict[int, Delivery] = {}
        self.counter = 0
        self.now_ms = now_ms  # the add time of Starling's items, whose records have none
        self._saves: list[tuple[int, int]] = []
        self._rest_bytes = 0
        self._strangers = 0  # open items that never stood in the line
        self._named_end = 0  # behind the seq of the last item that came with an id of its own
        self._readers: dict[int, Callable[[bytes, int, int], int]] = {
            ADD: self._add,
            REMOVE_TENTATIVE: self._reserve,
            SAVE_XID: self._save_xid,
            UNREMOVE: self._unremove,
            CONFIRM_REMOVE: self._confirm,
            ADD_XID: self._add_xid,
            STATE_DUMP: self._eight,
            REMOVE_TENTATIVE_XID: self._reserve_as,
        }

    def begin_file(self) -> None:
        """Records of the next file follow; only the queue's state is carried over."""
        self._saves.clear()

    def has_named(self) -> bool:
        """Whether items are left whose next reserve a reader numbers by the id that came with them (ADD_XID)."""
        line = self.line
        if self._named_end > line.left + len(line.fresh):
            return True  # one may be among those that only the journal holds
        return self._named_end > line.left and any(isinstance(item, ItemWithXid) for item in line.fresh)

    @property
    def is_between_changes(self) -> bool:
        """Whether what has been read so far ends where the writer recorded a change, and not inside of one."""
        return not self._saves

    def checkpoint(self) -> Checkpoint:
        """The state after the records read so far, in numbers."""
        line = self.line
        line.settle()
        outside = [*self.open.values(), *reversed(line.returned)]
        return Checkpoint(
            line.left,
            line.end,
            tuple((xid, taken.seq) for xid, taken in self.open.items()),
            tuple(taken.seq for taken in reversed(line.returned)),
            line.last_id,
            line.added_bytes,
            line.added_expiring,
            tuple((taken.id, taken.deliveries) for taken in outside),
            not self.has_named() and all(taken.seq >= 0 for taken in outside),
        )

    def restore(
        self, checkpoint: Checkpoint, counter: int, items: dict[int, Item], tail_bytes: int, tail_expiring: int
    ) -> None:
        """Go on from `checkpoint`, which is plain, instead of from what has been read. `items`: those that are open or
        stand before the fresh ones, by seq; `tail_bytes`, `tail_expiring`: of the fresh ones.
        """
        xids = [*(xid for xid, _ in checkpoint.open), *([0] * len(checkpoint.heads))]
        seqs = [*(seq for _, seq in checkpoint.open), *checkpoint.heads]
        taken = [
            Delivery(items[seq], item_id, deliveries, xid, 0, seq)
            for xid, seq, (item_id, deliveries) in zip(xids, seqs, checkpoint.known, strict=True)
        ]
        self.open = {each.xid: each for each in taken[: len(checkpoint.open)]}
        self.counter = counter
        self.line.place(checkpoint, taken[len(checkpoint.open) :], tail_bytes, tail_expiring)

    def consume(self, data: bytes, rest_bytes: int) -> int:
        """Read whole records from the start of `data`; how many bytes that were.

        `rest_bytes`: how many bytes of the file follow `data`. Fewer bytes than given were used if `data` ends inside a
        record. Raises Corrupt when the next record is damaged: an unknown opcode, a block smaller than its own head or
        larger than the rest of the file, or the end of the file inside a record.
        """
        at, end = 0, len(data)
        line, saves, fresh = self.line, self._saves, self.line.fresh
        self._rest_bytes = rest_bytes
        full_bytes, look_items = line.full_bytes, line.look_items
        unpack, readers = ADDX_BODY.unpack_from, self._readers
        added_bytes = 0
        try:
            while at < end:
                op = data[at]
                if op == ADDX and line.behind and not saves and (stop := self._count_adds(data, at, end)) > at:
                    at = stop
                elif op == ADDX:
                    if end - at < ADDX_BYTES:
                        raise NeedMore
                    size, added_ms, expires_ms = unpack(data, at + 1)
                    stop = at + 5 + size
                    if size < BLOCK_MIN or stop > end:
                        self._block(size, BLOCK_MIN, at + 5, end)
                    flags = self._flags() if saves else 0
                    added_bytes += size - BLOCK_MIN
                    if line.behind or line.bytes >= full_bytes or (len(fresh) >= look_items and line.is_full):
                        line.behind += 1
                        line.behind_bytes += size - BLOCK_MIN
                    else:
                        fresh.append(Item(data[at + 21 : stop], added_ms, expires_ms, flags))
                    line.bytes += size - BLOCK_MIN
                    if expires_ms:
                        line.expiring += 1
                        line.added_expiring += 1
                    at = stop
                elif op == REMOVE:
                    saves.clear()
                    if line.behind and not fresh and data[at : at + 2] == TWO_REMOVES:
                        # A long queue was read: nobody has to look at the items for that.
                        some = data[at : at + REMOVES_AT_ONCE]
                        at += line.drop_unread(len(some) - len(some.lstrip(TWO_REMOVES)))
                    else:
                        if len(line):
                            line.drop()
                        at += 1
                elif op in readers:
                    at = readers[op](data, at + 1, end)
                else:
                    raise Corrupt(f"unknown opcode {op}")
        except NeedMore:
            if not rest_bytes:
                raise Truncated(at=at) from None
        except Corrupt as error:
            error.at = at
            raise
        finally:
            line.added_bytes += added_bytes
        return at

    def _count_adds(self, data: bytes, at: int, end: int) -> int:
        """Count whole items that stay in the journal, as long as one follows the other; where the last of them ends."""
        count = size_bytes = expiring = 0
        last = end - ADDX_BYTES
        unpack = ADDX_BODY.unpack_from
        while at <= last and data[at] == ADDX:
            size, _, expires_ms = unpack(data, at + 1)
            stop = at + 5 + size
            if size < BLOCK_MIN or stop > end:
                break
            if expires_ms:
                expiring += 1
            count += 1
            size_bytes += size
            at = stop
        size_bytes -= BLOCK_MIN * count
        self.line.leave_behind(count, size_bytes, expiring)
        return at

    # records, each from behind its opcode: returns where the next one starts

    def _add(self, data: bytes, at: int, end: int) -> int:
        size, expires_s = self._unpack(ADD_BODY, data, at, end)
        stop = self._block(size, 4, at + 4, end)
        self.line.append(Item(data[at + 8 : stop], self.now_ms, expires_s * 1000, self._flags()))
        return stop

    def _add_xid(self, data: bytes, at: int, end: int) -> int:
        item, stop = self._named(data, at, end)
        self.line.append(item)
        self._named_end = self.line.end
        return stop

    def _reserve(self, data: bytes, at: int, end: int) -> int:
        self._saves.clear()
        head = self.line.head()
        if head is not None:
            if isinstance(head, ItemWithXid):
                self._open_head(head.xid)
            else:
                self.counter = next_xid(self.counter, self.open.keys())
                self._open_head(self.counter)
        return at

    def _reserve_as(self, data: bytes, at: int, end: int) -> int:
        (xid,) = self._unpack(XID_BODY, data, at, end)
        self._saves.clear()
        self.counter = xid
        if self.line.head() is not None:
            self._open_head(xid)
        return at + 4

    def _save_xid(self, data: bytes, at: int, end: int) -> int:
        (xid,) = self._unpack(XID_BODY, data, at, end)
        self._saves.append((self.counter, xid))
        self.counter = xid
        return at + 4

    def _unremove(self, data: bytes, at: int, end: int) -> int:
        (xid,) = self._unpack(XID_BODY, data, at, end)
        self._saves.clear()
        if xid in self.open:
            self.line.give_back(self.open.pop(xid))
        return at + 4

    def _confirm(self, data: bytes, at: int, end: int) -> int:
        (xid,) = self._unpack(XID_BODY, data, at, end)
        self._saves.clear()
        self.open.pop(xid, None)
        return at + 4

    def _eight(self, data: bytes, at: int, end: int) -> int:
        """Opcode 8 has two meanings: a list of open reads (a few days of 2011), or "confirm, and append this" (2.1 to
        2.4).

        A block is at least 16 bytes long, so a smaller number is a count. Otherwise it is a list only if as many
        ADD_XID records really follow, which the bytes of an add time cannot look like.
        """
        _, number = self._unpack(DUMP_BODY, data, at, end)
        if number < 0:
            raise Corrupt(f"opcode 8 with the size {number}")
        self._saves.clear()
        if number < BLOCK_MIN:
            return self._state_dump(data, at, end)
        try:
            return self._state_dump(data, at, end)
        except Corrupt:
            return self._continue(data, at, end)
        except NeedMore:
            if self._rest_bytes:
                raise
            return self._continue(data, at, end)

    def _state_dump(self, data: bytes, at: int, end: int) -> int:
        counter, count = DUMP_BODY.unpack_from(data, at)
        at += 8
        listed: list[ItemWithXid] = []
        for _ in range(count):
            if at >= end:
                raise NeedMore
            if data[at] != ADD_XID:
                raise Corrupt("opcode 8 with a list that is not there")
            item, at = self._named(data, at + 1, end)
            if at >= end:
                raise NeedMore
            if data[at] != REMOVE_TENTATIVE:
                raise Corrupt("opcode 8 with a list that breaks off")
            at += 1
            listed.append(item)
        self.counter = counter
        for item in listed:
            # A copy of what is already open; one that is not is kept rather than lost.
            if item.xid not in self.open:
                self._strangers += 1
                self.open[item.xid] = Delivery(plain(item), 0, 1, item.xid, 0, -self._strangers)
        return at

    def _continue(self, data: bytes, at: int, end: int) -> int:
        item, stop = self._named(data, at, end)
        self.open.pop(item.xid, None)
        self.line.append(plain(item))
        return stop

    # inside

    def _named(self, data: bytes, at: int, end: int) -> tuple[ItemWithXid, int]:
        """An xid and a block: the item and where it ends."""
        if end - at < 8:
            raise NeedMore
        xid, size = DUMP_BODY.unpack_from(data, at)
        stop = self._block(size, BLOCK_MIN, at + 8, end)
        _, _, added_ms, expires_ms = NAMED_BODY.unpack_from(data, at)
        return ItemWithXid(data[at + 24 : stop], added_ms, expires_ms, self._flags(), xid), stop

    def _block(self, size: int, size_min: int, at: int, end: int) -> int:
        """Where a block of `size` bytes from `at` ends. Raises Corrupt before anybody allocates what a size claims."""
        if size < size_min:
            raise Corrupt(f"a block of {size} bytes, at least {size_min} expected")
        stop = at + size
        if stop > end + self._rest_bytes:
            raise past_end(size, end + self._rest_bytes - at)
        if stop > end:
            raise NeedMore
        return stop

    def _unpack(self, layout: struct.Struct, data: bytes, at: int, end: int) -> tuple[int, ...]:
        if end - at < layout.size:
            raise NeedMore
        return layout.unpack_from(data, at)

    def _flags(self) -> int:
        """memcache flags: two SAVE_XID directly before an item, the second undoing the first."""
        saves = self._saves
        flags = 0
        if len(saves) >= 2 and saves[-1][1] == saves[-2][0]:
            flags = saves[-2][1] & FLAGS_MASK
        saves.clear()
        return flags

    def _open_head(self, xid: int) -> None:
        if xid in self.open:
            # Open already: its return must have been lost. Give the earlier item back, never overwrite it.
            self.line.give_back(self.open.pop(xid))
        taken = self.line.pop()
        taken.item = plain(taken.item)
        taken.xid = xid
        self.open[xid] = taken


def plain(item: Item) -> Item:
    """The item without the transaction id that it may have come with."""
    if isinstance(item, ItemWithXid):
        return Item(item.data, item.added_ms, item.expires_ms, item.flags)
    return item
