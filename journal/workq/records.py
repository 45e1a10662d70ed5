"""The bytes of a workq command log, read: frames, commands, and where to go on behind damage.

Knows the format. Refuses to know files and jobs in service. Nothing is believed before its CRC is right, least of all
a length. Source: "Command log" of the workq documents ("Record Format"), and the logs of the real server.
"""

from __future__ import annotations

import struct

from google_crc32c import value as crc32c
from msgspec import Struct

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
# Every TIME begins so until the year 2177; what follows is looked at more closely.
_TIME_MARK = b"\x01\x00\x00\x00"


class Damaged(Exception):
    """No record stands there; the text says what is wrong."""


class Short(Exception):
    """The bytes end before the record does."""


class AddRecord(Struct, gc=False):
    """An add or schedule. `coded` is NAME to MAX_FAILS as it stands there; times in ns since 1970, 0: none."""

    id: bytes
    coded: bytes
    payload: bytes
    time_ns: int
    created_ns: int


class AddFields(Struct, frozen=True):
    """What `coded` says, narrowed like the original narrows it."""

    name: bytes
    ttr_ms: int
    ttl_ms: int
    priority: int
    max_attempts: int
    max_fails: int


def read_unsigned(data: bytes, at: int) -> tuple[int, int]:
    """(number, where it ends). Forms longer than needed are fine. Raises Short, Damaged."""
    if at + 1 < len(data):  # one byte or two, nearly always
        low, high = data[at], data[at + 1]
        if low < 0x80:
            return low, at + 1
        if high < 0x80:
            return low & 0x7F | high << 7, at + 2
    number = shift = 0
    for each in range(at, at + _VARINT_BYTES_MAX):
        if each >= len(data):
            raise Short
        byte = data[each]
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            if number >= 1 << 64:
                break
            return number, each + 1
        shift += 7
    raise Damaged("a number of more than 64 bits")


def read_signed(data: bytes, at: int) -> tuple[int, int]:
    number, end = read_unsigned(data, at)
    return number >> 1 ^ -(number & 1), end


def read_time(data: bytes, at: int) -> int:
    """Nanoseconds since 1970; the zone is left out, because the instant is what counts. Raises Damaged."""
    seconds, nanos = SECONDS.unpack_from(data, at + 1)
    if data[at] != 1 or not 0 <= nanos < NS_A_SECOND:
        raise Damaged("a time that is none")
    if seconds == 0 and nanos == 0:
        return 0
    return int((seconds + YEAR_1_S) * NS_A_SECOND + nanos)


def read_frame(data: bytes, at: int) -> tuple[int, int]:
    """(where the payload begins, where the record ends) of the record at `at`; its CRC is right.

    Raises Short if it goes beyond `data`, Damaged if none stands there.
    """
    start = at + RECORD_HEAD_BYTES
    if start > len(data):
        raise Short
    size = data[start - 1]
    if size > 0x7F:
        size, start = read_unsigned(data, start - 1)
    if data[at] != 1:
        raise Damaged("no record begins there")
    if size > PAYLOAD_BYTES_MAX or not size:
        raise Damaged(f"a record of {size} bytes")
    stop = start + size
    if stop + CRC_BYTES > len(data):
        raise Short
    if crc32c(data[at:stop]) != _CRC.unpack_from(data, stop)[0]:
        raise Damaged("the checksum is wrong")
    return start, stop + CRC_BYTES


def find_frame(data: bytes, at: int, complete: bool) -> int:
    """Where the next sound record begins at or behind `at`, or how much of `data` holds none: up to there nothing has
    to be looked at again. `complete`: nothing follows `data`.
    """
    while (at := data.find(_TIME_MARK, at)) >= 0:
        try:
            if is_plausible(data, at):
                read_frame(data, at)
                return at
        except Short:
            if not complete:
                return at
        except Damaged:
            pass
        at += 1
    return len(data) if complete else max(0, len(data) - len(_TIME_MARK) + 1)


def follow_frames(data: bytes, at: int, limit: int) -> int:
    """Where the sound records that follow one another from `at` on end, or the first of these ends behind `limit`."""
    try:
        while at < min(len(data), limit):
            _, at = read_frame(data, at)
    except (Damaged, Short):
        pass
    return at


