"""The scan that finds the SegmentEffect of a segment of a Kestrel journal. It reads only the heads of records.

The scan steps over payloads, so the caller may seek past them. What a record does is as in
journal/kestrel/replay.py; property tests compare the two.
"""

from __future__ import annotations

import numpy as np
from msgspec import Struct

from staniel.journal.errors import IncompleteRecord
from staniel.journal.interval_set import IntervalSet
from staniel.journal.kestrel.effect import (
    ID_FLOOR_MIN,
    EffectMismatch,
    Origin,
    SegmentEffect,
    Span,
    State,
    Symbol,
    id_floor_of,
)
from staniel.journal.kestrel.records import (
    ADD_XID,
    ADDX,
    ADDX_BODY,
    ADDX_HEAD_BYTES,
    BLOCK_HEAD_BYTES,
    CONFIRM_REMOVE,
    REMOVE,
    REMOVE_TENTATIVE,
    REMOVE_TENTATIVE_XID,
    SAVE_XID,
    SIZE_END,
    STATE_DUMP,
    UNREMOVE,
    WITH_XID_BYTES,
    XID_BODY,
    Record,
    decode,
)
from staniel.pipeline.formats.kestrel.item_runs import ItemRun, RunKind, read_run
from staniel.queues.item import ID_SHIFT
from staniel.queues.xids import XID_MAX, XID_MIN, next_xid

MARK_EVERY = 1024  # items: the most heads that are read to find one again
ANY_LINE = 1 << 62
SINGLE_BYTES_MIN = 1 << 13  # how much is read record by record before a run is looked for again; then twice as much
LINE = Origin.LINE
NO_SPAN = (1 << 40, 1 << 40)
Held = Symbol | int  # a number in the line stands for an item that was never reserved
TIME_MIN, TIME_MAX = -(1 << 63), (1 << 63) - 1
XIDS = XID_MAX - XID_MIN  # all but 0


class CounterUnknown(Exception):
    """The error for a segment that numbers reserves from a counter of an earlier segment. Count those segments first
    (XidScan).
    """


class EntryState(Struct, frozen=True):
    """The known state of the queue at the beginning of a segment. None: unknown.

    `line`: how many items are in it. `opens`: which reads are open. `named`: the xids of items that came with their
    own, by place in the line, the head being 0. Either all of `line`, `opens` and `named` are known, or none is.
    """

    counter: int | None = None
    line: int | None = None
    opens: frozenset[int] = frozenset()
    named: dict[int, int] = {}


UNKNOWN = EntryState()
EMPTY = EntryState(0, 0)


def entry_state_of(state: State) -> EntryState:
    """Return the entry of the next segment."""
    ahead = len(state.front) - state.taken
    xids = {ahead + number: xid for number, xid in state.named.items()}
    return EntryState(state.counter, state.items, frozenset(state.opens), xids)


class SegmentFacts(Struct):
    """Facts about a segment that its effect does not contain. Times are add times in epoch ms, offsets are bytes of the
    file.

    `marks`: where every MARK_EVERY-th added item starts, including the SAVE_XID records with its flags. `id_floors`:
    the id floor of the items before each of these. `strays`: records without effect (a removal on an empty line, an
    unknown xid), as far as the entry was known.
    """

    marks: list[int]
    id_floors: list[int]
    oldest_ms: int = TIME_MAX
    newest_ms: int = TIME_MIN
    strays: int = 0


