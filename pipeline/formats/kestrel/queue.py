"""The summary of a Kestrel queue from its files, for the view `state`.

A sealed file need not be read if the server left a sidecar that describes it. Without sidecars every file is read.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from itertools import accumulate

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct
from msgspec.structs import replace

from staniel.journal.errors import CorruptRecord
from staniel.journal.kestrel import files as kestrel_files
from staniel.journal.kestrel import sidecar
from staniel.journal.kestrel.derived_effect import checkpoint_of, effect_of_state, follow
from staniel.journal.kestrel.effect import ID_FLOOR_MIN, NOTHING, EffectMismatch, Origin, SegmentEffect, apply, merge
from staniel.journal.kestrel.records import ADD, ADD_XID, HEAD_BYTES, NEVER
from staniel.journal.kestrel.sidecar import SIDECAR_MAX_BYTES, Fit, Sidecar
from staniel.pipeline.formats.base import JournalSegment, Part, Reading
from staniel.pipeline.formats.kestrel.effect_scan import MARK_EVERY, SegmentFacts, entry_state_of
from staniel.pipeline.formats.kestrel.ops import OpsReader
from staniel.pipeline.formats.kestrel.state import (
    EXACT_ID_MS,
    ITEM_OPS,
    Given,
    QueueSummary,
    Summarised,
    live_rows,
    summarise_file,
)
from staniel.pipeline.lake.folders import PIECE_BYTES, FileVanished, Folder, FolderFs, OpenFile

TIMES_BYTES = 16  # of a record's head: the add time and the expiry, in front of the payload


class Stretch(Struct, frozen=True):
    """The items of one file to find again: those with numbers (within the file) from `low` up to `high`. Those from
    `floor` on had no id yet when the sidecars ended.
    """

    summarised: Summarised
    low: int
    high: int
    floor: int


def read_state(folder: Folder, part: Part, reading: Reading) -> Iterator[pa.RecordBatch]:
    """Yield the queue's contents in delivery order, then the open reads."""
    yield from live_rows(folder, hold(folder, part, reading), reading.include_value)


def hold(folder: Folder, part: Part, reading: Reading) -> QueueSummary:
    """Return the contents of a queue, and where they are. If a file differs from its sidecar, all files are read.
    Raises what reading raises: CorruptJournal, FileVanished.
    """
    queue, stretches = stand(part.queue, summarise_queue(folder, part.segments, reading))
    surveyed = {at: survey(folder, stretch) for at, stretch in stretches.items()}
    held = furnish(queue, surveyed)
    return hold(folder, part, replace(reading, use_summaries=False)) if held is None else held


def summarise_queue(folder: Folder, segments: list[JournalSegment], reading: Reading) -> list[Summarised]:
    """Return the summaries of all segments of a queue in order, each made with the state before it."""
    summaries, whole = [], NOTHING
    trusts = trusting(segments, reading).use_summaries
    for segment in segments:
        one = described(folder, segment) if trusts else None
        after = _told_after(whole, one)
        if one is None or after is None:
            one = summarise_file(folder, segment, entry_state_of(apply(whole)), reading)
            after = merge(whole, one.summary)
        summaries.append(one)
        whole = after
    return summaries


def _told_after(whole: SegmentEffect, one: Summarised | None) -> SegmentEffect | None:
    """Return the queue's state after a file by its sidecar; None without a sidecar that fits the state before."""
    try:
        return None if one is None or one.sidecar is None else _onto(whole, one.sidecar)[0]
    except EffectMismatch:
        return None


def trusting(segments: list[JournalSegment], reading: Reading) -> Reading:
    """Return how to read a queue's segments: with sidecars only if they begin at the queue's first byte."""
    is_whole = not segments or not (segments[0].number or segments[0].begin)
    return reading if is_whole else replace(reading, use_summaries=False)


def described(folder: Folder, segment: JournalSegment) -> Summarised | None:
    """Return a segment's summary by its sidecar. None: it is not a whole sealed file, or has no sidecar that
    fits it.
    """
    if segment.live or segment.begin:
        return None
    described = load_sidecar(folder, segment.file)
    if described is None or described.file != segment.file or described.size != segment.end:
        return None
    if sidecar.compare_file(described, FolderFs(folder, segment.end), segment.file) is Fit.OTHER:
        return None
    return Summarised(segment, described.effect, SegmentFacts([], []), None, described)