def claimed_end(data: bytes, at: int) -> int | None:
    """Where the record at `at` ends by what it says in two places, which agree: its size, and the lengths within it or
    the type that has but one length. None if they do not, or if `data` ends before they are told. Its checksum is
    not looked at.
    """
    try:
        if not is_plausible(data, at):
            return None
        size, start = read_unsigned(data, at + TIME_BYTES)
    except (Short, Damaged):
        return None
    return start + size + CRC_BYTES


def is_plausible(data: bytes, at: int) -> bool:
    """Whether a frame there is worth the cost of its CRC: its size suits its type. Raises Short, Damaged."""
    start = at + TIME_BYTES
    size, start = read_unsigned(data, start)
    if start >= len(data):
        raise Short
    kind = data[start]
    if size > PAYLOAD_BYTES_MAX or not 1 <= kind < len(COMMANDS):
        return False
    if kind >= DELETE:
        return size == BARE_BYTES
    if kind in (COMPLETE, FAIL):
        return size == BARE_BYTES or _holds(data, start + BARE_BYTES, start + size)
    return _holds_add(data, start + BARE_BYTES, start + size)


def _holds(data: bytes, at: int, end: int) -> bool:
    """Whether a length and as many bytes stand exactly there."""
    length, at = read_unsigned(data, at)
    return at + length == end


def _holds_add(data: bytes, at: int, end: int) -> bool:
    return _holds(data, skip_terms(data, at), end - 2 * TIME_BYTES)


def skip_terms(data: bytes, at: int) -> int:
    """Where NAME to MAX_FAILS end. Raises Short, Damaged."""
    length, at = read_unsigned(data, at)
    if length > 255:
        raise Damaged(f"a name of {length} bytes")
    at += length
    for _ in range(5):
        _, at = read_unsigned(data, at)
    return at


def read_fields(coded: bytes) -> AddFields:
    """What NAME to MAX_FAILS say."""
    length, at = read_unsigned(coded, 0)
    name, at = coded[at : at + length], at + length
    ttr_ms, at = read_unsigned(coded, at)
    ttl_ms, at = read_unsigned(coded, at)
    priority, at = read_signed(coded, at)
    max_attempts, at = read_unsigned(coded, at)
    max_fails, at = read_unsigned(coded, at)
    return AddFields(name, ttr_ms & 0xFFFF_FFFF, ttl_ms, priority, max_attempts & 0xFF, max_fails & 0xFF)


def read_added(data: bytes, start: int, stop: int) -> AddRecord:
    """The add or schedule whose payload is data[start:stop]. Raises Damaged."""
    at = start + BARE_BYTES
    try:
        end = skip_terms(data, at)
        length, data_at = read_unsigned(data, end)
    except Short:
        raise Damaged("the command ends early") from None
    data_end = data_at + length
    if data_end + 2 * TIME_BYTES != stop:
        raise Damaged("the command does not fill its record")
    scheduled = data[start] == SCHEDULE
    time_ns = read_time(data, data_end) if scheduled else 0
    created_ns = read_time(data, data_end + TIME_BYTES)
    id = data[start + 1 : start + BARE_BYTES]
    return AddRecord(id, data[at:end], data[data_at:data_end], time_ns, created_ns)


def read_result(data: bytes, start: int, stop: int) -> bytes:
    """What complete or fail says; nothing if it is written in the document's short form. Raises Damaged."""
    at = start + BARE_BYTES
    if at == stop:
        return b""
    try:
        length, at = read_unsigned(data, at)
    except Short:
        raise Damaged("the command ends early") from None
    if at + length != stop:
        raise Damaged("the command does not fill its record")
    return data[at:stop]


def makes_sense(data: bytes, start: int, stop: int) -> bool:
    """Whether the command in data[start:stop] is one that a replay can apply."""
    try:
        kind = kind_of(data, start, stop)
        if kind <= SCHEDULE:
            read_added(data, start, stop)
        elif kind in (COMPLETE, FAIL):
            read_result(data, start, stop)
    except Damaged:
        return False
    return True


def kind_of(data: bytes, start: int, stop: int) -> int:
    """The type of the command in data[start:stop]. Raises Damaged for one that nobody knows or that is too short."""
    kind = data[start]
    if not ADD <= kind < len(COMMANDS):
        raise Damaged(f"unknown command type {kind}")
    if stop - start < BARE_BYTES or (kind >= DELETE and stop - start != BARE_BYTES):
        raise Damaged(f"a {COMMANDS[kind]} of {stop - start} bytes")
    return kind
