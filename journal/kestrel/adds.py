"""A fast count of items that joined the line one after the other, as most of a busy journal is: recovery spends most of
its time here. Compiled, adds.pyx takes its place.
"""

from __future__ import annotations

from staniel.journal.kestrel.records import ADDX, ADDX_BODY, ADDX_HEAD_BYTES, BLOCK_HEAD_BYTES, SIZE_END

unpack_addx = ADDX_BODY.unpack_from


def count_adds(data: bytes, at: int, end: int) -> tuple[int, int, int, int]:
    """Count the whole ADDX records that follow each other from byte `at` on, up to byte `end`. Returns how many they
    are, their payload in bytes, how many expire, and where the last of them ends.
    """
    count = size_bytes = expiring = 0
    last = end - ADDX_HEAD_BYTES
    while at <= last and data[at] == ADDX:
        size, _, expires_ms = unpack_addx(data, at + 1)
        stop = at + SIZE_END + size
        if size < BLOCK_HEAD_BYTES or stop > end:
            break
        if expires_ms:
            expiring += 1
        count += 1
        size_bytes += size
        at = stop
    return count, size_bytes - BLOCK_HEAD_BYTES * count, expiring, at
