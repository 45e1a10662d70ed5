"""One segment of a command log rewritten without the records that nobody needs any more.

Knows which records are needed, and the steps of putting a successor in a segment's place: written, synced, renamed,
folder synced. Refuses to know when that pays (cmdlog_clean.py) and to wait: it is a generator, a slice of work between
two yields, and a sync is a Trip that the commit group makes. Source: "Rewrite Process" of the workq command log.

The original drops an addition when its job's time to live is over, and all other records once the job is gone; so a
deleted job comes back after a restart. Here an addition goes with its job, the oldest segments first, and what ended a
job goes only when no addition of a job that was over stands in that segment or an older one.
"""

from __future__ import annotations

from collections.abc import Callable, Generator

from staniel.journal.disk.fs import File, Fs
from staniel.journal.group_commit import SeparateDevice
from staniel.journal.workq import files as layout
from staniel.journal.workq.encoder import BARE_BYTES, CRC_BYTES, MAGIC, SCHEDULE, TIME_BYTES
from staniel.journal.workq.log import CmdLog
from staniel.journal.workq.records import makes_sense, read_time
from staniel.journal.workq.segments import CmdLogSegment, Frame, SegmentReader
from staniel.queues.config import SYNC_ALWAYS
from staniel.queues.jobs.job import Job
from staniel.queues.jobs.jobs import Jobs

SLICE_BYTES = 32 << 10  # some 500 small records, about a millisecond


class RewriteFile(SeparateDevice):
    """The successor of a segment."""

    def __init__(self, file: File) -> None:
        self._file = file

    def write(self, data: bytes) -> None:
        self._file.write(data)

    def sync(self) -> None:
        self._file.sync()

    def close(self) -> None:
        self._file.close()


class Everything(SeparateDevice):
    """A successor, and all that the log has said before. Records were left out because their job is gone; if its end
    were lost with the power, and they not there, the job would be as it was long before.
    """

    def __init__(self, file: File, fs: Fs, folder: str) -> None:
        self._file = file
        self._fs = fs
        self._folder = folder

    def sync(self) -> None:
        self._file.sync()
        self._fs.sync_all(self._folder)


class FolderFile(SeparateDevice):
    """The names in a folder; syncing it makes renames and removals durable."""

    def __init__(self, sync: Callable[[], None]) -> None:
        self._sync = sync

    def sync(self) -> None:
        self._sync()

    def close(self) -> None:
        pass


class Trip:
    """One sync that a rewrite waits for, as a member of the group."""

    is_erased = False

    def __init__(self, path: str, file: File) -> None:
        self.batch = 0
        self.path = path
        self.sync_ms = 0
        self.file = file
        self.is_over = False

    def write(self) -> None:
        pass

    def synced(self, now_ms: int) -> None:
        self.is_over = True


