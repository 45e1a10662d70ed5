"""The adapter of the Kestrel format: the files of a queue, and its views. See base.FormatAdapter."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from staniel.journal.errors import CorruptRecord
from staniel.journal.kestrel import files as kestrel_files
from staniel.journal.kestrel.effect import EffectMismatch
from staniel.journal.kestrel.files import Files
from staniel.journal.kestrel.records import ADD_XID, ADDX, FIXED_BYTES, HEAD_BYTES
from staniel.pipeline.formats.base import BatchEnd, JournalSegment, Part, Reading, View
from staniel.pipeline.formats.columns import HISTORY, STATE
from staniel.pipeline.formats.kestrel import history as kestrel_history
from staniel.pipeline.formats.kestrel import items as kestrel_items
from staniel.pipeline.formats.kestrel import ops as kestrel_ops
from staniel.pipeline.formats.kestrel import queue as kestrel_queue
from staniel.pipeline.formats.kestrel import state as kestrel_state
from staniel.pipeline.formats.kestrel.effect_scan import EMPTY, TIME_MAX, TIME_MIN, UNKNOWN, CounterUnknown
from staniel.pipeline.formats.kestrel.ops import OpsReader
from staniel.pipeline.formats.kestrel.state import Summarised, summarise_file
from staniel.pipeline.lake.arrow import TIME, Rows, schema
from staniel.pipeline.lake.folders import Folder
from staniel.pipeline.lake.lake import ReadMark

EXPIRY_BYTES = 8
SMALL_BYTES = 16 << 10  # in smaller files, reading records one by one is faster than making columns
TIME_END = {op: HEAD_BYTES[op] - EXPIRY_BYTES for op in (ADDX, ADD_XID)}  # the end of an item's add time in its record

SUMMARIES = schema(
    queue=pa.string(),
    file=pa.string(),
    number=pa.int64(),
    bytes=pa.int64(),
    added=pa.int64(),
    addedBytes=pa.int64(),
    taken=pa.int64(),
    returned=pa.int64(),
    opened=pa.int64(),
    oldest=TIME,
    newest=TIME,
    tail=pa.string(),
    badOffset=pa.int64(),
    error=pa.string(),
    strays=pa.int64(),
)


class KestrelAdapter:
    """The adapter of the Kestrel format, see base.FormatAdapter."""

    name = "kestrel"
    by_queue = True
    op_names: tuple[str, ...] = tuple(dict.fromkeys(kestrel_ops.OPS.values()))
    has_ids = False

    def schemas(self) -> dict[str, pa.Schema]:
        return {
            "ops": kestrel_ops.SCHEMA,
            "items": kestrel_items.ITEMS,
            "state": STATE,
            "history": HISTORY,
            "summaries": SUMMARIES,
        }

    def whole_queue(self, view: str) -> bool:
        return view != "ops"

    def queues(self, listing: list[tuple[str, int]]) -> dict[str, list[JournalSegment]]:
        sizes = dict(listing)
        by_queue, _ = kestrel_files.sort_out([(name, True) for name, _ in listing])
        return {
            queue: [
                JournalSegment(queue, name, 0, sizes[name], name == queue, number, files.archives.get(name, 0))
                for number, name in enumerate(files_in_order(files))
            ]
            for queue, files in by_queue.items()
            if not files.holds_nothing
        }

    def until(self, folder: Folder, segments: list[JournalSegment], until_ms: int) -> list[JournalSegment]:
        return kestrel_state.cut_at_time(folder, segments, until_ms)

    def cuts(self, folder: Folder, segment: JournalSegment, parts: int) -> list[tuple[int, int]]:
        """Return cuts at records that no SAVE_XID precedes: a SAVE_XID belongs to the item behind it."""
        step = max(segment.bytes // parts, 1)
        cuts: list[tuple[int, int]] = []
        file = folder.open(segment.file)
        try:
            for ops in OpsReader(segment, False).batches(file):
                offsets, latest = np.asarray(ops["offset"]), newest_ms(ops)
                rows = cuttable(ops)
                rows = rows[rows < len(offsets)]
                while len(cuts) < parts - 1:
                    fit = rows[offsets[rows] >= segment.begin + step * (len(cuts) + 1)]
                    if not len(fit):
                        break
                    cuts.append((int(offsets[fit[0]]), int(latest[fit[0] - 1])))
        except CorruptRecord:
            pass
        finally:
            file.close()
        return sorted({cut for cut in cuts if cut[0] > segment.begin})

    def boundary(self, folder: Folder, segment: JournalSegment, max_bytes: int, max_records: int) -> BatchEnd:
        """See base.FormatAdapter. SAVE_XID records at the end are left for the item that they may belong to."""
        file = folder.open(segment.file)
        reach, records = BatchEnd(segment.begin, as_of=segment.as_of), 0
        reader = OpsReader(segment, False)
        try:
            if segment.bytes <= min(SMALL_BYTES, max_bytes) and (found_end := reader.end(file)) is not None:
                if found_end.records <= max_records:
                    return found_end
                reader = OpsReader(segment, False)
            for ops in reader.batches(file):
                ends = np.append(np.asarray(ops["offset"])[1:], reader.scanned)
                places = cuttable(ops)
                fits = (ends[places - 1] <= segment.begin + max_bytes) & (places + records <= max_records)
                if len(fits) and not reach.records:
                    fits[0] = True
                if fits.any():
                    rows = int(places[fits][-1])
                    reach = BatchEnd(int(ends[rows - 1]), None, records + rows, int(newest_ms(ops)[rows - 1]))
                if not fits.all():
                    return reach
                records += ops.num_rows
        except CorruptRecord as error:
            return reach._replace(damage=error)
        finally:
            file.close()
        return reach

    def as_of(self, folder: Folder, segment: JournalSegment) -> int:
        file = folder.open(segment.file)
        latest = 0
        try:
            for ops in OpsReader(JournalSegment(segment.queue, segment.file, 0, segment.begin), False).batches(file):
                latest = int(newest_ms(ops)[-1])
        except CorruptRecord:
            pass
        finally:
            file.close()
        return latest

    def tells(self, head: bytes) -> bool:
        """Return True if the head has an item's add time. Records of removals, reserves and ends are the same in all
        files.
        """
        at = 0
        while at < len(head) and (size := FIXED_BYTES.get(head[at], 0)):
            at += size
        return at < len(head) and at + TIME_END.get(head[at], len(head)) <= len(head)

    def list_fates(self, folder: Folder) -> dict[str, list[JournalSegment]]:
        return {}

    def read_marks(self, folder: Folder, queues: Collection[str], reading: Reading) -> dict[str, dict[str, ReadMark]]:
        """Return nothing: the records say what was taken."""
        return {}

    def is_broken(self, segments: list[JournalSegment]) -> bool:
        """Return False: files are removed from the oldest on."""
        return False

    def missing(self, folder: Folder, segments: list[JournalSegment], last_id: int) -> int | None:
        return None

    def view(self, name: str) -> View:
        views: dict[str, View] = {
            "ops": kestrel_ops.read,
            "items": kestrel_items.read_items,
            "state": kestrel_queue.read_state,
            "history": kestrel_history.read_history,
            "summaries": read_summaries,
        }
        return views[name]


def cuttable(ops: pa.RecordBatch) -> Any:
    """Return the numbers of rows at which a batch may be cut, rising: not between a SAVE_XID and the item that it may
    belong to, nor within the items that one record lists.
    """
    kinds = ops["op"]
    is_saved = np.asarray(pc.equal(kinds, "save_xid"))
    goes_on = np.append(np.asarray(pc.equal(kinds, "listed"))[1:], False)
    return np.flatnonzero(~is_saved & ~goes_on) + 1


def newest_ms(ops: pa.RecordBatch) -> Any:
    """Return `asOf` in ms, 0 for none."""
    return np.asarray(ops["asOf"].view(pa.int64()).fill_null(0)) // 1000


def files_in_order(files: Files) -> list[str]:
    """Return the names in the order of replay. A pack replaces everything that it covers, its own predecessors
    included.
    """
    packs = sorted(files.packs, key=lambda name: (files.packs[name], name))
    covered = files.packs[packs[-1]] if packs else -1
    archives = [name for name in files.archives_in_order() if files.archives[name] > covered]
    return [*packs[-1:], *archives, *([files.queue] if files.current else [])]


def read_summaries(folder: Folder, part: Part, reading: Reading) -> Iterator[pa.RecordBatch]:
    """Yield a row for each segment. Each is summarised by itself or, if that needs the queue before it, after that."""
    rows, in_order = Rows(SUMMARIES), list[Summarised]()
    for at, segment in enumerate(part.segments):
        one, why = summarise_alone(folder, segment, reading)
        if one is None:
            try:
                in_order = in_order or kestrel_queue.summarise_queue(
                    folder, part.segments, msgspec.structs.replace(reading, use_summaries=False)
                )
                one, why = in_order[at], ""
            except EffectMismatch as error:
                why = str(error)
        rows.add(_row(segment, one, why))
    if rows.rows:
        yield rows.pop_batch()


def summarise_alone(folder: Folder, segment: JournalSegment, reading: Reading) -> tuple[Summarised | None, str]:
    """Return a segment's summary without the segments before it, or why there is none. A queue's first segment needs no
    others.
    """
    try:
        return summarise_file(folder, segment, UNKNOWN if segment.number else EMPTY, reading), ""
    except CounterUnknown:
        return None, "numbers its reserves from a counter that an earlier segment holds"
    except EffectMismatch as error:
        return None, str(error)


def _row(segment: JournalSegment, one: Summarised | None, why: str) -> dict[str, object]:
    row: dict[str, object] = {"queue": segment.queue, "file": segment.file, "number": segment.number}
    row |= {"bytes": segment.bytes, "error": why or None}
    if one is None:
        return row
    summary, facts = one.summary, one.facts
    row |= {"added": summary.added, "addedBytes": summary.added_bytes, "taken": summary.taken}
    row |= {"returned": len(summary.front), "opened": len(summary.opens), "strays": facts.strays}
    row |= {
        "oldest": None if facts.oldest_ms == TIME_MAX else facts.oldest_ms,
        "newest": None if facts.newest_ms == TIME_MIN else facts.newest_ms,
        "tail": "clean",
    }
    if one.damage is not None:
        tail = "torn" if one.damage.is_torn else "corrupt"
        row |= {"tail": tail, "badOffset": one.damage.at, "error": one.damage.why}
    return row
