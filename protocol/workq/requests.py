"""What a workq client can ask: one frozen Struct a command.

Knows the words of the questions. Refuses to know sockets, jobs, replies and the time. Ids are the 16 bytes
of a UUID; names are bytes too, because they are compared and written and never read.
"""

from __future__ import annotations

from msgspec import Struct

from staniel.protocol.requests import Invalid, More


class JobTerms(Struct, frozen=True, eq=False):
    """What a job is added with, beside its payload. Lines alike in it share one, which is told by its identity.
    `ttl_ms` 0: a run.
    """

    name: bytes
    ttr_ms: int
    ttl_ms: int
    priority: int = 0
    max_attempts: int = 0
    max_fails: int = 0


class AddJob(Struct, frozen=True, gc=False):
    """Add a job, to be handed out at once."""

    id: bytes
    terms: JobTerms
    payload: bytes


class ScheduleJob(Struct, frozen=True, gc=False):
    """Add a job, to be handed out from `time_ns` on: nanoseconds since 1970."""

    id: bytes
    terms: JobTerms
    time_ns: int
    payload: bytes


class RunJob(Struct, frozen=True, gc=False):
    """Add a job and wait for its result: `wait_ms` for somebody to lease it, then its time to run."""

    id: bytes
    terms: JobTerms
    wait_ms: int
    payload: bytes


class LeaseJob(Struct, frozen=True):
    """A job of one of these names, waited for. `has_invalid_name`: a name that is none follows them."""

    names: tuple[bytes, ...]
    wait_ms: int
    has_invalid_name: bool = False


class FinishJob(Struct, frozen=True, gc=False):
    """A complete or a fail."""

    id: bytes
    result: bytes
    success: bool


class DeleteJob(Struct, frozen=True, gc=False):
    """Remove a job."""

    id: bytes


class AwaitResult(Struct, frozen=True, gc=False):
    """The result of a job, waited for."""

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
