"""The history of single jobs in a command log: each record names its job and has its time. The records of ended jobs
that cleaning has removed are in no file.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from msgspec import Struct

from staniel.journal.errors import CorruptRecord, Flaw
from staniel.journal.trace import Event, FrozenFs, Happened, Progress
from staniel.journal.workq import files as workq_files
from staniel.journal.workq.dump import show_id
from staniel.journal.workq.encoder import (
    ADD,
    BARE_BYTES,
    COMMANDS,
    COMPLETE,
    CRC_BYTES,
    DELETE,
    EXPIRE,
    FAIL,
    SCHEDULE,
    START_ATTEMPT,
    TIMEOUT_ATTEMPT,
)
from staniel.journal.workq.records import kind_of, read_added, read_fields, read_result, written_ns
from staniel.journal.workq.segments import SegmentReader, header_error, is_begun
from staniel.queues.jobs.job import Terms
from staniel.queues.jobs.replay import JobReplay
from staniel.queues.jobs.times import NS_A_MS

HAPPENED = {
    ADD: Happened.ADDED,
    SCHEDULE: Happened.SCHEDULED,
    COMPLETE: Happened.COMPLETED,
    FAIL: Happened.FAILED,
    DELETE: Happened.DELETED,
    EXPIRE: Happened.EXPIRED,
    START_ATTEMPT: Happened.LEASED,
    TIMEOUT_ATTEMPT: Happened.TIMED_OUT,
}


class JobStep(Struct, frozen=True, gc=False):
    """A record. `command` has the bytes from its type to the end of its fields."""

    file: str
    at: int
    size: int
    kind: int
    time_ns: int
    id: bytes
    command: bytes

    def event(self) -> Event:
        at_ms = self.time_ns // NS_A_MS
        word = COMMANDS[self.kind]
        return Event(HAPPENED[self.kind], show_id(self.id), self.file, self.at, self.size, word, at_ms, at_ms)

    def name(self) -> str:
        """Return the name of the job's queue, which only an addition has; "" for any other record."""
        if self.kind > SCHEDULE:
            return ""
        return read_fields(read_added(self.command, 0, len(self.command)).coded).name.decode("latin-1")

    def apply(self, replay: JobReplay) -> None:
        """Apply the record to `replay` as recovery does."""
        data, stop = self.command, len(self.command)
        if self.kind <= SCHEDULE:
            add = read_added(data, 0, stop)
            fields = read_fields(add.coded)
            queue = replay.jobs.queue(fields.name)
            limits = (fields.priority, fields.max_attempts, fields.max_fails)
            terms = Terms(queue, fields.ttr_ms, fields.ttl_ms, *limits, add.coded)
            replay.added(add.id, terms, add.payload, add.created_ns, add.time_ns, replay.origin)
        elif self.kind == START_ATTEMPT:
            replay.attempted(self.id, self.time_ns)
        elif self.kind in (COMPLETE, FAIL):
            replay.finished(self.id, read_result(data, 0, stop), self.time_ns, success=self.kind == COMPLETE)
        elif self.kind in (DELETE, EXPIRE):
            replay.removed(self.id)
        else:
            replay.timed_out(self.id)


class CmdLogTrace:
    """The segments of one command log."""

    def __init__(self, fs: FrozenFs, folder: str, progress: Progress = lambda size: None) -> None:
        self.flaws: list[tuple[str, Flaw]] = []
        self.records: Counter[str] = Counter()
        self._fs, self._folder, self._progress = fs, folder, progress

    def names(self) -> list[str]:
        return [workq_files.segment_name(number) for number in workq_files.segment_numbers(self._fs.list(self._folder))]

    def steps(self) -> Iterator[JobStep]:
        """Yield one record after another. Unreadable ones are skipped and noted in `flaws`."""
        for name in self.names():
            yield from self.steps_of(name)

    def steps_of(self, name: str) -> Iterator[JobStep]:
        """Yield the records of a segment."""
        path, is_newest = f"{self._folder}/{name}", name == self.names()[-1]
        size = self._fs.size(path)
        if is_newest and not size:
            return  # a crash came between the segment's creation and its first bytes
        if why := header_error(self._fs, path):
            self.flaws.append((name, Flaw(0, size, why, is_newest and is_begun(self._fs, path))))
            return
        reader = SegmentReader(self._fs, path)
        for data, frames, base in reader.pieces():
            for at, start, end in frames:
                try:
                    step = self._follow_record(name, base, data, (at, start, end))
                except CorruptRecord as error:
                    self.flaws.append((name, Flaw(base + at, end - at, error.why)))
                    continue
                self.records[COMMANDS[step.kind]] += 1
                self._progress(step.size)
                yield step
        for corrupt in reader.corrupt_ranges:
            self.flaws.append((name, Flaw(corrupt.at, corrupt.size, corrupt.why, is_newest and corrupt.is_torn)))

    def bytes_of(self, step: JobStep) -> bytes:
        """Return the whole record with the bytes in the file."""
        return self._fs.read(f"{self._folder}/{step.file}", step.at, step.size)

    def _follow_record(self, name: str, base: int, data: bytes, frame: tuple[int, int, int]) -> JobStep:
        """Decode a record. Raises CorruptRecord for an invalid command."""
        at, start, end = frame
        stop = end - CRC_BYTES
        kind = kind_of(data, start, stop)
        if kind <= SCHEDULE:
            read_fields(read_added(data, start, stop).coded)
        elif kind in (COMPLETE, FAIL):
            read_result(data, start, stop)
        job_id = data[start + 1 : start + BARE_BYTES]
        return JobStep(name, base + at, end - at, kind, written_ns(data, at), job_id, data[start:stop])
