"""Recovery of jobs from a folder of segments: the only way to start.

Damage affects only the bytes that it covers: a corrupt record is skipped, a torn end is cut off after it is copied, and
a file with another header is set aside as it is. Source: "Internals" of the workq command log.
"""

from __future__ import annotations

from msgspec import Struct

from staniel.journal.disk.fs import Fs, try_to_remove
from staniel.journal.disk.quarantine import numbered, quarantine
from staniel.journal.errors import CorruptRecord, Damage, IncompleteRecord
from staniel.journal.workq import files as workq_files
from staniel.journal.workq.encoder import (
    ADD,
    BARE_BYTES,
    COMPLETE,
    CRC_BYTES,
    DELETE,
    EXPIRE,
    FAIL,
    NS_A_SECOND,
    SCHEDULE,
    START_ATTEMPT,
    TIME_BYTES,
    YEAR_1_S,
)
from staniel.journal.workq.records import (
    SECONDS,
    kind_of,
    read_added,
    read_fields,
    read_result,
    read_unsigned,
    written_ns,
)
from staniel.journal.workq.segments import CmdLogSegment, CorruptRange, Frame, SegmentReader, header_error, is_begun
from staniel.queues.jobs.job import Terms
from staniel.queues.jobs.replay import JobReplay

TERMS_MAX = 65_536


class RecoveredCmdLog(Struct):
    """The result of recovery, without the jobs. `missing`: (first, last) of holes in the numbering of the segments.
    `refused`: why empty segments at the end remain.
    """

    segments: dict[int, CmdLogSegment]
    damages: list[Damage]
    missing: list[tuple[int, int]]
    records: int = 0
    refused: list[OSError] = []


