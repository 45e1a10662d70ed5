"""Streaming over journals: each batch has the records written since the last one. It follows rotation.

Spark's offsets are {queue: place}, see offsets.py. A batch is the bytes between two offsets, so it can be read
again, and a stream into an idempotent sink is exactly-once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from heapq import nlargest
from itertools import chain, repeat
from time import monotonic, time
from typing import Any, NamedTuple, TypeVar

import msgspec
import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxFiles,
    ReadMaxRows,
    ReadMinRows,
    SupportsTriggerAvailableNow,
)

from staniel.journal.errors import TruncatedRecord
from staniel.journal.kestrel.files import OWN_FOLDER
from staniel.pipeline.formats.adapters import list_segments
from staniel.pipeline.formats.base import BatchEnd, CorruptJournal, FormatAdapter, JournalSegment, OnCorrupt, Part
from staniel.pipeline.lake.folders import FileVanished, Folder, FolderMissing, LocalFolder, below, folder
from staniel.pipeline.lake.lake import ReadMark
from staniel.pipeline.lake.names import shown_name
from staniel.pipeline.lake.watch import ChangeMark, FolderWatch
from staniel.pipeline.sources.holding import check_hold, has_passed, move_hold, open_spool, passed_files
from staniel.pipeline.sources.journal_options import Begin, JournalOptions
from staniel.pipeline.sources.journal_partition import JournalPartition, put_together, read_part
from staniel.pipeline.sources.offsets import DataLoss, FileOffset, from_json, offset_in, pinned_to, segment_of, to_json
from staniel.pipeline.sources.planning import OPEN_BYTES, bounded, bundled, check_wanted, dated
from staniel.pipeline.worker_gc import then_freeze_imports

EVERYTHING = 1 << 62
SAMPLE_BYTES = 1 << 20  # of a backlog, in which records are counted
QUEUES_SHOWN = 10  # in the progress of a query, which Spark stores and logs
LOOK_ANYWAY_S = 10.0  # a mark of change may miss files that are links
TRIES = 5
Offset = dict[str, Any]
T = TypeVar("T")
LOG = logging.getLogger("staniel.pipeline")


class ReadBudget(NamedTuple):
    """The limits of one batch, for one queue or for all."""

    bytes: int
    records: int
    files: int


ALL = ReadBudget(EVERYTHING, EVERYTHING, EVERYTHING)
COUNTED = ReadBudget(EVERYTHING, EVERYTHING - 1, EVERYTHING)  # a limit that makes the records be counted


class Backlog(NamedTuple):
    """The first unread piece of a queue behind a batch, and the add time in ms of the newest item before it; 0 or -1:
    unknown.
    """

    segment: JournalSegment
    as_of_ms: int


class UnreadRange(NamedTuple):
    """The unread range of a queue: from byte `begin` of its segment `at` to byte `stop` of segment `last`. `goal` is
    the offset there, if it was determined before.
    """

    queue: str
    segments: list[JournalSegment]
    at: int
    begin: int
    last: int
    stop: int
    goal: FileOffset | None = None

    @property
    def unread_segments(self) -> list[JournalSegment]:
        """The segments ahead, the first one even if it is empty."""
        segments = list(self.segments[self.at : self.last + 1])
        if segments:
            segments[-1] = msgspec.structs.replace(segments[-1], end=max(segments[-1].begin, self.stop))
            segments[0] = msgspec.structs.replace(segments[0], begin=self.begin, end=max(self.begin, segments[0].end))
        return segments


def shared(limit: int, sizes: list[int]) -> list[int]:
    """Share a limit among queues in proportion to their sizes, as Spark's Kafka source does among partitions. A queue
    with anything gets at least 1, so that a busy queue never blocks another one.
    """
    total = sum(sizes)
    if total <= limit:
        return [EVERYTHING if limit == EVERYTHING else size for size in sizes]
    return [max(1, limit * size // total) if size else 0 for size in sizes]


class BatchDelay:
    """The wait for a least number of records before a batch, as minOffsetsPerTrigger and maxTriggerDelay say. The first
    batch of a process does not wait.
    """

    def __init__(self, options: JournalOptions, clock: Callable[[], float]) -> None:
        self._records = options.records_before_trigger
        self._longest_s = options.delay_ms / 1000
        self._clock = clock
        self._begun_s: float | None = None  # when the last batch began
        self._start: Offset = {}
        self._upto: Offset = {}  # how far the records behind `_start` have been counted
        self._counted = 0

    def begin_batch(self) -> None:
        self._begun_s = self._clock()
        self._start, self._upto, self._counted = {}, {}, 0

    def holds(self, start: Offset, count: Callable[[Offset], tuple[Offset, int]]) -> bool:
        """Return True if the batch from `start` has to wait. `count` returns the present end, and how many records
        there are between.
        """
        if not self._records or self._begun_s is None or self._clock() - self._begun_s >= self._longest_s:
            return False
        if self._start != start or not self._counted:
            self._start, self._upto, self._counted = start, start, 0
        self._upto, records = count(self._upto)
        self._counted += records
        return self._counted < self._records


class JournalStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A stream over one folder. It lives in a process on the driver; `read` runs in tasks, on a copy."""

    def __init__(
        self,
        options: JournalOptions,
        columns: pa.Schema,
        replans: bool = False,
        host: str = "",
        clock: Callable[[], float] = monotonic,
        wall_clock: Callable[[], float] = time,
    ) -> None:
        """Check the options. With `replans`, the caller plans again if the pieces are gone. `host` is the name of the
        spool among several.
        """
        options.check_stream()
        self.options = options
        self.columns = columns
        self.replans = replans
        self.host = host
        self.watch: FolderWatch | None = None  # several streams share one
        self.unread_bytes: dict[str, int] = {}  # by queue, behind the last offset
        self.backlogs: dict[str, Backlog] = {}  # of the queues with unread bytes
        self.counted = 0  # records of the last batch, as far as its limits had them counted
        self._clock = clock
        self._wall_clock = wall_clock
        self._delay = BatchDelay(options, clock)
        self._mark: ChangeMark | None = None
        self._idle: Offset | None = None  # nothing was unread behind this offset
        self._looked_s = 0.0
        self._changed: set[str] | None = None  # files that have changed since the last look; None: it may be any
        self._verified: dict[str, Any] = {}  # offsets that the last looks have found in their files
        self.target: Offset | None = None
        self.lost: dict[str, int | None] = {}  # items that the last offset skips, by queue; None: unknown number

    def check(self) -> None:
        """Check that the requested queues exist. Raises ValueError, FolderMissing."""
        place = self._open_spool()
        check_wanted(place, self.options, *list_segments(place, self.options.format))

    def initialOffset(self) -> Offset:
        self.check()
        return self.first_offset()

    def first_offset(self) -> Offset:
        """Return where the stream begins."""
        if self.options.starting is Begin.LATEST:
            return self._retry_end_of_batch({}, ALL)
        is_whole = self.options.starting_ms is None and not self.options.starting_times
        if self.options.starting is Begin.EARLIEST and is_whole:
            return {}
        return self._retry(self._begins)

    def _begins(self) -> Offset:
        place, _, whole = self._list_segments(bound=False)
        _, _, queues = self._list_segments()
        natural = {segment.file: segment.begin for segments in whole.values() for segment in segments}
        begins = {queue: segments[0] for queue, segments in queues.items() if segments}
        # The beginning of a file has no bytes before it for a fingerprint: a queue without an offset starts there.
        return {
            queue: to_json(offset_in(place, first, first.begin, first.as_of))
            for queue, first in begins.items()
            if first.begin > natural.get(first.file, 0)
        }

    def getDefaultReadLimit(self) -> ReadLimit:
        return default_limit(self.options)

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        budget = budget_of(self.options, limit, self.target is None)
        if budget is not ALL and self.target is None and self._delay.holds(start, self.count_on):
            return start
        end = self.end_of(start, budget)
        if end != start:
            self._delay.begin_batch()
        return end

    def count_on(self, start: Offset) -> tuple[Offset, int]:
        """Return the present end, and the number of records up to it."""
        return self.end_of(start, COUNTED), self.counted

    def end_of(self, start: Offset, budget: ReadBudget) -> Offset:
        """Return where a batch from `start` ends. Nothing is listed if nothing was unread there, and no file of the
        folder has changed since.
        """
        if self.is_idle(start):
            self.counted = 0
            return start
        mark = self._make_mark()  # each time: another folder may be there now
        if mark is not self._mark:
            self._mark, self._changed = mark, None
        self._collect_changes()
        self._looked_s = self._clock()
        end = self._retry_end_of_batch(start, budget)
        self._verified.update(end)
        self._changed = None if self._mark is None else set()  # later changes wait in the mark
        # Without limits, all that was there has been read.
        self._idle = end if end == start or budget in (ALL, COUNTED) else None
        return end

    def is_idle(self, start: Offset) -> bool:
        """Return True if there is nothing new, without looking at the files."""
        if self._idle is None or self._mark is None or self.target is not None:
            return False
        if self._collect_changes() or self._clock() - self._looked_s >= LOOK_ANYWAY_S:
            self._idle = None
            return False
        return self._idle == start

    def _collect_changes(self) -> bool:
        """Add what has changed since the last call. Return True if anything may have changed since the last look."""
        names = self._mark.take_names() if self._mark is not None else None
        if names is None or self._changed is None:
            self._changed = None
            return True
        self._changed |= {shown_name(name) for name in names}
        return bool(self._changed)

    def _is_unchanged(self, queue: str, segments: list[JournalSegment], start: Offset) -> bool:
        """Return True if nothing of a queue is unread, without opening a file: an earlier look has found the offset in
        the last file, which has not changed since.
        """
        if self._changed is None or queue not in start or self._verified.get(queue) != start[queue]:
            return False
        return segments[-1].file not in self._changed and is_at_end(segments, start[queue])

    def _make_mark(self) -> ChangeMark | None:
        place = self._open_spool()
        if not isinstance(place, LocalFolder):
            return None
        self.watch = self.watch or FolderWatch()
        return self.watch.mark(place.path)

    def unread(self, start: Offset) -> tuple[int, int]:
        """Return how many bytes are unread, and of how many files. Raises DataLoss."""
        if self.is_idle(start):
            return 0, 0
        ranges = self._retry(lambda: self._unread_ranges(start)[3])
        sizes = [segment.bytes for unread in ranges for segment in unread.unread_segments if segment.bytes]
        return sum(sizes), len(sizes)

    def read_marks(self, queues: Collection[str]) -> dict[str, dict[str, ReadMark]]:
        """Return how far the readers of those queues that still exist have come, see FormatAdapter. Raises
        FileVanished.
        """

        def marks() -> dict[str, dict[str, ReadMark]]:
            place = self._open_spool()
            form, queues_now = list_segments(place, self.options.format)
            return form.read_marks(place, [queue for queue in queues if queue in queues_now], self.options.reading)

        return self._retry(marks)

    def prepareForTriggerAvailableNow(self) -> None:
        self.target = self._retry_end_of_batch({}, ALL)

    def reportLatestOffset(self) -> Offset | None:
        """Return figures for the progress of a query, in place of an offset: nothing reads it back."""
        return progress_of(self.unread_bytes, self.lag)

    def lag(self, queue: str) -> dict[str, int | None]:
        """Return how far a queue is behind: in bytes, in records, counted in the first unread MB and estimated for
        further ones, and in seconds since the newest read item was put; None: unknown.
        """
        size, (segment, as_of_ms) = self.unread_bytes[queue], self.backlogs[queue]
        records: int | None = None
        with suppress(FileVanished, OSError):
            place = self._open_spool()
            form, _ = list_segments(place, self.options.format)
            end = form.boundary(place, segment, SAMPLE_BYTES, EVERYTHING)
            if end.records:
                records = round(end.records * max(size / (end.end - segment.begin), 1))
        seconds = round(self._wall_clock() - as_of_ms / 1000) if as_of_ms > 0 else None
        return {"bytes": size, "records": records, "seconds": seconds}

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        return tasks_of(self.all_pieces(start, end), self.options.min_partitions)

    def all_pieces(self, start: Offset, end: Offset) -> list[PinnedPartition]:
        """Return the pieces between two offsets. Raises DataLoss."""
        return self._retry(lambda: list(self.pieces(start, end)))

    def pieces(self, start: Offset, end: Offset) -> Iterator[PinnedPartition]:
        """Yield the pieces between two offsets, each a file or a part of one. Raises DataLoss, FileVanished."""
        place, form, queues = self._list_segments(bound=False)
        for queue, stop in sorted(end.items()):
            if stop == start.get(queue) or queue not in self.options.queues:
                continue  # nothing new, or selected in an earlier run and not in this one
            known = from_json(start[queue]) if queue in start else None
            for segment in self._between(place, form, queue, queues.get(queue, []), known, from_json(stop)):
                mark = offset_in(place, segment, segment.end).mark
                part = Part(queue, [msgspec.structs.replace(segment, mark=mark)])
                made = JournalPartition(
                    self.options.path, form.name, "ops", [part], self.options.reading, self.host, self.options.hold
                )
                yield PinnedPartition(made, self.options.fail_on_data_loss)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_pieces(partition, self.columns)

    def commit(self, end: Offset) -> None:
        """Let the hold pass the files that were read to their ends: Spark has stored all before this offset."""
        if why := self.pass_files(end):
            LOG.warning("the retention hold %s of %s does not move: %s", self.options.hold, self.options.path, why)

    def pass_files(self, end: Offset) -> str:
        """Let the hold pass the sealed files before this offset. Return why the server has refused, or ""."""
        options = self.options
        return (
            move_hold(options.path, options.hold, self._retry(lambda: self._files_before(end))) if options.hold else ""
        )

    def _files_before(self, end: Offset) -> list[str]:
        place, form, queues = self._list_segments(bound=False)
        read = []
        for queue, at in sorted(end.items()):
            segments = queues.get(queue, [])
            offset = from_json(at)
            count = segment_of(place, form, segments, offset) or 0
            if segments and count == len(segments) - 1 and not segments[-1].live and offset.at == segments[-1].end:
                count += 1  # the last file of a queue that is deleted
            read.append((segments, count))
        return passed_files(check_hold(self.options.path, self.options.hold), read)

    def stop(self) -> None:
        """Do nothing: there is nothing to stop."""

    def _open_spool(self) -> Folder:
        return open_spool(self.options.path, self.options.hold)

    def _list_segments(self, bound: bool = True) -> tuple[Folder, FormatAdapter, dict[str, list[JournalSegment]]]:
        place = self._open_spool()
        form, segments = list_segments(place, self.options.format)
        if self.options.hold:
            check_hold(self.options.path, self.options.hold)
            if form.name == "workq":
                raise ValueError("option hold is for queues, not for the command log of jobs: leave it out")
        place = pinned_to(place, form, chain.from_iterable(segments.values()))
        queues = {name: listed for name, listed in segments.items() if name in self.options.queues}
        if bound:
            queues = {name: bounded(form, place, self.options, name, listed) for name, listed in queues.items()}
        return place, form, queues

    def _retry_end_of_batch(self, start: Offset, budget: ReadBudget) -> Offset:
        """Return where a batch from `start` ends."""
        return self._retry(lambda: self._end_of_batch(start, budget))

    def _retry(self, work: Callable[[], T]) -> T:
        """Run `work`, and again if files change meanwhile."""
        for _ in range(TRIES - 1):
            try:
                return work()
            except FolderMissing:
                raise
            except FileVanished:
                continue
        try:
            return work()
        except FileVanished as gone:
            raise DataLoss(f"{self.options.path}: files vanish as fast as they are listed: {gone}") from None

    def _unread_ranges(
        self, start: Offset
    ) -> tuple[Folder, FormatAdapter, dict[str, list[JournalSegment]], list[UnreadRange]]:
        place, form, queues = self._list_segments(bound=False)
        self.lost = {}
        ranges = [
            self._ahead(place, form, queue, listed, start)
            for queue, listed in sorted(queues.items())
            if listed and not self._is_unchanged(queue, listed, start) and not self._has_reached(queue, start)
        ]
        return place, form, queues, ranges

    def _end_of_batch(self, start: Offset, budget: ReadBudget) -> Offset:
        place, form, queues, ranges = self._unread_ranges(start)
        self.counted, self.unread_bytes, self.backlogs = 0, dict.fromkeys(queues, 0), {}
        sizes = [[segment.bytes for segment in unread.unread_segments if segment.bytes] for unread in ranges]
        limits = zip(
            shared(budget.bytes, [sum(size) for size in sizes]),
            shared(budget.records, [sum(size) for size in sizes])
            if budget.records < EVERYTHING
            else repeat(EVERYTHING),
            shared(budget.files, [len(size) for size in sizes]),
            strict=False,
        )
        end = dict(start)
        if not self.options.fail_on_data_loss and (queues or folder(below(place.url, OWN_FOLDER)).exists()):
            for queue in [queue for queue in start if queue in self.options.queues and not queues.get(queue)]:
                if not self.options.hold:  # with one, a file goes once it was read
                    self.lost[queue] = None  # deleted: its last contents are unknown
                del end[queue]
        for unread, limit in zip(ranges, limits, strict=False):
            self.unread_bytes[unread.queue] = sum(segment.bytes for segment in unread.unread_segments)
            reached = self._advance(place, form, unread, ReadBudget(*limit), start)
            if self.unread_bytes[unread.queue]:
                self.backlogs[unread.queue] = backlog_of(unread, reached, start.get(unread.queue))
            if reached is not None:
                end[unread.queue] = to_json(reached)
            elif unread.queue in self.lost and not any(segment.bytes for segment in unread.segments):
                del end[unread.queue]  # rewritten while empty: it begins anew, like a deleted one
        return end

    def _has_reached(self, queue: str, start: Offset) -> bool:
        """Return True if a stream that ends with the present records has read all of a queue: then its files are not
        listed.
        """
        return self.target is not None and queue in start and start[queue] == self.target.get(queue)

    def _ahead(
        self, place: Folder, form: FormatAdapter, queue: str, segments: list[JournalSegment], start: Offset
    ) -> UnreadRange:
        known = from_json(start[queue]) if queue in start else None
        at, begin = self._from(place, form, queue, segments, known)
        if known is not None and form.is_broken(segments[at:]):
            if self.options.fail_on_data_loss:
                raise DataLoss(f"{queue}: segments behind {segments[at].file} were cleaned before they were read")
            self.lost[queue] = None
        if self.target is None:
            return UnreadRange(queue, segments, at, begin, len(segments) - 1, segments[-1].end)
        stop = from_json(self.target[queue]) if queue in self.target else None
        last = None if stop is None else segment_of(place, form, segments, stop, is_fresh=True)
        if stop is None or last is None:
            return UnreadRange(queue, segments, at, begin, at - 1, begin)
        return UnreadRange(queue, segments, at, begin, last, stop.at, stop)

    def _advance(
        self, place: Folder, form: FormatAdapter, unread: UnreadRange, budget: ReadBudget, start: Offset
    ) -> FileOffset | None:
        """Return where the batch ends in this queue; None if it has nothing. The end is never the beginning of
        a file.
        """
        passed = None
        size, records, files = budget
        known = from_json(start[unread.queue]) if unread.queue in start else None
        last_id = known.last_id if known is not None else 0
        for at, piece in enumerate(unread.unread_segments, unread.at):
            natural = unread.segments[at]
            if piece.bytes:
                if min(size, records, files) <= 0:
                    break
                if unread.goal is not None and at == unread.last and piece.bytes <= size and records == EVERYTHING:
                    self.unread_bytes[unread.queue] -= piece.bytes
                    return msgspec.structs.replace(unread.goal, file=natural.file)
                end = self._within(place, form, self._dated(place, form, natural, piece, known), size, records)
                size, records, files = size - (end.end - piece.begin), records - end.records, files - 1
                last_id = end.last_id or last_id
                self.counted += end.records
                self.unread_bytes[unread.queue] -= end.end - piece.begin
                if end.end > natural.begin:
                    passed = offset_in(place, natural, end.end, end.as_of, last_id)
                if end.end < piece.end:
                    break
            elif piece.end > natural.begin and at > unread.at:
                passed = offset_in(place, natural, piece.end, -1, last_id)
        return passed

    def _dated(
        self, place: Folder, form: FormatAdapter, whole: JournalSegment, piece: JournalSegment, known: FileOffset | None
    ) -> JournalSegment:
        """Return a piece of a segment with its `as_of`: the offset where a batch continues has it."""
        if piece.begin == whole.begin:
            return piece
        if known is not None and known.at == piece.begin and known.as_of >= 0:
            return msgspec.structs.replace(piece, as_of=known.as_of)
        return dated(form, place, piece)

    def _within(
        self, place: Folder, form: FormatAdapter, segment: JournalSegment, max_bytes: int, max_records: int
    ) -> BatchEnd:
        is_wanted = not segment.live and segment.bytes <= max_bytes
        if is_wanted and max_records == EVERYTHING and not form.has_ids:
            return BatchEnd(segment.end)  # sealed, and read to its end: no need to find a record boundary
        end = form.boundary(place, segment, max_bytes, max_records)
        self._check_damage(segment, end)
        if not segment.live and (end.end == segment.begin or (is_wanted and end.records < max_records)):
            return end._replace(end=segment.end)  # skip the damaged end of a sealed file: its reader reports it
        return end

    def _check_damage(self, segment: JournalSegment, end: BatchEnd) -> None:
        """Raise CorruptJournal for a live file whose next record is corrupt, because the stream never goes past it."""
        sound = end.damage is None or isinstance(end.damage, TruncatedRecord)
        if segment.live and not sound and self.options.reading.on_corrupt is OnCorrupt.FAIL:
            raise CorruptJournal(f"{segment.file}: byte {end.end}: {end.damage}; see option onCorrupt")

    def _from(
        self, place: Folder, form: FormatAdapter, queue: str, segments: list[JournalSegment], known: FileOffset | None
    ) -> tuple[int, int]:
        """Return the segment and byte where reading continues. Raises DataLoss, or notes the loss."""
        if known is None:
            return 0, segments[0].begin if segments else 0
        at = segment_of(place, form, segments, known)
        if at is not None:
            return at, known.at
        if self.options.hold and has_passed(check_hold(self.options.path, self.options.hold), known.file):
            return 0, segments[0].begin if segments else 0  # of a queue that was deleted, and created again
        missing = form.missing(place, segments, known.last_id)
        if missing == 0:
            return 0, segments[0].begin
        if self.options.fail_on_data_loss:
            raise DataLoss(
                f"{queue}: byte {known.at} of {known.file} is gone: the journal was packed, rewritten or removed, and"
                " what was not read before is lost; option failOnDataLoss=false goes on with what there is"
            )
        self.lost[queue] = missing
        return 0, segments[0].begin if segments else 0

    def _between(
        self,
        place: Folder,
        form: FormatAdapter,
        queue: str,
        segments: list[JournalSegment],
        known: FileOffset | None,
        stop: FileOffset,
    ) -> Iterator[JournalSegment]:
        """Yield the segments between two offsets."""
        last = segment_of(place, form, segments, stop, is_fresh=True)
        if self.replans and (last is None or self._is_unforeseen(place, form, queue, segments, known)):
            raise FileVanished(f"{queue}: its files have changed since the batch was planned")
        if last is None:
            if self.options.fail_on_data_loss:
                raise DataLoss(f"{queue}: byte {stop.at} of {stop.file} is gone; see option failOnDataLoss")
            LOG.warning("%s: byte %d of %s is gone: a batch is lost", queue, stop.at, stop.file)
            return
        first, begin = self._from(place, form, queue, segments, known)
        for at in range(first, last + 1):
            segment = segments[at]
            end = stop.at if at == last else segment.end
            low = begin if at == first else segment.begin
            if low < end:
                piece = msgspec.structs.replace(segment, begin=low, end=end, live=segment.live and at == last)
                yield self._dated(place, form, segment, piece, known)

    def _is_unforeseen(
        self, place: Folder, form: FormatAdapter, queue: str, segments: list[JournalSegment], known: FileOffset | None
    ) -> bool:
        """Return True if the offset where a batch begins is gone now, but existed when the batch's end was
        determined.
        """
        if known is None or queue in self.lost or segment_of(place, form, segments, known) is not None:
            return False
        return form.missing(place, segments, known.last_id) != 0


