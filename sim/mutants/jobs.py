"""Broken rules of jobs: of their log, its cleaning, and leases."""

from __future__ import annotations

from typing import Any

from staniel.journal.new_file import NewFile
from staniel.journal.workq.cleaning import Rewrite, SuccessorFile
from staniel.journal.workq.encoder import SCHEDULE
from staniel.journal.workq.log import CmdLog
from staniel.queues.jobs.job import Job
from staniel.queues.jobs.jobs import Jobs
from staniel.queues.jobs.replay import JobReplay
from staniel.sim.mutants.queues import MUTANTS, mutant, no_batch, replaced, reply_before_write

mutant("answers about jobs depend on nothing", "jobs")(no_batch)
mutant("every other batch of a log is written a tick late", "jobs")(reply_before_write)


@mutant("a result is not recorded", "jobs")
def result_unrecorded() -> Any:
    return replaced(CmdLog, "finished", lambda right: lambda self, job, result, now_ms, *, success: None)


@mutant("the end of a lease is not recorded", "jobs")
def timeout_unrecorded() -> Any:
    return replaced(CmdLog, "timed_out", lambda right: lambda self, job, now_ms: None)


@mutant("cleaning drops a delete before the addition that it ends", "jobs")
def delete_dropped() -> Any:
    def make(right: Any) -> Any:
        def is_needed(self: Rewrite, data: bytes, frame: Any) -> bool:
            if data[frame[1]] <= SCHEDULE:
                return bool(right(self, data, frame))
            return data[frame[1] + 1 : frame[1] + 17] in self.jobs.by_id

        return is_needed

    return replaced(Rewrite, "_is_needed", make)


@mutant("a cleaned segment takes the old one's place unsynced", "jobs")
def successor_unsynced() -> Any:
    return replaced(SuccessorFile, "sync", lambda right: lambda self: None)


@mutant("a successor is closed though a sync is still to come for it", "jobs")
def successor_closed_early() -> Any:
    def make(right: Any) -> Any:
        def abandon(self: Rewrite) -> None:
            if self.waits and self.request is not None and self._file is not None:
                self.log.group.forget(self.request)
                self._file.close()
                self._file = None
                self._remove_successor()
                return
            right(self)

        return abandon

    return replaced(Rewrite, "abandon", make)


@mutant("a new segment's name is never synced", "jobs")
def segment_unnamed() -> Any:
    return replaced(NewFile, "sync", lambda right: lambda self: self._file.sync())


@mutant("a leased job stays in its line", "jobs")
def lease_stays() -> Any:
    def make(right: Any) -> Any:
        def start(self: Jobs, job: Job, now_ms: int) -> None:
            right(self, job, now_ms)
            job.terms.queue.ready.add(job)

        return start

    return replaced(Jobs, "_start", make)


@mutant("a restart forgets which client had a job", "jobs")
def leases_forgotten() -> Any:
    return replaced(JobReplay, "attempted", lambda right: lambda self, id, at_ns: None)


@mutant("a deleted job is remembered by its log", "jobs")
def deleted_remembered() -> Any:
    return replaced(CmdLog, "deleted", lambda right: lambda self, job, now_ms: None)


__all__ = ["MUTANTS"]
