"""The common records of a busy command log: a job added, leased, deleted. Compiled, job_records.pyx replaces this
module.
"""

from __future__ import annotations

from google_crc32c import value as crc32c

from staniel.journal.workq.layout import BARE_BYTES, CRC, NS_A_SECOND, TIME, TIME_BYTES, UTC, YEAR_1_S

SMALL = 1 << 12  # smaller numbers are encoded in advance
# Bound here: CPython 3.11 makes a method object for each call of an imported name's method.
pack_time, pack_crc = TIME.pack, CRC.pack


def encode_time(at_ns: int) -> bytes:
    """Return the TIME of a moment in nanoseconds since 1970."""
    seconds, nanos = divmod(at_ns, NS_A_SECOND)
    return pack_time(1, seconds - YEAR_1_S, nanos, UTC)


def encode_unsigned(number: int) -> bytes:
    """Encode a varint: seven bits a byte, the low ones first."""
    return _SMALL[number] if number < SMALL else _encode(number)


def _encode(number: int) -> bytes:
    encoded = bytearray()
    while number >= 0x80:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


def crc_of(record: bytes) -> bytes:
    """Return the CRC that follows a record."""
    return pack_crc(crc32c(record))


def addition(time: bytes, kind: int, id: bytes, coded: bytes, data: bytes, later: bytes) -> bytes:
    """Encode an add or schedule without its CRC, so that a long payload is not copied again for it. `coded`: its terms.
    `later`: TIME that it is scheduled for.
    """
    count = len(data)
    length = _SMALL[count] if count < SMALL else _encode(count)
    size = BARE_BYTES + 2 * TIME_BYTES + len(coded) + len(length) + count
    sized = _SMALL[size] if size < SMALL else _encode(size)
    return b"".join((time, sized, _KINDS[kind], id, coded, length, data, later, time))


def encode_bare(time: bytes, kind: int, id: bytes) -> bytes:
    """Encode a record whose payload is a type and an id, with its CRC."""
    record = time + _BARE[kind] + id
    return record + pack_crc(crc32c(record))


_SMALL = tuple(_encode(number) for number in range(SMALL))
_KINDS = tuple(bytes((kind,)) for kind in range(9))
_BARE = tuple(bytes((BARE_BYTES, kind)) for kind in range(9))
