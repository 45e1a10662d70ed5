"""The terms that the requests which add a job share."""

from __future__ import annotations

from msgspec import Struct


class JobTerms(Struct, frozen=True, eq=False):
    """The terms of a job, besides its id and payload. Equal lines share one object, which is compared by identity.
    `ttl_ms` 0: a run.
    """

    name: bytes
    ttr_ms: int
    ttl_ms: int
    priority: int = 0
    max_attempts: int = 0
    max_fails: int = 0
