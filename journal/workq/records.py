"""Decoding of command log records: frames, commands, and the search for the next record after damage.

Nothing is used before its CRC is verified. Errors are CorruptRecord, and IncompleteRecord if the bytes end before the
record does. Sources: "Command log" of the workq documents ("Record Format"), and logs written by the real server.
"""

from __future__ import annotations

import struct

from google_crc32c import value as crc32c
from msgspec import Struct

from staniel.journal.errors import CorruptRecord, IncompleteRecord
from staniel.journal.workq.encoder import (
    ADD,
    BARE_BYTES,
    COMMANDS,
    COMPLETE,
    CRC_BYTES,
    DELETE,
    FAIL,
    NS_A_SECOND,
    PAYLOAD_BYTES_MAX,
    SCHEDULE,
    TIME_BYTES,
    YEAR_1_S,
)

RECORD_BYTES_MAX = TIME_BYTES + 10 + PAYLOAD_BYTES_MAX + CRC_BYTES
RECORD_HEAD_BYTES = TIME_BYTES + 1
SECONDS = struct.Struct(">qi")
_CRC = struct.Struct(">I")
_VARINT_BYTES_MAX = 10
_YEAR_1 = bytes(8)  # the seconds of Go's zero time
# Every TIME before the year 2177 begins with these bytes.
_TIME_MARK = b"\x01\x00\x00\x00"


class AddRecord(Struct, gc=False):
    """An add or schedule. `coded`: the bytes of NAME to MAX_FAILS. Times in ns since 1970, 0: none."""

    id: bytes
    coded: bytes
    payload: bytes
    time_ns: int
    created_ns: int


class AddFields(Struct, frozen=True):
    """The fields NAME to MAX_FAILS, truncated to the widths that the original uses."""

    name: bytes
    ttr_ms: int
    ttl_ms: int
    priority: int
    max_attempts: int
    max_fails: int


def read_unsigned(data: bytes, at: int) -> tuple[int, int]:
    """Read a varint. Return (number, where it ends). Encodings longer than needed are allowed. Raises IncompleteRecord,
    CorruptRecord.
    """
    if at + 1 < len(data):  # nearly always one or two bytes
        low, high = data[at], data[at + 1]
        if low < 0x80:
            return low, at + 1
        if high < 0x80:
            return low & 0x7F | high << 7, at + 2
    number = shift = 0
    for offset in range(at, at + _VARINT_BYTES_MAX):
        if offset >= len(data):
            raise IncompleteRecord
        byte = data[offset]
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            if number >= 1 << 64:
                break
            return number, offset + 1
        shift += 7
    raise CorruptRecord("a number of more than 64 bits")


def read_signed(data: bytes, at: int) -> tuple[int, int]:
    number, end = read_unsigned(data, at)
    return number >> 1 ^ -(number & 1), end


def read_time(data: bytes, at: int) -> int:
    """Return a TIME in nanoseconds since 1970, ignoring the zone. Raises CorruptRecord."""
    seconds, nanos = SECONDS.unpack_from(data, at + 1)
    if data[at] != 1 or not 0 <= nanos < NS_A_SECOND:
        raise CorruptRecord("a time that is none")
    if seconds == 0 and nanos == 0:
        return 0
    return int((seconds + YEAR_1_S) * NS_A_SECOND + nanos)


def read_scheduled(data: bytes, at: int) -> int:
    """Return a time as `read_time` does. 0 means that a job is not scheduled, so the first moment of 1970 becomes 1.
    Raises CorruptRecord.
    """
    time_ns = read_time(data, at)
    return 1 if not time_ns and data[at + 1 : at + 9] != _YEAR_1 else time_ns


def written_ns(data: bytes, at: int) -> int:
    """Return when the record at `at` was written, in ns since 1970. Any bytes are accepted as a time: the meaning of a
    record does not depend on it, and its checksum is right.
    """
    seconds, nanos = SECONDS.unpack_from(data, at + 1)
    return int((seconds + YEAR_1_S) * NS_A_SECOND + nanos)


def read_frame(data: bytes, at: int) -> tuple[int, int]:
    """Return (where the payload begins, where the record ends) of the record at `at`, whose CRC is verified. Raises
    IncompleteRecord if it continues after `data`, CorruptRecord.
    """
    start = at + RECORD_HEAD_BYTES
    if start > len(data):
        raise IncompleteRecord
    size = data[start - 1]
    if size > 0x7F:
        size, start = read_unsigned(data, start - 1)
    if data[at] != 1:
        raise CorruptRecord("no record begins there")
    if size > PAYLOAD_BYTES_MAX or not size:
        raise CorruptRecord(f"a record of {size} bytes")
    stop = start + size
    if stop + CRC_BYTES > len(data):
        raise IncompleteRecord
    if crc32c(data[at:stop]) != _CRC.unpack_from(data, stop)[0]:
        raise CorruptRecord("the checksum is wrong")
    return start, stop + CRC_BYTES


def find_frame(data: bytes, at: int, complete: bool) -> int:
    """Return where the next valid record begins at or after `at`. If there is none, return the end of the part of
    `data` that need not be searched again. `complete`: the file ends with `data`.
    """
    while (at := data.find(_TIME_MARK, at)) >= 0:
        try:
            if is_plausible(data, at):
                read_frame(data, at)
                return at
        except IncompleteRecord:
            if not complete:
                return at
        except CorruptRecord:
            pass
        at += 1
    return len(data) if complete else max(0, len(data) - len(_TIME_MARK) + 1)