def load_sidecar(folder: Folder, name: str) -> Sidecar | None:
    """Load a sidecar from any folder, like staniel.journal.kestrel.sidecar.load."""
    data = bytearray()
    try:
        file = folder.open(kestrel_files.sidecar_path(".", name))
        try:
            while piece := file.read(len(data), PIECE_BYTES):
                data += piece
                if len(data) > SIDECAR_MAX_BYTES:
                    return None
        finally:
            file.close()
    except (FileVanished, OSError):
        return None
    return sidecar.decode_sidecar(bytes(data))


def stand(name: str, summaries: list[Summarised]) -> tuple[QueueSummary, dict[int, Stretch]]:
    """Return the contents of a queue after segments, and the stretches of them, by position in `summaries`, to read
    before its items are found. Raises EffectMismatch.
    """
    whole, given, known, alone = NOTHING, Given(), 0, list[SegmentEffect]()
    for at, one in enumerate(summaries):
        if one.sidecar is None:
            alone.append(one.summary)
        else:
            whole, given = _onto(merged([whole, *alone]), one.sidecar)
            known, alone = at + 1, []
    known_segments = [replace(one, summary=replace(one.summary, id_floor=ID_FLOOR_MIN)) for one in summaries[:known]]
    queue = QueueSummary(name, [*known_segments, *summaries[known:]], apply(merged([whole, *alone])), given)
    return queue, dict(_stretches(queue, known))


def merged(summaries: list[SegmentEffect]) -> SegmentEffect:
    """Merge neighbours, level by level. Raises EffectMismatch."""
    level = summaries
    while len(level) > 1:
        pairs = [level[at : at + 2] for at in range(0, len(level), 2)]
        level = [merge(*pair) if len(pair) == 2 else pair[0] for pair in pairs]
    return level[0]


def _onto(before: SegmentEffect, known: Sidecar) -> tuple[SegmentEffect, Given]:
    """Return the queue's state after a file with a sidecar, as the server knows it. Raises EffectMismatch."""
    state, effect = apply(before), known.effect
    checkpoint = follow(checkpoint_of(before), state.counter, effect, known.last_id, known.opens, known.heads)
    whole = effect_of_state(checkpoint, state.counter if effect.counter is None else effect.counter, state.listed)
    ids = dict(zip([*checkpoint.open_seqs, *checkpoint.heads], checkpoint.ids, strict=True))
    return whole, Given(checkpoint.left, whole.id_floor, ids)


def _stretches(queue: QueueSummary, known: int) -> Iterator[tuple[int, Stretch]]:
    """Yield the stretches of the first `known` segments that no later sidecar describes: the remaining items, and every
    item without an id, because ids are made from the add times of all of them.
    """
    symbols = [*queue.state.front, *queue.state.opens.values()]
    numbers = sorted(symbol.number for symbol in symbols if symbol.origin is Origin.LINE)
    firsts = [0, *accumulate(one.summary.added for one in queue.found)]
    for at, one in enumerate(queue.found[:known]):
        first, end = firsts[at], firsts[at + 1]
        inside = numbers[bisect_left(numbers, first) : bisect_left(numbers, end)]
        floor = max(queue.given.floor, first)
        low, high = (inside[0], inside[-1] + 1) if inside else (floor, floor)
        if floor < end:
            low, high = min(low, floor), end
        if low < high:
            yield at, Stretch(one, low - first, high - first, queue.given.floor - first)


