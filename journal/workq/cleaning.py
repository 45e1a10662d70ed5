"""Rounds of cleaning: every so often the segments of a command log that pay are rewritten, the oldest first.

Knows which segments pay, and their lock. Refuses to know clocks and threads: whoever drives it calls `step`, which does
a slice of work, at `next_ms` or later; syncs go through the commit group. Which records stay is known to
cmdlog_rewrite.py. Source: "Cleaning Cycle Strategy" of the workq command log.
"""

from __future__ import annotations

from collections.abc import Callable, Generator

from msgspec import Struct

from staniel.journal.disk.fs import Locked
from staniel.journal.workq import files as layout
from staniel.journal.workq.log import CmdLog
from staniel.journal.workq.rewrite import Rewrite
from staniel.journal.workq.segments import CmdLogSegment
from staniel.queues.jobs.job import NS_A_MS
from staniel.queues.jobs.jobs import Jobs
from staniel.queues.jobs.timers import NEVER_MS


class CleaningResult(Struct):
    """What one round did."""

    cleaned: int = 0
    removed: int = 0
    freed_bytes: int = 0
    why: str = ""  # it ended early


class Cleaner:
    """One round every `every_ms`; 0: never. `tell` hears what each round did."""

    def __init__(self, log: CmdLog, jobs: Jobs, every_ms: int, tell: Callable[[CleaningResult], None]) -> None:
        self.log = log
        self.jobs = jobs
        self.every_ms = every_ms
        self.tell = tell
        self._due_ms = NEVER_MS
        self._now_ms = 0
        self._round: Generator[None] | None = None
        self._rewrite: Rewrite | None = None
        self._release: Callable[[], None] | None = None
        self._outcome = CleaningResult()

    def begin_service(self, now_ms: int) -> None:
        """The first round is due one interval from now."""
        if self.every_ms:
            self._due_ms = now_ms + self.every_ms

    @property
    def is_idle(self) -> bool:
        return self._round is None

    def next_ms(self) -> int:
        """When `step` has something to do; NEVER_MS while it waits for the disk."""
        if self._round is None:
            return self._due_ms
        return NEVER_MS if self._waits else self._now_ms

    @property
    def _waits(self) -> bool:
        return self._rewrite is not None and self._rewrite.waits

    def step(self, now_ms: int) -> None:
        """A slice of work, if some is due. A disk that is full or cannot be read ends the round, not the log."""
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
            self._end("")
        except OSError as error:
            self._end(f"{error.filename or self.log.folder}: {error.strerror}")
        except Locked:
            self._end(f"{layout.READ_LOCK} is held by another program")

    def stop(self) -> None:
        """Leave off, as it is: a successor that is not finished goes."""
        if self._round is not None:
            self._end("the server stops")

    def _end(self, why: str) -> None:
        if self._rewrite is not None:
            try:
                self._rewrite.abandon()
            except OSError as error:  # left behind, and worth nothing
                why = f"{why}; {error.filename}: {error.strerror}"
        if self._release is not None:
            self._release()
        self._round = self._rewrite = self._release = None
        self._due_ms = self._now_ms + self.every_ms
        self._outcome.why = why
        self.tell(self._outcome)

    def _clean_all(self) -> Generator[None]:
        """One round, oldest segment first."""
        log = self.log
        self._release = log.fs.hold(f"{log.folder}/{layout.READ_LOCK}", shared=False)
        segments = log.sealed()
        dead = {segment.number: segment.dead for segment in segments}
        newer_bytes = sum(segment.size for segment in segments)
        # No older segment holds the addition of a job that was over when the round began. And the clock has not stepped
        # back behind what an earlier run has told: else that could be taken for news of a job that comes now.
        clear = self._now_ms * NS_A_MS > log.latest_ns
        for segment in segments:
            newer_bytes -= segment.size
            if self._pays(segment, newer_bytes):
                clear = (yield from self._clean(segment, clear)) and clear
            elif dead[segment.number]:
                clear = False

    def _pays(self, segment: CmdLogSegment, newer_bytes: int) -> bool:
        """Whether the segment is due: the document's average, or half of it is dead already, or what is dead in it
        keeps records of newer segments from going.
        """
        if self._now_ms >= segment.due_ms or 2 * segment.dead > segment.adds:
            return True
        return segment.dead > 0 and newer_bytes >= segment.size

    def _clean(self, segment: CmdLogSegment, clear: bool) -> Generator[None, None, bool]:
        """Whether nothing of a job that is over is left in the segment."""
        rewrite = self._rewrite = Rewrite(self.log, self.jobs, segment, clear=clear)
        yield from rewrite.run()
        self._rewrite = None
        self._outcome.removed += rewrite.is_gone
        self._outcome.cleaned += rewrite.freed_bytes > 0
        self._outcome.freed_bytes += rewrite.freed_bytes
        return rewrite.is_clean
