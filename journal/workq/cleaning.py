"""Cleaning of a command log: rounds, and the rewriting of one segment without the records that are not needed.

At intervals a round visits the sealed segments, oldest first, and rewrites those that are due. A generator does the
work in slices. Syncs go through the commit group, and the generator waits for them between slices. A successor is
written and synced, takes the segment's name, and the folder is synced before any newer segment is touched. Sources:
"Cleaning Cycle Strategy" and "Rewrite Process" of the workq command log.

The original drops an addition when its job's time to live is over, and all other records once the job is gone; so a
deleted job comes back after a restart. Here an addition is dropped with its job, the oldest segments first, and the
record that ended a job is dropped only if no segment up to its own has the addition of an ended job. If the system
refuses to remove or to replace a segment, only the ends of the jobs in it stay.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import suppress
from functools import partial

from msgspec import Struct

from staniel.journal.disk.fs import BROKEN_ERRNOS, FULL_ERRNOS, AlreadyLocked, File
from staniel.journal.disk.refusals import described
from staniel.journal.disk.unsynced_names import is_held
from staniel.journal.group_commit import SeparateDevice
from staniel.journal.workq import files as workq_files
from staniel.journal.workq.encoder import BARE_BYTES, CRC_BYTES, MAGIC, SCHEDULE, TIME_BYTES
from staniel.journal.workq.log import CmdLog, SyncRequest
from staniel.journal.workq.records import is_valid_command, read_time
from staniel.journal.workq.segments import CmdLogSegment, Frame, SegmentReader
from staniel.queues.config import SYNC_ALWAYS
from staniel.queues.jobs.job import Job
from staniel.queues.jobs.jobs import Jobs
from staniel.queues.jobs.times import NEVER_MS, NS_A_MS

AMPLE = 1 << 62  # bytes of room: the disk is not full
SLICE_BYTES = 32 << 10  # some 500 small records, about a millisecond
STAYED_IDS_MAX = 50_000  # together 5 MB
HASTE_SLICE_BYTES = 128 << 10  # on a full disk, while all clients wait for the end of the round


class CleaningResult(Struct):
    """The result of a round: segments rewritten, segments removed, bytes freed, and why it ended early; "" if it did
    not.
    """

    cleaned: int = 0
    removed: int = 0
    freed_bytes: int = 0
    why: str = ""


class Cleaner:
    """The cleaner of a command log. It runs a round every `every_ms`; 0: never. `tell` gets the result of each round.
    The caller calls `run_slice` at `next_ms`.
    """

    def __init__(self, log: CmdLog, jobs: Jobs, every_ms: int, report: Callable[[CleaningResult], None]) -> None:
        self.log = log
        self.jobs = jobs
        self.every_ms = every_ms
        self.tell = report
        self._due_ms = NEVER_MS
        self._now_ms = 0
        self._round: Generator[None] | None = None
        self._rewrite: Rewrite | None = None
        self._release: Callable[[], None] | None = None
        self._outcome = CleaningResult()
        self._room = AMPLE
        self._refused: set[int] = set()  # segments that the system refused to remove or to replace
        self._stayed: set[bytes] = set()  # in this round: ended jobs whose additions are still in those segments

    @property
    def refused_segments(self) -> int:
        """The number of segments that the system refuses to remove or to replace."""
        return sum(number in self.log.segments for number in self._refused)

    def begin_service(self, now_ms: int) -> None:
        """Schedule the first round, one interval from now."""
        if self.every_ms:
            self._due_ms = now_ms + self.every_ms

    @property
    def is_idle(self) -> bool:
        return self._round is None

    def next_ms(self) -> int:
        """Return when to call `run_slice` next; NEVER_MS while waiting for a sync."""
        if self._round is None:
            return self._due_ms
        return NEVER_MS if self._waits else self._now_ms

    @property
    def _waits(self) -> bool:
        return self._rewrite is not None and self._rewrite.waits

    def run_slice(self, now_ms: int) -> None:
        """Do a slice of work, if any is due. A full disk or a read error ends the round; the log continues."""
        self._now_ms = now_ms
        if self._round is None:
            if now_ms < self._due_ms:
                return
            self._outcome = CleaningResult()
            self._round = self._clean_all()
        if self._waits:
            return
        try:
            next(self._round)
        except StopIteration:
            self._end_round("")
        except OSError as error:
            self._end_round(f"{error.filename or self.log.folder}: {error.strerror}")
        except AlreadyLocked:
            self._end_round(f"{workq_files.READ_LOCK} is held by another program")

    def start_round_now(self, now_ms: int, room: int) -> None:
        """Begin a round now, because the disk is full. Skip segments that take more than `room` bytes to rewrite, and
        those that are mostly needed.
        """
        if is_held(self.log.fs, workq_files.HELD_AS):
            return  # nothing would be freed
        if any(segment.is_mostly_dead and segment.kept_bytes <= room for segment in self.log.sealed()):
            self._room = room
            self._due_ms = now_ms

    def stop(self) -> None:
        """Stop a running round and remove its unfinished successor."""
        if self._round is not None:
            self._end_round("the server stops")

    def _end_round(self, why: str) -> None:
        if self._rewrite is not None:
            try:
                self._rewrite.abandon()
            except OSError as error:  # the successor stays; the next rewrite of the segment removes it
                why = f"{why}; {error.filename}: {error.strerror}"
        if self._release is not None:
            self._release()
        self._round = self._rewrite = self._release = None
        self._due_ms = self._now_ms + self.every_ms
        self._room = AMPLE
        self._outcome.why = why or self._outcome.why
        self.tell(self._outcome)

    def _clean_all(self) -> Generator[None]:
        """Do one round, oldest segment first. Raises OSError, AlreadyLocked."""
        log = self.log
        self._stayed.clear()
        self._release = log.fs.hold(f"{log.folder}/{workq_files.READ_LOCK}", shared=False)
        segments = log.sealed()
        dead = {segment.number: segment.dead for segment in segments}
        newer_bytes = sum(segment.size for segment in segments)
        # Tell whether records that ended a job may be dropped: no older segment has the addition of a job that had
        # ended when the round began, and the clock is not behind the times of earlier records, which could seem to
        # belong to a new job.
        ends_may_go = self._now_ms * NS_A_MS + log.ahead_ns > log.latest_ns
        for segment in segments:
            newer_bytes -= segment.size
            if self._is_due(segment, newer_bytes):
                ends_may_go = (yield from self._clean(segment, ends_may_go)) and ends_may_go
            elif dead[segment.number]:
                ends_may_go = False

    def _is_due(self, segment: CmdLogSegment, newer_bytes: int) -> bool:
        """Tell whether to rewrite the segment: its average end of life has passed (the document's rule), or half of its
        additions are dead, or dead ones prevent records of newer segments from being dropped. On a full disk: half of
        its additions are dead, and there is room for the rest.
        """
        if segment.kept_bytes > self._room:
            return False
        if segment.is_mostly_dead or self._room < AMPLE:
            return segment.is_mostly_dead
        if self._now_ms >= segment.due_ms:
            return True
        return segment.dead > 0 and newer_bytes >= segment.size

    def _clean(self, segment: CmdLogSegment, ends_may_go: bool) -> Generator[None, None, bool]:
        """Rewrite one segment. Return whether all ended jobs whose additions are left in it are in `_stayed`. If the
        system refuses a call, the segment stays as it is, and the round continues with the next one.
        """
        rewrite = self._rewrite = Rewrite(self.log, self.jobs, segment, self._stayed, ends_may_go=ends_may_go)
        if self._room < AMPLE:
            rewrite.slice_bytes = HASTE_SLICE_BYTES
        try:
            yield from rewrite.run()
        except OSError as error:
            if error.errno in BROKEN_ERRNOS or error.errno in FULL_ERRNOS:
                raise
            with suppress(OSError):  # the next rewriting of the segment removes a remaining successor
                rewrite.abandon()
            self._outcome.why = described(error)
            self._count(rewrite)
            self._refused.add(segment.number)
            return rewrite.is_read and self._keep_ends_of(rewrite.over)
        self._count(rewrite)
        self._refused.discard(segment.number)
        return rewrite.is_complete

    def _count(self, rewrite: Rewrite) -> None:
        self._rewrite = None
        self._outcome.removed += rewrite.is_removed
        self._outcome.cleaned += rewrite.freed_bytes > 0
        self._outcome.freed_bytes += rewrite.freed_bytes

    def _keep_ends_of(self, over: set[bytes]) -> bool:
        """Keep the records that ended these jobs, in this round. Return False if the jobs are too many to be
        remembered.
        """
        if len(self._stayed) + len(over) > STAYED_IDS_MAX:
            return False
        self._stayed |= over
        return True


class SuccessorFile(SeparateDevice):
    """The file that will replace a segment. It is synced by itself, also outside the spool."""

    def __init__(self, file: File) -> None:
        self._file = file

    def write(self, data: bytes) -> None:
        self._file.write(data)

    def sync(self) -> None:
        self._file.sync()

    def close(self) -> None:
        self._file.close()


class SyncCall(SeparateDevice):
    """A sync of several files, or of a folder, in the form that the commit group takes. `file`: the file that is closed
    with it.
    """

    def __init__(self, sync: Callable[[], None], file: File | None = None) -> None:
        self._sync = sync
        self._file = file

    def sync(self) -> None:
        self._sync()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()


class Rewrite:
    """The rewriting of one segment. `ends_may_go`: no older segment has the addition of a job that had ended when the
    round began, except of those in `stayed`. Results: `freed_bytes`; `is_removed` if nothing was left; `is_complete`
    unless the segment was not as known; `is_read` once `over` has the jobs whose additions can be dropped (it may lack
    some if there are more than STAYED_IDS_MAX).
    """

    def __init__(
        self, log: CmdLog, jobs: Jobs, segment: CmdLogSegment, stayed: set[bytes], *, ends_may_go: bool
    ) -> None:
        self.log = log
        self.jobs = jobs
        self.segment = segment
        self.stayed = stayed
        self.ends_may_go = ends_may_go
        self.slice_bytes = SLICE_BYTES
        self.freed_bytes = 0
        self.is_removed = False
        self.is_complete = False
        self.is_read = False
        self.over: set[bytes] = set()
        self.request: SyncRequest | None = None
        self._path = f"{log.folder}/{workq_files.segment_name(segment.number)}"
        self._successor = self._path + workq_files.REWRITE_SUFFIX
        self._file: SuccessorFile | None = None
        self._kept = 0
        self._dropped = 0
        self._adds_dropped = 0
        self._limits_ms = 0
        self._limits = 0

    @property
    def waits(self) -> bool:
        """True if the rewriting waits for a sync."""
        return self.request is not None and not self.request.is_done

    def run(self) -> Generator[None]:
        """Work slice by slice. Raises OSError; then, and to stop early, call `abandon`."""
        log, fs = self.log, self.log.fs
        self._remove_successor()
        self._file = file = SuccessorFile(fs.append(self._successor))
        size = yield from self._copy(file)
        if size is None:
            self.abandon()
            return
        self.is_read = True
        if self._is_replaced:
            # A dropped record may belong to a job whose end is not synced yet. If a power cut lost the end, the job
            # would return to its state before that record. With sync "always" the group syncs the end with the same
            # request.
            yield from self._sync(file if log.sync_ms == SYNC_ALWAYS else self._with_log(file))
        if self._is_replaced:
            fs.rename(self._successor, self._path)
            self._file = None
            file.close()
        else:
            self.abandon()
        yield from self._finish_segment(size)

    @property
    def _is_replaced(self) -> bool:
        """True if the successor takes the segment's place, also if the segment is removed then. What a killed process
        has removed in the page cache alone can come back much later, if a sync fails (see failed_sync.py): that must be
        a segment without records.
        """
        return bool(self._dropped) or not self._kept

    def abandon(self) -> None:
        """Remove the successor. The segment stays as it is. Raises OSError."""
        group = self.log.group
        synced: File | None = self._file
        if self.request is not None and not self.request.is_done:
            group.forget(self.request)
            synced = self.request.file
        if self._file is None:
            return
        assert synced is not None
        # A sync that was cut short has left the file to the next one, and a running sync needs it open.
        group.close_after_sync(synced)
        self._file = None
        self._remove_successor()

    def _copy(self, file: SuccessorFile) -> Generator[None, None, int | None]:
        """Write the records that are needed. Return the size of the successor, or None if the segment has other corrupt
        ranges than at startup.
        """
        reader = SegmentReader(self.log.fs, self._path, self.slice_bytes)
        file.write(MAGIC)
        size = len(MAGIC)
        for data, frames, _ in reader.pieces():
            needed = [data[frame[0] : frame[2]] for frame in frames if self._is_needed(data, frame)]
            self._kept += len(needed)
            self._dropped += len(frames) - len(needed)
            piece = b"".join(needed)
            if piece:
                file.write(piece)
                size += len(piece)
            yield
        return size if len(reader.corrupt_ranges) == self.segment.corrupt_ranges else None

    def _is_needed(self, data: bytes, frame: Frame) -> bool:
        _, start, end = frame
        if self.segment.invalid_records and not is_valid_command(data, start, end - CRC_BYTES):
            return False  # recovery has reported and copied it; it belongs to no job
        id = data[start + 1 : start + BARE_BYTES]
        job = self.jobs.by_id.get(id)
        if job is not None and job.is_run:
            job = None
        if data[start] <= SCHEDULE:
            created_ns = read_time(data, end - CRC_BYTES - TIME_BYTES)
            # The era of the time is not looked up, because more eras known later may change it.
            needed = (
                job is not None
                and created_ns - job.created_ns in self.log.aheads_ns
                and job.origin == self.segment.number
            )
            self._adds_dropped += not needed
            if not needed and len(self.over) <= STAYED_IDS_MAX:
                self.over.add(id)
        else:
            needed = not self.ends_may_go or id in self.stayed or (job is not None and self._may_concern(job))
        if needed and job is not None:
            self._limits_ms += job.limit_ms
            self._limits += 1
        return needed

    def _may_concern(self, job: Job) -> bool:
        """Tell whether a record of this segment that is not an addition may belong to `job`, and not to an earlier job
        with the same id, whose older addition is gone. If the clock stepped back between the two, records of the
        earlier job in segments that are not cleaned could seem to belong to this one: then this job's records stay.
        """
        if self.log.first_told(job) <= self.segment.number:
            return True
        return job.created_ns + min(self.log.aheads_ns) <= self.log.latest_ns

    def _finish_segment(self, size: int) -> Generator[None]:
        """Update what is known of the segment, and make the change durable before a newer segment is touched."""
        segment, log = self.segment, self.log
        if self._is_replaced:
            self.freed_bytes = segment.size - size
            segment.size, segment.corrupt_ranges, segment.invalid_records = size, 0, 0
        segment.adds -= self._adds_dropped
        segment.dead -= self._adds_dropped
        segment.limits_ms = self._limits_ms
        segment.due_ms = self._limits_ms // self._limits if self._limits else 0
        assert segment.dead >= 0
        if self._is_replaced:
            yield from self._sync(SyncCall(lambda: log.fs.sync_folder(log.folder)))
        if not self._kept:
            log.fs.remove(self._path)
            del log.segments[segment.number]
            self.is_removed = True
            self.freed_bytes += size
        self.is_complete = True

    def _sync(self, file: File) -> Generator[None]:
        """Wait for one sync of `file`."""
        self.request = request = SyncRequest(self._path, file)
        self.log.group.ask_for_sync(request)
        while not request.is_done:
            yield

    def _with_log(self, file: SuccessorFile) -> File:
        """Return a file whose sync covers the successor and everything that the log has written. The last segment is
        requested as well: the redo log needs its checksums before that sync, or recovery after a power cut would cut
        its end off.
        """
        self.log.group.ask_for_sync(self.log)
        return SyncCall(partial(self._sync_log, file), file)

    def _sync_log(self, file: File) -> None:
        """Sync the successor and everything that the log has written. Raises OSError."""
        file.sync()
        self.log.fs.sync_all(self.log.folder)

    def _remove_successor(self) -> None:
        try:
            self.log.fs.remove(self._successor)
        except FileNotFoundError:
            pass
