"""Encoding of command log records: times, numbers, job commands.

    segment  MAGIC, then records
    record   TIME 15, SIZE varint, PAYLOAD, CRC 4 over all before it

Source: "Command log" of the workq documents ("Log File Format"); where the logs of the real server differ, these are
followed: the zone is -1, complete and fail carry their result, the checksum is CRC-32C and big-endian.
"""

from __future__ import annotations

import struct

from google_crc32c import value as crc32c

from staniel.queues.jobs.job import Job, Terms

MAGIC = b"wqwq\x00\x00\x00\x01"
ADD, SCHEDULE, COMPLETE, FAIL, DELETE, EXPIRE, START_ATTEMPT, TIMEOUT_ATTEMPT = range(1, 9)
COMMANDS = ("", "add", "schedule", "complete", "fail", "delete", "expire", "start-attempt", "timeout-attempt")

TIME_BYTES = 15
SMALL = 1 << 12  # smaller numbers are encoded in advance
CRC_BYTES = 4
ID_BYTES = 16
BARE_BYTES = 1 + ID_BYTES  # a payload that is a type and an id
# A payload or result has at most 1 MiB, and the rest of a record is far below 64 KiB. A larger SIZE is corrupt.
PAYLOAD_BYTES_MAX = (1 << 20) + (64 << 10)

NS_A_SECOND = 1_000_000_000
YEAR_1_S = -62_135_596_800  # 1 January of the year 1, from which TIME counts, in seconds since 1970
UTC = -1
SECONDS_BYTES = 9  # of TIME: its version and the seconds
ZONE = b"\xff\xff"
NO_TIME = b"\x01" + 12 * b"\x00" + b"\xff\xff"
_TIME = struct.Struct(">bqih")


def encode_time(at_ns: int) -> bytes:
    """TIME of a moment in nanoseconds since 1970."""
    seconds, nanos = divmod(at_ns, NS_A_SECOND)
    return _TIME.pack(1, seconds - YEAR_1_S, nanos, UTC)


def encode_unsigned(number: int) -> bytes:
    """A varint: seven bits a byte, the low ones first."""
    return _SMALL[number] if number < SMALL else _encode(number)


def _encode(number: int) -> bytes:
    encoded = bytearray()
    while number >= 0x80:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


def encode_signed(number: int) -> bytes:
    """A zigzag varint."""
    return encode_unsigned(number << 1 if number >= 0 else (~number << 1) | 1)


def encode_terms(terms: Terms) -> bytes:
    """The fields NAME to MAX_FAILS of an add: what all jobs of the same terms have in common."""
    name = terms.queue.name
    numbers = [encode_unsigned(len(name)), name, encode_unsigned(terms.ttr_ms), encode_unsigned(terms.ttl_ms)]
    numbers += [encode_signed(terms.priority), encode_unsigned(terms.max_attempts), encode_unsigned(terms.max_fails)]
    return b"".join(numbers)


def encode_addition(job: Job, time: bytes) -> bytes:
    """The record of an add or schedule without its CRC, so that a long payload is not copied once more for it. `time`:
    TIME of the job's creation, which is also that of the record.
    """
    terms, data = job.terms, job.payload
    coded = terms.coded
    if not coded:
        coded = terms.coded = encode_terms(terms)
    count = len(data)
    length = _SMALL[count] if count < SMALL else _encode(count)
    size = BARE_BYTES + 2 * TIME_BYTES + len(coded) + len(length) + count
    sized = _SMALL[size] if size < SMALL else _encode(size)
    if job.time_ns == 0:
        return b"".join((time, sized, _ADD, job.id, coded, length, data, NO_TIME, time))
    return b"".join((time, sized, _SCHEDULE, job.id, coded, length, data, encode_time(job.time_ns), time))


def with_crc(record: bytes) -> bytes:
    """A whole record: `record` and its CRC."""
    crc: int = crc32c(record)
    return record + crc.to_bytes(CRC_BYTES, "big")


def encode_bare(time: bytes, kind: int, id: bytes) -> bytes:
    """A record whose payload is a type and an id, with its CRC."""
    return with_crc(time + _BARE[kind] + id)


def encode_finished(time: bytes, kind: int, id: bytes, result: bytes) -> bytes:
    """The record of a complete or fail, with its CRC."""
    payload = b"".join((bytes((kind,)), id, encode_unsigned(len(result)), result))
    return with_crc(time + encode_unsigned(len(payload)) + payload)


_SMALL = tuple(_encode(number) for number in range(SMALL))
_ADD, _SCHEDULE = bytes((ADD,)), bytes((SCHEDULE,))
_BARE = tuple(bytes((BARE_BYTES, kind)) for kind in range(len(COMMANDS)))
