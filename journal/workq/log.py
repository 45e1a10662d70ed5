"""The command log in service. It records changes of jobs; the commit group writes and syncs them.

A record is encoded when the change happens, so records are in the order of the changes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from staniel.journal.disk.ballast import Ballast
from staniel.journal.disk.fs import BROKEN_ERRNOS, FULL_ERRNOS, File, Fs
from staniel.journal.disk.unsynced_names import NamedFile, is_held, last_held_number
from staniel.journal.group_commit import GroupCommit
from staniel.journal.new_file import NewFile
from staniel.journal.workq import files as workq_files
from staniel.journal.workq.encoder import (
    ADD,
    COMPLETE,
    CRC_BYTES,
    DELETE,
    EXPIRE,
    FAIL,
    MAGIC,
    NO_TIME,
    START_ATTEMPT,
    TIMEOUT_ATTEMPT,
    encode_addition,
    encode_finished,
)
from staniel.journal.workq.job_records import addition, crc_of, encode_bare, encode_time
from staniel.journal.workq.segments import CmdLogSegment
from staniel.queues.jobs.job import Job
from staniel.queues.jobs.journal import JobJournal
from staniel.queues.jobs.times import NS_A_MS

NOTHING_YET = 2**62  # larger than any segment, so the first record begins one
BEFORE_ALL = -(2**63)  # earlier than any clock shows, so the first record gets its own time


class SegmentFile(NewFile):
    """A segment open for appending. If it has bytes, its name is already durable."""

    def __init__(self, fs: Fs, folder: str, path: str) -> None:
        super().__init__(fs, folder, path)
        self._is_named = self.size > 0

    @property
    def named(self) -> NamedFile | None:
        return self._file if self._is_named and isinstance(self._file, NamedFile) else None

    def is_on(self, folder: str) -> bool:
        with suppress(OSError):  # if the disk cannot say, sync the file itself
            return self._fs.is_same_device(self._folder, folder)
        return False


class SyncRequest:
    """A member of the commit group that writes nothing and waits for one sync of `file`, which is at `path`."""

    is_erased = False

    def __init__(self, path: str, file: File, on_synced: Callable[[], None] | None = None) -> None:
        self.batch = 0
        self.path = path
        self.sync_ms = 0
        self.file = file
        self.is_done = False
        self._on_synced = on_synced

    def write(self) -> File:
        return self.file

    def synced(self, now_ms: int) -> None:
        self.is_done = True
        if self._on_synced is not None:
            self._on_synced()


class CmdLog(JobJournal):
    """The journal of the jobs, and a member of the commit group.

    `segments`: by number. `segment`: the one for which records are planned; its file may not exist yet. `ballast`: a
    reserve on the disk of the log if the log is not in the spool, whose own reserve may be on another disk.
    """

    is_erased = False

    def __init__(
        self, fs: Fs, folder: str, group: GroupCommit, sync_ms: int, segment_bytes: int, ballast: Ballast | None = None
    ) -> None:
        self.fs = fs
        self.folder = folder
        self.path = folder
        self.group = group
        self.sync_ms = sync_ms
        self.batch = 0
        self.ballast = ballast
        self.segments: dict[int, CmdLogSegment] = {}
        self._early: dict[bytes, tuple[int, int]] = {}
        # The latest time of a lease or an end recorded in an earlier run, or before the wall clock was set back.
        self.latest_ns = 0
        self.ahead_ns = 0  # how far the wall clock, used in records, is ahead of the clock of the jobs
        self.aheads_ns = {0}  # the values of ahead_ns in all eras with records
        self.segment = CmdLogSegment(0)
        self.records = 0
        self._segment_bytes = self._usual_bytes = segment_bytes or workq_files.SEGMENT_BYTES
        self._planned_bytes = NOTHING_YET
        self._touched = False
        self._pending: list[bytes] = []
        self._pending_bytes = 0
        self._unwritten: deque[tuple[int, bytes]] = deque()
        self._file: SegmentFile | None = None
        self._following: dict[int, SegmentFile | OSError] = {}  # planned segments: open, or the error of opening them
        self._written_number = self._held_number = 0
        self._now_ms = self._time_ns = BEFORE_ALL
        self._time = b""

    @property
    def file(self) -> File:
        assert self._file is not None
        return self._file

    @property
    def stored_bytes(self) -> int:
        """The size of all segments, as of the last write."""
        return sum(segment.size for segment in self.segments.values())

    def resume(self, segments: dict[int, CmdLogSegment], early: dict[bytes, tuple[int, int]], latest_ns: int) -> None:
        """Append to the highest of `segments` from now on. `early` and `latest_ns`: see JobReplay. Raises OSError."""
        self.segments, self._early, self.latest_ns = segments, early, latest_ns
        if segments:
            number = max(segments)
            self.segment = segments[number]
            self._open(number)
            self._planned_bytes = self.segment.size = self.file.size
            self._held_number = last_held_number(self.fs, workq_files.HELD_AS)
            if is_held(self.fs, workq_files.HELD_AS):
                # A holder may have seen a later segment, which a crash has lost, and taken this one for sealed.
                self._begin_segment_now()

    def first_told(self, job: Job) -> int:
        """Return the first segment with a record of the job: that of its addition, or an earlier one if the original
        wrote records out of order.
        """
        created_ns, number = self._early.get(job.id, (0, 0))
        return number if created_ns == job.created_ns else job.origin

    def sealed(self) -> list[CmdLogSegment]:
        """Return the segments that are complete and written, oldest first."""
        return [self.segments[number] for number in sorted(self.segments) if number < self._written_number]

    def admits(self, size: int) -> bool:
        """Tell whether the disk has room for `size` more bytes."""
        if not self.group.admits(size):
            return False
        if self.ballast is None:
            return True
        return self._pending_bytes + size <= self.ballast.budget_bytes or self.ballast.has_room_for(size)

    def follow(self, aheads_ns: list[int]) -> None:
        """Adopt the last of `aheads_ns`: how far the wall clock is ahead of the clock of the jobs. The others are those
        of earlier eras.
        """
        if aheads_ns[-1] < self.ahead_ns:
            self.latest_ns = max(self.latest_ns, self._time_ns)
        self.ahead_ns = aheads_ns[-1]
        self.aheads_ns.update(aheads_ns)
        self._now_ms = self._time_ns = BEFORE_ALL

    def end_segment_if_dead(self, bytes_min: int) -> bool:
        """Let the next records go to another segment, if the current one has `bytes_min` bytes and most of its
        additions are of jobs that are gone. Return whether that was so.
        """
        segment = self.segment
        if segment.number != self._written_number or self._planned_bytes < bytes_min or not segment.is_mostly_dead:
            return False
        return self._begin_segment_now()

    def _begin_segment_now(self) -> bool:
        """Begin a segment that is created with the next batch, with or without records. Return False if the system
        refuses that.
        """
        segment = self.segment
        self._begin_segment()
        if segment is self.segment:
            return False
        if not self._touched:
            self._touched = True
            self.group.mark_dirty(self)
        self._pending_bytes += len(MAGIC)
        self.group.pending_bytes += len(MAGIC)
        return True

    def added(self, job: Job, limit_ms: int) -> None:
        created_ns = job.created_ns
        if self.ahead_ns:
            created_ns += self.ahead_ns
        self._time_ns = created_ns
        self._time = time = encode_time(created_ns)
        coded = job.terms.coded
        if coded and not job.time_ns:  # `encode_addition` inlined: the call costs 1.5 % of an added job
            record = addition(time, ADD, job.id, coded, job.payload, NO_TIME)
        else:
            record = encode_addition(job, time, self.ahead_ns)
        self._record(record, crc_of(record))
        segment = self.segment
        job.origin = segment.number
        segment.adds += 1
        segment.limits_ms += limit_ms

    def attempted(self, job: Job, now_ms: int) -> None:
        if now_ms > self._now_ms:
            self._advance(now_ms)
        self._record(encode_bare(self._time, START_ATTEMPT, job.id))

    def timed_out(self, job: Job, now_ms: int) -> None:
        self._record(encode_bare(self._advance(now_ms), TIMEOUT_ATTEMPT, job.id))

    def finished(self, job: Job, result: bytes, now_ms: int, *, success: bool) -> None:
        kind = COMPLETE if success else FAIL
        self._record(encode_finished(self._advance(now_ms), kind, job.id, result))

    def deleted(self, job: Job, now_ms: int) -> None:
        if now_ms > self._now_ms:
            self._advance(now_ms)
        self._record(encode_bare(self._time, DELETE, job.id))
        segment = self.segments[job.origin]
        segment.dead += 1

    def expired(self, job: Job, now_ms: int) -> None:
        self._record(encode_bare(self._advance(now_ms), EXPIRE, job.id))
        self.segments[job.origin].dead += 1

    def forget(self, id: bytes, now_ms: int) -> None:
        """Record the end of an id that has records but no addition, because a crash has lost that. A later job with the
        same id is another one.
        """
        self._record(encode_bare(self._advance(now_ms), EXPIRE, id))

    def _advance(self, now_ms: int) -> bytes:
        """Return the TIME of the next record, never less than that of the record before it, unless the wall clock was
        set back between the two. So records of a job are not older than its addition, and a reader can distinguish jobs
        with the same id.
        """
        self._now_ms = now_ms
        now_ns = now_ms * NS_A_MS + self.ahead_ns
        if now_ns > self._time_ns:
            self._time_ns = now_ns
            self._time = encode_time(now_ns)
        return self._time

    def _record(self, record: bytes, crc: bytes = b"") -> None:
        """Record `record`. `crc`: its end, passed separately so that a long record is not copied again."""
        if self._planned_bytes >= self._segment_bytes and self._planned_bytes > len(MAGIC):
            self._begin_segment()
        if not self._touched:
            self._touched = True
            self.group.mark_dirty(self)
        size = len(record)
        pending = self._pending
        pending.append(record)
        if crc:
            pending.append(crc)
            size += CRC_BYTES
        self._pending_bytes += size
        self._planned_bytes += size
        self.group.pending_bytes += size
        self.records += 1

    def _begin_segment(self) -> None:
        """Plan the next records for the next segment. If the system refuses to create it, the present one takes twice
        its bytes before the next try, because a record cannot change its segment after that.
        """
        following = max(self.segment.number, self._held_number) + 1
        if following > workq_files.NUMBER_MAX or not self._can_create(following):
            return
        self._stage()
        if self.segments:
            self.segment.size = self._planned_bytes
            self.segment.settle_due()
        self.segment = self.segments[following] = CmdLogSegment(following)
        self._planned_bytes = len(MAGIC)
        self._pending.append(MAGIC)

    def _can_create(self, number: int) -> bool:
        """Create a segment that is to follow another. Return False if the system refuses. A broken or full disk is
        noticed when the segment is written; the first segment is created then.
        """
        path = f"{self.folder}/{workq_files.segment_name(number)}"
        try:
            if self._file is not None and number not in self._following:
                self._following[number] = SegmentFile(self.fs, self.folder, path)
        except OSError as error:
            if error.errno not in BROKEN_ERRNOS and error.errno not in FULL_ERRNOS:
                self._segment_bytes = 2 * max(self._planned_bytes, self._usual_bytes)
                self.group.on_refused(self.path, error, max(self._now_ms, 0))
                return False
            self._following[number] = error
        self._segment_bytes = self._usual_bytes
        return True

    def write(self) -> File:
        self._touched = False
        self._stage()
        while self._unwritten:
            number, data = self._unwritten[0]
            if number != self._written_number:
                self._next_file(number)
            file = self.file
            before = file.size
            try:
                file.write(data)
            except OSError as error:
                self._unwritten[0] = number, data[file.size - before :]
                if error.errno in FULL_ERRNOS and self._make_room():
                    continue
                raise
            self._unwritten.popleft()
        self._pending_bytes = 0
        self.segment.size = self.file.size
        return self.file

    def synced(self, now_ms: int) -> None:
        pass

    def close(self) -> None:
        """Close the file; everything must have been written and synced."""
        assert not self._pending and not self._unwritten
        if self._file is not None:
            self.group.close_after_sync(self._file)
            self._file = None

    def _stage(self) -> None:
        if self._pending:
            self._unwritten.append((self.segment.number, b"".join(self._pending)))
            self._pending.clear()

    def _next_file(self, number: int) -> None:
        """Open the next file. The group syncs the old one with the current batch. Raises OSError."""
        old_file, path = self._file, self.path
        self._open(number)
        if old_file is not None and self.sync_ms >= 0:
            self.group.ask_for_sync(SyncRequest(path, old_file, partial(self._end_file, old_file)))
        elif old_file is not None:
            self.group.close_after_sync(old_file)

    def _end_file(self, file: File) -> None:
        self.group.complete(file)
        self.group.close_after_sync(file)

    def _open(self, number: int) -> None:
        path = f"{self.folder}/{workq_files.segment_name(number)}"
        following = self._following.pop(number, None)
        if isinstance(following, OSError):
            raise following
        self._file = following or SegmentFile(self.fs, self.folder, path)
        self._written_number = number
        self.path = path

    def _make_room(self) -> bool:
        """Release the log's own reserve. Return False if there is none or it has been released."""
        if self.ballast is None or self.ballast.budget_bytes < 0:
            return False
        self.ballast.release()
        return True
