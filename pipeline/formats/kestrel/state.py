"""The rows of the view `state` from the summaries of a queue's files. Payloads are read only if they are asked for."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from itertools import accumulate
from typing import Any, Protocol

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from staniel.journal.errors import CorruptRecord, Damage
from staniel.journal.kestrel.effect import ID_FLOOR_MIN, Origin, SegmentEffect, State, Symbol
from staniel.journal.kestrel.records import HEAD_BYTES, SAVE_XID
from staniel.journal.kestrel.sidecar import Sidecar
from staniel.pipeline.formats.base import JournalSegment, Reading, handle_damage, torn_end
from staniel.pipeline.formats.columns import STATE
from staniel.pipeline.formats.kestrel.effect_scan import MARK_EVERY, EffectScan, EntryState, SegmentFacts
from staniel.pipeline.formats.kestrel.ops import BATCH_BYTES, LISTED, OPS, STAND_IN, OpsReader
from staniel.pipeline.lake.arrow import BATCH_ROWS, batch, constant
from staniel.pipeline.lake.folders import Folder, feed
from staniel.queues.delays import REST_XID_MIN

ITEM_OPS = pa.array(["add", "add_xid", "continue", OPS[STAND_IN]])  # the records counted in the order of adding
EXACT_ID_MS = 1 << 46  # add times up to here make ids of 64 bits


class Summarised(Struct, frozen=True):
    """A segment, its summary, and how to find its items again. `damage`: why it ends early. `sidecar`: the source of
    all this, if the segment has not been read; the positions of its items are then unknown.
    """

    segment: JournalSegment
    summary: SegmentEffect
    facts: SegmentFacts
    damage: Damage | None = None
    sidecar: Sidecar | None = None


class Given(Struct, frozen=True):
    """The ids that the server has given, according to the last sidecar. `ids` has those of items that have left the
    line, by number. Items from `floor` on had no id yet; `id_floor` is that of the items before. Without sidecars:
    nothing.
    """

    floor: int = 0
    id_floor: int = ID_FLOOR_MIN
    ids: dict[int, int] = {}


class QueueSummary(Struct, frozen=True):
    """A summarised queue. `before` counts the items of its line before those of `state`."""

    name: str
    found: list[Summarised]
    state: State
    given: Given = Given()
    before: int = 0


def summarise_file(folder: Folder, segment: JournalSegment, entry: EntryState, reading: Reading) -> Summarised:
    """Summarise one segment by the heads of its records. Raises what EffectScan.consume raises, except for damage: see
    handle_damage.
    """
    file = folder.open(segment.file)
    summariser = EffectScan(entry, segment.begin, reading.now_ms)
    damage = None
    try:
        feed(file, segment.begin, segment.end, summariser.consume)
    except CorruptRecord as error:
        damage = torn_end(segment, error) or handle_damage(folder, segment, error, reading)
    finally:
        file.close()
    return Summarised(segment, summariser.final_effect(), summariser.facts, damage)


def live_rows(
    folder: Folder, queue: QueueSummary, include_value: bool, stand_ins: bool = False
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a queue's state, from the segments that hold remaining items. `stand_ins` includes the
    placeholder records of packs, which only count if the files that remove them are left out.
    """
    return rows_of(Finder(folder, queue, include_value), queue.name, queue.state, queue.before, stand_ins)


class ItemFinder(Protocol):
    """A finder of a queue's items by their number in the order of adding, as rows of `ops` with ids."""

    def range(self, start: int, stop: int) -> Iterator[tuple[pa.RecordBatch, int]]:
        """Yield rows of the items from `start` up to `stop`, in order, each batch with the number of its first."""

    def single(self, numbers: list[int]) -> dict[int, dict[str, Any]]:
        """Return rows of single items, by number."""

    def listed(self) -> dict[int, dict[str, Any]]:
        """Return rows of the items that lists of opcode 8 brought, by number."""


