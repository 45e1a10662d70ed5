"""The requests of the workq protocol: a frozen Struct for each command.

Ids are the 16 bytes of a UUID. Names are bytes, because they are only compared and written.
"""

from __future__ import annotations

from msgspec import Struct

from staniel.protocol.requests import Invalid, More
from staniel.protocol.workq.job_requests import AddJob as AddJob
from staniel.protocol.workq.job_requests import DeleteJob as DeleteJob
from staniel.protocol.workq.job_requests import LeaseJob as LeaseJob
from staniel.protocol.workq.job_terms import JobTerms


class ScheduleJob(Struct, frozen=True, gc=False):
    """Add a job, ready from `time_ns` on: nanoseconds since 1970."""

    id: bytes
    terms: JobTerms
    time_ns: int
    payload: bytes


class RunJob(Struct, frozen=True, gc=False):
    """Add a job and wait for its result: `wait_ms` until it is leased, then its time to run."""

    id: bytes
    terms: JobTerms
    wait_ms: int
    payload: bytes


class FinishJob(Struct, frozen=True, gc=False):
    """Complete or fail a job."""

    id: bytes
    result: bytes
    success: bool


class AwaitResult(Struct, frozen=True, gc=False):
    """Wait for the result of a job."""

    id: bytes
    wait_ms: int


class InspectJob(Struct, frozen=True, gc=False):
    id: bytes


class InspectJobs(Struct, frozen=True, gc=False):
    """A page of a queue's ready jobs, or of its scheduled ones."""

    name: bytes
    offset: int
    limit: int
    scheduled: bool


class InspectQueue(Struct, frozen=True, gc=False):
    name: bytes


class InspectQueues(Struct, frozen=True, gc=False):
    """A page of the queues, in the order of their names."""

    offset: int
    limit: int


class InspectServer(Struct, frozen=True, gc=False):
    pass


WorkqRequest = (
    AddJob
    | ScheduleJob
    | RunJob
    | LeaseJob
    | FinishJob
    | DeleteJob
    | AwaitResult
    | InspectJob
    | InspectJobs
    | InspectQueue
    | InspectQueues
    | InspectServer
    | Invalid
    | More
)
