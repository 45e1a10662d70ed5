"""The commands of the workq protocol: a line's words become a request, or a function that makes one of the following
data.

A line is: flags of the whole line, command, arguments, length of the data. Errors are found in the order of the
original, because its clients rely on it. Source: the client protocol of workq.
"""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from staniel.protocol.requests import Invalid
from staniel.protocol.workq.fields import is_job_id, is_name, read_flags, read_id, read_time, signed, unsigned
from staniel.protocol.workq.job_terms import JobTerms
from staniel.protocol.workq.replies import client_error
from staniel.protocol.workq.requests import (
    AddJob,
    AwaitResult,
    DeleteJob,
    FinishJob,
    InspectJob,
    InspectJobs,
    InspectQueue,
    InspectQueues,
    InspectServer,
    LeaseJob,
    RunJob,
    ScheduleJob,
    WorkqRequest,
)

DATA_BYTES_MAX = 1 << 20
TTR_MAX_MS = 86_400_000
TTL_MAX_MS = 2_592_000_000
WAIT_MAX_MS = 86_400_000
UINT64_MAX = 2**64 - 1
UINT32_MAX = 2**32 - 1
PAGE_MAX = 100
WORDS_MAX = 1024
"""The most words of a line: a lease of so many names takes a millisecond or two."""


def _invalid(why: str) -> Invalid:
    return Invalid(client_error(why), why=why)


UNKNOWN_COMMAND = _invalid("Unknown command")
INVALID_ARGS = _invalid("Invalid command args")
INVALID_FLAGS = _invalid("Invalid command flags")
INVALID_PAYLOAD_SIZE = _invalid("Invalid payload size")
INVALID_RESULT_SIZE = _invalid("Invalid result size")
INVALID_ID = _invalid("Invalid ID")
INVALID_NAME = _invalid("Invalid Name")
INVALID_TTR = _invalid("Invalid TTR")
INVALID_TTL = _invalid("Invalid TTL")
INVALID_TIME = _invalid("Invalid Time")
INVALID_PRIORITY = _invalid("Invalid Priority")
INVALID_ATTEMPTS = _invalid("Invalid Max Attempts")
INVALID_FAILS = _invalid("Invalid Max Fails")
INVALID_WAIT = _invalid("Invalid wait timeout")
INVALID_OFFSET = _invalid("Invalid cursor offset")
INVALID_LIMIT = _invalid("Invalid limit")

Flags = dict[bytes, bytes]


class Body(Struct, frozen=True):
    """The announcement of a data block of `size` bytes and CR LF; `make(data)` is the request. `refusal` is the reply
    if other bytes take the place of CR LF.
    """

    size: int
    make: Callable[[bytes], WorkqRequest]
    refusal: Invalid


Parsed = WorkqRequest | Body


def parse(line: bytes) -> Parsed:
    """Parse a line without its CR LF."""
    words = line.split(b" ", WORDS_MAX + 1)  # splitting all of a line of a megabyte takes milliseconds
    if len(words) > WORDS_MAX + 1:
        return INVALID_ARGS if words[0] in COMMANDS else UNKNOWN_COMMAND
    arguments, flags = read_flags([word for word in words if word])
    if flags is None:
        return INVALID_FLAGS
    command = COMMANDS.get(words[0])
    return UNKNOWN_COMMAND if command is None else command(arguments[1:], flags)


def _size(word: bytes) -> int | None:
    return signed(word, 0, DATA_BYTES_MAX)


def _body(word: bytes, make: Callable[[bytes], WorkqRequest], wrong: Invalid) -> Parsed:
    size = _size(word)
    return wrong if size is None else Body(size, make, wrong)


def _refuse(word: bytes, answer: object, wrong: Invalid) -> Parsed:
    """Refuse a line with data; the refusal is sent after its data has been read."""
    assert isinstance(answer, Invalid)
    return _body(word, lambda data: answer, wrong)


# commands with data


def _add(arguments: list[bytes], flags: Flags) -> Parsed:
    if len(arguments) != 5:
        return INVALID_ARGS
    id, name, ttr, ttl, size = arguments
    raw = read_id(id)
    terms = _terms(raw, name, ttr, ttl, flags)
    if raw is None or isinstance(terms, Invalid):
        return _refuse(size, terms, INVALID_PAYLOAD_SIZE)
    return _body(size, lambda data: AddJob(raw, terms, data), INVALID_PAYLOAD_SIZE)


