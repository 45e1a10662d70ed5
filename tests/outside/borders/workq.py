"""workq's command log at its borders. A state has by id what is known of each job, and for each file the ranges (first
byte, bytes) that say nothing. The moment of reading is that of TIME.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from typing import NamedTuple

from tests.outside.borders.table import Border, Files, State, data
from tests.outside.workq import crc32c

MAGIC = "77717771 00000001"
TIME = "01 0000000edce5e800 00000000 ffff"  # 2023-11-14, 22:13:20
TIME_NS = 1_700_000_000 * 10**9
NO_TIME = "01 0000000000000000 00000000 ffff"
LATER, LATER_NS = "01 0000000edce5e801 3b9ac9ff ffff", TIME_NS + 10**9 + 999_999_999
A, B = "a0000000000040008000000000000001", "b0000000000040008000000000000002"
NEW, COMPLETED, FAILED, PENDING, LEASED = range(5)
TTL, TTL_MS = "8080808001", 2**28  # 3.1 days
PAYLOAD_MAX = (1 << 20) + (64 << 10)
YEAR_1_S = 62_135_596_800  # before 1970
LOG = "000000001.log"

# Unsigned numbers, in as few bytes as they need.
VARINTS = {
    0: "00",
    1: "01",
    127: "7f",
    128: "8001",
    255: "ff01",
    256: "8002",
    257: "8102",
    2**14 - 1: "ff7f",
    2**14: "808001",
    2**21 - 1: "ffff7f",
    2**21: "80808001",
    2**28 - 1: "ffffff7f",
    2**28: "8080808001",
    2**31 - 1: "ffffffff07",
    2**31: "8080808008",
    2**32 - 1: "ffffffff0f",
    2**32: "8080808010",
    2**32 + 5: "8580808010",
    2**35 - 1: "ffffffff7f",
    2**35: "808080808001",
    2**63 - 1: "ffffffffffffffff7f",
    2**63: "80808080808080808001",
    2**64 - 1: "ffffffffffffffffff01",
}
# Zigzag: 0, -1, 1, -2, ... by their unsigned numbers.
SIGNED = {
    0: 0,
    1: -1,
    127: -64,
    128: 64,
    2**14 - 1: -(2**13),
    2**14: 2**13,
    2**32 - 1: -(2**31),
    2**63 - 1: -(2**62),
    2**63: 2**62,
    2**64 - 1: -(2**63),
}
NO_NUMBERS = {
    "2^64": "80808080808080808002",
    "ten bytes ff and 7f": "ffffffffffffffffff7f",
    "eleven bytes": "8080808080808080808001",
    "eleven bytes, all zero": "8080808080808080808000",
    "without an end": "80" * 24,
    "without an end, ff": "ff" * 24,
}


def longer(number: int, count: int) -> str:
    """A number below 128 in `count` bytes, more than it needs."""
    return f"{number | 0x80:02x}" + "80" * (count - 2) + "00"


def size_of(payload: str) -> str:
    count, coded = len(data(payload)), ""
    while count > 127:
        coded += f"{count & 0x7F | 0x80:02x}"
        count >>= 7
    return coded + f"{count:02x}"


def record(payload: str, time: str = TIME, size: str | None = None) -> str:
    """Its checksum covers what stands there."""
    text = time + (size_of(payload) if size is None else size) + payload
    return data(text).hex() + crc32c(data(text)).to_bytes(4, "big").hex()


def addition(
    kind: str = "01",
    id: str = A,
    name: str = "01 71",
    ttr: str = "e807",
    ttl: str = TTL,
    priority: str = "00",
    attempts: str = "00",
    fails: str = "00",
    payload: str = "01 78",
    later: str = NO_TIME,
    created: str = TIME,
) -> str:
    return f"{kind} {id} {name} {ttr} {ttl} {priority} {attempts} {fails} {payload} {later} {created}"


class Job(NamedTuple):
    """What a job is, as an addition without any argument says it."""

    name: bytes = b"q"
    ttr_ms: int = 1000
    ttl_ms: int = TTL_MS
    priority: int = 0
    max_attempts: int = 0
    max_fails: int = 0
    payload: bytes = b"x"
    time_ns: int | None = None
    created_ns: int = TIME_NS
    state: int = NEW
    attempts: int = 0
    result: bytes = b""


Jobs = dict[bytes, Job]
SCHEDULED = Job(time_ns=LATER_NS)
KEPT: Jobs = {data(B): Job()}  # behind what a border is about stands the addition of B


def state(jobs: Jobs, *lost: tuple[int, int]) -> State:
    return {"jobs": jobs, "lost": {LOG: list(lost)} if lost else {}}


class Subject(NamedTuple):
    """A record of one kind: the records before it, its payload, and job A without and with it."""

    opcode: str
    before: str
    payload: str
    without: Job | None
    becomes: Job | None

    @property
    def at(self) -> int:
        return 8 + len(data(self.before))

    def border(self, name: str, text: str, applies: bool, why: str = "", is_bounded: bool = False) -> Border:
        """`text` stands where the record belongs; `applies`: it is one, else all of it says nothing."""
        job = self.becomes if applies else self.without
        jobs = {**({data(A): job} if job else {}), **KEPT}
        lost = [] if applies or not data(text) else [(self.at, len(data(text)))]
        files = {LOG: data(MAGIC + self.before + text + record(addition(id=B)))}
        return Border("workq", self.opcode, name, files, state(jobs, *lost), why, is_bounded)


ADDED, IS_LEASED = record(addition()), record("07" + A)
HELD = Job(state=LEASED, attempts=1)
SUBJECTS = (
    Subject("add", "", addition(), None, Job()),
    Subject("schedule", "", addition("02", later=LATER), None, SCHEDULED),
    Subject("complete", ADDED + IS_LEASED, f"03 {A} 02 6f6b", HELD, HELD._replace(state=COMPLETED, result=b"ok")),
    Subject("fail", ADDED + IS_LEASED, f"04 {A} 02 6e6f", HELD, HELD._replace(state=FAILED, result=b"no")),
    Subject("delete", ADDED + IS_LEASED, f"05 {A}", HELD, None),
    Subject("expire", ADDED + IS_LEASED, f"06 {A}", HELD, None),
    Subject("start-attempt", ADDED, f"07 {A}", Job(), HELD),
    Subject("timeout-attempt", ADDED + IS_LEASED, f"08 {A}", HELD, HELD._replace(state=PENDING)),
)


# every record


def frames(subject: Subject) -> Iterator[Border]:
    """SIZE and CRC around a payload."""
    payload, sound = subject.payload, record(subject.payload)
    yield subject.border("as it is", sound, True)
    count = len(data(payload))
    for bytes_ in range(2, 11) if count < 128 else ():
        yield subject.border(f"SIZE in {bytes_} bytes", record(payload, size=longer(count, bytes_)), True)
    yield subject.border("SIZE in 11 bytes", record(payload, size=longer(count & 0x7F, 11)), False)
    for name, coded in NO_NUMBERS.items():
        yield subject.border(f"SIZE {name}", record(payload, size=coded), False, is_bounded=True)
    for number, coded in VARINTS.items():
        if number != count:
            yield subject.border(f"SIZE {number}", record(payload, size=coded), False, is_bounded=True)
    for number in (count - 1, count + 1):
        if number not in VARINTS:
            yield subject.border(f"SIZE {number} for {count}", record(payload, size=f"{number:02x}"), False)
    text, crc = data(sound)[:-4], data(sound)[-4:]
    for at in range(4):
        for bit in (0x01, 0x80, 0xFF):
            bent = bytearray(crc)
            bent[at] ^= bit
            yield subject.border(f"CRC, byte {at} off by {bit:02x}", (text + bent).hex(), False)
    for name, other in {
        "the other way round": crc[::-1],
        "inverted": bytes(byte ^ 0xFF for byte in crc),
        "0": bytes(4),
        "of zlib": zlib.crc32(text).to_bytes(4, "big"),
        "without SIZE": crc32c(text[:15] + data(payload)).to_bytes(4, "big"),
        "without TIME": crc32c(text[15:]).to_bytes(4, "big"),
        "of the payload": crc32c(data(payload)).to_bytes(4, "big"),
    }.items():
        yield subject.border(f"CRC {name}", (text + other).hex(), False)
    for at in range(len(text)):
        bent = bytearray(text)
        bent[at] ^= 0x01
        yield subject.border(f"byte {at} off", (bent + crc).hex(), False)


def times(subject: Subject) -> Iterator[Border]:
    """TIME of the record: its version counts, and no reader needs the rest."""
    for version in ("00", "02", "7f", "ff"):
        yield subject.border(f"TIME of version {version}", record(subject.payload, version + TIME[2:]), False)
    why = "when a record was written plays no part in a replay"
    for seconds in ("0000000000000000", "0000000000000001", "7fffffffffffffff", "8000000000000000", "ffffffffffffffff"):
        time = f"01 {seconds} 00000000 ffff"
        yield subject.border(f"TIME of {seconds} seconds", record(subject.payload, time), True, why)
    for nanos in ("00000001", "3b9ac9ff", "3b9aca00", "7fffffff", "80000000", "ffffffff"):
        time = f"01 0000000edce5e800 {nanos} ffff"
        yield subject.border(f"TIME of {nanos} nanoseconds", record(subject.payload, time), True, why)
    for zone in ("0000", "0001", "003c", "7fff", "8000"):
        time = f"01 0000000edce5e800 00000000 {zone}"
        yield subject.border(f"TIME in zone {zone}", record(subject.payload, time), True)


def lengths(subject: Subject) -> Iterator[Border]:
    """Payloads cut after each byte, and with more behind; all with the checksum that they should have."""
    whole = data(subject.payload)
    for count in range(len(whole)):
        is_bare = count == 17 and subject.opcode in ("complete", "fail")
        if not is_bare:
            yield subject.border(f"{count} bytes", record(whole[:count].hex()), False, is_bounded=True)
    for more in ("00", "0000", "ff", A):
        yield subject.border(f"{more} behind it", record(subject.payload + more), False)


def cuts(subject: Subject) -> Iterator[Border]:
    """The file ends after each byte of the record: of its TIME, SIZE, PAYLOAD and CRC."""
    sound = data(record(subject.payload))
    for count in range(len(sound)):
        files = {LOG: data(MAGIC + subject.before) + sound[:count]}
        jobs = {data(A): subject.without} if subject.without else {}
        wanted = state(jobs, (subject.at, count)) if count else state(jobs)
        yield Border("workq", subject.opcode, f"cut at {count}", files, wanted)


# additions


def added(opcode: str, title: str, job: Job | None, why: str = "", is_bounded: bool = False, **fields: str) -> Border:
    """`job`: what A becomes by an addition with these fields, without its time; None: the command is invalid."""
    kind, later, time_ns = ("01", NO_TIME, None) if opcode == "add" else ("02", LATER, LATER_NS)
    payload = addition(**{"kind": kind, "later": later, **fields})
    is_set = job is not None and "later" in fields
    becomes = job if job is None or is_set else job._replace(time_ns=time_ns)
    return Subject(opcode, "", "", None, becomes).border(title, record(payload), job is not None, why, is_bounded)


def numbers(opcode: str) -> Iterator[Border]:
    """Every number of an addition at its borders."""
    for number, coded in VARINTS.items():
        why = "narrowed to the width that the original has" if number > 255 else ""
        yield added(opcode, f"TTR {number}", Job(ttr_ms=number % 2**32), why, ttr=coded)
        yield added(opcode, f"max-attempts {number}", Job(max_attempts=number % 256), why, attempts=coded)
        yield added(opcode, f"max-fails {number}", Job(max_fails=number % 256), why, fails=coded)
        if number:
            yield added(opcode, f"TTL {number}", Job(ttl_ms=number), ttl=coded)
        if number in SIGNED:
            yield added(opcode, f"priority {SIGNED[number]}", Job(priority=SIGNED[number]), priority=coded)
    for count in range(2, 11):
        name = f"in {count} bytes"
        yield added(opcode, f"TTR {name}", Job(ttr_ms=5), ttr=longer(5, count))
        yield added(opcode, f"TTL {name}", Job(ttl_ms=5), ttl=longer(5, count))
        yield added(opcode, f"priority {name}", Job(priority=-3), priority=longer(5, count))
        yield added(opcode, f"max-attempts {name}", Job(max_attempts=5), attempts=longer(5, count))
        yield added(opcode, f"max-fails {name}", Job(max_fails=5), fails=longer(5, count))
        yield added(opcode, f"name length {name}", Job(name=b"abcde"), name=longer(5, count) + "6162636465")
        yield added(opcode, f"payload length {name}", Job(payload=b"abcde"), payload=longer(5, count) + "6162636465")
    for name, coded in NO_NUMBERS.items():
        for field in ("ttr", "ttl", "priority", "attempts", "fails"):
            yield added(opcode, f"{field} {name}", None, is_bounded=True, **{field: coded})
        yield added(opcode, f"name length {name}", None, is_bounded=True, name=coded + "71")
        yield added(opcode, f"payload length {name}", None, is_bounded=True, payload=coded + "78")


def blocks(opcode: str) -> Iterator[Border]:
    """The lengths of a name and of a payload, true and false."""
    for count, coded in {0: "00", 1: "01", 127: "7f", 128: "8001", 254: "fe01", 255: "ff01"}.items():
        yield added(opcode, f"a name of {count} bytes", Job(name=b"n" * count), name=coded + "6e" * count)
    why = "a name has at most 255 bytes"
    for count, coded in {256: "8002", 300: "ac02"}.items():
        yield added(opcode, f"a name of {count} bytes", None, why, name=coded + "6e" * count)
    for count, coded in {0: "00", 1: "01", 127: "7f", 128: "8001", 16383: "ff7f", 16384: "808001"}.items():
        yield added(opcode, f"a payload of {count} bytes", Job(payload=b"p" * count), payload=coded + "70" * count)
    for number, coded in VARINTS.items():
        if number not in (0, 1):
            yield added(opcode, f"name length {number} for 1", None, is_bounded=True, name=coded + "71")
        if number != 1:
            yield added(opcode, f"payload length {number} for 1", None, is_bounded=True, payload=coded + "78")


def moments(opcode: str) -> Iterator[Border]:
    """The two times of an addition. Seconds count from the year 1."""
    far = 2**63 - 1
    ages = "01 7fffffffffffffff 3b9ac9ff ffff"
    yield added(
        opcode, "created at the end of time", Job(created_ns=(far - YEAR_1_S) * 10**9 + 999_999_999), created=ages
    )
    for zone in ("0000", "0001", "7fff", "8000"):
        yield added(opcode, f"created in zone {zone}", Job(), created=TIME[:-4] + zone)
    yield added(opcode, "created 1 ns later", Job(created_ns=TIME_NS + 1), created="01 0000000edce5e800 00000001 ffff")
    for version in ("00", "02", "ff"):
        yield added(opcode, f"created in version {version}", None, created=version + TIME[2:])
    for nanos in ("3b9aca00", "7fffffff", "80000000", "ffffffff"):
        yield added(opcode, f"created with {nanos} nanoseconds", None, created=f"01 0000000edce5e800 {nanos} ffff")
    long = VARINTS[2**64 - 1]
    yield added(
        opcode,
        "created in 1970",
        Job(created_ns=0, ttl_ms=2**64 - 1),
        ttl=long,
        created="01 0000000e7791f700 00000000 ffff",
    )
    yield added(
        opcode,
        "created 1 ns before 1970",
        Job(created_ns=-1, ttl_ms=2**64 - 1),
        ttl=long,
        created="01 0000000e7791f6ff 3b9ac9ff ffff",
    )
    if opcode == "add":
        for later in ("00" * 15, "ff" * 15, LATER, "01 7fffffffffffffff 7fffffff 0000"):
            yield added(
                "add", f"scheduled {later}", Job(), "an add is not scheduled, whatever stands there", later=later
            )
        return
    yield added("schedule", "at the end of time", Job(time_ns=(far - YEAR_1_S) * 10**9 + 999_999_999), later=ages)
    why = "0 means not scheduled, so this is the first nanosecond"
    yield added(
        "schedule",
        "in 1970",
        Job(time_ns=1, ttl_ms=2**64 - 1),
        why,
        ttl=long,
        later="01 0000000e7791f700 00000000 ffff",
    )
    yield added(
        "schedule",
        "1 ns before 1970",
        Job(time_ns=-1, ttl_ms=2**64 - 1),
        ttl=long,
        later="01 0000000e7791f6ff 3b9ac9ff ffff",
    )
    yield added("schedule", "now", Job(time_ns=TIME_NS), later=TIME)
    yield added("schedule", "1 ns later", Job(time_ns=TIME_NS + 1), later="01 0000000edce5e800 00000001 ffff")
    yield added("schedule", "without a time", Job(), "counts as an add: nothing is lost", later=NO_TIME)
    for version in ("00", "02", "ff"):
        yield added("schedule", f"in version {version}", None, later=version + LATER[2:])
    for nanos in ("3b9aca00", "7fffffff", "80000000", "ffffffff"):
        yield added("schedule", f"with {nanos} nanoseconds", None, later=f"01 0000000edce5e800 {nanos} ffff")


def lives(opcode: str) -> Iterator[Border]:
    """When a life is over: an add's from its creation, a schedule's from its time. What is over is skipped."""
    field = "created" if opcode == "add" else "later"
    kind = "01" if opcode == "add" else "02"
    for name, moment, ttl, is_over in (
        ("TTL 0", TIME, "00", True),
        ("TTL 1", TIME, "01", False),
        ("TTL 1000, a second ago", "01 0000000edce5e7ff 00000000 ffff", "e807", True),
        ("TTL 1000, a second ago and 1 ns later", "01 0000000edce5e7ff 00000001 ffff", "e807", True),
        ("TTL 1001, a second ago", "01 0000000edce5e7ff 00000000 ffff", "e907", False),
        ("TTL 2^32-1, in 1970", "01 0000000e7791f700 00000000 ffff", VARINTS[2**32 - 1], True),
        ("TTL 2^32-1, 1 ns before 1970", "01 0000000e7791f6ff 3b9ac9ff ffff", VARINTS[2**32 - 1], True),
        ("TTL 2^64-1, before all time", "01 8000000000000000 00000000 ffff", VARINTS[2**64 - 1], True),
    ):
        fields = {"kind": kind, "later": NO_TIME if opcode == "add" else LATER, "ttl": ttl, field: moment}
        if is_over:
            files = {LOG: data(MAGIC + record(addition(**fields)) + record(addition(id=B)))}
            yield Border("workq", opcode, name, files, state(KEPT))
    yield added(
        opcode,
        "TTL 1000, a second ago, and 1 ms",
        Job(ttl_ms=1001, **({"created_ns": TIME_NS - 10**9} if opcode == "add" else {"time_ns": TIME_NS - 10**9})),
        ttl="e907",
        **{field: "01 0000000edce5e7ff 00000000 ffff"},
    )


def again(opcode: str) -> Iterator[Border]:
    """Two additions of the same terms, whose second one is read by what is known of the first."""
    kind, later = ("01", NO_TIME) if opcode == "add" else ("02", LATER)
    long = {"kind": kind, "later": later, "ttl": VARINTS[2**64 - 1]}
    time_ns = None if opcode == "add" else LATER_NS
    for name, created, created_ns in (
        ("year 1", NO_TIME, 0),
        ("1970", "01 0000000e7791f700 00000000 ffff", 0),
        ("2023", TIME, TIME_NS),
    ):
        job = Job(ttl_ms=2**64 - 1, created_ns=created_ns, time_ns=time_ns)
        text = record(addition(id=B, **long)) + record(addition(created=created, **long))
        files = {LOG: data(MAGIC + text)}
        jobs = {data(B): job._replace(created_ns=TIME_NS), data(A): job}
        yield Border(
            "workq",
            opcode,
            f"created in {name}, behind one of the same terms",
            files,
            state(jobs),
            "the year 1 is Go's way to say no time" if created == NO_TIME else "",
        )


# results


def results() -> Iterator[Border]:
    for subject in SUBJECTS[2:4]:
        assert subject.becomes is not None
        kind, ended = f"0{SUBJECTS.index(subject) + 1}", subject.becomes
        bare = subject._replace(becomes=ended._replace(result=b""))
        yield bare.border("without a result", record(kind + A), True, "the document's form")
        yield bare.border("an empty result", record(f"{kind} {A} 00"), True)
        for count, coded in {1: "01", 127: "7f", 128: "8001", 16383: "ff7f", 16384: "808001"}.items():
            other = subject._replace(becomes=ended._replace(result=b"r" * count))
            yield other.border(f"a result of {count} bytes", record(f"{kind} {A} {coded}" + "72" * count), True)
        for count in range(2, 11):
            text = record(f"{kind} {A} {longer(2, count)} {subject.payload[-4:]}")
            yield subject.border(f"the result's length in {count} bytes", text, True)
            yield bare.border(f"no result's length in {count} bytes", record(f"{kind} {A} {longer(0, count)}"), True)
        for name, coded in NO_NUMBERS.items():
            yield subject.border(
                f"the result's length {name}", record(f"{kind} {A} {coded} 6f6b"), False, is_bounded=True
            )
        for number, coded in VARINTS.items():
            text = record(f"{kind} {A} {coded} 6f6b")
            yield subject.border(f"the result's length {number} for 2", text, False, is_bounded=True)


def kinds() -> Iterator[Border]:
    """Every type byte with an id behind it, alone, and with the fields of an add."""
    for kind in (0, *range(9, 256)):
        for name, payload in (("and an id", A), ("alone", ""), ("and an add", addition()[3:])):
            text = record(f"{kind:02x} {payload}")
            subject = Subject("unknown", "", "", None, None)
            yield subject.border(f"type {kind:02x} {name}", text, False)
    for kind in range(1, 9):
        yield Subject("unknown", "", "", None, None).border(f"type {kind:02x} alone", record(f"{kind:02x}"), False)
    yield Subject("unknown", "", "", None, None).border("an empty payload", record(""), False, "a record has a command")


# files


def magics() -> Iterator[Border]:
    """The header of a segment, of the newest and of one before it."""
    sound, there = data(MAGIC + record(addition(id=B))), data(MAGIC + ADDED)

    def both(name: str, content: bytes, is_read: bool = False) -> Iterator[Border]:
        for first, second, where in ((content, sound, "not the newest"), (sound, content, "the newest")):
            files = {LOG: first, "000000002.log": second}
            file = LOG if first is content else "000000002.log"
            lost = {} if is_read or (not content and second is content) else {file: [(0, len(content))]}
            jobs = {**KEPT, **({data(A): Job()} if is_read and content is there else {})}
            yield Border("workq", "segment", f"{name}, {where}", files, {"jobs": jobs, "lost": lost})

    yield from both("a whole one", there, is_read=True)
    yield from both("magic alone", data(MAGIC), is_read=True)
    for count in range(8):
        yield from both(f"magic cut at {count}", data(MAGIC)[:count])
    for at in range(8):
        for bit in (0x01, 0x80, 0xFF):
            bent = bytearray(there)
            bent[at] ^= bit
            yield from both(f"magic, byte {at} off by {bit:02x}", bytes(bent))
    yield from both("version 0", data("77717771 00000000") + there[8:])
    yield from both("version 2", data("77717771 00000002") + there[8:])
    yield from both("version 1, little-endian", data("77717771 01000000") + there[8:])
    yield from both("all zeros", bytes(64))


def tails() -> Iterator[Border]:
    """Bytes behind the last record, of the newest segment and of one before it."""
    for name, tail in (
        *((f"{count} zeros", bytes(count)) for count in (1, 4, 14, 15, 16, 20, 37, 511, 512, 4096)),
        *((f"{count} bytes ff", b"\xff" * count) for count in (1, 19, 512)),
        *((f"{count} bytes 01", b"\x01" * count) for count in (1, 15, 16, 512)),
        ("text", b"some text\n"),
        ("the magic again", data(MAGIC)),
    ):
        files: Files = {LOG: data(MAGIC + ADDED) + tail}
        jobs: Jobs = {data(A): Job()}
        lost = (8 + len(data(ADDED)), len(tail))
        yield Border("workq", "segment", f"{name} behind the newest", files, state(jobs, lost))
        files = {**files, "000000002.log": data(MAGIC + record(addition(id=B)))}
        yield Border("workq", "segment", f"{name} behind one before it", files, state({**jobs, **KEPT}, lost))
    for name, wrong in (("zeros", bytes(40)), ("ff", b"\xff" * 40)):
        files = {LOG: data(MAGIC + ADDED) + wrong + data(record(addition(id=B)))}
        lost = (8 + len(data(ADDED)), 40)
        yield Border("workq", "segment", f"{name} amid records", files, state({data(A): Job(), **KEPT}, lost))


def names() -> Iterator[Border]:
    """Which files are segments: nine digits, in the order of their numbers."""
    leased = data(MAGIC + IS_LEASED)
    for first, second in (
        (LOG, "000000002.log"),
        ("000000009.log", "000000010.log"),
        ("000000000.log", "999999999.log"),
    ):
        files = {first: data(MAGIC + ADDED), second: leased}
        yield Border("workq", "segment", f"{first} in front of {second}", files, state({data(A): HELD}))
    for other in ("1.log", "00000002.log", "0000000002.log", "000000002.LOG", "000000002.log.rw", "x000000002.log"):
        files = {LOG: data(MAGIC + ADDED), other: leased}
        yield Border("workq", "segment", f"{other} is none", files, state({data(A): Job()}))


def whole_sizes() -> Iterator[Border]:
    """Sound records at the sizes where SIZE takes a byte more, and at the last one below."""
    rest = len(data(addition(payload="")))
    for size, coded, length in (
        (127, "7f", "43"),
        (128, "8001", "44"),
        (16383, "ff7f", "c27f"),
        (16384, "808001", "c37f"),
    ):
        count = size - rest - len(data(length))
        payload = addition(payload=length + "70" * count)
        assert len(data(payload)) == size
        subject = Subject("add", "", "", None, Job(payload=b"p" * count))
        yield subject.border(f"SIZE {size}, and as many bytes", record(payload, size=coded), True)


def large() -> Iterator[Border]:
    """The largest record that is read, and one more byte."""
    rest = len(data(addition(payload=""))) + 3
    for name, count, applies in (
        ("the largest", PAYLOAD_MAX - rest, True),
        ("one byte more", PAYLOAD_MAX - rest + 1, False),
    ):
        length = f"{count & 0x7F | 0x80:02x}{count >> 7 & 0x7F | 0x80:02x}{count >> 14:02x}"
        payload = addition(payload=length + "70" * count)
        size = len(data(payload))
        coded = f"{size & 0x7F | 0x80:02x}{size >> 7 & 0x7F | 0x80:02x}{size >> 14:02x}"
        subject = Subject("add", "", "", None, Job(payload=b"p" * count))
        why = "a payload has at most 1 MiB; a record of 1 MiB and 64 KiB more is no record"
        yield subject.border(name, record(payload, size=coded), applies, why)


BORDERS = [
    *(border for subject in SUBJECTS for table in (frames, times, lengths, cuts) for border in table(subject)),
    *(
        border
        for opcode in ("add", "schedule")
        for fields in (numbers, blocks, moments, lives, again)
        for border in fields(opcode)
    ),
    *results(),
    *kinds(),
    *magics(),
    *tails(),
    *names(),
    *whole_sizes(),
    *large(),
]
