"""The most frequent requests: add a job, lease one, delete one."""

from __future__ import annotations

from msgspec import Struct

from staniel.protocol.workq.job_terms import JobTerms


class AddJob(Struct, frozen=True, gc=False):
    """Add a job, ready at once."""

    id: bytes
    terms: JobTerms
    payload: bytes


class LeaseJob(Struct, frozen=True):
    """Wait for a job of one of these names. `has_invalid_name`: an invalid name follows them in the line."""

    names: tuple[bytes, ...]
    wait_ms: int
    has_invalid_name: bool = False


class DeleteJob(Struct, frozen=True, gc=False):
    """Remove a job."""

    id: bytes


# Called with all fields; compiled, these are cheaper than the classes (job_requests.pyx).
new_add, new_delete = AddJob, DeleteJob
