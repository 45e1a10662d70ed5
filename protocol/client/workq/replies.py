"""The replies of the workq protocol, as a client reads them. Refusals are the `Error` of the memcache client."""

from __future__ import annotations

import re
from enum import Enum

from msgspec import Struct

from staniel.protocol.client.replies import Error, Fault, ProtocolViolation
from staniel.protocol.workq import requests as workq
from staniel.protocol.workq.job_requests import AddJob, DeleteJob, LeaseJob


class JobAnswer(Enum):
    """The replies of one line. TIMEOUT ends a lease without a job, and a wait for a result that has not come."""

    OK = "+OK"
    NOT_FOUND = "-NOT-FOUND"
    TIMEOUT = "-TIMEOUT"
    DUPLICATE_JOB = "-CLIENT-ERROR Duplicate job"
    DUPLICATE_RESULT = "-CLIENT-ERROR Duplicate result"


class Job(Struct, frozen=True, gc=False):
    """A leased job. Its worker has `ttr_ms` to complete it; then it is leased again."""

    id: str
    name: str
    ttr_ms: int
    payload: bytes


class JobResult(Struct, frozen=True, gc=False):
    """The result of a job that was completed (`is_success`) or failed."""

    id: str
    is_success: bool
    data: bytes


class Inspected(Struct, frozen=True):
    """The objects of an inspection: the values of each by key, as the server prints them."""

    objects: dict[str, dict[str, bytes]]


JobReply = JobAnswer | Job | JobResult | Inspected | Error | ProtocolViolation

_FINISHED = {JobAnswer.OK, JobAnswer.NOT_FOUND, JobAnswer.DUPLICATE_RESULT}
_INSPECTED = {JobAnswer.NOT_FOUND}
FINALS: dict[type, set[JobAnswer]] = {
    AddJob: {JobAnswer.OK, JobAnswer.DUPLICATE_JOB},
    workq.ScheduleJob: {JobAnswer.OK, JobAnswer.DUPLICATE_JOB},
    LeaseJob: {JobAnswer.TIMEOUT},
    workq.FinishJob: _FINISHED,
    DeleteJob: {JobAnswer.OK, JobAnswer.NOT_FOUND},
    workq.AwaitResult: {JobAnswer.NOT_FOUND, JobAnswer.TIMEOUT},
    workq.InspectJob: _INSPECTED,
    workq.InspectQueue: _INSPECTED,
    workq.InspectQueues: set(),
    workq.InspectServer: set(),
}
"""The replies of one line that each request can have, besides errors."""

ANSWERS = {answer.value.encode(): answer for answer in JobAnswer}
_FAULTS = {b"-CLIENT-ERROR": Fault.CLIENT, b"-SERVER-ERROR": Fault.SERVER}
_LEASE = re.compile(rb"([0-9a-f-]{36}) ([A-Za-z0-9_.\-]{1,255}) ([0-9]{1,10}) ([0-9]{1,7})")
_RESULT = re.compile(rb"([0-9a-f-]{36}) ([01]) ([0-9]{1,7})")
_OBJECT = re.compile(rb"([^ ]+) ([0-9]{1,3})")
_COUNT = re.compile(rb"\+OK ([0-9]{1,5})")


def parse_error(line: bytes) -> Error | None:
    """Parse one of the two error lines. Return None for any other line."""
    word, _, why = line.partition(b" ")
    fault = _FAULTS.get(word)
    return None if fault is None else Error(fault, why.decode("latin-1"))


def parse_count(line: bytes) -> int | None:
    """Return the number of blocks that follow, None if the line announces none."""
    match = _COUNT.fullmatch(line)
    return None if match is None else int(match[1])


def parse_lease(line: bytes) -> tuple[str, str, int, int] | None:
    """Return id, name, TTR in ms and length of a lease's head, None if it is none."""
    match = _LEASE.fullmatch(line)
    return None if match is None else (match[1].decode(), match[2].decode(), int(match[3]), int(match[4]))


def parse_result(line: bytes) -> tuple[str, bool, int] | None:
    """Return id, success and length of a result's head, None if it is none."""
    match = _RESULT.fullmatch(line)
    return None if match is None else (match[1].decode(), match[2] == b"1", int(match[3]))


def parse_object(line: bytes) -> tuple[str, int] | None:
    """Return the name and the number of keys of an inspected object, None if the line is no head of one."""
    match = _OBJECT.fullmatch(line)
    if match is None:
        return None
    name, keys = match[1].decode("latin-1"), int(match[2])
    return name, 3 if name == "server" else keys  # workq announces 2 and sends 3
