"""Requests of the workq protocol as a client writes them, in a form that workq itself reads the same way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from staniel.protocol.workq import requests as workq
from staniel.protocol.workq.commands import (
    DATA_BYTES_MAX,
    PAGE_MAX,
    TTL_MAX_MS,
    TTR_MAX_MS,
    UINT32_MAX,
    WAIT_MAX_MS,
    WORDS_MAX,
)
from staniel.protocol.workq.fields import NS_A_SECOND, is_job_id, is_name, show_id, show_time
from staniel.protocol.workq.job_requests import AddJob, DeleteJob, LeaseJob
from staniel.protocol.workq.job_terms import JobTerms
from staniel.protocol.workq.requests import WorkqRequest

ATTEMPTS_MAX = 255
TIME_NS_MAX = 2**63 - 1  # workq compares times in 64 bits


def encode(request: WorkqRequest) -> bytes:
    """Return the bytes of one request, data included. Raises ValueError for what the protocol cannot express."""
    writer = WRITERS.get(type(request))
    if writer is None:
        raise ValueError(f"{type(request).__name__} is not a request that a client writes")
    return writer(request)


def _id(id: bytes) -> bytes:
    if len(id) != 16 or not is_job_id(id):
        raise ValueError(f"a job's id is a UUID of version 4, not {id.hex()}")
    return show_id(id)


def _name(name: bytes) -> bytes:
    if not is_name(name):
        raise ValueError(f"a name of jobs is 1 to 255 of A-Z a-z 0-9 _ . -, not {name!r}")
    return name


def _number(name: str, number: int, low: int, high: int) -> int:
    if not low <= number <= high:
        raise ValueError(f"{name} is a number from {low} to {high}, not {number}")
    return number


def _data(data: bytes) -> bytes:
    _number("the size of the data in bytes", len(data), 0, DATA_BYTES_MAX)
    return b" %d\r\n%b\r\n" % (len(data), data)


def _terms(id: bytes, terms: JobTerms) -> bytes:
    ttr_ms = _number("the time to run in ms", terms.ttr_ms, 1, TTR_MAX_MS)
    ttl_ms = _number("the life of a job in ms", terms.ttl_ms, 1, TTL_MAX_MS)
    return b"%b %b %d %d" % (_id(id), _name(terms.name), ttr_ms, ttl_ms)


def _flags(terms: JobTerms) -> bytes:
    priority = _number("a priority", terms.priority, -(2**31), 2**31 - 1)
    attempts = _number("max_attempts", terms.max_attempts, 0, ATTEMPTS_MAX)
    fails = _number("max_fails", terms.max_fails, 0, ATTEMPTS_MAX)
    words = ((b" -priority=%d", priority), (b" -max-attempts=%d", attempts), (b" -max-fails=%d", fails))
    return b"".join(word % value for word, value in words if value)


def _add(request: AddJob) -> bytes:
    return b"add %b%b%b" % (_terms(request.id, request.terms), _flags(request.terms), _data(request.payload))


def _schedule(request: workq.ScheduleJob) -> bytes:
    time_ns = _number("the time of a job in ns", request.time_ns, 0, TIME_NS_MAX)
    fraction = time_ns % NS_A_SECOND
    time = show_time(time_ns)[:-1] + (b".%09dZ" % fraction if fraction else b"Z")
    head = _terms(request.id, request.terms)
    return b"schedule %b %b%b%b" % (head, time, _flags(request.terms), _data(request.payload))


def _wait(wait_ms: int) -> int:
    return _number("a wait in ms", wait_ms, 0, WAIT_MAX_MS)


def _lease(request: LeaseJob) -> bytes:
    _number("the number of names of a lease", len(request.names), 1, WORDS_MAX - 2)
    return b"lease %b %d\r\n" % (b" ".join(map(_name, request.names)), _wait(request.wait_ms))


def _finish(request: workq.FinishJob) -> bytes:
    return (b"complete %b%b" if request.success else b"fail %b%b") % (_id(request.id), _data(request.result))


def _await(request: workq.AwaitResult) -> bytes:
    return b"result %b %d\r\n" % (_id(request.id), _wait(request.wait_ms))


def _page(offset: int, limit: int) -> bytes:
    return b"%d %d\r\n" % (_number("an offset", offset, 0, UINT32_MAX), _number("a limit", limit, 1, PAGE_MAX))


WRITERS: dict[type, Callable[[Any], bytes]] = {
    AddJob: _add,
    workq.ScheduleJob: _schedule,
    LeaseJob: _lease,
    workq.FinishJob: _finish,
    DeleteJob: lambda request: b"delete %b\r\n" % _id(request.id),
    workq.AwaitResult: _await,
    workq.InspectJob: lambda request: b"inspect job %b\r\n" % _id(request.id),
    workq.InspectQueue: lambda request: b"inspect queue %b\r\n" % _name(request.name),
    workq.InspectQueues: lambda request: b"inspect queues " + _page(request.offset, request.limit),
    workq.InspectServer: lambda request: b"inspect server\r\n",
}
