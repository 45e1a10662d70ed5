"""Streaming over journals: what has been written since, batch by batch, following rotation.

Knows Spark's offsets: {queue: {file, at, mark}}. A batch is the bytes between two of them, so it can be read again, and
a stream into a sink that can overwrite is exactly-once. Refuses to know formats.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxFiles,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from journal.flaws import is_torn
from pipeline.files import Vanished, folder
from pipeline.formats import FORMATS, look
from pipeline.journal_options import Begin, JournalOptions
from pipeline.journal_source import JournalPartition, read_part
from pipeline.offsets import DataLoss, Place, find, from_json, place_of, to_json
from pipeline.planning import bounded
from pipeline.segments import Corrupt, OnCorrupt, Part, Segment
from pipeline.workers import settling

EVERYTHING = 1 << 62
TRIES = 5
Offset = dict[str, Any]


class Budget:
    """How much one batch may still take."""

    def __init__(self, max_bytes: int, max_records: int, max_files: int) -> None:
        self.bytes = max_bytes
        self.records = max_records
        self.files = max_files

    @property
    def spent(self) -> bool:
        return self.bytes <= 0 or self.records <= 0 or self.files <= 0


class JournalStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """See the module. Lives in one process on the driver; `read` runs in tasks, on a copy."""

    def __init__(self, options: JournalOptions, columns: pa.Schema) -> None:
        if options.view != "ops":
            raise ValueError(f"only the view ops can be streamed, not {options.view}")
        self.options = options
        self.columns = columns
        self.target: Offset | None = None

    def initialOffset(self) -> Offset:
        if self.options.starting is Begin.LATEST:
            return self._upto({}, Budget(EVERYTHING, EVERYTHING, EVERYTHING))
        if self.options.starting is Begin.EARLIEST and self.options.starting_ms is None:
            return {}
        place, _, queues = self._look()
        begins = {queue: segments[0] for queue, segments in queues.items() if segments}
        # Byte 0 has no bytes before it to be known by: a queue without a place begins with its first file.
        return {queue: to_json(place_of(place, first, first.begin)) for queue, first in begins.items() if first.begin}

    def getDefaultReadLimit(self) -> ReadLimit:
        options = self.options
        if options.bytes_a_trigger:
            return ReadMaxBytes(options.bytes_a_trigger)
        if options.records_a_trigger:
            return ReadMaxRows(options.records_a_trigger)
        return ReadMaxFiles(options.files_a_trigger) if options.files_a_trigger else ReadAllAvailable()

    def latestOffset(self, start: Offset, limit: ReadLimit) -> Offset:
        everything = isinstance(limit, ReadAllAvailable) and self.target is None
        options = self.options
        budget = Budget(
            EVERYTHING if everything else options.bytes_a_trigger or EVERYTHING,
            EVERYTHING if everything else options.records_a_trigger or EVERYTHING,
            EVERYTHING if everything else options.files_a_trigger or EVERYTHING,
        )
        return self._upto(start, budget)

    def prepareForTriggerAvailableNow(self) -> None:
        self.target = self._upto({}, Budget(EVERYTHING, EVERYTHING, EVERYTHING))

    def reportLatestOffset(self) -> Offset | None:
        return self._upto({}, Budget(EVERYTHING, EVERYTHING, EVERYTHING))

    def partitions(self, start: Offset, end: Offset) -> Sequence[InputPartition]:
        return self.pieces(start, end)

    def pieces(self, start: Offset, end: Offset) -> list[PinnedPartition]:
        """What lies between two offsets, a file or part of one each. Raises DataLoss."""
        place, form, queues = self._look(bound=False)
        parts: list[PinnedPartition] = []
        for queue, stop in sorted(end.items()):
            if stop == start.get(queue) or queue not in self.options.queues:
                continue  # nothing new, or asked for in an earlier run and not in this one
            segments = queues.get(queue, [])
            for each, mark in self._between(place, queue, segments, start.get(queue), from_json(stop)):
                made = JournalPartition(self.options.path, form, "ops", [Part(queue, [each])], self.options.reading)
                parts.append(PinnedPartition(made, mark, self.options.fail_on_data_loss))
        return parts

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, PinnedPartition)
        return settling(partition.read(self.columns))

    def commit(self, end: Offset) -> None:
        """Nothing is held for a batch, so nothing is let go."""

    def stop(self) -> None:
        """Nothing to stop."""

    def _look(self, bound: bool = True) -> tuple[Any, str, dict[str, list[Segment]]]:
        place = folder(self.options.path)
        form, found = look(place, self.options.format)
        queues = {name: each for name, each in found.items() if name in self.options.queues}
        if bound:
            queues = {name: bounded(form, place, self.options, name, each) for name, each in queues.items()}
        return place, form.name, queues

    def _upto(self, start: Offset, budget: Budget) -> Offset:
        """Where a batch from `start` ends. Looks again if a file is renamed while it is looked at."""
        for _ in range(TRIES):
            try:
                return self._once(start, budget)
            except Vanished:
                continue
        raise DataLoss(f"{self.options.path}: files vanish as fast as they are listed")

    def _once(self, start: Offset, budget: Budget) -> Offset:
        place, name, queues = self._look(bound=False)
        form = FORMATS[name]()
        end = dict(start)
        for queue, segments in sorted(queues.items()):
            if not segments or budget.spent:
                continue
            at, begin = self._from(place, queue, segments, start.get(queue))
            stop = self._target(place, queue, segments)
            reached = self._advance(place, form, segments, at, begin, stop, budget)
            if reached is not None:
                end[queue] = to_json(reached)
        return end

    def _target(self, place: Any, queue: str, segments: list[Segment]) -> tuple[int, int] | None:
        """Where AvailableNow ends: (segment, byte)."""
        if self.target is None:
            return None
        if queue not in self.target:
            return (0, 0)
        known = from_json(self.target[queue])
        at = find(place, segments, known)
        return (0, 0) if at is None else (at, known.at)

    def _advance(
        self, place: Any, form: Any, segments: list[Segment], at: int, begin: int, stop: Any, budget: Budget
    ) -> Place | None:
        """Where the batch ends in this queue; None if nothing was passed. Never byte 0 of a file."""
        end, passed = begin, None
        while True:
            segment = msgspec.structs.replace(segments[at], begin=begin)
            last = at + 1 == len(segments)
            if stop is not None and stop[0] == at:
                segment, last = msgspec.structs.replace(segment, end=max(begin, stop[1])), True
            if segment.bytes:
                end = self._within(place, form, segment, budget)
            passed = place_of(place, segments[at], end) if end else passed
            if end < segment.end or budget.spent or last:
                return passed
            at, begin, end = at + 1, 0, 0

    def _within(self, place: Any, form: Any, segment: Segment, budget: Budget) -> int:
        budget.files -= 1
        if not segment.live and segment.bytes <= budget.bytes and budget.records == EVERYTHING:
            end = segment.end  # sealed, and wanted whole: nobody needs to look at its records for that
        else:
            end, damage = form.boundary(place, segment, budget.bytes, budget.records)
            self._tell(segment, end, damage)
            if budget.records != EVERYTHING:
                budget.records -= form.count(place, msgspec.structs.replace(segment, end=end))
            if not segment.live and end == segment.begin:
                end = segment.end  # a sealed file that ends in damage is passed: the reader says so
        budget.bytes -= end - segment.begin
        return end

    def _tell(self, segment: Segment, at: int, damage: str) -> None:
        """A live file that nothing can be read from any more would hold the stream up without a word."""
        torn = not damage or is_torn(damage, segment.end - at)
        if segment.live and not torn and self.options.reading.on_corrupt is OnCorrupt.FAIL:
            raise Corrupt(f"{segment.file}: byte {at}: {damage}; see option onCorrupt")

    def _from(self, place: Any, queue: str, segments: list[Segment], start: Any) -> tuple[int, int]:
        """The segment and byte where reading goes on. Raises DataLoss."""
        if start is None:
            return 0, 0
        known = from_json(start)
        at = find(place, segments, known)
        if at is not None:
            return at, known.at
        if self.options.fail_on_data_loss:
            raise DataLoss(
                f"{queue}: byte {known.at} of {known.file} is gone: the journal was packed, rewritten or removed, and"
                " what was not read before is lost; option failOnDataLoss=false goes on with what there is"
            )
        return 0, 0

    def _between(
        self, place: Any, queue: str, segments: list[Segment], start: Any, stop: Place
    ) -> Iterator[tuple[Segment, int]]:
        """What lies between two places, with the mark at each piece's end."""
        last = find(place, segments, stop)
        if last is None:
            if self.options.fail_on_data_loss:
                raise DataLoss(f"{queue}: byte {stop.at} of {stop.file} is gone; see option failOnDataLoss")
            return
        first, begin = self._from(place, queue, segments, start)
        for at in range(first, last + 1):
            end = stop.at if at == last else segments[at].end
            low = begin if at == first else 0
            if low < end:
                each = msgspec.structs.replace(segments[at], begin=low, end=end)
                yield each, place_of(place, each, end).mark


class PinnedPartition(InputPartition):
    """A partition whose file may be renamed before its task runs: the mark finds it again."""

    def __init__(self, inner: JournalPartition, mark: int, fail_on_data_loss: bool) -> None:
        super().__init__(inner.value)
        self.inner = inner
        self.mark = mark
        self.fail_on_data_loss = fail_on_data_loss

    @property
    def segment(self) -> Segment:
        ((segment,),) = (part.segments for part in self.inner.parts)
        return segment

    def read(self, columns: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Raises DataLoss if the bytes are gone and that is to be told."""
        inner = self.inner
        place = folder(inner.path)
        segment = self.segment
        segments = look(place, inner.form)[1].get(segment.queue, [])
        at = find(place, segments, Place(segment.file, segment.end, self.mark))
        if at is None:
            if self.fail_on_data_loss:
                raise DataLoss(f"{segment.file}: bytes {segment.begin} to {segment.end} are gone before they were read")
            return
        found = msgspec.structs.replace(segments[at], begin=segment.begin, end=segment.end, live=segment.live)
        yield from read_part(place, inner, Part(segment.queue, [found]), columns)
