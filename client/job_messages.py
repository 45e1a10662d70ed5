"""The part of the clients for jobs that needs no socket: the requests that a call sends, and the meaning of the
replies.
"""

from __future__ import annotations

import math
import time
import uuid
from datetime import datetime

from staniel.client.errors import ClientError, DuplicateJob, JobFinished, NoJob
from staniel.client.messages import refused
from staniel.protocol.client.replies import Error
from staniel.protocol.client.workq.replies import Inspected, Job, JobAnswer, JobReply
from staniel.protocol.workq.fields import is_job_id, read_id, show_id
from staniel.protocol.workq.job_requests import AddJob
from staniel.protocol.workq.job_terms import JobTerms
from staniel.protocol.workq.requests import ScheduleJob

NS_A_SECOND = 1_000_000_000
WAIT_S_MAX = 86_400


def new_id() -> bytes:
    """Return the id of a new job."""
    return uuid.uuid4().bytes


def id_for(text: str) -> str:
    """Return the id of the job for `text`: always the same for the same text, so that a job is added once even if
    several programs add it.
    """
    raw = bytearray(uuid.uuid5(uuid.NAMESPACE_URL, f"staniel:{text}").bytes)
    raw[6] = raw[6] & 0x0F | 0x40  # workq accepts only version 4
    return show_id(bytes(raw)).decode()


def raw_id(job: Job | str) -> bytes:
    """Return the bytes of a job's id. Raises ValueError."""
    text = job.id if isinstance(job, Job) else job
    raw = read_id(text.lower().encode("latin-1", "replace"))
    if raw is None or not is_job_id(raw):
        raise ValueError(f"a job's id is the text of a UUID of version 4, not {text!r}")
    return raw


def milliseconds(what: str, seconds: float) -> int:
    """Return a duration in milliseconds, rounded up. Raises ValueError for one that is not finite."""
    if not math.isfinite(seconds):
        raise ValueError(f"{what} is a number of seconds, not {seconds}")
    return math.ceil(seconds * 1000)


def wait_ms(seconds: float) -> int:
    """Return the milliseconds to wait. Raises ValueError for more than the protocol can express."""
    if not 0 <= seconds <= WAIT_S_MAX:
        raise ValueError(f"a wait for jobs is a number of seconds from 0 to {WAIT_S_MAX}, not {seconds}")
    return math.ceil(seconds * 1000)


def names_of(names: tuple[str, ...]) -> tuple[bytes, ...]:
    """Return names of jobs as they are sent."""
    return tuple([name.encode("latin-1", "replace") for name in names])


def terms_of(name: str, priority: int, ttr_s: float, ttl_s: float, max_attempts: int, max_fails: int) -> JobTerms:
    """Return the terms of a new job."""
    ttr_ms, ttl_ms = milliseconds("ttr_s", ttr_s), milliseconds("ttl_s", ttl_s)
    return JobTerms(names_of((name,))[0], ttr_ms, ttl_ms, priority, max_attempts, max_fails)


def add_request(raw: bytes, terms: JobTerms, payload: bytes, delay_s: float) -> AddJob | ScheduleJob:
    """Return the request that adds a job. A delay is sent as a time, by this machine's clock."""
    if not delay_s:
        return AddJob(raw, terms, payload)
    if not (math.isfinite(delay_s) and delay_s > 0):
        raise ValueError(f"delay_s is a number of seconds from 0 up, not {delay_s}")
    return ScheduleJob(raw, terms, time.time_ns() + int(delay_s * NS_A_SECOND), payload)


def nanoseconds(at: datetime) -> int:
    """Return the time of a job in nanoseconds since 1970. Raises ValueError for a time without a zone."""
    if at.tzinfo is None:
        raise ValueError(f"the time of a job needs a zone, such as datetime.UTC: {at.isoformat()}")
    return int(at.timestamp() * 1_000_000) * 1000


def check(reply: JobReply, what: str) -> JobReply:
    """Return the reply, unless it is a refusal. Raises Refused, DuplicateJob, NoJob, JobFinished."""
    error = _error(reply, what)
    if error is not None:
        raise error
    return reply


def _error(reply: JobReply, what: str) -> ClientError | None:
    if reply is JobAnswer.NOT_FOUND:
        return NoJob(f"no job is there of {what}")
    if reply is JobAnswer.DUPLICATE_JOB:
        return DuplicateJob(f"a job of {what} is there already")
    if reply is JobAnswer.DUPLICATE_RESULT:
        return JobFinished(f"the job of {what} has a result already")
    return refused(reply) if isinstance(reply, Error) else None


def texts(reply: JobReply) -> dict[str, str]:
    """Return the values of the first object of an inspection."""
    assert isinstance(reply, Inspected), reply
    (values,) = reply.objects.values()
    return {key: value.decode("latin-1") for key, value in values.items()}
