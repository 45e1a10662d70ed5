"""Disk work that no reply waits for: reading ahead, syncing a pack, removing old files.

The queue decides which task is next. The server runs tasks in a thread, the simulator at random moments. `run` calls
only functions that release the interpreter; `done` runs in the hub's thread.
"""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Callable
from typing import Protocol

from staniel.journal.disk.fs import File, Fs


class BackgroundTask(Protocol):
    def run(self) -> None:
        """Do the work in a thread. An OSError is kept for `done`. Raises JournalFailure after a failed sync."""

    def on_done(self, now_ms: int) -> None: ...


class TaskQueue:
    """Tasks in order: urgent ones first (reads for clients that may soon wait), idle ones last."""

    def __init__(self) -> None:
        self._urgent: deque[BackgroundTask] = deque()
        self._waiting: deque[BackgroundTask] = deque()
        self._idle: deque[BackgroundTask] = deque()
        self._running: dict[BackgroundTask, None] = {}
        self.wait_for: Callable[[BackgroundTask], None] = lambda task: None
        """A function that returns once this running task has run; set by the server or the simulator. Only a stop calls
        it.
        """
        self.is_due = False
        """True if `start` must be called: it has returned no task before, and since then a task was submitted or has
        ended.
        """

    def submit(self, task: BackgroundTask, urgent: bool = False) -> None:
        (self._urgent if urgent else self._waiting).append(task)
        self.is_due = True

    def submit_idle(self, task: BackgroundTask) -> None:
        """Add a task to be run when nothing else is waiting."""
        self._idle.append(task)
        self.is_due = True

    def start(self) -> list[BackgroundTask]:
        """Return the tasks that may be run now, one at a time."""
        waiting = self._urgent or self._waiting or self._idle
        if self._running or not waiting:
            self.is_due = False
            return []
        task = waiting.popleft()
        self._running[task] = None
        return [task]

    def finish_task(self, task: BackgroundTask, now_ms: int) -> None:
        """Finish `task`, which has run."""
        if task in self._running:
            del self._running[task]
            self.is_due = True
            task.on_done(now_ms)

    def is_running(self, task: BackgroundTask) -> bool:
        """Tell whether `task` was returned by `start` and is not finished."""
        return task in self._running

    def complete(self, task: BackgroundTask, now_ms: int) -> None:
        """Finish `task` before returning, because the server stops. Only the stop may wait for a thread."""
        if task in self._running:
            self.wait_for(task)
            self.finish_task(task, now_ms)
            return
        for waiting in (self._urgent, self._waiting, self._idle):
            if task in waiting:
                waiting.remove(task)
                task.run()
                task.on_done(now_ms)

    def drop(self, task: BackgroundTask) -> bool:
        """Remove a task that has not been started. Return False if it has."""
        for waiting in (self._urgent, self._waiting, self._idle):
            if task in waiting:
                waiting.remove(task)
                return True
        return task not in self._running


def _nothing_more(error: OSError | None, now_ms: int) -> None:
    raise AssertionError("done twice")


class CallbackTask:
    """A task that passes its result to a function: `then(error, now_ms)`."""

    def __init__(self, then: Callable[[OSError | None, int], None]) -> None:
        self._then = then
        self._error: OSError | None = None

    def run(self) -> None:
        try:
            self.work()
        except OSError as error:
            self._error = error

    def on_done(self, now_ms: int) -> None:
        then, self._then = self._then, _nothing_more
        # `then` usually refers to its task, and so to the bytes that were read. Such a cycle would keep them until the
        # next garbage collection.
        then(self._error, now_ms)

    def work(self) -> None:
        """Do the work. Raises OSError, JournalFailure."""
        raise NotImplementedError

    def release(self) -> None:
        """Release what the task keeps, because it will not run."""


class ReadPiece(CallbackTask):
    """A task that reads up to `count` bytes of a file. The file is opened at once, because a rotation may rename it
    before the task runs. `data`: the bytes. `checks`: the crc32 of each `block_bytes` of them, if the caller wants any.
    Raises OSError.
    """

    def __init__(
        self, fs: Fs, path: str, at: int, count: int, block_bytes: int, then: Callable[[OSError | None, int], None]
    ) -> None:
        super().__init__(then)
        self._reader = fs.reader(path)
        self.at, self._count, self._block_bytes = at, count, block_bytes
        self.data = b""
        self.checks: list[int] = []

    def work(self) -> None:
        try:
            self.data = self._reader.read(self.at, self._count)
        finally:
            self._reader.close()
        if self._block_bytes:
            self.checks = checks_of(self.data, self._block_bytes)

    def release(self) -> None:
        self._reader.close()


class NextSlice(CallbackTask):
    """A task without work: `then` continues something that is done in slices, after more urgent tasks."""

    def work(self) -> None:
        pass


class SyncFile(CallbackTask):
    """Sync a file that no reply waits for."""

    def __init__(self, file: File, then: Callable[[OSError | None, int], None]) -> None:
        super().__init__(then)
        self._file = file

    def work(self) -> None:
        self._file.sync()


def checks_of(data: bytes, block_bytes: int) -> list[int]:
    """Return the crc32 of each block of `data`, which begins with one."""
    view = memoryview(data)
    return [zlib.crc32(view[at : at + block_bytes]) for at in range(0, len(data), block_bytes)]
