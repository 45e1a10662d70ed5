"""Two fast loops over items that were put one after another, as in most of a busy journal. One counts them; recovery
spends most of its time in it. The other reads them, for a queue larger than memory. Compiled, adds.pyx replaces this
module.
"""

from __future__ import annotations

from staniel.journal.kestrel.records import ADDX, ADDX_BODY, ADDX_HEAD_BYTES, BLOCK_HEAD_BYTES, SIZE_END
from staniel.queues.item import Item

unpack_addx = ADDX_BODY.unpack_from


def count_adds(data: bytes, at: int, end: int) -> tuple[int, int, int, int]:
    """Count the whole ADDX records in a row from byte `at` to byte `end`. Return their number, their payload in bytes,
    how many expire, and where the last of them ends.
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


def read_adds(data: bytes, at: int, end: int, items: list[Item], count_max: int, stops_at_stand_ins: bool) -> int:
    """Append the items of the whole ADDX records in a row from byte `at` to byte `end`, until `items` has `count_max`.
    Return the byte where that stopped. A stand-in is the record of an empty item put at the moment 0.
    """
    last, count = end - ADDX_HEAD_BYTES, count_max - len(items)
    while at <= last and count > 0 and data[at] == ADDX:
        size, added_ms, expires_ms = unpack_addx(data, at + 1)
        stop = at + SIZE_END + size
        if size < BLOCK_HEAD_BYTES or stop > end:
            break
        if size == BLOCK_HEAD_BYTES and stops_at_stand_ins and not (added_ms or expires_ms):
            break
        items.append(Item(data[at + ADDX_HEAD_BYTES : stop], added_ms, expires_ms))
        count -= 1
        at = stop
    return at
