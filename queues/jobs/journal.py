"""The changes of jobs that a journal records. Applying them in order rebuilds the jobs. Each is recorded in the step
that makes it, so that changes are always written in the order in which they happened.
"""

from __future__ import annotations

from staniel.queues.jobs.job import Job


class JobJournal:
    """The journal of jobs, their only access to disks. A base class and not a Protocol, so that compiled code calls its
    methods without a look-up.
    """

    __slots__ = ()

    def added(self, job: Job, limit_ms: int) -> None:
        """Record a new job whose lifetime ends at `limit_ms`. `job.time_ns` says whether it is scheduled. Sets
        `job.origin`.
        """
        raise NotImplementedError

    def attempted(self, job: Job, now_ms: int) -> None:
        """Record that the job has been leased."""
        raise NotImplementedError

    def timed_out(self, job: Job, now_ms: int) -> None:
        """Record that the job's lease has timed out."""
        raise NotImplementedError

    def finished(self, job: Job, result: bytes, now_ms: int, *, success: bool) -> None:
        """Record that a client has completed or failed the job."""
        raise NotImplementedError

    def deleted(self, job: Job, now_ms: int) -> None:
        """Record that a client has removed the job."""
        raise NotImplementedError

    def expired(self, job: Job, now_ms: int) -> None:
        """Record that the job's time to live has ended, and the job is removed."""
        raise NotImplementedError