def _schedule(arguments: list[bytes], flags: Flags) -> Parsed:
    if len(arguments) != 6:
        return INVALID_ARGS
    id, name, ttr, ttl, time, size = arguments
    raw, time_ns = read_id(id), read_time(time)
    terms = _terms(raw, name, ttr, ttl, flags, INVALID_TIME if time_ns is None else None)
    if raw is None or time_ns is None or isinstance(terms, Invalid):
        return _refuse(size, terms, INVALID_PAYLOAD_SIZE)
    return _body(size, lambda data: ScheduleJob(raw, terms, time_ns, data), INVALID_PAYLOAD_SIZE)


def _terms(
    id: bytes | None, name: bytes, ttr: bytes, ttl: bytes, flags: Flags, time_error: Invalid | None = None
) -> JobTerms | Invalid:
    """Return the terms of an add or schedule, or its first error."""
    if len(flags) > 3:
        return INVALID_ARGS
    if id is None:
        return INVALID_ID
    ttr_ms, ttl_ms = unsigned(ttr, UINT32_MAX), unsigned(ttl, UINT64_MAX)
    if ttr_ms is None:
        return INVALID_TTR
    if ttl_ms is None:
        return INVALID_TTL
    if time_error is not None:
        return time_error
    attempts, fails = unsigned(flags.get(b"max-attempts", b"0"), 255), unsigned(flags.get(b"max-fails", b"0"), 255)
    priority = _priority(flags)
    if attempts is None:
        return INVALID_ATTEMPTS
    if fails is None:
        return INVALID_FAILS
    if priority is None:
        return INVALID_PRIORITY
    if (wrong := _check(id, name, ttr_ms)) is not None:
        return wrong
    if not 1 <= ttl_ms <= TTL_MAX_MS:
        return INVALID_TTL
    return JobTerms(name, ttr_ms, ttl_ms, priority, attempts, fails)


def _priority(flags: Flags) -> int | None:
    return signed(flags.get(b"priority", b"0"), -(2**31), 2**31 - 1)


def _check(id: bytes, name: bytes, ttr_ms: int) -> Invalid | None:
    if not is_job_id(id):
        return INVALID_ID
    if not is_name(name):
        return INVALID_NAME
    return None if 1 <= ttr_ms <= TTR_MAX_MS else INVALID_TTR


def _run(arguments: list[bytes], flags: Flags) -> Parsed:
    if len(arguments) != 5:
        return INVALID_ARGS
    id, name, ttr, wait, size = arguments
    raw = read_id(id)
    checked = _run_terms(raw, name, ttr, wait, flags)
    if raw is None or isinstance(checked, Invalid):
        return _refuse(size, checked, INVALID_PAYLOAD_SIZE)
    terms, wait_ms = checked
    return _body(size, lambda data: RunJob(raw, terms, wait_ms, data), INVALID_PAYLOAD_SIZE)


def _run_terms(id: bytes | None, name: bytes, ttr: bytes, wait: bytes, flags: Flags) -> tuple[JobTerms, int] | Invalid:
    if len(flags) > 1:
        return INVALID_ARGS
    if id is None:
        return INVALID_ID
    ttr_ms, priority, wait_ms = unsigned(ttr, UINT32_MAX), _priority(flags), unsigned(wait, WAIT_MAX_MS)
    if ttr_ms is None:
        return INVALID_TTR
    if priority is None:
        return INVALID_PRIORITY
    if wait_ms is None:
        return INVALID_WAIT
    wrong = _check(id, name, ttr_ms)
    return (JobTerms(name, ttr_ms, 0, priority), wait_ms) if wrong is None else wrong


def _complete(arguments: list[bytes], flags: Flags) -> Parsed:
    return _finish(arguments, flags, True, INVALID_PAYLOAD_SIZE)


def _fail(arguments: list[bytes], flags: Flags) -> Parsed:
    return _finish(arguments, flags, False, INVALID_RESULT_SIZE)