class CmdLogRecovery:
    """The recovery of a command log. `damaged`: the folder for copies of unreadable bytes."""

    def __init__(self, fs: Fs, folder: str, damaged: str) -> None:
        self.fs = fs
        self.folder = folder
        self.damaged = damaged
        self._terms: dict[bytes, Terms] = {}
        self._coded_bytes = 1

    def recover(self, replay: JobReplay) -> RecoveredCmdLog:
        """Read every segment into `replay` and cut off torn ends; then `replay` passes on the jobs. Raises OSError."""
        numbers, refused = self._segment_numbers()
        recovered = RecoveredCmdLog({}, [], workq_files.holes(numbers), refused=refused)
        for number in numbers:
            why = header_error(self.fs, self._path(number))
            if why:
                torn = number == numbers[-1] and is_begun(self.fs, self._path(number))
                recovered.damages.append(self._set_aside(number, why, torn))
            else:
                recovered.segments[number] = self._read(number, replay, recovered, is_newest=number == numbers[-1])
        replay.end()
        for number, segment in recovered.segments.items():
            segment.dead = replay.dead[number]
            segment.settle_due()
        self._terms.clear()
        return recovered

    def _segment_numbers(self) -> tuple[list[int], list[OSError]]:
        """Return the numbers of the segments, oldest first. Remove empty ones at the end: a crash came before their
        first bytes. If the system refuses that, the next records go into them, and the errors are returned.
        """
        numbers = workq_files.segment_numbers(self.fs.list(self.folder))
        empty = []
        while numbers and not self.fs.size(self._path(numbers[-1])):
            empty.append(workq_files.segment_name(numbers.pop()))
        refused = try_to_remove(self.fs, self.folder, empty)
        if empty:
            self.fs.sync_folder(self.folder)
        return numbers, refused

    def _path(self, number: int) -> str:
        return f"{self.folder}/{workq_files.segment_name(number)}"

    def _read(self, number: int, replay: JobReplay, recovered: RecoveredCmdLog, *, is_newest: bool) -> CmdLogSegment:
        path = self._path(number)
        segment = CmdLogSegment(number)
        replay.origin = number
        reader = SegmentReader(self.fs, path)
        invalid: list[CorruptRange] = []
        for data, frames, base in reader.pieces():
            recovered.records += len(frames)
            for frame in frames:
                if self._apply_same_terms(data, frame, segment, replay):
                    continue
                try:
                    self._apply(data, frame, segment, replay)
                except CorruptRecord as error:
                    invalid.append(CorruptRange(base + frame[0], frame[2] - frame[0], error.why))
        segment.size, segment.invalid_records = reader.size, len(invalid)
        for corrupt in [*reader.corrupt_ranges, *invalid]:
            recovered.damages.append(self._quarantine(number, corrupt, is_newest and corrupt.is_torn))
            if corrupt.is_tail:
                segment.size = corrupt.at
                self.fs.truncate(path, corrupt.at)
            else:
                segment.corrupt_ranges += corrupt in reader.corrupt_ranges
        return segment

    def _apply(self, data: bytes, frame: Frame, segment: CmdLogSegment, replay: JobReplay) -> None:
        """Apply one record. Raises CorruptRecord if its command is invalid."""
        at, start, end = frame
        stop = end - 4
        kind = kind_of(data, start, stop)
        if kind <= SCHEDULE:
            self._apply_added(data, start, stop, segment, replay)
            return
        id = data[start + 1 : start + BARE_BYTES]
        if kind == START_ATTEMPT:
            replay.attempted(id, written_ns(data, at))
        elif kind in (COMPLETE, FAIL):
            result = read_result(data, start, stop)
            replay.finished(id, result, written_ns(data, at), success=kind == COMPLETE)
        elif kind in (DELETE, EXPIRE):
            replay.removed(id)
        else:
            replay.timed_out(id)

    def _apply_same_terms(self, data: bytes, frame: Frame, segment: CmdLogSegment, replay: JobReplay) -> bool:
        """Apply an add on the fast path: its terms are known, and encoded in as many bytes as those of the last add.
        Return False, with nothing done, for any other record. The encoded terms are looked up as a whole; a hit is
        complete, because the encoding delimits itself.
        """
        _, start, end = frame
        if data[start] != ADD:
            return False
        coded_at = start + BARE_BYTES
        coded_end = coded_at + self._coded_bytes
        terms = self._terms.get(data[coded_at:coded_end])
        if terms is None:
            return False
        try:
            length, at = read_unsigned(data, coded_end)
        except (IncompleteRecord, CorruptRecord):
            return False
        if at + length + 2 * TIME_BYTES + CRC_BYTES != end:
            return False
        created_at = end - CRC_BYTES - TIME_BYTES
        seconds, nanos = SECONDS.unpack_from(data, created_at + 1)
        if data[created_at] != 1 or not 0 <= nanos < NS_A_SECOND or not seconds:
            return False  # including Go's zero time, which `read_time` handles
        created_ns = (seconds + YEAR_1_S) * NS_A_SECOND + nanos
        segment.adds += 1
        id = data[start + 1 : coded_at]
        segment.limits_ms += replay.added(id, terms, data[at : at + length], created_ns, 0, segment.number)
        return True

    def _apply_added(self, data: bytes, start: int, stop: int, segment: CmdLogSegment, replay: JobReplay) -> None:
        add = read_added(data, start, stop)
        self._coded_bytes = len(add.coded)
        terms = self._terms.get(add.coded) or self._terms_of(add.coded, replay)
        segment.adds += 1
        segment.limits_ms += replay.added(add.id, terms, add.payload, add.created_ns, add.time_ns, segment.number)

    def _terms_of(self, coded: bytes, replay: JobReplay) -> Terms:
        fields = read_fields(coded)
        queue = replay.jobs.queue(fields.name)
        terms = Terms(
            queue, fields.ttr_ms, fields.ttl_ms, fields.priority, fields.max_attempts, fields.max_fails, coded
        )
        if len(self._terms) >= TERMS_MAX:
            self._terms.clear()
        self._terms[coded] = terms
        return terms

    def _quarantine(self, number: int, corrupt: CorruptRange, torn: bool) -> Damage:
        saved_as = quarantine(self.fs, self._path(number), corrupt.at, corrupt.size, self.damaged)
        return Damage(workq_files.segment_name(number), corrupt.at, corrupt.size, corrupt.why, saved_as, torn)

    def _set_aside(self, number: int, why: str, torn: bool) -> Damage:
        """Rename a file whose header is not that of a segment. Raises OSError."""
        path = self._path(number)
        paths = {f"{self.folder}/{name}" for name, _ in self.fs.list(self.folder)}
        aside = next(name for name in numbered(f"{path}{workq_files.ASIDE_SUFFIX}") if name not in paths)
        size = self.fs.size(path)
        self.fs.rename(path, aside)
        self.fs.sync_folder(self.folder)
        return Damage(workq_files.segment_name(number), 0, size, why, aside, torn)
