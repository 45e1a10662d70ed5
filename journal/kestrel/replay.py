"""The replay of the Kestrel journal's records: bytes to the state of a queue.

Bytes come in pieces of any size, file by file. records.py has the meaning of every opcode, this module the effect of
each on a queue.
"""

from __future__ import annotations

from collections.abc import Callable

from staniel.journal.errors import IncompleteRecord
from staniel.journal.kestrel.adds import count_adds
from staniel.journal.kestrel.notes import fact_in, unfinished_note
from staniel.journal.kestrel.records import (
    ADD,
    ADD_XID,
    ADDX,
    ADDX_BODY,
    ADDX_HEAD_BYTES,
    BLOCK_HEAD_BYTES,
    CONFIRM_REMOVE,
    FLAGS_MASK,
    REMOVE,
    REMOVE_TENTATIVE,
    REMOVE_TENTATIVE_XID,
    SAVE_XID,
    STATE_DUMP,
    UNREMOVE,
    WITH_XID_BYTES,
    XID_BODY,
    Record,
    decode,
    plain,
)
from staniel.queues.checkpoint import Checkpoint
from staniel.queues.delays import is_rest
from staniel.queues.item import REMNANT_MS, Delivery, Item, ItemWithXid, item_with, past_bytes
from staniel.queues.line import PlainLine
from staniel.queues.xids import next_xid, steps_past

SAVE_BEGINS = bytes((SAVE_XID,))
TWO_REMOVES = bytes((REMOVE, REMOVE))
REMOVES_AT_ONCE = 4096