def default_limit(options: JournalOptions) -> ReadLimit:
    """Return the limit of a batch by which Spark asks for it."""
    if options.bytes_a_trigger:
        return ReadMaxBytes(options.bytes_a_trigger)
    if options.records_a_trigger:
        return ReadMaxRows(options.records_a_trigger)
    if options.files_a_trigger:
        return ReadMaxFiles(options.files_a_trigger)
    least = options.records_before_trigger
    return ReadMinRows(least) if least else ReadAllAvailable()


def budget_of(options: JournalOptions, limit: ReadLimit, is_endless: bool) -> ReadBudget:
    """Return the limits of the next batch. Spark asks for everything if there are none, or for the only batch of a
    query.
    """
    if isinstance(limit, ReadAllAvailable) and is_endless:
        return ALL
    asked = options.bytes_a_trigger, options.records_a_trigger, options.files_a_trigger
    return ReadBudget(*(most or EVERYTHING for most in asked))


def is_at_end(segments: list[JournalSegment], offset: Any) -> bool:
    """Return True if an offset is the end of a queue's last file, which its id identifies."""
    last, place = segments[-1], from_json(offset)
    return bool(last.id) and (place.at, place.file, place.id) == (last.end, last.file, last.id)


def backlog_of(unread: UnreadRange, reached: FileOffset | None, start: Any) -> Backlog:
    """Return what is unread of a queue behind the end of a batch. `start` is where the batch began, None: at the
    first record.
    """
    pieces = [piece for piece in unread.unread_segments if piece.bytes]
    read_to = reached or (None if start is None else from_json(start))
    as_of_ms = 0 if read_to is None else read_to.as_of
    if reached is not None:
        at = next((at for at, piece in enumerate(pieces) if piece.file == reached.file), 0)
        if reached.at < pieces[at].end:
            return Backlog(msgspec.structs.replace(pieces[at], begin=max(reached.at, pieces[at].begin)), as_of_ms)
        return Backlog(pieces[min(at + 1, len(pieces) - 1)], as_of_ms)
    return Backlog(pieces[0], as_of_ms)


