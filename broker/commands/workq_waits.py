"""Sessions that wait for jobs: for one to lease, for the end of one, for the end of one's own.

Knows what a wait is entered into, and how it is left when its time is over or its client has gone. Refuses to know
replies: who waits says what to do with what comes. A session parks on one of these as it does on a queue.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from staniel.queues.jobs.job import Job
from staniel.queues.jobs.jobs import Jobs
from staniel.queues.jobs.queue import JobQueue

if TYPE_CHECKING:
    from staniel.broker.session import Session


class LeaseWait:
    """For the first job that comes into one of several queues."""

    __slots__ = ("_jobs", "_session", "queues")

    def __init__(self, jobs: Jobs, queues: Sequence[JobQueue], session: Session) -> None:
        self.queues = queues
        self._jobs = jobs
        self._session = session

    def park(self, session: Session) -> None:
        self._jobs.park(self)

    def unpark(self, session: Session) -> None:
        self._jobs.unpark(self)

    def abort(self, job: Job, now_ms: int) -> None:
        """The client went away in the moment in which it was given `job`."""
        self._jobs.give_back(job, now_ms)

    def deliver(self, job: Job) -> None:
        self._session.deliver(job)

    def dismiss(self) -> None:
        self._session.dismiss()


class ResultWait:
    """For the end of somebody's job. `is_gone`: it has been deleted or has expired, so there will be none."""

    __slots__ = ("_job", "_jobs", "_session", "is_gone")

    def __init__(self, jobs: Jobs, job: Job, session: Session) -> None:
        self.is_gone = False
        self._jobs = jobs
        self._job = job
        self._session = session

    def park(self, session: Session) -> None:
        self._jobs.watch(self._job, self)

    def unpark(self, session: Session) -> None:
        self._jobs.unwatch(self._job, self)

    def abort(self, job: Job, now_ms: int) -> None:
        pass

    def deliver(self, job: Job) -> None:
        self._session.deliver(job)

    def dismiss(self) -> None:
        self.is_gone = True
        self._session.dismiss()


class RunWait:
    """For the end of one's own job, which goes when nobody waits for it any more. `is_gone`: it has been deleted."""

    __slots__ = ("_jobs", "_session", "is_gone", "job")

    def __init__(self, jobs: Jobs, session: Session) -> None:
        self.job: Job | None = None
        self.is_gone = False
        self._jobs = jobs
        self._session = session

    def park(self, session: Session) -> None:
        pass

    def unpark(self, session: Session) -> None:
        if self.job is not None:
            self._jobs.abandon(self.job)

    def abort(self, job: Job, now_ms: int) -> None:
        pass

    def leased(self, job: Job, now_ms: int) -> None:
        self._session.broker.deadlines.set(self._session, now_ms + job.terms.ttr_ms)

    def deliver(self, job: Job) -> None:
        self._session.deliver(job)

    def dismiss(self) -> None:
        self.is_gone = True
        self._session.dismiss()
