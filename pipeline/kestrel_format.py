"""The adapter of the Kestrel format: which files are a queue's, and its views.

Knows names and how the parts fit together. Refuses to know records.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from journal import layout
from journal.flaws import is_torn
from journal.layout import Files
from journal.replay import Bad
from journal.summaries import Entangled
from journal.summarise import EMPTY, TIME_MAX, TIME_MIN, UNKNOWN, CounterUnknown
from pipeline import kestrel_items, kestrel_ops, kestrel_queue, kestrel_state
from pipeline.columns import TIME, Rows, schema
from pipeline.files import Folder
from pipeline.kestrel_ops import OpsReader
from pipeline.kestrel_state import Summarised, summarise_file
from pipeline.segments import Part, Reading, Segment, View

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


class KestrelFormat:
    """See pipeline.segments.Format."""

    name = "kestrel"
    by_queue = True

    def schemas(self) -> dict[str, pa.Schema]:
        return {
            "ops": kestrel_ops.SCHEMA,
            "items": kestrel_items.ITEMS,
            "state": kestrel_state.STATE,
            "summaries": SUMMARIES,
        }

    def whole_queue(self, view: str) -> bool:
        return view in ("items", "state")

    def queues(self, listing: list[tuple[str, int]]) -> dict[str, list[Segment]]:
        sizes = dict(listing)
        found, _ = layout.sort_out([(name, True) for name, _ in listing])
        return {
            queue: [
                Segment(queue, name, 0, sizes[name], name == queue, number, files.archives.get(name, 0))
                for number, name in enumerate(files_in_order(files))
            ]
            for queue, files in found.items()
            if not files.holds_nothing
        }

    def until(self, folder: Folder, segments: list[Segment], until_ms: int) -> list[Segment]:
        return kestrel_state.cut_at_time(folder, segments, until_ms)

    def cuts(self, folder: Folder, segment: Segment, parts: int) -> list[int]:
        """Cuts stand where no SAVE_XID goes before, because those belong to the item behind them."""
        step = max(segment.bytes // parts, 1)
        cuts: list[int] = []
        file = folder.open(segment.file)
        try:
            for found in OpsReader(segment, False).batches(file):
                offsets = np.asarray(found["offset"])
                while len(cuts) < parts - 1 and offsets[-1] >= (due := segment.begin + step * (len(cuts) + 1)):
                    row = int(np.searchsorted(offsets, due))
                    while row < len(offsets) and found["op"][max(row - 1, 0)].as_py() in ("save_xid", "listed"):
                        row += 1
                    cuts.append(int(offsets[min(row, len(offsets) - 1)]))
        except Bad:
            pass
        finally:
            file.close()
        return sorted({at for at in cuts if at > segment.begin})

    def boundary(self, folder: Folder, segment: Segment, max_bytes: int, max_records: int) -> tuple[int, str]:
        """See pipeline.segments.Format. SAVE_XID records at the end are left for the item that they may belong to."""
        file = folder.open(segment.file)
        records, at = 0, segment.begin
        reader = OpsReader(segment, False)
        try:
            for found in reader.batches(file):
                offsets, ops = found["offset"], found["op"]
                rows = min(found.num_rows, max_records - records)
                late = np.asarray(offsets) > segment.begin + max_bytes
                rows = min(rows, max(int(np.argmax(late)), records == 0)) if late.any() else rows
                whole = rows == found.num_rows
                while rows and ops[rows - 1].as_py() in ("save_xid", "listed"):
                    rows, whole = rows - 1, False
                at = reader.scanned if whole else int(offsets[rows].as_py())
                records += rows
                if not whole or records >= max_records or at >= segment.begin + max_bytes:
                    return at, ""
        except Bad as bad:
            return at, bad.why
        finally:
            file.close()
        return at, ""

    def count(self, folder: Folder, segment: Segment) -> int:
        file = folder.open(segment.file)
        try:
            return sum(found.num_rows for found in OpsReader(segment, False).batches(file))
        finally:
            file.close()

    def view(self, name: str) -> View:
        views: dict[str, View] = {
            "ops": kestrel_ops.read,
            "items": kestrel_items.read_items,
            "state": kestrel_queue.read_state,
            "summaries": read_summaries,
        }
        return views[name]


def files_in_order(files: Files) -> list[str]:
    """The names in the order of replay: a pack stands for everything that it covers, its own predecessors included."""
    packs = sorted(files.packs, key=lambda name: (files.packs[name], name))
    covered = files.packs[packs[-1]] if packs else -1
    archives = [name for name in files.archives_in_order() if files.archives[name] > covered]
    return [*packs[-1:], *archives, *([files.queue] if files.current else [])]


def read_summaries(folder: Folder, part: Part, reading: Reading) -> Iterator[pa.RecordBatch]:
    """One row a segment, each summarised by itself. Where only the queue before it tells, `error` says so."""
    rows = Rows(SUMMARIES)
    for segment in part.segments:
        rows.add(_row(segment, *summarise_alone(folder, segment, reading)))
    if rows.rows:
        yield rows.take()


def summarise_alone(folder: Folder, segment: Segment, reading: Reading) -> tuple[Summarised | None, str]:
    """A segment's summary without the segments before it, or why there is none. A queue's first one needs no others."""
    try:
        return summarise_file(folder, segment, UNKNOWN if segment.number else EMPTY, reading), ""
    except CounterUnknown:
        return None, "numbers its reserves from a counter that an earlier segment holds"
    except Entangled as error:
        return None, str(error)


def _row(segment: Segment, one: Summarised | None, why: str) -> dict[str, object]:
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
        tail = "torn" if is_torn(one.damage.why, one.damage.lost_bytes) else "corrupt"
        row |= {"tail": tail, "badOffset": one.damage.at, "error": one.damage.why}
    return row