class EffectScan:
    """The scan of a segment, piece by piece. Starling's items, which have no add time, count as added at `now_ms`."""

    def __init__(self, entry: EntryState = UNKNOWN, at: int = 0, now_ms: int = 0) -> None:
        self.entry = entry
        self.at = at  # byte of the file at which the next record starts
        self.now_ms = now_ms
        self.facts = SegmentFacts([], [])
        self._known = entry.line is not None
        self._line = ANY_LINE if entry.line is None else entry.line
        self._front: list[Held] = []  # the head is the last one
        self._opens: dict[int, Held] = {}
        self._closed: set[int] = set()
        self._present: set[int] = set()
        self._absent: list[Span] = []
        self._named = dict(entry.named)
        self._taken = self._added = self._expiring = self._need = self._listed = self._next_mark = 0
        self._blocks_bytes = self._others = self._others_bytes = 0
        self._id_floor = ID_FLOOR_MIN
        self._counter = entry.counter
        self._touched = self._entered = self._numbered = False
        self._saves_from = self._saves_to = -1

    def consume(self, data: bytes, rest_bytes: int) -> int:
        """Read whole records from the start of `data`, and return where the first record that was not read starts.

        That is behind `data` if the last payload extends beyond it: continue at that byte. `rest_bytes`: how many bytes
        of the file follow `data`. Raises CorruptRecord as Replay does, EffectMismatch and CounterUnknown if the entry
        knows too little; the scan cannot be used after these two.
        """
        at, end = 0, len(data)
        single_bytes = SINGLE_BYTES_MIN
        try:
            while at < end:
                until = at  # the next item may begin a run
                if data[at] == ADDX:
                    until = self._run(data, at)
                    if until > at:
                        at, single_bytes = until, SINGLE_BYTES_MIN
                        continue
                    until, single_bytes = at + single_bytes, 2 * single_bytes
                at = self._common(data, at, until, end + rest_bytes)
                if at < end and (at < until or data[at] != ADDX):
                    at = self._other(data, at, end, rest_bytes)
        except IncompleteRecord:
            pass
        finally:
            self.at += at
            self._saves_from -= at
            self._saves_to -= at
        return at

    def _run(self, data: bytes, at: int) -> int:
        """Read a run of items, and return where it ends: at `at` if there is none, or if its reads may not be of the
        head of the line.
        """
        run = read_run(data, at)
        if run is None:
            return at
        ahead, opened = self._taken - self._added, 0 if run.kind is RunKind.PUTS else len(run.starts)
        if opened:
            if self._front or self._named or ahead - 1 >= self._line:
                return at
            if run.xids:
                known = self._opens.keys(), self._closed, self.entry.opens
                if any(some and not some.isdisjoint(run.xids) for some in known):
                    return at
                self._are_absent(run.xids[0], run.xids[-1])
                self._set_counter(run.xids[-1])
            self._need = max(self._need, ahead)
        self._note_times(run)
        self._expiring += run.expiring
        self._blocks_bytes += run.blocks_bytes
        self._added += len(run.starts)
        self._taken += opened
        return run.stop

    def _note_times(self, run: ItemRun) -> None:
        """Note the marks and the times of the next items."""
        facts, count, first = self.facts, len(run.starts), self._added
        floors = np.maximum.accumulate((run.added_ms << ID_SHIFT) - np.arange(first, first + count))
        for number in range(self._next_mark, first + count, MARK_EVERY):
            at = number - first
            floor = max(self._id_floor, int(floors[at - 1])) if at else self._id_floor
            self._next_mark = self._mark(int(run.starts[at]), number, floor)
        self._id_floor = max(self._id_floor, int(floors[-1]))
        facts.newest_ms = max(facts.newest_ms, int(run.added_ms.max()))
        facts.oldest_ms = min(facts.oldest_ms, int(run.added_ms.min()))

    def _common(self, data: bytes, at: int, until: int, limit: int) -> int:
        """Read common records up to one for the general decoder, or an item from byte `until` on. Return its byte."""
        end, front, opens, closed, line = len(data), self._front, self._opens, self._closed, self._line
        unpack, unpack_xid, open_before = ADDX_BODY.unpack_from, XID_BODY.unpack_from, self.entry.opens
        added, opened, need, size_sum = self._added, self._taken, self._need, self._blocks_bytes
        mark, newest_ms, oldest_ms = self._next_mark, self.facts.newest_ms, self.facts.oldest_ms
        id_floor, named = self._id_floor, self._named
        low, high = self._absent.pop() if self._absent else NO_SPAN
        while at < end:
            op = data[at]
            if op == ADDX and end - at >= ADDX_HEAD_BYTES:
                size, added_ms, expires_ms = unpack(data, at + 1)
                if at >= until or size < BLOCK_HEAD_BYTES or at + SIZE_END + size > limit:
                    break
                if added == mark:
                    mark = self._mark(at, added, id_floor)
                if added_ms > newest_ms:  # as _time; a call for each item would take as long as all the rest
                    newest_ms = added_ms
                    if (floor := (added_ms << ID_SHIFT) - added) > id_floor:
                        id_floor = floor
                if added_ms < oldest_ms:
                    oldest_ms = added_ms
                if expires_ms:
                    self._expiring += 1
                added += 1
                size_sum += size
                at += SIZE_END + size
            elif op == CONFIRM_REMOVE and end - at >= WITH_XID_BYTES:
                (xid,) = unpack_xid(data, at + 1)
                if opens.pop(xid, None) is None:
                    self._close(xid)
                at += WITH_XID_BYTES
            elif front or opened - added >= line or named:
                break
            elif op == REMOVE:
                opened += 1
                at += 1
                if opened - added > need:
                    need = opened - added
            elif op == REMOVE_TENTATIVE_XID and end - at >= WITH_XID_BYTES:
                (xid,) = unpack_xid(data, at + 1)
                if xid in opens or xid in closed or xid in open_before:
                    break
                if xid != high + 1:
                    self._absent += [(low, high)] if high != NO_SPAN[1] else []
                    low = xid
                self._counter = high = xid
                self._touched = True
                opens[xid] = opened
                opened += 1
                at += WITH_XID_BYTES
                if opened - added > need:
                    need = opened - added
            else:
                break
        self._added, self._taken, self._need, self._blocks_bytes = added, opened, need, size_sum
        self._next_mark, self._id_floor = mark, id_floor
        self.facts.newest_ms, self.facts.oldest_ms = newest_ms, oldest_ms
        self._absent += [(low, high)] if high != NO_SPAN[1] else []
        return at

    def final_effect(self) -> SegmentEffect:
        """Return the effect of what was read."""
        base = self.entry.line or 0
        removed = self._taken if self._known else 0
        return SegmentEffect(
            taken=self._taken,
            front=[symbol_of(held) for held in reversed(self._front)],
            opens={xid: symbol_of(held) for xid, held in self._opens.items()},
            closed=frozenset(self._closed),
            present=frozenset(self._present),
            added=self._added,
            added_bytes=self._blocks_bytes - BLOCK_HEAD_BYTES * (self._added - self._others) + self._others_bytes,
            added_expiring=self._expiring,
            id_floor=self._id_floor,
            listed=self._listed,
            counter=self._counter if self._touched else None,
            entered=self.entry.counter if self._entered else None,
            need=self._need,
            line=self.entry.line,
            absent=IntervalSet.from_intervals(self._absent).intervals(),
            numbered=self._numbered,
            named={at - base: xid for at, xid in self._named.items() if at >= max(base, removed)},
        )

    def _other(self, data: bytes, at: int, end: int, rest_bytes: int) -> int:
        op = data[at]
        if op == REMOVE:
            self._remove()
            return at + 1
        if op == REMOVE_TENTATIVE:
            self._reserve()
            return at + 1
        if op == REMOVE_TENTATIVE_XID and end - at >= WITH_XID_BYTES:
            self._reserve_as(XID_BODY.unpack_from(data, at + 1)[0])
            return at + WITH_XID_BYTES
        record = decode(data, at, end, rest_bytes, heads_only=True)
        if op == UNREMOVE:
            self._abort(record.xid)
        elif op == SAVE_XID:
            if self._saves_to != at:
                self._saves_from = at
            self._saves_to = record.stop
            self._set_counter(record.xid)
        elif op == STATE_DUMP and record.listed is not None:
            self._list(record, record.listed)
        else:
            self._add(record, at)
        return record.stop

    def _remove(self) -> None:
        if self._front:
            self._front.pop()
        elif self._taken - self._added < self._line:
            self._taken += 1
            self._need = max(self._need, self._taken - self._added)
        else:
            self.facts.strays += 1

    def _reserve(self) -> None:
        if not self._front and self._taken - self._added >= self._line:
            self.facts.strays += 1
            return
        if self._front or self._taken not in self._named:
            self._open(self._next_xid())
        elif self._known:
            self._open(self._named[self._taken])
        else:
            raise EffectMismatch("a numbered reserve may meet an item that has its own transaction id")

    def _next_xid(self) -> int:
        counter = self._counter
        if counter is None:
            raise CounterUnknown
        self._entered |= not self._touched
        if not self._front and not self._known:
            self._numbered = True
            if self._named:
                raise EffectMismatch("a numbered reserve may meet an item that has its own transaction id")
        xid = counter + 1
        if not xid or xid > XID_MAX or xid in self._opens or self._known:
            xid = next_xid(counter, self._opens, self.entry.opens - self._closed if self._known else ())
        self._set_counter(xid)
        return xid

    def _reserve_as(self, xid: int) -> None:
        self._set_counter(xid)
        if self._front or self._taken - self._added < self._line:
            self._open(xid)
        else:
            self.facts.strays += 1

    def _open(self, xid: int) -> None:
        """Open the head under `xid`. If an item is already open under `xid`, it first returns to the head, and is
        opened again.
        """
        if not self._front and self._taken - self._added >= self._need:
            self._need = self._taken + 1 - self._added
        earlier = self._opens.pop(xid, None)
        if earlier is not None:
            self._front.append(earlier)
        elif xid not in self._closed:
            if xid in self.entry.opens:
                self._present.add(xid)
                self._closed.add(xid)
                self._front.append(Symbol(Origin.OPEN, xid))
            else:
                self._is_absent(xid)
        if self._front:
            head = symbol_of(self._front.pop())
            self._opens[xid] = Symbol(head.origin, head.number, head.deliveries + 1)
        else:
            self._opens[xid] = Symbol(LINE, self._taken, 1)
            if self._known and self._named:
                self._named.pop(self._taken, None)
            self._taken += 1

    def _close(self, xid: int) -> None:
        if self._known and (xid in self._closed or xid not in self.entry.opens):
            self.facts.strays += 1
        self._closed.add(xid)

    def _abort(self, xid: int) -> None:
        symbol = self._opens.pop(xid, None)
        if symbol is not None:
            self._front.append(symbol)
        elif xid in self._closed:
            self.facts.strays += 1
        elif self._known and xid not in self.entry.opens:
            self.facts.strays += 1
            self._is_absent(xid)
        else:
            self._present.add(xid)
            self._closed.add(xid)
            self._front.append(Symbol(Origin.OPEN, xid))

    def _list(self, record: Record, listed: list[Record]) -> None:
        if listed and not self._known:
            raise EffectMismatch("an opcode 8 list adds what is not open yet")
        self._set_counter(record.xid)
        for read in listed:
            if read.xid not in self._opens and (read.xid not in self.entry.opens or read.xid in self._closed):
                if read.xid not in self._closed:
                    self._is_absent(read.xid)
                self._opens[read.xid] = Symbol(Origin.LISTED, self._listed, 1)
            self._listed += 1

    def _add(self, record: Record, at: int) -> None:
        """Note the item of an ADD, an ADD_XID, or an opcode 8 as "confirm, and append"."""
        if record.op == STATE_DUMP and self._opens.pop(record.xid, None) is None:
            self._close(record.xid)
        if record.op == ADD_XID:
            self._named[(self.entry.line or 0) + self._added] = record.xid
        if self._added == self._next_mark:
            self._next_mark = self._mark(at, self._added, self._id_floor)
        added_ms = record.added_ms if record.op else self.now_ms
        self._time(added_ms, self._added)
        self._expiring += record.expires_ms != 0
        self._others_bytes += record.size
        self._others += 1
        self._added += 1

    def _mark(self, at: int, number: int, id_floor: int) -> int:
        """Note where an added item starts, and the id floor before it. Return the number of the next item to note."""
        self.facts.marks.append(self.at + (self._saves_from if self._saves_to == at else at))
        self.facts.id_floors.append(id_floor)
        return number + MARK_EVERY

    def _time(self, added_ms: int, number: int) -> None:
        facts = self.facts
        facts.newest_ms, facts.oldest_ms = max(facts.newest_ms, added_ms), min(facts.oldest_ms, added_ms)
        self._id_floor = max(self._id_floor, id_floor_of(added_ms, number))

    def _set_counter(self, xid: int) -> None:
        self._counter = xid
        self._touched = True

    def _is_absent(self, xid: int) -> None:
        self._are_absent(xid, xid)

    def _are_absent(self, first: int, last: int) -> None:
        spans = self._absent
        if spans and spans[-1][1] == first - 1:
            spans[-1] = (spans[-1][0], last)
        else:
            spans.append((first, last))