def follow_frames(data: bytes, at: int, limit: int) -> int:
    """Return where a sequence of valid records from `at` on ends, or the first end of a record at or after `limit`."""
    try:
        while at < min(len(data), limit):
            _, at = read_frame(data, at)
    except (CorruptRecord, IncompleteRecord):
        pass
    return at


def claimed_end(data: bytes, at: int) -> int | None:
    """Return where the record at `at` ends according to its size, if the lengths within it, or its type, agree. Return
    None if they do not, or if `data` ends before them. The checksum is not verified.
    """
    try:
        if not is_plausible(data, at):
            return None
        size, start = read_unsigned(data, at + TIME_BYTES)
    except (IncompleteRecord, CorruptRecord):
        return None
    return start + size + CRC_BYTES


def is_plausible(data: bytes, at: int) -> bool:
    """Tell whether the size of the frame at `at` fits its type, so that its CRC is worth computing. Raises
    IncompleteRecord, CorruptRecord.
    """
    start = at + TIME_BYTES
    size, start = read_unsigned(data, start)
    if start >= len(data):
        raise IncompleteRecord
    kind = data[start]
    if size > PAYLOAD_BYTES_MAX or not 1 <= kind < len(COMMANDS):
        return False
    if kind >= DELETE:
        return size == BARE_BYTES
    if kind in (COMPLETE, FAIL):
        return size == BARE_BYTES or _holds(data, start + BARE_BYTES, start + size)
    return _holds_add(data, start + BARE_BYTES, start + size)


def _holds(data: bytes, at: int, end: int) -> bool:
    """Tell whether data[at:end] is a length and that many bytes."""
    length, at = read_unsigned(data, at)
    return at + length == end


def _holds_add(data: bytes, at: int, end: int) -> bool:
    return _holds(data, skip_terms(data, at), end - 2 * TIME_BYTES)


def skip_terms(data: bytes, at: int) -> int:
    """Return where NAME to MAX_FAILS end. Raises IncompleteRecord, CorruptRecord."""
    length, at = read_unsigned(data, at)
    if length > 255:
        raise CorruptRecord(f"a name of {length} bytes")
    at += length
    for _ in range(5):
        _, at = read_unsigned(data, at)
    return at


def read_fields(coded: bytes) -> AddFields:
    """Decode the fields NAME to MAX_FAILS."""
    length, at = read_unsigned(coded, 0)
    name, at = coded[at : at + length], at + length
    ttr_ms, at = read_unsigned(coded, at)
    ttl_ms, at = read_unsigned(coded, at)
    priority, at = read_signed(coded, at)
    max_attempts, at = read_unsigned(coded, at)
    max_fails, at = read_unsigned(coded, at)
    return AddFields(name, ttr_ms & 0xFFFF_FFFF, ttl_ms, priority, max_attempts & 0xFF, max_fails & 0xFF)


def read_added(data: bytes, start: int, stop: int) -> AddRecord:
    """Decode the add or schedule whose payload is data[start:stop]. Raises CorruptRecord."""
    at = start + BARE_BYTES
    try:
        end = skip_terms(data, at)
        length, data_at = read_unsigned(data, end)
    except IncompleteRecord:
        raise CorruptRecord("the command ends early") from None
    data_end = data_at + length
    if data_end + 2 * TIME_BYTES != stop:
        raise CorruptRecord("the command does not fill its record")
    time_ns = read_scheduled(data, data_end) if data[start] == SCHEDULE else 0
    created_ns = read_time(data, data_end + TIME_BYTES)
    id = data[start + 1 : start + BARE_BYTES]
    return AddRecord(id, data[at:end], data[data_at:data_end], time_ns, created_ns)


def read_result(data: bytes, start: int, stop: int) -> bytes:
    """Return the result in a complete or fail; b"" in the document's short form, without one. Raises CorruptRecord."""
    at = start + BARE_BYTES
    if at == stop:
        return b""
    try:
        length, at = read_unsigned(data, at)
    except IncompleteRecord:
        raise CorruptRecord("the command ends early") from None
    if at + length != stop:
        raise CorruptRecord("the command does not fill its record")
    return data[at:stop]


def is_valid_command(data: bytes, start: int, stop: int) -> bool:
    """Tell whether replay can apply the command in data[start:stop]."""
    try:
        kind = kind_of(data, start, stop)
        if kind <= SCHEDULE:
            read_added(data, start, stop)
        elif kind in (COMPLETE, FAIL):
            read_result(data, start, stop)
    except CorruptRecord:
        return False
    return True


def kind_of(data: bytes, start: int, stop: int) -> int:
    """Return the type of the command in data[start:stop]. Raises CorruptRecord if it is unknown or has the wrong
    length.
    """
    kind = data[start]
    if not ADD <= kind < len(COMMANDS):
        raise CorruptRecord(f"unknown command type {kind}")
    if stop - start < BARE_BYTES or (kind >= DELETE and stop - start != BARE_BYTES):
        raise CorruptRecord(f"a {COMMANDS[kind]} of {stop - start} bytes")
    return kind
