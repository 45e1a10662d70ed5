"""Sidecars for sealed files, made one at a time, while no other task waits.

A failure is not retried: without a sidecar the next startup takes longer, and that is all.
"""

from __future__ import annotations

import errno
from collections import deque

from msgspec import Struct

from staniel.broker.events import EventSink, Level
from staniel.journal.background import CallbackTask, NextSlice, TaskQueue
from staniel.journal.kestrel.log import Log
from staniel.journal.kestrel.segments import LogSegment
from staniel.journal.kestrel.sidecar import CheckBlocks, WriteSidecar, block_bytes_of, describe
from staniel.journal.slices import SlicedWork

SLICE_BYTES = 4 << 20  # read at once, while more urgent tasks wait


class SidecarJob(Struct, eq=False):
    """A sidecar that is being made: the checksums so far, and the running task."""

    log: Log
    segment: LogSegment
    checks: list[int]
    task: CallbackTask | None = None


class Sidecars:
    """The queue of sidecars to be made. They are made one at a time, and only when no other task waits."""

    def __init__(self, tasks: TaskQueue, report: EventSink) -> None:
        self._tasks = tasks
        self._report = report
        self._wanted: deque[tuple[Log, LogSegment]] = deque()
        self._making: SidecarJob | None = None

    def adopt(self, log: Log) -> None:
        """Have a sidecar made for every sealed file of `log`, which is served from now on."""
        log.segments.on_sealed = lambda segment: self.want(log, segment)
        for segment in log.segments.sealed:
            if not segment.checks:
                self.want(log, segment)

    def want(self, log: Log, segment: LogSegment) -> None:
        """Schedule a sidecar for `segment`, which has been sealed."""
        self._wanted.append((log, segment))
        self._next()

    def is_at_work(self, log: Log) -> bool:
        """Tell whether a thread is working on a sidecar of `log`."""
        making = self._making
        return (
            making is not None and making.log is log and making.task is not None and self._tasks.is_running(making.task)
        )

    def forget(self, log: Log) -> None:
        """Drop the sidecars of `log`. No thread may be working on them."""
        self._wanted = deque(wanted for wanted in self._wanted if wanted[0] is not log)
        making = self._making
        if making is None or making.log is not log:
            return
        self._making = None
        if making.task is not None:
            dropped = self._tasks.drop(making.task)
            assert dropped
        self._next()

    def close(self, now_ms: int) -> None:
        """End all work because the server stops."""
        self._wanted.clear()
        making, self._making = self._making, None
        if making is not None and making.task is not None and not self._tasks.drop(making.task):
            self._tasks.complete(making.task, now_ms)

    def _next(self) -> None:
        while self._making is None and self._wanted:
            log, segment = self._wanted.popleft()
            is_whole = not (segment.is_damaged or segment.is_gone)
            is_named = log.unfinished is None or segment.name != log.unfinished.pack  # otherwise it will be renamed
            if is_whole and is_named and not segment.is_replaced and log.segments.is_certain:
                self._making = SidecarJob(log, segment, [])
                self._next_step(self._making)

    def _next_step(self, making: SidecarJob) -> None:
        """Start the next slice of checksums, or describe the file after the last one."""
        log, segment, checks = making.log, making.segment, making.checks
        block_bytes = block_bytes_of(segment.size)
        at = len(checks) * block_bytes
        if at < segment.size:
            count = min(SLICE_BYTES, segment.size - at)
            path = log.segments.path(segment)
            blocks = CheckBlocks(
                log.fs, path, at, count, block_bytes, lambda error, now_ms: self._checked(making, error)
            )
            making.task = blocks
            self._tasks.submit_idle(making.task)
        else:
            self._describe(making, SlicedWork(describe(segment, checks)))

    def _describe(self, making: SidecarJob, text: SlicedWork[bytes | None]) -> None:
        """Do a slice of the description, and write the sidecar after the last one."""
        if making is not self._making:
            return
        log, segment = making.log, making.segment
        if segment.is_replaced:
            self._end(making)
            return
        text.do_slice()
        if not text.is_over:
            making.task = NextSlice(lambda error, now_ms: self._describe(making, text))
        elif text.result is None:
            self._end(making)
            return
        else:
            making.task = WriteSidecar(
                log.fs, log.folder, segment, text.result, lambda error, now_ms: self._written(making, error)
            )
        self._tasks.submit_idle(making.task)

    def _checked(self, making: SidecarJob, error: OSError | None) -> None:
        task = making.task
        if making is not self._making:
            return
        assert isinstance(task, CheckBlocks)
        if error is None and not task.checks:
            # Without an error the next step would request the same checksums for ever.
            error = OSError(errno.EIO, "the file is shorter than it was", making.segment.name)
        making.checks += task.checks
        if error is not None or making.segment.is_replaced:
            self._end(making, error)
        else:
            self._next_step(making)

    def _written(self, making: SidecarJob, error: OSError | None) -> None:
        segment = making.segment
        if error is None and not segment.is_replaced:
            segment.checks, segment.block_bytes = making.checks, block_bytes_of(segment.size)
        if making is self._making:
            self._end(making, error)

    def _end(self, making: SidecarJob, error: OSError | None = None) -> None:
        self._making = None
        if error is not None and not making.segment.is_replaced:
            hint = "the next start reads the whole file"
            name = making.segment.name
            self._report(Level.WARNING, "journal.sidecar_failed", file=name, why=str(error), hint=hint)
        self._next()
