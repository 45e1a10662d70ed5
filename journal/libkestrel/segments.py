"""The durable items of one family: look-up by id, and totals.

Source: "Filenames" of the libkestrel journal format. Where ids and file numbers disagree, the ids decide the order.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections.abc import Iterable, Iterator

from msgspec import Struct

from staniel.journal.disk.fs import Fs
from staniel.journal.errors import CorruptRecord
from staniel.journal.libkestrel.records import ID_MAX, MAGIC_BYTES, PUT_COMMAND, decode_item, read_record
from staniel.journal.libkestrel.scan import IdRun, ScanMark
from staniel.queues.item import LOST_MS, Numbered


class StreamSegment(Struct):
    """A segment file. `size`: bytes up to the end of its data. The ids are 0 while it has no items."""

    name: str
    number: int
    size: int
    first_id: int = 0
    last_id: int = 0


class ItemTotals(Struct, frozen=True, gc=False):
    """The numbers of items, of bytes of their data, and of items with an expiry."""

    items: int = 0
    bytes: int = 0
    expiring: int = 0

    def __add__(self, other: ItemTotals) -> ItemTotals:
        return ItemTotals(self.items + other.items, self.bytes + other.bytes, self.expiring + other.expiring)

    def __sub__(self, other: ItemTotals) -> ItemTotals:
        return ItemTotals(self.items - other.items, self.bytes - other.bytes, self.expiring - other.expiring)


NOTHING = ItemTotals()


class SegmentCut(Struct, frozen=True):
    """The removable part of the oldest segment: all of its data before the item `keep_id`, which begins at byte
    `offset`. `before`: the totals of the items that precede that item in its run `run`.
    """

    segment: StreamSegment
    run: IdRun
    keep_id: int
    offset: int
    before: ItemTotals

    @property
    def kept_bytes(self) -> int:
        return self.segment.size - self.offset


class StreamSegments:
    """The segments of one family, oldest first; the last one is appended to."""

    def __init__(self, fs: Fs, folder: str) -> None:
        self.fs = fs
        self.folder = folder
        self.files: list[StreamSegment] = []
        self.readable_id = ID_MAX  # items with higher ids are not yet in their file
        self.runs: list[IdRun] = []
        self._before: list[ItemTotals] = []  # by run: the totals of all earlier runs, including removed ones
        self._cached: tuple[ScanMark, list[Numbered]] | None = None

    @property
    def last_id(self) -> int:
        """The id of the newest item; 0 if there is none."""
        return self.runs[-1].last_id if self.runs else 0

    @property
    def first_id(self) -> int:
        """The id of the oldest item; 1 if there is none."""
        return self.runs[0].first_id if self.runs else 1

    def load(self, segments: Iterable[tuple[StreamSegment, list[IdRun]]]) -> None:
        """Add the segments found in the spool. If several segments have an id, the item counts that is in the segment
        with the smallest first id, or, of equal ones, the smallest number. Raises OSError.
        """
        runs_of: dict[str, list[IdRun]] = {}
        for segment, runs in segments:
            if not runs:
                continue
            segment.first_id = min(run.first_id for run in runs)
            segment.last_id = max(run.last_id for run in runs)
            self.files.append(segment)
            runs_of[segment.name] = runs
        self.files.sort(key=lambda segment: (segment.first_id, segment.number, segment.name))
        loaded: list[IdRun] = []
        for segment in self.files:
            for run in runs_of[segment.name]:
                for piece in self._outside(run, loaded):
                    insort(loaded, piece, key=_first_id)
        for run in loaded:
            self.append_run(run)

    def append_run(self, run: IdRun) -> None:
        """Add a run of ids above the newest item."""
        self._before.append(self._before[-1] + sums_of(self.runs[-1]) if self.runs else NOTHING)
        self.runs.append(run)

    def next_after(self, item_id: int) -> int:
        """Return the smallest id above `item_id` that an item has. If there is none, return the id of the next item."""
        at = self._run_of(item_id + 1)
        if at >= 0 and item_id < self.runs[at].last_id:
            return item_id + 1
        return self.runs[at + 1].first_id if at + 1 < len(self.runs) else self.last_id + 1

    def has(self, item_id: int) -> bool:
        at = self._run_of(item_id)
        return at >= 0 and item_id <= self.runs[at].last_id

    def sums_through(self, item_id: int) -> ItemTotals:
        """Return the totals of all items with ids up to `item_id`, including removed ones. Reads at most the items
        between two marks. Raises OSError.
        """
        at = self._run_of(item_id)
        if at < 0:
            return self._before[0] if self._before else NOTHING
        run, before = self.runs[at], self._before[at]
        if item_id >= run.last_id:
            return before + sums_of(run)
        mark = run.marks[self._mark_before(run, item_id)]
        part = self._read_at_mark(run, mark)[: item_id - run.first_id - mark.index + 1]
        expiring = sum(item.expires_ms != 0 for item in part)
        inside = ItemTotals(
            mark.index + len(part), mark.bytes + sum(len(item.data) for item in part), mark.expiring + expiring
        )
        return before + inside

    def read(self, item_id: int) -> list[Numbered]:
        """Return the items from the first with an id of at least `item_id` up to the next mark; [] if there is none.
        Raises OSError.
        """
        at = self._run_of(item_id)
        if at < 0 or item_id > self.runs[at].last_id:
            at += 1
            if at >= len(self.runs):
                return []
            item_id = self.runs[at].first_id
        run = self.runs[at]
        mark = run.marks[self._mark_before(run, item_id)]
        return self._read_at_mark(run, mark)[item_id - run.first_id - mark.index :]

    def items(self) -> Iterator[Numbered]:
        """Yield all items in the order of ids. Raises OSError."""
        item_id = self.first_id
        while stretch := self.read(item_id):
            yield from stretch
            item_id = stretch[-1].id + 1

    def drop_through(self, head: int) -> list[StreamSegment]:
        """Remove from the index the segments whose ids are all at or below `head`, except the newest one with items.
        Return them.
        """
        newest = max((segment.last_id for segment in self.files), default=0)
        dropped = [segment for segment in self.files if 0 < segment.last_id <= head and segment.last_id < newest]
        if dropped:
            names = {segment.name for segment in dropped}
            self.files = [segment for segment in self.files if segment.name not in names]
            kept_runs = [at for at, run in enumerate(self.runs) if run.segment not in names]
            self._before = [self._before[at] for at in kept_runs]
            self.runs = [self.runs[at] for at in kept_runs]
            self._cached = None
        return dropped

    def dead_bytes(self, head: int) -> int:
        """Estimate how many bytes `cut_through(head)` would free. Reads nothing."""
        run_to_cut = self._run_to_cut(head)
        if run_to_cut is None:
            return 0
        run, keep_id = run_to_cut
        mark_at = self._mark_before(run, keep_id)
        mark = run.marks[mark_at]
        is_last = mark_at + 1 == len(run.marks)
        stop, end = (run.stop, run.count) if is_last else (run.marks[mark_at + 1].offset, run.marks[mark_at + 1].index)
        share = (keep_id - run.first_id - mark.index) * (stop - mark.offset) // max(1, end - mark.index)
        return mark.offset + share - MAGIC_BYTES

    def cut_through(self, head: int) -> SegmentCut | None:
        """Return where the oldest segment may be cut if no reader needs the ids up to `head`. Its last item always
        stays, because the next id depends on it. Return None if nothing can be removed, or if the ids in the segment do
        not rise. Reads at most the items between two marks. Raises OSError.
        """
        run_to_cut = self._run_to_cut(head)
        if run_to_cut is None:
            return None
        run, keep_id = run_to_cut
        segment = self.files[0]
        mark_at = self._mark_before(run, keep_id)
        mark = run.marks[mark_at]
        stop = run.marks[mark_at + 1].offset if mark_at + 1 < len(run.marks) else run.stop
        offset, before = mark.offset, ItemTotals(mark.index, mark.bytes, mark.expiring)
        data = self.fs.read(f"{self.folder}/{segment.name}", mark.offset, stop - mark.offset)
        try:
            for item, end in _items_and_stops(data):
                if item.id >= keep_id:
                    break
                before += ItemTotals(1, len(item.data), int(item.expires_ms != 0))
                offset = mark.offset + end
        except CorruptRecord:
            return None  # the file has become unreadable since it was scanned
        if before.items != keep_id - run.first_id or offset <= MAGIC_BYTES:
            return None
        return SegmentCut(segment, run, keep_id, offset, before)

    def cut(self, cut: SegmentCut) -> None:
        """Adapt the index to a cut: after its magic, the file of the oldest segment now begins with the bytes from
        `cut.offset` on.
        """
        shift, gone, old = cut.offset - MAGIC_BYTES, cut.before, cut.run
        at = self.runs.index(old)
        marks = [ScanMark(0, MAGIC_BYTES, 0, 0)]
        for mark in old.marks:
            if mark.index > gone.items:
                expiring = mark.expiring - gone.expiring
                marks.append(ScanMark(mark.index - gone.items, mark.offset - shift, mark.bytes - gone.bytes, expiring))
        rest = ItemTotals(old.count, old.bytes, old.expiring) - gone
        self.runs[at] = IdRun(old.segment, cut.keep_id, marks, rest.items, rest.bytes, rest.expiring, old.stop - shift)
        self._before[at] += gone
        for run in self.runs[at + 1 :]:
            if run.segment == old.segment:
                run.marks = [ScanMark(m.index, m.offset - shift, m.bytes, m.expiring) for m in run.marks]
                run.stop -= shift
        del self.runs[:at], self._before[:at]
        cut.segment.first_id, cut.segment.size = cut.keep_id, cut.segment.size - shift
        self._cached = None

    def _run_to_cut(self, head: int) -> tuple[IdRun, int] | None:
        """Return the run of the oldest segment with the first item after `head`, and that item's id. Return None if
        there is none, or if an item that precedes it in the index does not precede it in the file.
        """
        if not self.runs or not self.files:
            return None
        segment = self.files[0]
        keep_id = min(self.next_after(max(head, self.first_id - 1)), segment.last_id)
        at = self._run_of(keep_id)
        if at < 0 or keep_id > self.runs[at].last_id:
            return None
        if any(run.segment != segment.name for run in self.runs[: at + 1]):
            return None
        stop = 0
        for run in self.runs:
            if run.segment == segment.name:
                if run.marks[0].offset < stop:
                    return None
                stop = run.stop
        return self.runs[at], keep_id

    def _run_of(self, item_id: int) -> int:
        """Return the index of the last run that begins at or below `item_id`; -1 if there is none."""
        return bisect_right(self.runs, item_id, key=_first_id) - 1

    def _mark_before(self, run: IdRun, item_id: int) -> int:
        return bisect_right(run.marks, item_id - run.first_id, key=_index) - 1

    def _read_at_mark(self, run: IdRun, mark: ScanMark) -> list[Numbered]:
        """Return the items from `mark` to the next mark. Those between two marks are cached."""
        if self._cached is not None and self._cached[0] is mark:
            return self._cached[1]
        at = bisect_right(run.marks, mark.index, key=_index)
        sealed = at < len(run.marks)
        stop = run.marks[at].offset if sealed else run.stop
        first_id = run.first_id + mark.index
        end_id = run.first_id + (run.marks[at].index if sealed else run.count)
        data = self.fs.read(f"{self.folder}/{run.segment}", mark.offset, stop - mark.offset)
        items = _read_expected(data, first_id, min(end_id, self.readable_id + 1))
        if sealed and self.readable_id >= end_id:
            self._cached = mark, items
        return items

    def _outside(self, run: IdRun, loaded: list[IdRun]) -> list[IdRun]:
        """Return the parts of `run` whose ids are in none of `loaded`, which rise and do not overlap. Raises
        OSError.
        """
        pieces, first_id = [], run.first_id
        at = max(0, bisect_right(loaded, first_id, key=_first_id) - 1)
        while at < len(loaded) and loaded[at].first_id <= run.last_id:
            if first_id < loaded[at].first_id:
                pieces.append(self._part(run, first_id, loaded[at].first_id - 1))
            first_id = max(first_id, loaded[at].next_id)
            at += 1
        if first_id <= run.last_id:
            pieces.append(self._part(run, first_id, run.last_id))
        return pieces

    def _part(self, run: IdRun, first_id: int, last_id: int) -> IdRun:
        """Return the part of `run` from `first_id` to `last_id`. Raises OSError."""
        if (first_id, last_id) == (run.first_id, run.last_id):
            return run
        mark = run.marks[self._mark_before(run, first_id)]
        data = self.fs.read(f"{self.folder}/{run.segment}", mark.offset, run.stop - mark.offset)
        part, start = IdRun(run.segment, first_id, []), 0
        for item, stop in _items_and_stops(data):
            if item.id > last_id:
                break
            if item.id >= first_id:
                part.add(mark.offset + start, mark.offset + stop, len(item.data), item.expires_ms != 0)
            start = stop
        return part


def sums_of(run: IdRun) -> ItemTotals:
    return ItemTotals(run.count, run.bytes, run.expiring)


def _read_expected(data: bytes, first_id: int, end_id: int) -> list[Numbered]:
    """Return the items with ids from `first_id` to below `end_id`. Items that have become unreadable since the file was
    scanned are replaced by lost items.
    """
    items: list[Numbered] = []
    try:
        for item, _ in _items_and_stops(data):
            if item.id != first_id + len(items) or item.id >= end_id:
                break
            items.append(item)
    except CorruptRecord:
        pass
    items += [Numbered(b"", 0, LOST_MS, 0, item_id) for item_id in range(first_id + len(items), end_id)]
    return items


def _items_and_stops(data: bytes) -> Iterator[tuple[Numbered, int]]:
    at, end = 0, len(data)
    while at < end and (record := read_record(data, at, end, 0)) is not None:
        if record.command == PUT_COMMAND:
            yield decode_item(data, record), record.stop
        at = record.stop


def _first_id(run: IdRun) -> int:
    return run.first_id


def _index(mark: ScanMark) -> int:
    return mark.index
