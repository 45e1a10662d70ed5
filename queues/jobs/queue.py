"""The jobs of one name: the ready ones, the scheduled ones, and the clients that wait for one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from staniel.queues.jobs.job import Job
from staniel.queues.jobs.line import JobLine


class JobWaiter(Protocol):
    """A client that waits for a job to lease, or for the end of one."""

    def deliver(self, job: Job) -> None:
        """Take `job`. Called inside the step that leased or ended it."""


class Leaser(JobWaiter, Protocol):
    """A client that waits for a job of one of these queues."""

    queues: Sequence[JobQueue]

    def dismiss(self) -> None:
        """Stop waiting: no job will come."""


class JobQueue:
    """`leased` and `finished` count jobs that still exist and stand in neither line."""

    __slots__ = ("finished", "is_kept", "leased", "name", "ready", "scheduled", "waiters")

    def __init__(self, name: bytes) -> None:
        self.name = name
        self.ready = JobLine()
        self.scheduled = JobLine()
        self.waiters: dict[Leaser, None] = {}
        self.leased = 0
        self.finished = 0
        self.is_kept = False  # it is some job's; else it may be forgotten when no client waits for it