def _finish(arguments: list[bytes], flags: Flags, success: bool, wrong_size: Invalid) -> Parsed:
    if len(arguments) != 2:
        return INVALID_ARGS
    id, size = arguments
    raw = read_id(id)
    if flags or raw is None or not is_job_id(raw):
        return _refuse(size, INVALID_ARGS if flags else INVALID_ID, wrong_size)
    return _body(size, lambda data: FinishJob(raw, data, success), wrong_size)


# commands without data


def _lease(arguments: list[bytes], flags: Flags) -> Parsed:
    if len(arguments) < 2 or flags:
        return INVALID_ARGS
    *names, wait = arguments
    wait_ms = unsigned(wait, WAIT_MAX_MS)
    if wait_ms is None:
        return INVALID_WAIT
    for at, name in enumerate(names):
        if not is_name(name):
            return LeaseJob(tuple(names[:at]), wait_ms, has_invalid_name=True)
    return LeaseJob(tuple(names), wait_ms)


def _delete(arguments: list[bytes], flags: Flags) -> Parsed:
    if len(arguments) != 1 or flags:
        return INVALID_ARGS
    raw = read_id(arguments[0])
    return DeleteJob(raw) if raw is not None and is_job_id(raw) else INVALID_ID


def _result(arguments: list[bytes], flags: Flags) -> Parsed:
    if len(arguments) != 2 or flags:
        return INVALID_ARGS
    id, wait = arguments
    raw = read_id(id)
    if raw is None or not is_job_id(raw):
        return INVALID_ID
    wait_ms = unsigned(wait, WAIT_MAX_MS)
    return INVALID_WAIT if wait_ms is None else AwaitResult(raw, wait_ms)


def _inspect(arguments: list[bytes], flags: Flags) -> Parsed:
    if not arguments:
        return INVALID_ARGS
    make_inspection = INSPECTIONS.get(arguments[0])
    if make_inspection is None:
        return UNKNOWN_COMMAND
    count, command = make_inspection
    if len(arguments) != count + 1 or flags:
        return INVALID_ARGS
    return command(arguments[1:])


def _inspect_job(words: list[bytes]) -> WorkqRequest:
    raw = read_id(words[0])
    return INVALID_ID if raw is None else InspectJob(raw)


def _inspect_jobs(words: list[bytes], scheduled: bool = False) -> WorkqRequest:
    if not is_name(words[0]):
        return INVALID_NAME
    page = _page(words[1:])
    return page if isinstance(page, Invalid) else InspectJobs(words[0], page[0], page[1], scheduled)


def _inspect_scheduled(words: list[bytes]) -> WorkqRequest:
    return _inspect_jobs(words, scheduled=True)


def _inspect_queue(words: list[bytes]) -> WorkqRequest:
    return InspectQueue(words[0]) if is_name(words[0]) else INVALID_NAME


def _inspect_queues(words: list[bytes]) -> WorkqRequest:
    page = _page(words)
    return page if isinstance(page, Invalid) else InspectQueues(*page)


def _inspect_server(words: list[bytes]) -> WorkqRequest:
    return InspectServer()


def _page(words: list[bytes]) -> tuple[int, int] | Invalid:
    offset, limit = unsigned(words[0], UINT32_MAX), unsigned(words[1], PAGE_MAX)
    if offset is None:
        return INVALID_OFFSET
    return INVALID_LIMIT if not limit else (offset, limit)


COMMANDS: dict[bytes, Callable[[list[bytes], Flags], Parsed]] = {
    b"add": _add,
    b"schedule": _schedule,
    b"run": _run,
    b"lease": _lease,
    b"complete": _complete,
    b"fail": _fail,
    b"delete": _delete,
    b"result": _result,
    b"inspect": _inspect,
}

INSPECTIONS: dict[bytes, tuple[int, Callable[[list[bytes]], WorkqRequest]]] = {
    b"job": (1, _inspect_job),
    b"jobs": (3, _inspect_jobs),
    b"scheduled-jobs": (3, _inspect_scheduled),
    b"queue": (1, _inspect_queue),
    b"queues": (2, _inspect_queues),
    b"server": (0, _inspect_server),
}