def progress_of(
    unread_bytes: dict[str, int], lag: Callable[[str], dict[str, int | None]], **more: Any
) -> dict[str, Any]:
    """Return the figures for the progress of a query: what is unread behind its last batch, and the `lag` of the
    queues that are furthest behind.
    """
    behind = {queue: size for queue, size in unread_bytes.items() if size}
    figures: dict[str, Any] = {"queues": len(unread_bytes), "queuesBehind": len(behind)}
    figures["bytesBehindLatest"] = sum(behind.values())
    if behind:
        furthest = nlargest(QUEUES_SHOWN, behind, key=behind.__getitem__)
        figures |= {"maxBytesBehindLatest": behind[furthest[0]], "furthestBehind": furthest[0]}
        figures["behind"] = {queue: lag(queue) for queue in furthest}
    return {**figures, **more}


def tasks_of(pieces: list[PinnedPartition], count: int) -> list[InputPartition]:
    """Return the tasks of a batch, in order: as many as there is work for, or with `count`, at most so many."""
    if not count:
        return [PinnedPartitions(some) for some in bundled(pieces, lambda piece: piece.segment.bytes)]
    costs = [piece.segment.bytes + OPEN_BYTES for piece in pieces]
    total, passed = sum(costs), 0
    tasks: dict[int, list[PinnedPartition]] = {}
    for piece, cost in zip(pieces, costs, strict=True):
        tasks.setdefault((2 * passed + cost) * count // (2 * total), []).append(piece)
        passed += cost
    return [PinnedPartitions(some) for some in tasks.values()]


def read_pieces(partition: InputPartition, columns: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Return the rows of a task. Raises DataLoss."""
    assert isinstance(partition, PinnedPartitions)
    batches = chain.from_iterable(piece.read(columns) for piece in partition.pieces)
    return then_freeze_imports(put_together(batches))


class PinnedPartitions(InputPartition):
    """The pieces that one task of a stream reads."""

    def __init__(self, pieces: list[PinnedPartition]) -> None:
        super().__init__(pieces[0].value)
        self.pieces = pieces


class PinnedPartition(InputPartition):
    """A piece of one file, which may be renamed before its task runs."""

    def __init__(self, inner: JournalPartition, fail_on_data_loss: bool) -> None:
        super().__init__(inner.value)
        self.inner = inner
        self.fail_on_data_loss = fail_on_data_loss

    @property
    def segment(self) -> JournalSegment:
        ((segment,),) = (part.segments for part in self.inner.parts)
        return segment

    def rows(self, columns: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Yield the rows. Raises FileVanished if the bytes are gone."""
        for part in self.inner.parts:
            yield from read_part(self.inner.folder(), self.inner, part, columns)

    def read(self, columns: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Yield the rows. Raises DataLoss if the bytes are gone and the option says to fail."""
        try:
            yield from self.rows(columns)
        except FileVanished as gone:
            segment = self.segment
            why = f"{segment.file}: bytes {segment.begin} to {segment.end} are gone before they were read: {gone}"
            if self.fail_on_data_loss:
                raise DataLoss(why) from None
            LOG.warning("%s", why)
