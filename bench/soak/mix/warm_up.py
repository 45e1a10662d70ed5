"""The warm-up, which brings a server to the memory that it keeps, before the memory is watched.

The server remembers the last 4,096 different heads of puts, heads of replies and terms of jobs, which takes an hour to
fill at the pace of a soak. And memory that was once needed for many items at a time stays with the process if a small
lasting object was allocated between them: the warm-up opens as many items at once as the largest flood leaves, so that
no later flood adds memory.
"""

from __future__ import annotations

from staniel.bench.soak.clients import ServerBroken
from staniel.bench.soak.jobs import job_id
from staniel.bench.soak.mix.jobs import TTL_MS, TTR_MS
from staniel.bench.soak.mix.stage import Stage
from staniel.bench.soak.mix.wires import Link
from staniel.protocol.memo import ENTRIES_MAX

QUEUE = b"warm"  # of no family: no client uses it
AT_ONCE = 64
FIRST_JOB = 0xFF000000  # others are numbered from 1 on
OPEN_AT_ONCE = 8192
OPEN_BYTES = 2048


async def warm_up(stage: Stage) -> None:
    """Warm the server up, leaving no item and no job. Raises ServerBroken, ConnectionGone."""
    await _open_many(stage)
    await _fill_memos(stage)


async def _open_many(stage: Stage) -> None:
    """Open many items at once. They return when their holder disconnects, and another client takes them."""
    put = b"set %b 0 0 %d\r\n%b\r\n" % (QUEUE, OPEN_BYTES, b"w" * OPEN_BYTES)
    link = await Link.open(stage.address("memcache", is_secure=False), None)
    try:
        for _ in range(0, OPEN_AT_ONCE, AT_ONCE):
            await link.send(put * AT_ONCE)
            await _expect(link, [b"STORED"] * AT_ONCE)
            await _take_items(link, b"/open", AT_ONCE)
    finally:
        link.close()
    link = await Link.open(stage.address("memcache", is_secure=False), None)
    try:
        await _take_items(link, b"/t=5000", 1)  # once they are back
        for _ in range(0, OPEN_AT_ONCE, AT_ONCE):
            await _take_items(link, b"", AT_ONCE)
    finally:
        link.close()


async def _take_items(link: Link, options: bytes, count: int) -> None:
    """Take items without checking them: only the clients' items are judged."""
    await link.send(b"get %b%b\r\n" % (QUEUE, options) * count)
    for _ in range(count):
        if (head := await link.line()).startswith(b"VALUE "):
            await link.exactly(int(head.split()[3]) + 2)
            head = await link.line()
        if head != b"END":
            raise ServerBroken(f"{head!r} to a get of {QUEUE.decode()}")


async def _fill_memos(stage: Stage) -> None:
    link = await Link.open(stage.address("memcache", is_secure=False), None)
    try:
        for at in range(0, ENTRIES_MAX + AT_ONCE, AT_ONCE):
            sizes = range(at, at + AT_ONCE)
            await link.send(b"".join(b"set %b 0 0 %d\r\n%b\r\n" % (QUEUE, size, b"w" * size) for size in sizes))
            await _expect(link, [b"STORED"] * AT_ONCE)
            await _take_items(link, b"", AT_ONCE)
    finally:
        link.close()
    link = await Link.open(stage.address("workq", is_secure=False), None)
    try:
        for at in range(0, ENTRIES_MAX + AT_ONCE, AT_ONCE):
            numbers = range(at, at + AT_ONCE)
            adds = [b"add %b %b %d %d 1\r\nw\r\n" % (_id(n), QUEUE, TTR_MS + n, TTL_MS) for n in numbers]
            await link.send(b"".join(adds))
            await _expect(link, [b"+OK"] * AT_ONCE)
            await link.send(b"".join(b"delete %b\r\n" % _id(n) for n in numbers))
            await _expect(link, [b"+OK"] * AT_ONCE)
    finally:
        link.close()


def _id(number: int) -> bytes:
    return job_id(FIRST_JOB + number)


async def _expect(link: Link, answers: list[bytes]) -> None:
    for expected in answers:
        answer = await link.line()
        if answer != expected:
            raise ServerBroken(f"{answer!r} instead of {expected!r} in the warm-up")
