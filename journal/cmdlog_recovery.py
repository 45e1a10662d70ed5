"""From a folder of segments to jobs: the only start-up path, after a crash and after a clean stop alike.

Knows the order of the segments, what is damage, what to cut and what to keep aside. Refuses to know jobs in service:
facts go to a JobReplay. Damage costs what it covers and nothing else: a bad record is stepped over, a torn end is cut
and kept aside, a segment with another header is set aside as it is. Source: "Internals" of the workq command log.
"""

from __future__ import annotations

from msgspec import Struct

from journal import cmdlog_layout as layout
from journal.cmdlog import BARE_BYTES, COMPLETE, DELETE, EXPIRE, FAIL, SCHEDULE, START_ATTEMPT
from journal.cmdlog_read import Damaged, kind_of, read_added, read_fields, read_result, read_time
from journal.cmdlog_segments import Frame, Scar, Segment, SegmentReader, header_error
from journal.fs import Fs
from queues.job import Terms
from queues.job_replay import JobReplay

COPY_BYTES = 1 << 20
TERMS_MAX = 65_536


class CmdlogDamage(Struct, frozen=True):
    """`size` bytes of `file` from `at` on could not be read; `saved_as` holds a copy, or the file itself."""

    file: str
    at: int
    size: int
    why: str
    saved_as: str


class CmdlogFound(Struct):
    """What a recovery has found, beside the jobs. `missing`: (first, last) of holes in the numbering."""

    segments: dict[int, Segment]
    damages: list[CmdlogDamage]
    missing: list[tuple[int, int]]
    records: int = 0


class CmdlogRecovery:
    """`damaged` is where copies of what cannot be read are kept."""

    def __init__(self, fs: Fs, folder: str, damaged: str) -> None:
        self.fs = fs
        self.folder = folder
        self.damaged = damaged
        self._terms: dict[bytes, Terms] = {}
        self._coded_bytes = 1

    def recover(self, replay: JobReplay) -> CmdlogFound:
        """Read every segment into `replay`, mend what is damaged, and hand the jobs over. Raises OSError."""
        numbers = layout.segment_numbers(self.fs.list(self.folder))
        found = CmdlogFound({}, [], layout.holes(numbers))
        for number in numbers:
            why = header_error(self.fs, self._path(number))
            if why:
                found.damages.append(self._set_aside(number, why))
            else:
                found.segments[number] = self._read(number, replay, found)
        replay.end()
        for number, segment in found.segments.items():
            segment.dead = replay.dead[number]
        for job in replay.found.values():
            found.segments[job.origin].limits_ms += job.limit_ms
        for segment in found.segments.values():
            live = segment.adds - segment.dead
            segment.due_ms = segment.limits_ms // live if live else 0
        self._terms.clear()
        return found

    def _path(self, number: int) -> str:
        return f"{self.folder}/{layout.segment_name(number)}"

    def _read(self, number: int, replay: JobReplay, found: CmdlogFound) -> Segment:
        path = self._path(number)
        segment = Segment(number)
        reader = SegmentReader(self.fs, path)
        strange: list[Scar] = []
        for data, frames, base in reader.pieces():
            found.records += len(frames)
            for frame in frames:
                try:
                    self._apply(data, frame, segment, replay)
                except Damaged as damaged:
                    strange.append(Scar(base + frame[0], frame[2] - frame[0], str(damaged), False))
        segment.size = reader.size
        for scar in [*reader.scars, *strange]:
            found.damages.append(self._keep(number, scar))
            if scar.is_tail:
                segment.size = scar.at
                self.fs.truncate(path, scar.at)
            else:
                segment.scars += scar in reader.scars
        return segment

    def _apply(self, data: bytes, frame: Frame, segment: Segment, replay: JobReplay) -> None:
        """One record. Raises Damaged if its command makes no sense."""
        at, start, end = frame
        stop = end - 4
        kind = kind_of(data, start, stop)
        id = data[start + 1 : start + BARE_BYTES]
        if kind <= SCHEDULE:
            self._apply_added(data, start, stop, segment, replay)
        elif kind == START_ATTEMPT:
            replay.attempted(id, read_time(data, at))
        elif kind in (COMPLETE, FAIL):
            result = read_result(data, start, stop)
            replay.finished(id, result, read_time(data, at), success=kind == COMPLETE)
        elif kind in (DELETE, EXPIRE):
            replay.removed(id)
        else:
            replay.timed_out(id)

    def _apply_added(self, data: bytes, start: int, stop: int, segment: Segment, replay: JobReplay) -> None:
        # Most jobs are added on the same terms as the one before: those bytes are looked up whole. A hit is a whole
        # encoding, because each encoding says itself where it ends.
        coded_at = start + BARE_BYTES
        terms = self._terms.get(data[coded_at : coded_at + self._coded_bytes])
        add = read_added(data, start, stop, self._coded_bytes if terms is not None else 0)
        if terms is None:
            self._coded_bytes = len(add.coded)
            terms = self._terms.get(add.coded) or self._learn(add.coded, replay)
        segment.adds += 1
        replay.added(add.id, terms, add.payload, add.created_ns, add.time_ns, segment.number)

    def _learn(self, coded: bytes, replay: JobReplay) -> Terms:
        fields = read_fields(coded)
        queue = replay.jobs.queue(fields.name)
        terms = Terms(
            queue, fields.ttr_ms, fields.ttl_ms, fields.priority, fields.max_attempts, fields.max_fails, coded
        )
        if len(self._terms) >= TERMS_MAX:
            self._terms.clear()
        self._terms[coded] = terms
        return terms

    def _keep(self, number: int, scar: Scar) -> CmdlogDamage:
        """Copy a damaged part aside, durably."""
        name = layout.segment_name(number)
        saved_as = f"{self.damaged}/{name}@{scar.at}+{scar.size}"
        self.fs.make_folder(self.damaged)
        copy = self.fs.append(saved_as)
        try:
            at = copy.size  # a part that was damaged at an earlier start has its copy already
            while at < scar.size:
                piece = self.fs.read(self._path(number), scar.at + at, min(COPY_BYTES, scar.size - at))
                if not piece:
                    break
                copy.write(piece)
                at += len(piece)
            copy.sync()
        finally:
            copy.close()
        self.fs.sync_folder(self.damaged)
        return CmdlogDamage(name, scar.at, scar.size, scar.why, saved_as)

    def _set_aside(self, number: int, why: str) -> CmdlogDamage:
        """Take a file that is no segment out of the order, whole."""
        path = self._path(number)
        aside = f"{path}{layout.ASIDE_SUFFIX}"
        size = self.fs.size(path)
        self.fs.rename(path, aside)
        self.fs.sync_folder(self.folder)
        return CmdlogDamage(layout.segment_name(number), 0, size, why, aside)
