"""Encoding of command log records: times, numbers, job commands.

    segment  MAGIC, then records
    record   TIME 15, SIZE varint, PAYLOAD, CRC 4 over all before it

Source: "Command log" of the workq documents ("Log File Format"); where the logs of the real server differ, these are
followed: the zone is -1, complete and fail carry their result, the checksum is CRC-32C and big-endian.
"""

from __future__ import annotations

from staniel.journal.workq.job_records import addition, crc_of
from staniel.journal.workq.job_records import encode_bare as encode_bare
from staniel.journal.workq.job_records import encode_time as encode_time
from staniel.journal.workq.job_records import encode_unsigned as encode_unsigned
from staniel.journal.workq.layout import ADD as ADD
from staniel.journal.workq.layout import BARE_BYTES as BARE_BYTES
from staniel.journal.workq.layout import COMPLETE as COMPLETE
from staniel.journal.workq.layout import CRC_BYTES as CRC_BYTES
from staniel.journal.workq.layout import DELETE as DELETE
from staniel.journal.workq.layout import EXPIRE as EXPIRE
from staniel.journal.workq.layout import FAIL as FAIL
from staniel.journal.workq.layout import ID_BYTES as ID_BYTES
from staniel.journal.workq.layout import NO_TIME as NO_TIME
from staniel.journal.workq.layout import NS_A_SECOND as NS_A_SECOND
from staniel.journal.workq.layout import SCHEDULE as SCHEDULE
from staniel.journal.workq.layout import START_ATTEMPT as START_ATTEMPT
from staniel.journal.workq.layout import TIME_BYTES as TIME_BYTES
from staniel.journal.workq.layout import TIMEOUT_ATTEMPT as TIMEOUT_ATTEMPT
from staniel.journal.workq.layout import YEAR_1_S as YEAR_1_S
from staniel.queues.jobs.job import Job, Terms

MAGIC = b"wqwq\x00\x00\x00\x01"
COMMANDS = ("", "add", "schedule", "complete", "fail", "delete", "expire", "start-attempt", "timeout-attempt")
# A payload or result has at most 1 MiB, and the other fields of a record together far less than 64 KiB. A larger SIZE
# is corrupt.
PAYLOAD_BYTES_MAX = (1 << 20) + (64 << 10)


def encode_signed(number: int) -> bytes:
    """Encode a zigzag varint."""
    return encode_unsigned(number << 1 if number >= 0 else (~number << 1) | 1)


def encode_terms(terms: Terms) -> bytes:
    """Encode the fields NAME to MAX_FAILS of an add, which are the same for all jobs of the same terms."""
    name = terms.queue.name
    numbers = [encode_unsigned(len(name)), name, encode_unsigned(terms.ttr_ms), encode_unsigned(terms.ttl_ms)]
    numbers += [encode_signed(terms.priority), encode_unsigned(terms.max_attempts), encode_unsigned(terms.max_fails)]
    return b"".join(numbers)


def encode_addition(job: Job, time: bytes, ahead_ns: int = 0) -> bytes:
    """Encode an add or schedule without its CRC. `time`: TIME of the job's creation, which is also the record's.
    `ahead_ns`: how far the wall clock is ahead of the clock of `job.time_ns`.
    """
    terms = job.terms
    coded = terms.coded
    if not coded:
        coded = terms.coded = encode_terms(terms)
    if job.time_ns == 0:
        return addition(time, ADD, job.id, coded, job.payload, NO_TIME)
    return addition(time, SCHEDULE, job.id, coded, job.payload, encode_time(job.time_ns + ahead_ns))


def with_crc(record: bytes) -> bytes:
    """Return a whole record: `record` and its CRC."""
    return record + crc_of(record)


def encode_finished(time: bytes, kind: int, id: bytes, result: bytes) -> bytes:
    """Encode a complete or fail, with its CRC."""
    payload = b"".join((bytes((kind,)), id, encode_unsigned(len(result)), result))
    return with_crc(time + encode_unsigned(len(payload)) + payload)
