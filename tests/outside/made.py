"""Random journals in the three formats, whole and damaged, written from the format documents: `make(format, random,
operations)`. One operation is one record. Most histories make sense; some numbers and bytes are arbitrary.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from random import Random
from typing import NamedTuple

from tests.conformance import replay
from tests.outside import libkestrel, workq

NOW_MS = 1_700_000_000_000
I32 = (0, 1, 2, 3, -1, 2**31 - 1, -(2**31), 2**31 - 2)
Files = dict[str, bytes]


class Made(NamedTuple):
    """`whole`: the files before they were damaged. `is_plain`: at most one place of each file is damaged, which has its
    length, and no payload looks like records: then everything else can be read.
    """

    format: str
    files: Files
    whole: Files
    operations: int
    is_plain: bool


# damage: each of these changes the bytes of one file


def cut(random: Random, data: bytes) -> bytes:
    return data[: random.randrange(len(data) + 1)]


def flip(random: Random, data: bytes) -> bytes:
    bent = bytearray(data)
    bit = random.randrange(8 * len(data))
    bent[bit // 8] ^= 1 << bit % 8
    return bytes(bent)


def overwrite(random: Random, data: bytes) -> bytes:
    at, count = random.randrange(len(data)), random.randrange(1, 30)
    noise = bytes(count) if random.randrange(2) else random.randbytes(count)
    return (data[:at] + noise + data[at + count :])[: len(data)]


def leave_out(random: Random, data: bytes) -> bytes:
    at = random.randrange(len(data))
    return data[:at] + data[at + random.randrange(1, 40) :]


def insert(random: Random, data: bytes) -> bytes:
    at, count = random.randrange(len(data) + 1), random.randrange(1, 30)
    return data[:at] + random.randbytes(count) + data[at:]


def repeat(random: Random, data: bytes) -> bytes:
    at, count = random.randrange(len(data)), random.randrange(1, 200)
    return data[: at + count] + data[at : at + count] + data[at + count :]


def extend(random: Random, data: bytes) -> bytes:
    count = random.choice((1, 3, 20, 512))
    return data + (bytes(count) if random.randrange(2) else random.randbytes(count))


DAMAGES: tuple[Callable[[Random, bytes], bytes], ...] = (cut, flip, overwrite, leave_out, insert, repeat, extend)
IN_PLACE = (flip, overwrite)


def damaged(random: Random, files: Files) -> tuple[Files, bool]:
    """Half of all journals are left whole. (files, whether at most one place of each file is damaged, in place)."""
    files, is_plain, hit = dict(files), True, set[str]()
    if not files or random.randrange(2):
        return files, is_plain
    for _ in range(random.choice((1, 1, 2, 4))):
        name = random.choice(list(files))
        if files[name]:
            damage = random.choice(DAMAGES)
            is_plain = is_plain and damage in IN_PLACE and name not in hit
            hit.add(name)
            files[name] = damage(random, files[name])
    return files, is_plain


def parts(random: Random, operations: int, count: int) -> list[int]:
    """`operations` dealt out to `count` files, some of which may get none."""
    ends = sorted(random.randrange(operations + 1) for _ in range(count - 1))
    return [end - start for start, end in zip([0, *ends], [*ends, operations], strict=True)]


def payload(random: Random) -> bytes:
    """Mostly short, now and then longer than a piece that is read at once in these trials."""
    return random.randbytes(random.choice((0, 1, 5, 5, 12, 12, 40, 300 if random.randrange(4) else 3000)))


def moment(random: Random) -> int:
    if random.randrange(20):
        return NOW_MS + random.randrange(-1000, 1000)
    return random.choice((0, 1, 2, -1, 2**63 - 1, -(2**63), random.randrange(2**63)))


# Kestrel


class KestrelMaker:
    """Writes the records of one queue; `state` is what they have led to, so that numbers are mostly those in use."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.state = replay.State()

    def file(self, operations: int) -> bytes:
        records = []
        for _ in range(operations):
            record = self.record()
            at = 0
            while at < len(record):
                found, at = replay.read_record(record, at)
                self.state.apply(found)
            records.append(record)
        return b"".join(records)

    def xid(self) -> int:
        random, opened = self.random, self.state.open
        if opened and random.randrange(4):
            return random.choice(list(opened))
        return random.choice((random.choice(I32), self.state.counter, random.randrange(-(2**31), 2**31)))

    def record(self) -> bytes:
        random = self.random
        backlog = len(self.state.items) > 12
        match random.randrange(40):
            case 0:
                expires_s, data = random.choice((0, 0, 1, NOW_MS // 1000, -1, 2**31 - 1, -(2**31))), payload(random)
                return struct.pack("<Bii", 0, len(data) + 4, expires_s) + data
            case 1:
                return self.with_content(7, self.xid())
            case 2 | 3:
                return self.with_content(7, self.xid()) + b"\3"
            case 4:
                return self.with_content(8, self.xid())
            case 5:
                return self.state_dump()
            case 6 | 7:
                return struct.pack("<Bi", 4, self.xid())
            case 8:
                return struct.pack("<Bi", 9, self.xid())
            case 9 | 10 | 11 | 12:
                return struct.pack("<Bi", 5, self.xid())
            case number if number < 18:
                return struct.pack("<Bi", 6, self.xid())
            case number if number < 24:
                return b"\3"
            case number if number < (36 if backlog else 28):
                return b"\1" * random.choice((1, 1, 1, 2, 5))
            case _:
                return b"".join(self.with_content(2) for _ in range(random.choice((1, 1, 3))))

    def with_content(self, opcode: int, *xid: int) -> bytes:
        data = payload(self.random)
        numbers = struct.pack("<" + "i" * len(xid), *xid)
        times = struct.pack("<qq", moment(self.random), random_expiry(self.random) or 0)
        return bytes((opcode,)) + numbers + struct.pack("<i", len(data) + 16) + times + data

    def state_dump(self) -> bytes:
        """A list of the open reads, or of others."""
        listed = list(self.state.open)[:20] if self.random.randrange(3) else [self.xid() for _ in range(17)]
        pairs = b"".join(self.with_content(7, xid) + b"\3" for xid in listed)
        return struct.pack("<Bii", 8, self.state.counter, len(listed)) + pairs


def random_expiry(random: Random) -> int | None:
    return moment(random) if random.randrange(4) == 0 else None


def make_kestrel(random: Random, operations: int) -> Made:
    """Archives, packs, what an interrupted pack has left, the current file; names that are none of the queue's."""
    maker = KestrelMaker(random)
    numbers = sorted(random.sample(range(1, 40), random.randrange(5)))
    names = [f"q.{number}" for number in numbers]
    for number in numbers:
        if random.randrange(6) == 0:
            names[names.index(f"q.{number}")] = f"q.{number}.pack"
    if random.randrange(10):
        names.append("q")
    names = names or ["q"]
    files: Files = {}
    for name, count in zip(names, parts(random, operations, len(names)), strict=True):
        if name.endswith(".pack"):
            maker.state = replay.State(counter=maker.state.counter)  # what lies before it is covered
        files[name] = maker.file(count)
    whole = dict(files)
    files, is_plain = damaged(random, files)
    if random.randrange(4) == 0:
        for name in random.sample(("q~~7", "q.bak", "qq", "q.12.old", ".q", "q.pack", "q.3.pack.x"), 2):
            files[name] = random.randbytes(9)
    return Made("kestrel", files, whole, operations, is_plain)


# libkestrel


def put(random: Random, item_id: int) -> bytes:
    data, errors, expires_ms = payload(random), random.choice((0, 0, 0, 1, -1, 2**31 - 1)), random_expiry(random)
    head = struct.pack("<iiqq", len(data), errors, item_id, moment(random))
    tail = b"" if expires_ms is None else struct.pack("<q", expires_ms)
    return (b"\x86" if expires_ms is None else b"\x88") + head + tail + data


def unknown(random: Random, known: tuple[int, ...]) -> bytes:
    """A record with a command that does not count in its kind of file."""
    command, words = random.choice([each for each in range(16) if each not in known]), random.randrange(1, 16)
    if command < 8:
        return bytes((command << 4 | words,)) + random.randbytes(4 * words)
    data = random.randbytes(random.randrange(20))
    return bytes((command << 4 | words,)) + struct.pack("<i", len(data)) + random.randbytes(4 * words - 4) + data


def make_libkestrel(random: Random, operations: int) -> Made:
    """Segments with rising ids, holes between them, a few that overlap; readers; names that are none of the queue's."""
    counts = parts(random, operations, random.randrange(1, 9))
    segment_count = random.randrange(len(counts) + 1)
    files: Files = {}
    number, item_id = NOW_MS, random.choice((1, 1, 1, 5, 2**40))
    for count in counts[:segment_count]:
        rows = [libkestrel.SEGMENT]
        if random.randrange(8) == 0:
            item_id = max(1, item_id - random.randrange(6))
        for _ in range(count):
            if random.randrange(30) == 0:
                rows.append(unknown(random, (libkestrel.PUT,)))
                continue
            rows.append(put(random, item_id))
            item_id += 1 if random.randrange(15) else random.randrange(1, 5)
        files[f"jobs.{number}"] = b"".join(rows) + bytes(random.choice((0, 0, 0, 1, 700)))
        number += random.choice((1, 20))
    readers = random.sample(("", "a", "b.c", "read", "é", "x~y", "a~~9"), min(7, len(counts) - segment_count))
    for reader, count in zip(readers, counts[segment_count:], strict=False):
        files[f"jobs.read.{reader}"] = reader_file(random, count, item_id)
    whole = dict(files)
    files, is_plain = damaged(random, files)
    if random.randrange(4) == 0:
        for name in random.sample(("jobs.3leet", "jobs.readmenot", "jobs.read", "archive~jobs.9", "job.1"), 2):
            files[name] = libkestrel.SEGMENT + put(random, 1)
    return Made("libkestrel", files, whole, sum(counts[: segment_count + len(readers)]), is_plain)


def reader_file(random: Random, operations: int, end_id: int) -> bytes:
    rows, head = [libkestrel.READER], max(0, end_id - random.randrange(60))
    for _ in range(operations):
        match random.randrange(8):
            case 0:
                rows.append(unknown(random, (libkestrel.READ_HEAD, libkestrel.READ_DONE)))
            case 1 | 2 | 3:
                head = head + 1 if random.randrange(10) else random.choice((0, -1, end_id + 3, 2**63 - 1, -(2**63), 1))
                head = min(head, 2**63 - 1)
                rows.append(struct.pack("<Bq", 0x02, head))
            case _:
                ids = [random.randrange(max(0, end_id - 40), end_id + 4) for _ in range(random.randrange(6))]
                ids += [random.choice((0, -1, 2**63 - 1))] if random.randrange(20) == 0 else []
                rows.append(struct.pack(f"<Bi{len(ids)}q", 0x91, 8 * len(ids), *ids))
    return b"".join(rows)


# workq


def unsigned(number: int, is_padded: bool = False) -> bytes:
    """A varint; `is_padded`: a byte longer than needed."""
    encoded = bytearray()
    while number >= 0x80:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded += bytes((number | 0x80, 0)) if is_padded else bytes((number,))
    return bytes(encoded)


def signed(number: int) -> bytes:
    return unsigned(2 * number if number >= 0 else -2 * number - 1)


def time(at_ns: int | None, zone: int = -1) -> bytes:
    seconds, nanos = divmod(at_ns, 10**9) if at_ns is not None else (workq.YEAR_1_S, 0)
    return struct.pack(">bqih", 1, seconds - workq.YEAR_1_S, nanos, zone)


def frame(payload: bytes, at_ns: int, is_padded: bool = False, zone: int = -1) -> bytes:
    record = time(at_ns, zone) + unsigned(len(payload), is_padded) + payload
    return record + workq.crc32c(record).to_bytes(4, "big")


class WorkqMaker:
    """Records of jobs; `log` is what they have led to. `is_forged`: some payload holds a record."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.now_ns = (NOW_MS - 3_600_000) * 10**6
        self.log = workq.Log(NOW_MS)
        self.is_forged = False

    def file(self, operations: int) -> bytes:
        return workq.MAGIC + b"".join([self.record() for _ in range(operations)])

    def record(self) -> bytes:
        random = self.random
        self.now_ns += random.randrange(10**9)
        command = self.command()
        self.log.apply(workq.command_in(command), self.now_ns)
        return frame(command, self.now_ns, random.randrange(30) == 0, random.choice((-1, -1, -1, 0, 120)))

    def command(self) -> bytes:
        random, jobs = self.random, self.log.jobs
        if not jobs or random.randrange(3) == 0:
            if random.randrange(12) == 0:  # of a run, which has no addition
                return bytes((random.choice((3, 4, 6, 7, 8)),)) + job_id(random)
            return self.addition(random.choice((1, 1, 2)))
        id = random.choice(list(jobs))
        state = jobs[id].state
        if state == workq.LEASED:
            kind = random.choice((3, 4, 8, 8))
        elif state in (workq.NEW, workq.PENDING):
            kind = random.choice((7, 7, 7, 7, 3, 4, 5, 6))
        else:
            kind = random.choice((5, 6, 8))
        rest = b""
        if kind in (3, 4) and random.randrange(8):
            result = payload(random)
            rest = unsigned(len(result)) + result
        return bytes((kind,)) + id + rest

    def addition(self, kind: int) -> bytes:
        random = self.random
        name = random.choice((b"q", b"mail", b"A-Z_0.9", b"n" * 255))
        ttl_ms = random.choice((7_200_000, 2_592_000_000, 5_000))
        numbers = (unsigned(random.choice((1, 60_000, 86_400_000))), unsigned(ttl_ms))
        priority = signed(random.choice((0, 0, 1, -1, 63, 64, -65, 2**31 - 1, -(2**31))))
        limits = unsigned(random.choice((0, 0, 1, 2, 255))) + unsigned(random.choice((0, 3)))
        data = payload(random)
        if random.randrange(40) == 0:
            data, self.is_forged = frame(b"\5" + job_id(random), self.now_ns), True
        later = time(self.now_ns + random.randrange(-(10**9), 2 * 3_600_000 * 10**6) if kind == 2 else None)
        head = bytes((kind,)) + job_id(random) + unsigned(len(name)) + name
        return b"".join((head, *numbers, priority, limits, unsigned(len(data)), data, later, time(self.now_ns)))


def job_id(random: Random) -> bytes:
    """A UUID of version 4."""
    id = bytearray(random.randbytes(16))
    id[6], id[8] = id[6] & 0x0F | 0x40, id[8] & 0x3F | 0x80
    return bytes(id)


def make_workq(random: Random, operations: int) -> Made:
    """Segments with holes in their numbers, and names that do not count."""
    maker = WorkqMaker(random)
    counts = parts(random, operations, random.randrange(1, 5))
    numbers = sorted(random.sample(range(1, 12), len(counts)))
    files = {f"{number:09}.log": maker.file(count) for number, count in zip(numbers, counts, strict=True)}
    whole = dict(files)
    files, is_plain = damaged(random, files)
    if random.randrange(4) == 0:
        for name in random.sample(("1.log", "0000000001.log", "000000001.LOG", "000000002.log.bak", "x"), 2):
            files[name] = maker.file(1)
    return Made("workq", files, whole, operations, is_plain and not maker.is_forged)


MAKERS = {"kestrel": make_kestrel, "libkestrel": make_libkestrel, "workq": make_workq}


def make(format: str, random: Random, operations: int) -> Made:
    return MAKERS[format](random, operations)
