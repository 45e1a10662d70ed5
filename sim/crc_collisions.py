"""Items that a short key cannot distinguish: different bytes with the same size and CRC-32.

A CRC-32 is linear: four bytes at the end change it to any value.
"""

from __future__ import annotations

from zlib import crc32

POLYNOMIAL = 0xEDB88320
WANTED = 0x12345678


def _entry(byte: int) -> int:
    for _ in range(8):
        byte = (byte >> 1) ^ (POLYNOMIAL if byte & 1 else 0)
    return byte


TABLE = [_entry(byte) for byte in range(256)]
BY_TOP = {entry >> 24: byte for byte, entry in enumerate(TABLE)}


def colliding_item(number: int, size: int) -> bytes:
    """Return the item with this number: `size` bytes without a line end, at least 12. All such items have the same
    CRC-32.
    """
    for sign in b".,:;-+*/=":
        data = (b"%d" % number).ljust(size - 4, bytes((sign,)))
        forged = data + _ending(data)
        if not {10, 13}.intersection(forged):
            return forged
    raise AssertionError("no sign of nine will do")


def _ending(data: bytes) -> bytes:
    register = WANTED ^ 0xFFFFFFFF
    for _ in range(4):
        byte = BY_TOP[register >> 24]
        register = ((register ^ TABLE[byte]) << 8 | byte) & 0xFFFFFFFF
    return (register ^ crc32(data) ^ 0xFFFFFFFF).to_bytes(4, "little")