class Replay:
    """The state of one queue after the records read so far, over all of its files."""

    def __init__(self, now_ms: int, line: PlainLine | None = None) -> None:
        self.line = PlainLine() if line is None else line
        self.open: dict[int, Delivery] = {}
        self.counter = 0
        self.now_ms = now_ms  # the add time of Starling's items, which have none in their records
        self._saves: list[tuple[int, int]] = []  # SAVE_XID records in a row: (the counter before each, its own)
        self._lead: tuple[int, int] | None = None  # the SAVE_XID at the beginning of the file
        self._opened_behind: tuple[int, int] | None = None  # see _note_number: the entry at the head of `_saves`
        self._begins = False  # the next record is the first of its file
        self.restores_counter = False
        """True if the file has another counter. Then the counter must be written before any other record."""
        self._only_listed = 0  # open items that never stood in the line
        self._with_xid_end = 0  # one above the seq of the last item that came with an id
        self._with_xid: dict[int, Callable[[int], None]] = {
            SAVE_XID: self._save_xid,
            UNREMOVE: self._unremove,
            CONFIRM_REMOVE: self._confirm,
            REMOVE_TENTATIVE_XID: self._reserve_as,
        }

    def begin_file(self) -> None:
        """Begin the next file; only the queue's state is carried over."""
        self._saves.clear()
        self._lead = None
        self._begins = True
        self.restores_counter = False

    def has_items_with_xid(self) -> bool:
        """Tell whether the line may have items from ADD_XID records. A reader opens such an item under the id that came
        with it.
        """
        line = self.line
        if self._with_xid_end > line.left + len(line.in_memory):
            return True  # such an item may be among those that are only in the journal
        return self._with_xid_end > line.left and any(isinstance(item, ItemWithXid) for item in line.in_memory)

    @property
    def is_between_changes(self) -> bool:
        """True if the bytes read so far end between two changes of the writer, and not inside one."""
        return not self._saves

    def checkpoint(self) -> Checkpoint:
        """Return the state after the records read so far, as numbers."""
        line = self.line
        line.measure_dropped()
        outside = [*self.open.values(), *reversed(line.returned)]
        return Checkpoint(
            line.left,
            line.end,
            tuple(self.open),
            tuple([delivery.seq for delivery in self.open.values()]),
            tuple([delivery.seq for delivery in reversed(line.returned)]),
            line.last_id,
            line.added_bytes,
            line.added_expiring,
            tuple([delivery.id for delivery in outside]),
            tuple([delivery.deliveries for delivery in outside]),
            not self.has_items_with_xid() and all(delivery.seq >= 0 for delivery in outside),
        )

    def restore(
        self, checkpoint: Checkpoint, counter: int, items: dict[int, Item], tail_bytes: int, tail_expiring: int
    ) -> None:
        """Continue from `checkpoint`, which is plain, instead of from the records read so far. `items`: by seq, those
        that are open or stand before the fresh ones. `tail_bytes`, `tail_expiring`: the figures of the fresh ones.
        """
        xids = [*checkpoint.xids, *([0] * len(checkpoint.heads))]
        seqs = [*checkpoint.open_seqs, *checkpoint.heads]
        reads = [
            Delivery(items[seq], item_id, deliveries, xid, 0, seq)
            for xid, seq, item_id, deliveries in zip(xids, seqs, checkpoint.ids, checkpoint.deliveries, strict=True)
        ]
        self.open = {delivery.xid: delivery for delivery in reads[: len(checkpoint.xids)]}
        self.counter = counter
        self.line.place(checkpoint, reads[len(checkpoint.xids) :], tail_bytes, tail_expiring)

    def consume(self, data: bytes, rest_bytes: int) -> int:
        """Read whole records from the start of `data`. Return how many bytes they have.

        `rest_bytes`: how many bytes of the file follow `data`. If `data` ends inside a record, that record is not used.
        Raises CorruptRecord if the next record is damaged, TruncatedRecord if the file ends inside it.
        """
        at, end, added_bytes = 0, len(data), 0
        line, saves, in_memory = self.line, self._saves, self.line.in_memory
        full_bytes, look_items = line.full_bytes, line.look_items
        unpack, unpack_xid, with_xid = ADDX_BODY.unpack_from, XID_BODY.unpack_from, self._with_xid
        self._begins = self._begins and data[:1] in (b"", SAVE_BEGINS)
        try:
            while at < end:
                op = data[at]
                if op == ADDX and line.on_disk and not saves and (stop := self._count_adds(data, at, end)) > at:
                    at = stop
                elif op == ADDX and end - at >= ADDX_HEAD_BYTES:
                    block_bytes, added_ms, expires_ms = unpack(data, at + 1)
                    size = block_bytes - BLOCK_HEAD_BYTES
                    payload_at = at + ADDX_HEAD_BYTES
                    stop = payload_at + size
                    if size < 0 or stop > end:
                        decode(data, at, end, rest_bytes)  # raises
                    added_bytes += size
                    if line.on_disk or line.bytes >= full_bytes or (len(in_memory) >= look_items and line.is_full):
                        line.on_disk += 1
                        line.on_disk_bytes += size
                        saves.clear()
                    else:
                        in_memory.append((self._item if saves else Item)(data[payload_at:stop], added_ms, expires_ms))
                    line.bytes += size
                    if expires_ms:
                        self._count_expiring(expires_ms, size)
                    at = stop
                elif op == REMOVE:
                    saves.clear()
                    if line.on_disk and not in_memory and data[at : at + 2] == TWO_REMOVES:
                        # Clients have read a long queue. Count its REMOVE records without making the items.
                        some = data[at : at + REMOVES_AT_ONCE]
                        at += line.drop_unread(len(some) - len(some.lstrip(TWO_REMOVES)))
                    else:
                        if len(line):
                            line.drop()
                        at += 1
                elif op in with_xid and end - at >= WITH_XID_BYTES:
                    with_xid[op](unpack_xid(data, at + 1)[0])
                    at += WITH_XID_BYTES
                elif op == REMOVE_TENTATIVE:
                    self._reserve()
                    at += 1
                else:
                    record = decode(data, at, end, rest_bytes)
                    self._add(record, data)
                    at = record.stop
        except IncompleteRecord:
            pass
        finally:
            line.added_bytes += added_bytes
        return at

    def _count_expiring(self, expires_ms: int, size: int) -> None:
        line = self.line
        line.expiring += 1
        line.added_expiring += 1
        line.remnants += expires_ms == REMNANT_MS and not size and not line.on_disk  # items read are counted later

    def _count_adds(self, data: bytes, at: int, end: int) -> int:
        """Count whole items in a row that stay in the journal. Return where the last of them ends."""
        count, size_bytes, expiring, at = count_adds(data, at, end)
        self.line.append_on_disk(count, size_bytes, expiring)
        return at

    def _reserve(self) -> None:
        before = self._trusted_counter() if self._saves else self.counter
        self._saves.clear()
        head = self.line.head()
        if head is not None:
            if isinstance(head, ItemWithXid):
                self._open_head(head.xid)
            else:
                self.counter = next_xid(self.counter, self.open.keys())
                self._open_head(self.counter)
                if before != self.counter - 1:
                    self._note_number(before)

    def _reserve_as(self, xid: int) -> None:
        before = self._trusted_counter() if self._saves else self.counter
        self._saves.clear()
        self.counter = xid
        if self.line.head() is not None:
            self._open_head(xid)
            self._note_number(before)

    def _note_number(self, before: int) -> None:
        """Note an opened number that is below the last one, `before`. A restored counter follows such a number
        (Encoder.opened). Until that is read, the number counts only as a SAVE_XID of a change that may have been cut
        off.
        """
        if steps_past(before, self.counter) < 0:
            self._opened_behind = before, self.counter
            self._saves.append(self._opened_behind)

    def _save_xid(self, xid: int) -> None:
        self._saves.append((self.counter, xid))
        self.counter = xid
        if self._begins:
            self._lead, self._begins = self._saves[0], False

    def _unremove(self, xid: int) -> None:
        self._saves.clear()
        if xid in self.open:
            self.line.give_back(self.open.pop(xid))

    def _confirm(self, xid: int) -> None:
        self._saves.clear()
        self.open.pop(xid, None)

    def _add(self, record: Record, data: bytes) -> None:
        """Add the item of an ADD, an ADD_XID or either form of opcode 8."""
        if record.op == STATE_DUMP:
            self._saves.clear()
        if record.listed is not None:
            self._open_listed(record.xid, record.listed, data)
            return
        added_ms = record.added_ms if record.op != ADD else self.now_ms
        item = self._item(record.payload(data), added_ms, record.expires_ms)
        if record.op == ADD_XID:
            item = ItemWithXid(item.data, added_ms, item.expires_ms, item.flags, record.xid, past_bytes(item))
            self.line.append(item)
            self._with_xid_end = self.line.end
            return
        if record.op == STATE_DUMP:
            self.open.pop(record.xid, None)
        self.line.append(item)

    def _open_listed(self, counter: int, listed: list[Record], data: bytes) -> None:
        self.counter = counter
        for read in listed:
            # The list repeats open reads. Keep a read that is not open, rather than lose it.
            if read.xid not in self.open:
                self._only_listed += 1
                item = Item(read.payload(data), read.added_ms, read.expires_ms)
                self.open[read.xid] = Delivery(item, 0, 1, read.xid, 0, -self._only_listed)

    def end_file(self, *, is_sealed: bool) -> int:
        """Forget a note at the end of the file whose item is missing, and return how many bytes it has there. If a
        SAVE_XID there belonged to a missing record, undo its number; `restores_counter` says so.

        A sealed file was complete when it was sealed, and files of other programs may end with their counter.
        """
        if not self._saves:
            return 0
        if count := unfinished_note([xid for _, xid in self._written_saves()]):
            self.counter = self._saves[-count][0]
            del self._saves[-count:]
        if not is_sealed and len(self._saves) > self._announced():
            self.counter = self._trusted_counter()
            self.restores_counter = True
        return count * WITH_XID_BYTES

    def _trusted_counter(self) -> int:
        """Return the counter before the records in a row that may belong to a change that was cut off."""
        announced = self._announced()
        return self._saves[announced][0] if announced < len(self._saves) else self.counter

    def _written_saves(self) -> list[tuple[int, int]]:
        """Return the SAVE_XID records in a row, without a number that was opened before them."""
        saves = self._saves
        return saves[1:] if saves and saves[0] is self._opened_behind else saves

    def _announced(self) -> int:
        """Return how many of the records in a row only set the counter: up to the last one that follows a 0 or an equal
        value, or the one that begins its file. Memcache flags are never written as 0; and if two records agree, the
        counter is right even if the second one held flags.
        """
        saves = self._saves
        for end in range(len(saves), 1, -1):
            if saves[end - 2][1] in (0, saves[end - 1][1]):
                return end
        return 1 if saves and saves[0] is self._lead else 0

    def _item(self, payload: bytes, added_ms: int, expires_ms: int) -> Item:
        """Return an item, with the past and the flags from the records before it."""
        saves = self._written_saves()
        past = fact_in([xid for _, xid in saves], added_ms, payload) if len(saves) > 2 else b""
        return item_with(past, payload, added_ms, expires_ms, self._flags())

    def _flags(self) -> int:
        """Return the memcache flags: two SAVE_XID directly before an item, the second undoing the first."""
        saves = self._written_saves()
        flags = 0
        if len(saves) >= 2 and saves[-1][1] == saves[-2][0]:
            flags = saves[-2][1] & FLAGS_MASK
        self._saves.clear()
        return flags

    def _open_head(self, xid: int) -> None:
        if xid in self.open:
            # This xid is open already, so the record of its return was lost. Return the earlier item to the line; never
            # overwrite it.
            self.line.give_back(self.open.pop(xid))
        delivery = self.line.pop()
        delivery.item = plain(delivery.item)
        delivery.xid = xid
        if xid < 0 and is_rest(xid, delivery.item):
            delivery.deliveries -= 1  # no client has seen it
        self.open[xid] = delivery