def symbol_of(held: Held) -> Symbol:
    return Symbol(LINE, held, 1) if isinstance(held, int) else held


class XidScan(Struct):
    """The effect of a segment on the counter of transaction ids: `given` numbers after `base`. With `base` None they
    come after the counter at the beginning.
    """

    base: int | None = None
    given: int = 0

    def consume(self, data: bytes, rest_bytes: int) -> int:
        """Read whole records. Return where the next one starts, which may be behind `data`. Raises CorruptRecord. See
        EffectScan.
        """
        at, end, limit = 0, len(data), len(data) + rest_bytes
        try:
            while at < end:
                op = data[at]
                if op == ADDX and end - at >= ADDX_HEAD_BYTES:
                    stop = at + SIZE_END + XID_BODY.unpack_from(data, at + 1)[0]
                    if stop < at + ADDX_HEAD_BYTES or stop > limit:
                        decode(data, at, end, rest_bytes, heads_only=True)
                    at = stop
                elif op == REMOVE:
                    at += 1
                elif op == REMOVE_TENTATIVE:
                    self.given += 1
                    at += 1
                else:
                    record = decode(data, at, end, rest_bytes, heads_only=True)
                    if op in (SAVE_XID, REMOVE_TENTATIVE_XID) or record.listed is not None:
                        self.base, self.given = record.xid, 0
                    at = record.stop
        except IncompleteRecord:
            pass
        return at

    def counter_after(self, entered: int | None) -> int | None:
        """Return the counter at the end, if it was `entered` at the beginning."""
        counter = entered if self.base is None else self.base
        if counter is None:
            return None
        if not self.given:
            return counter
        counter_position = (counter - XID_MIN - (counter >= 0) + self.given) % XIDS
        xid = XID_MIN + counter_position
        return xid + 1 if xid >= 0 else xid