class Rewrite:
    """`clear`: no older segment holds an addition of a job that was over when the round began. `freed_bytes`: what it
    has saved, all of the segment if `is_gone`. `trip`: the sync it waits for, if it waits.
    """

    def __init__(self, log: CmdLog, jobs: Jobs, segment: CmdLogSegment, *, clear: bool) -> None:
        self.log = log
        self.jobs = jobs
        self.segment = segment
        self.clear = clear
        self.freed_bytes = 0
        self.is_gone = False
        self.is_clean = False
        self.trip: Trip | None = None
        self._path = f"{log.folder}/{layout.segment_name(segment.number)}"
        self._successor = self._path + layout.REWRITE_SUFFIX
        self._file: RewriteFile | None = None
        self._kept = 0
        self._dropped = 0
        self._adds_dropped = 0
        self._limits_ms = 0
        self._limits = 0

    @property
    def waits(self) -> bool:
        """Whether only the disk can help it on."""
        return self.trip is not None and not self.trip.is_over

    def run(self) -> Generator[None]:
        """Slice by slice; `is_clean` in the end, unless what was read is not what is known of the segment. Raises
        OSError; then, and to leave off early, call `abandon`.
        """
        log, fs = self.log, self.log.fs
        self._remove_successor()
        self._file = file = RewriteFile(fs.append(self._successor))
        size = yield from self._copy(file)
        if size is None:
            self.abandon()
            return
        if self._dropped:
            # Under "always" the same trip takes along what has been recorded.
            yield from self._sync(file if log.sync_ms == SYNC_ALWAYS else Everything(file, fs, log.folder))
        if self._dropped and self._kept:
            file.close()
            self._file = None
            fs.rename(self._successor, self._path)
        else:
            self.abandon()
        yield from self._settle(size)

    def abandon(self) -> None:
        """Leave no successor behind. The segment stands as it did. Raises OSError."""
        if self.waits and self.trip is not None:
            self.log.group.forget(self.trip)
        if self._file is not None:
            self._file.close()
            self._file = None
            self._remove_successor()

    def _copy(self, file: RewriteFile) -> Generator[None, None, int | None]:
        """Write what is needed; how long the successor is, or None if the segment is not as it was."""
        reader = SegmentReader(self.log.fs, self._path, SLICE_BYTES)
        file.write(MAGIC)
        size = len(MAGIC)
        for data, frames, _ in reader.pieces():
            kept = [data[frame[0] : frame[2]] for frame in frames if self._is_needed(data, frame)]
            self._kept += len(kept)
            self._dropped += len(frames) - len(kept)
            piece = b"".join(kept)
            if piece:
                file.write(piece)
                size += len(piece)
            yield
        return size if len(reader.scars) == self.segment.scars else None

    def _is_needed(self, data: bytes, frame: Frame) -> bool:
        _, start, end = frame
        if self.segment.senseless and not makes_sense(data, start, end - CRC_BYTES):
            return False  # told and kept aside at the start; it belongs to no job
        job = self.jobs.by_id.get(data[start + 1 : start + BARE_BYTES])
        if job is not None and job.is_run:
            job = None
        if data[start] <= SCHEDULE:
            created_ns = read_time(data, end - CRC_BYTES - TIME_BYTES)
            needed = job is not None and job.created_ns == created_ns and job.origin == self.segment.number
            self._adds_dropped += not needed
        else:
            needed = not self.clear or (job is not None and self._concerns(job))
        if needed and job is not None:
            self._limits_ms += job.limit_ms
            self._limits += 1
        return needed

    def _concerns(self, job: Job) -> bool:
        """Whether a fact here is needed for `job`. One of an earlier job with that id is not, whose addition stood
        before this one's and is gone; unless the clock had stepped back between the two: what a segment that it does
        not pay to clean still tells of the earlier one could then be taken for news of this one.
        """
        return self.log.first_told(job) <= self.segment.number or job.created_ns <= self.log.latest_ns

    def _settle(self, size: int) -> Generator[None]:
        """The segment is what has been written; make that durable before any newer one is touched."""
        segment, log = self.segment, self.log
        if not self._kept:
            log.fs.remove(self._path)
            del log.segments[segment.number]
            self.is_gone = True
            self.freed_bytes = segment.size
        elif self._dropped:
            self.freed_bytes = segment.size - size
            segment.size, segment.scars, segment.senseless = size, 0, 0
        segment.adds -= self._adds_dropped
        segment.dead -= self._adds_dropped
        segment.limits_ms = self._limits_ms
        segment.due_ms = self._limits_ms // self._limits if self._limits else 0
        assert segment.dead >= 0
        if self._dropped or self.is_gone:
            yield from self._sync(FolderFile(lambda: log.fs.sync_folder(log.folder)))
        self.is_clean = True

    def _sync(self, file: File) -> Generator[None]:
        self.trip = Trip(self._path, file)
        self.log.group.ask_for_sync(self.trip)
        while not self.trip.is_over:
            yield

    def _remove_successor(self) -> None:
        try:
            self.log.fs.remove(self._successor)
        except FileNotFoundError:
            pass
