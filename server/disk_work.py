"""The hub's work on the disk: syncs, which replies wait for, and background tasks.

Two threads do it beside the turns, but the hub itself waits for a sync that will be brief. Handing a sync to the thread
and back costs about 50 µs, and the thread must get the interpreter back. So the hub waits itself for a disk that syncs
within a few hundred µs, as redis does, and not for a slow one.

While the hub is busy, a sync in the thread ends only when the hub releases the interpreter, once or twice a turn, and
so seems to take that long. Where it may have been brief, the hub waits for one sync of many itself, to measure it.
"""

from __future__ import annotations

from collections.abc import Callable

from staniel.broker.latencies import Histogram
from staniel.journal.background import BackgroundTask, TaskQueue
from staniel.journal.group_commit import GroupCommit, Sync
from staniel.server.interfaces import Worker

FEW_REPLIES = 16  # with more in one turn, other clients will send requests before a sync has ended
ONE_JOURNAL_NS = 500_000
SEVERAL_JOURNALS_NS = 1_000_000  # more is saved, too
LATEST_WEIGHS = 8  # an eighth
TRIED_BELOW = 4  # times what is brief
TRIED_AFTER = 8  # syncs in the thread


class SyncLatency:
    """A running average. One slow sync is enough to switch to the thread; many brief ones switch back."""

    def __init__(self, brief_ns: int = ONE_JOURNAL_NS) -> None:
        self._brief_ns = brief_ns
        self._average_ns = 2 * brief_ns
        self._in_thread = 0  # since the last one that the hub waited for

    @property
    def is_brief(self) -> bool:
        return self._average_ns < self._brief_ns

    @property
    def is_worth_a_try(self) -> bool:
        """True if the next sync may be brief although those in the thread were not."""
        return self._in_thread >= TRIED_AFTER and self._average_ns < TRIED_BELOW * self._brief_ns

    def add(self, duration_ns: int, *, has_waited: bool = False) -> None:
        """Add the duration of a sync. `has_waited`: the hub waited for it, so nothing else is in the duration."""
        self._in_thread = 0 if has_waited else self._in_thread + 1
        if has_waited and duration_ns < self._brief_ns:
            self._average_ns = min(self._average_ns, self._brief_ns - 1)
        if duration_ns > 4 * self._brief_ns:
            self._average_ns = 4 * duration_ns
        else:
            self._average_ns += (duration_ns - self._average_ns) // LATEST_WEIGHS


class SyncRunner:
    """A runner of syncs, one at a time: at once if the disk has been fast lately, else in the worker.

    `running` is the sync in the worker. `release_replies` is called when it has ended.
    """

    def __init__(
        self,
        worker: Worker[Sync],
        group: GroupCommit,
        now_ns: Callable[[], int],
        durations: Histogram,
        release_replies: Callable[[int], None],
    ) -> None:
        self._worker = worker
        self._group = group
        self._now_ns = now_ns
        self._durations = durations
        self._release_replies = release_replies
        self.latency_of_one = SyncLatency(ONE_JOURNAL_NS)
        self.latency_of_several = SyncLatency(SEVERAL_JOURNALS_NS)
        self.running: Sync | None = None

    def run(self, sync: Sync, replies: int, now_ms: int) -> bool:
        """Run a sync, or start it in the worker. Return True if it has ended. `replies`: how many this turn has."""
        latency = self.latency_of_one if len(sync.files) == 1 else self.latency_of_several
        is_crowded = sync.redo is not None and self._worker.is_cheap and replies > FEW_REPLIES
        if not sync.is_plain or is_crowded or not (latency.is_brief or latency.is_worth_a_try):
            self.running = sync
            self._worker.start(sync)
            return False
        began_ns = self._now_ns()
        sync.run()
        took_ns = self._now_ns() - began_ns
        latency.add(took_ns, has_waited=True)
        self._durations.add(took_ns)
        self._group.finish_sync(sync, now_ms)
        return True

    def on_ready(self, now_ms: int) -> None:
        """Finish the sync that the worker has run."""
        sync = self._worker.finished()
        if sync is not None:
            self._finish_sync(sync, now_ms)

    def _finish_sync(self, sync: Sync, now_ms: int) -> None:
        assert sync is self.running
        took_ns = self._worker.took_ns
        self._durations.add(took_ns)
        if sync.is_plain:
            latency = self.latency_of_one if len(sync.files) == 1 else self.latency_of_several
            latency.add(took_ns)
        self.running = None
        self._group.finish_sync(sync, now_ms)
        self._release_replies(now_ms)

    def wait_for(self, sync: Sync) -> None:
        """Wait for a sync that is writing to the redo log, because this turn must write to it. The sync ends as usual
        afterwards.
        """
        if sync is self.running:
            self._worker.join()

    def stop(self, now_ms: int) -> None:
        """Wait for the sync in the worker, if there is one, when the server stops."""
        if self.running is not None:
            self._group.cut_short()
            self._finish_sync(self._worker.wait(), now_ms)


class TaskRunner:
    """A runner of background tasks, one at a time. `finish_task` is called with each that has ended."""

    def __init__(
        self,
        worker: Worker[BackgroundTask],
        tasks: TaskQueue,
        finish_task: Callable[[BackgroundTask, int], None],
    ) -> None:
        self._worker = worker
        self._tasks = tasks
        self._finish_task = finish_task

    def start_due(self) -> None:
        for task in self._tasks.start():
            self._worker.start(task)

    def on_ready(self, now_ms: int) -> None:
        """Finish the task that has ended."""
        task = self._worker.finished()
        if task is not None:
            self._finish_task(task, now_ms)

    def wait_for(self, task: BackgroundTask) -> None:
        """Wait for a task when the server stops."""
        ended = self._worker.wait()
        assert ended is task