def survey(folder: Folder, stretch: Stretch) -> Summarised | None:
    """Return the segment with marks for the items of `stretch` and their id floor, by the heads of records. None: they
    differ from the summary, or have times that give no ids. Raises FileVanished.
    """
    one = stretch.summarised
    segment, added = one.segment, one.summary.added
    (begin, number), (end, last) = _bounds(one, stretch.low // MARK_EVERY * MARK_EVERY, min(stretch.high, added))
    file = folder.open(segment.file)
    marker = Marker(file, number, stretch.floor)
    try:
        for ops in OpsReader(JournalSegment(segment.queue, segment.file, begin, end), False).batches(file):
            if not marker.read(ops):
                return None
    except CorruptRecord:
        return None
    finally:
        file.close()
    if marker.number != last:
        return None
    return replace(one, facts=marker.facts, summary=replace(one.summary, id_floor=marker.id_floor))


def _bounds(one: Summarised, low: int, high: int) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return the nearest known record boundaries around items `low` to `high`, each as (byte, items of the file before
    it).
    """
    known = [(at, number * MARK_EVERY) for number, at in enumerate(one.facts.marks)]
    if one.sidecar is not None:
        known = [(at, items) for at, items, _, _ in one.sidecar.index]
    before = bisect_right(known, low, key=lambda place: place[1])
    behind = bisect_left(known, high, key=lambda place: place[1])
    end = (one.segment.end if one.damage is None else one.damage.at, one.summary.added)
    return known[before - 1] if before else (one.segment.begin, 0), known[behind] if behind < len(known) else end


class Marker:
    """A maker of the SegmentFacts of a stretch of a file, like an EffectScan, and of the id floor of its items from
    `floor` on.
    """

    def __init__(self, file: OpenFile, number: int, floor: int) -> None:
        self._file = file
        self.number = number  # of the next item, within the file
        self.id_floor = ID_FLOOR_MIN
        skipped = -(-number // MARK_EVERY)
        self.facts = SegmentFacts([0] * skipped, [ID_FLOOR_MIN] * skipped)  # blocks before the stretch
        self._floor = floor
        self._saves_from: int | None = None  # the start of the SAVE_XID records at the end of the last batch

    def read(self, ops: pa.RecordBatch) -> bool:
        """Read the next records. Return False if they have times that give no ids."""
        offsets, saves = np.asarray(ops["offset"]), np.asarray(pc.equal(ops["op"], "save_xid"))
        rows = np.flatnonzero(np.asarray(pc.is_in(ops["op"], ITEM_OPS)))
        added_ms = np.asarray(ops["addTime"].view(pa.int64()).fill_null(0))[rows] // 1000
        numbers = np.arange(self.number, self.number + len(rows))
        fresh = numbers >= self._floor
        if np.any(added_ms > EXACT_ID_MS) or not all(map(self._is_timeless, offsets[rows[fresh & (added_ms == 0)]])):
            return False
        own = np.maximum.accumulate(np.where(fresh, (added_ms << 16) - numbers, 0))
        for at in np.flatnonzero(numbers % MARK_EVERY == 0):
            self.facts.marks.append(self._start(offsets, saves, int(rows[at])))
            self.facts.id_floors.append(max(self.id_floor, int(own[at - 1])) if at else self.id_floor)
        if len(rows):
            self.id_floor = max(self.id_floor, int(own[-1]))
        self.number += len(rows)
        self._saves_from = self._start(offsets, saves, len(saves)) if saves[-1] else None
        return True

    def _is_timeless(self, at: int) -> bool:
        """Return True if the add time of a record is really 0, and not one that a column cannot show."""
        head = self._file.read(at, HEAD_BYTES[ADD_XID])
        time_at = HEAD_BYTES[head[0]] - TIMES_BYTES
        return head[0] != ADD and head[time_at : time_at + 8] == NEVER

    def _start(self, offsets: np.ndarray, saves: np.ndarray, row: int) -> int:
        """Return where the SAVE_XID records before a row begin; the row itself if there are none."""
        while row and saves[row - 1]:
            row -= 1
        return int(offsets[row]) if row or self._saves_from is None else self._saves_from


def furnish(queue: QueueSummary, surveyed: dict[int, Summarised | None]) -> QueueSummary | None:
    """Return the queue with the results for its stretches; None if one of them differs from its summary."""
    segments = []
    for at, one in enumerate(queue.found):
        made = surveyed.get(at, one)
        if made is None:
            return None
        segments.append(replace(made, sidecar=None))
    return replace(queue, found=segments)
