"""The order of packs, one after the other, and the retry of a failed pack.

A pack may replace files that the system then refuses to remove (`UnfinishedPack`). The pack is valid all the same. It
is finished later, or replaced by the next pack of its journal, which covers those files too. The two never run at once,
because both rename the same file. If a pack frees nothing, the next one waits as after a failure.
"""

from __future__ import annotations

from collections.abc import Callable

from staniel.broker.events import EventSink, Level
from staniel.broker.maintenance.damage_events import report_unreadable
from staniel.broker.maintenance.retries import Retries
from staniel.journal.background import TaskQueue
from staniel.journal.disk.refusals import described, remedy_in_service
from staniel.journal.kestrel.install import FinishPack
from staniel.journal.kestrel.log import Log
from staniel.journal.kestrel.pack import Pack, Stage
from staniel.journal.kestrel.segments import LogSegment

FINISHED_AT_ONCE = 4  # each may keep a file open, and all wait for the one thread
LOOKS_PER_TURN = 16  # checks of journals whose pack failed


class PackScheduler:
    """A queue of packs, of which one runs at a time, so that a thousand journals need no more memory and files than
    one.
    """

    def __init__(self, tasks: TaskQueue, report: EventSink, is_kept: Callable[[Log], bool]) -> None:
        self._tasks = tasks
        self._report = report
        self.is_kept = is_kept
        """Tells whether the files of a journal must stay unchanged until a reload has ended. No pack waits for that."""
        self._wanted: dict[Log, LogSegment] = {}
        self._failed = Retries()  # journals whose pack has failed
        self._done: list[Log] = []  # journals whose pack has just been put in place
        self._pack: Pack | None = None
        self.unfinished: set[Log] = set()
        """Journals with files that a pack has replaced and that have not been removed."""
        self._finishing: dict[Log, FinishPack] = {}
        self._refused = Retries()  # the journals of `unfinished` for which no task is running
        self._is_behind = False  # more retries are due than one turn has time for
        self.is_quiet = True  # no pack is running or waiting for its turn, for a retry or to be reported

    @property
    def is_busy(self) -> bool:
        """True if `run_slice` has something to do now."""
        pack = self._pack
        if pack is None:
            return bool(self._wanted) or self._is_behind
        return self._is_behind or not (pack.is_idle or (self._waits_for_transfers(pack) and not self.is_kept(pack.log)))

    def _waits_for_transfers(self, pack: Pack) -> bool:
        return pack.stage is Stage.SAFE and pack.log.open_transfers > 0

    def waits_for(self, log: Log) -> bool:
        """Tell whether a pack of `log` is ready, and may be put in place once no transfer of `log` is open."""
        pack = self._pack
        return pack is not None and pack.log is log and pack.stage is Stage.SAFE

    def has(self, log: Log) -> bool:
        """Tell whether a pack of `log` is running or waiting, or the last one is being finished."""
        return self._is_packing(log) or log in self._finishing

    def _is_packing(self, log: Log) -> bool:
        return log in self._wanted or (self._pack is not None and self._pack.log is log)

    def rests(self, log: Log, now_ms: int) -> bool:
        """Tell whether no pack of `log` may begin now, because one has just failed or freed nothing."""
        return self._failed.rests(log, now_ms)

    def is_at_work(self, log: Log) -> bool:
        """Tell whether a thread is working on a pack of `log`."""
        pack, finishing = self._pack, self._finishing.get(log)
        if finishing is not None and self._tasks.is_running(finishing):
            return True
        return pack is not None and pack.log is log and pack.task is not None and self._tasks.is_running(pack.task)

    def want(self, log: Log, last: LogSegment, now_ms: int) -> None:
        """Schedule a pack of the files of `log` up to `last`."""
        if self.is_kept(log):
            log.blocks_transfers = True  # the journal is checked again when its files may change
            return
        if not self.has(log) and not self._failed.rests(log, now_ms):
            self._wanted[log] = last
            self.is_quiet = False

    def run_slice(self, now_ms: int) -> None:
        """Do a short piece of work. Raises JournalFailure."""
        if self._pack is None and self._wanted:
            log = next(iter(self._wanted))
            self._pack = Pack(log, self._wanted.pop(log), self._tasks.submit)
        pack = self._pack
        if pack is not None and self._waits_for_transfers(pack) and self.is_kept(pack.log):
            pack.discard()  # the others would wait for a reload, too
            pack.log.blocks_transfers = True
            self._pack = None
            self.note_unfinished(pack.log)
        elif pack is not None:
            pack.run_slice(now_ms)
            if pack.is_over:
                self._end(pack, now_ms)

    def done(self) -> list[Log]:
        """Return the journals whose pack was put in place since the last call."""
        done, self._done = self._done, []
        return done

    def rested(self, now_ms: int) -> list[Log]:
        """Return journals whose failed pack may be tried again, each once, and try again to finish packs. Called once a
        turn; the next turn continues if there are too many.
        """
        for log in self._refused.pop_due(now_ms, FINISHED_AT_ONCE - len(self._finishing)):
            if not self._is_packing(log):  # otherwise the end of that pack is the retry
                self._finish_pack(log, now_ms)
        logs = self._failed.pop_due(now_ms, LOOKS_PER_TURN)
        may_finish = len(self._finishing) < FINISHED_AT_ONCE  # otherwise the end of a task brings the next turn
        self._is_behind = self._failed.is_due(now_ms) or (may_finish and self._refused.is_due(now_ms))
        self.is_quiet = self._pack is None and not (self._wanted or self._done or self._failed or self._refused)
        return logs

    def note_unfinished(self, log: Log) -> None:
        """Schedule the end of the pack of `log`, if it has an unfinished one."""
        self.unfinished.discard(log)
        if log.unfinished is not None:
            self.unfinished.add(log)
            self._refused.soon(log)
            self.is_quiet = False

    def _finish_pack(self, log: Log, now_ms: int) -> None:
        left = log.unfinished
        assert left is not None
        covered = log.segments.sealed[:1]  # the file is about to be renamed
        try:
            log.segments.keep_open(covered, log.queue_view.unread())
        except OSError as error:
            self._leave(log, error, now_ms)
            return
        task = FinishPack(log.fs, log.folder, left, lambda error, now_ms: self._finished(log, error, now_ms))
        self._finishing[log] = task
        self._tasks.submit(task)

    def _finished(self, log: Log, error: OSError | None, now_ms: int) -> None:
        left = self._finishing.pop(log).left
        segment = log.segments.sealed[0]
        log.segments.close_held([segment])
        if error is not None:
            raise log.group.failure(f"cannot put the pack of {log.path} in place", error) from error
        if left is not None:
            self._leave(log, left.error, now_ms)
            return
        assert log.unfinished is not None
        segment.name, log.unfinished = log.unfinished.sealed, None
        self.unfinished.discard(log)
        self._refused.drop(log)
        self._done.append(log)
        self.is_quiet = False
        log.segments.on_sealed(segment)

    def _leave(self, log: Log, error: OSError, now_ms: int) -> None:
        """Report that files of a pack could not be removed, and try again later."""
        self.unfinished.add(log)
        self._refused.fail(log, now_ms)
        self.is_quiet = False
        why = described(error)
        todo = remedy_in_service(error, "make it removable and renamable for this user")
        assert log.unfinished is not None
        if log.unfinished.pack in f"{error.filename} {error.filename2}":
            file = f"{log.unfinished.pack} holds the items of the queue and only lacks its final name: do not remove it"
        else:
            file = "a pack has replaced the file, and recovery does not read it"
        hint = f"{file}; {todo}; the server tries again"
        self._report(Level.WARNING, "journal.unremoved", queue=log.name, why=why, hint=hint)

    def forget(self, log: Log) -> None:
        """Drop all packs of `log`. No thread may be working on them, and nothing touches the files of `log`
        after that.
        """
        self._wanted.pop(log, None)
        self._failed.drop(log)
        self._refused.drop(log)
        self.unfinished.discard(log)
        self._forgo_finishing(log)
        pack = self._pack
        if pack is None or pack.log is not log:
            return
        if pack.task is not None:
            dropped = self._tasks.drop(pack.task)
            assert dropped
        if not pack.is_over:
            pack.discard()
        self._pack = None

    def _forgo_finishing(self, log: Log) -> None:
        task = self._finishing.pop(log, None)
        if task is not None:
            dropped = self._tasks.drop(task)
            assert dropped
            log.segments.close_held(log.segments.sealed[:1])

    def close(self, now_ms: int) -> None:
        """End all packs because the server stops."""
        self._wanted.clear()
        for log, task in list(self._finishing.items()):
            if self._tasks.is_running(task):
                self._tasks.complete(task, now_ms)
            else:
                self._forgo_finishing(log)
        pack = self._pack
        if pack is not None:
            if pack.task is not None and self._tasks.is_running(pack.task):
                self._tasks.complete(pack.task, now_ms)
            if pack.is_over:
                self._end(pack, now_ms)
            else:
                self.forget(pack.log)

    def _end(self, pack: Pack, now_ms: int) -> None:
        self._pack = None
        log = pack.log
        if pack.stage is Stage.FAILED:
            self._failed.fail(log, now_ms)
            self.note_unfinished(log)
            self.is_quiet = False
            hint = "its files stay as they are; the server tries again later"
            self._report(Level.WARNING, "journal.pack_failed", queue=log.name, why=str(pack.error), hint=hint)
        elif pack.stage is Stage.DONE:
            if pack.is_vain:
                self._failed.fail(log, now_ms)
            else:
                self._failed.drop(log)
            self._done.append(log)
            for lost, saved_as in pack.lost:
                report_unreadable(self._report, log.name, lost, saved_as)
            if log.unfinished is not None:
                self._leave(log, log.unfinished.error, now_ms)
            else:
                self.unfinished.discard(log)
                self._refused.drop(log)
            total = log.archived_bytes + log.current_bytes
            self._report(Level.DEBUG, "journal.packed", queue=log.name, journal_bytes=total)