def rows_of(
    finder: ItemFinder, name: str, state: State, before: int = 0, stand_ins: bool = False
) -> Iterator[pa.RecordBatch]:
    """See `live_rows`."""
    symbols = [*state.front, *state.opens.values()]
    numbers = [symbol.number for symbol in symbols if symbol.origin is Origin.LINE]
    single = finder.single(numbers)
    listed = finder.listed() if any(symbol.origin is Origin.LISTED for symbol in symbols) else {}

    def row(symbol: Symbol, **more: Any) -> dict[str, Any]:
        held = listed[symbol.number] if symbol.origin is Origin.LISTED else single[symbol.number]
        return held | {"queue": name, "deliveries": symbol.deliveries} | more

    def opened(xid: int, symbol: Symbol) -> dict[str, Any]:
        open_row = row(symbol, state="open", xid=xid)
        if not (REST_XID_MIN <= xid < 0 and open_row.get("expireTime")):  # an item with a delay has an expiry
            return open_row
        return open_row | {"state": "delayed", "deliveries": max(symbol.deliveries - 1, 0)}

    def wanted(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return [row for row in rows if stand_ins or row["op"] != OPS[STAND_IN]]

    yield from _batches(
        wanted([row(symbol, position=at, state="returned", xid=None) for at, symbol in enumerate(state.front)])
    )
    for rows, first in finder.range(state.taken, state.added):
        positions = pa.array(np.arange(rows.num_rows) + first - state.taken + len(state.front) + before)
        count = rows.num_rows
        more = {
            "queue": constant(name, count, pa.string()),
            "position": positions,
            "state": constant("queued", count, pa.string()),
            "deliveries": constant(0, count, pa.int32()),
            "xid": pa.nulls(count, pa.int32()),  # an xid in the item's record is no open read's
        }
        made = batch(STATE, {name: rows[name] for name in rows.schema.names if name in STATE.names} | more, count)
        yield made if stand_ins else made.filter(pc.not_equal(rows["op"], OPS[STAND_IN]))
    yield from _batches(wanted([opened(xid, symbol) for xid, symbol in sorted(state.opens.items())]))


def _batches(rows: list[dict[str, Any]]) -> Iterator[pa.RecordBatch]:
    """Yield rows with values in batches that Java can hold: each large one in a batch of its own."""
    first = held = 0
    for at, row in enumerate(rows):
        size = len(row.get("value") or b"")
        if at > first and (held + size > BATCH_BYTES or at - first >= BATCH_ROWS):
            yield pa.RecordBatch.from_pylist(rows[first:at], schema=STATE)
            first, held = at, 0
        held += size
    if rows:
        yield pa.RecordBatch.from_pylist(rows[first:], schema=STATE)


class Finder:
    """A finder of items by their number in the order of adding, over all segments of a queue."""

    def __init__(self, folder: Folder, queue: QueueSummary, include_value: bool) -> None:
        self.folder = folder
        self.found = queue.found
        self.given = queue.given
        self.include_value = include_value
        self.firsts = [0, *accumulate(one.summary.added for one in self.found)]
        id_floors = [self.given.id_floor]
        for one, first in zip(self.found, self.firsts, strict=False):
            id_floors.append(max(id_floors[-1], one.summary.id_floor - first))
        self.id_floors = id_floors

    def range(self, start: int, stop: int) -> Iterator[tuple[pa.RecordBatch, int]]:
        """Yield rows of the items from `start` up to `stop`, in order, each batch with the number of its first."""
        for at, one in enumerate(self.found):
            low, high = max(start, self.firsts[at]), min(stop, self.firsts[at + 1])
            if low < high:
                yield from self._rows(at, one, low - self.firsts[at], high - self.firsts[at], self.include_value)

    def single(self, numbers: list[int]) -> dict[int, dict[str, Any]]:
        """Return rows of single items. The heads between two marks are read once, and only the payloads of
        these items.
        """
        rows: dict[int, dict[str, Any]] = {}
        blocks: dict[tuple[int, int], list[int]] = {}
        for number in numbers:
            at = bisect_right(self.firsts, number) - 1
            blocks.setdefault((at, (number - self.firsts[at]) // MARK_EVERY), []).append(number)
        for (at, block), wanted in sorted(blocks.items()):
            low = block * MARK_EVERY
            high = min(low + MARK_EVERY, self.found[at].summary.added)
            for ops, first in self._rows(at, self.found[at], low, high, False):
                inside = [number for number in wanted if first <= number < first + ops.num_rows]
                taken = ops.take(pa.array([number - first for number in inside], pa.int64())).to_pylist()
                rows.update(zip(inside, self._with_values(self.found[at].segment, taken), strict=True))
        return {number: row | {"id": self.given.ids.get(number, row["id"])} for number, row in rows.items()}

    def _with_values(self, segment: JournalSegment, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
        if self.include_value and rows:
            file = self.folder.open(segment.file)
            try:
                for row in rows:
                    head = HEAD_BYTES[file.read(row["offset"], 1)[0]]
                    row["value"] = file.read(row["offset"] + head, row["size"])
            finally:
                file.close()
        return rows

    def listed(self) -> dict[int, dict[str, Any]]:
        """Return rows of the items that lists of opcode 8 brought, by number."""
        rows: list[dict[str, Any]] = []
        for one in self.found:
            if one.summary.listed:
                for ops in self._batches(one.segment, one.segment.begin, one.segment.end, self.include_value):
                    rows += ops.filter(pc.equal(ops["op"], OPS[LISTED])).to_pylist()
        return dict(enumerate(rows))

    def _rows(
        self, at: int, one: Summarised, low: int, high: int, include_value: bool
    ) -> Iterator[tuple[pa.RecordBatch, int]]:
        """Yield items `low` to `high` of one segment, each batch with the number of its first over all segments."""
        block, first = low // MARK_EVERY, self.firsts[at]
        marks, segment = one.facts.marks, one.segment
        last = -(-high // MARK_EVERY)
        end = marks[last] if last < len(marks) else segment.end
        number, id_floor, begin = (
            block * MARK_EVERY,
            max(self.id_floors[at], one.facts.id_floors[block] - first),
            marks[block],
        )
        if include_value and number < low:
            # Read only heads up to the first item, whose payload is the first to be read.
            begin, id_floor = self._skip(segment, begin, end, first + number, low - number, id_floor)
            number = low
        for ops in self._batches(segment, begin, end, include_value):
            items = ops.filter(pc.is_in(ops["op"], ITEM_OPS))
            ids, id_floor = item_ids(items, first + number, id_floor, self.given.floor)
            skip, keep = max(0, low - number), min(items.num_rows, high - number)
            if skip < keep:
                yield items.append_column("id", ids).slice(skip, keep - skip), first + number + skip
            number += items.num_rows
            if number >= high:
                return

    def _skip(
        self, segment: JournalSegment, begin: int, end: int, number: int, count: int, id_floor: int
    ) -> tuple[int, int]:
        """Skip `count` items. Return where the record after them starts, and the id floor."""
        for ops in self._batches(segment, begin, end, False):
            places = np.flatnonzero(np.asarray(pc.is_in(ops["op"], ITEM_OPS)))
            if len(places) > count:
                items = ops.filter(pc.is_in(ops["op"], ITEM_OPS)).slice(0, count)
                after = int(places[count - 1]) + 1
                return ops["offset"][after].as_py(), item_ids(items, number, id_floor, self.given.floor)[1]
            id_floor = item_ids(ops.filter(pc.is_in(ops["op"], ITEM_OPS)), number, id_floor, self.given.floor)[1]
            number, count = number + len(places), count - len(places)
            if not count:
                begin = ops["offset"][-1].as_py()
                return self._skip_one(segment, begin, end), id_floor
        return end, id_floor

    def _skip_one(self, segment: JournalSegment, begin: int, end: int) -> int:
        """Return where the record after the one at `begin` starts. Each large item is a batch."""
        row = 1
        for ops in self._batches(segment, begin, end, False):
            if ops.num_rows > row:
                return int(ops["offset"][row].as_py())
            row -= ops.num_rows
        return end

    def _batches(self, segment: JournalSegment, begin: int, end: int, include_value: bool) -> Iterator[pa.RecordBatch]:
        file = self.folder.open(segment.file)
        try:
            yield from OpsReader(JournalSegment(segment.queue, segment.file, begin, end), include_value).batches(file)
        except CorruptRecord:
            return  # reported when the segment was summarised
        finally:
            file.close()


def item_ids(items: pa.RecordBatch, first: int, id_floor: int, floor: int = 0) -> tuple[pa.Array, int]:
    """Return the ids that items get when they leave, as queues/line.py makes them, and the id floor behind them. Items
    before number `floor` have their ids from elsewhere, and `id_floor` is theirs.
    """
    rows = items.num_rows
    if not rows:
        return pa.nulls(0, pa.int64()), id_floor
    added_ms = np.asarray(items["addTime"].view(pa.int64()).fill_null(0)) // 1000
    if int(added_ms.max()) > EXACT_ID_MS:
        return pa.nulls(rows, pa.int64()), id_floor
    numbers = np.arange(first, first + rows)
    own = np.maximum.accumulate(np.where(numbers < floor, 0, (added_ms << 16) - numbers))
    id_floors = np.maximum(own, max(id_floor, 1))
    return pa.array(id_floors + numbers), max(id_floor, int(id_floors[-1]))


def cut_at_time(folder: Folder, segments: list[JournalSegment], until_ms: int) -> list[JournalSegment]:
    """Return the segments up to the first item added after `until_ms`: other records have no time."""
    kept = []
    for segment in segments:
        end = _first_after(folder, segment, until_ms)
        kept.append(msgspec.structs.replace(segment, end=end))
        if end < segment.end:
            break
    return kept


def _first_after(folder: Folder, segment: JournalSegment, until_ms: int) -> int:
    file = folder.open(segment.file)
    reader = OpsReader(segment, False)
    limit = pa.scalar(until_ms * 1000, pa.int64())
    saves_from: int | None = None  # the start of the SAVE_XID records at the end of the last batch
    try:
        for ops in reader.batches(file):
            late = pc.greater(ops["addTime"].view(pa.int64()), limit)
            at, kinds = pc.index(late, True).as_py(), ops["op"]
            # The flags of an item stand before it; the items of a list stand behind its record.
            row = at if at >= 0 else ops.num_rows
            while 0 < row < ops.num_rows and kinds[row].as_py() == OPS[LISTED]:
                row -= 1
            while row and kinds[row - 1].as_py() == OPS[SAVE_XID]:
                row -= 1
            if row or saves_from is None:
                saves_from = ops["offset"][row].as_py() if row < ops.num_rows else None
            if at >= 0 and saves_from is not None:
                return int(saves_from)
    except CorruptRecord:
        pass
    finally:
        file.close()
    return segment.end
