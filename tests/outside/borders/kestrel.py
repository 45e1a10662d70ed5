"""Kestrel's journal at its borders. A state has the items from the head on, the open reads by their numbers, the last
number, and for each damaged file the byte at which its reading ends.
"""

from __future__ import annotations

from collections.abc import Iterator

from tests.outside.borders.table import I32, I64, Border, State, cuts, data

Item = tuple[bytes, int, int]
# ADDX: size, added, expiry, data. Each has 22 bytes.
ADD_A = "02 11000000 0a00000000000000 0000000000000000 61"
ADD_B = "02 11000000 0b00000000000000 0000000000000000 62"
BLOCK_B = "11000000 0b00000000000000 0000000000000000 62"  # behind the number of opcodes 7 and 8
A, B = (b"a", 10, 0), (b"b", 11, 0)
RESERVE = "03"
MOST, LEAST = 2**31 - 1, -(2**31)
XIDS = {0: "00000000", 1: "01000000", -1: "ffffffff", MOST: "ffffff7f", LEAST: "00000080", LEAST + 1: "01000080"}
NEXT = {0: 1, 1: 2, -1: 1, MOST: LEAST, LEAST: LEAST + 1, LEAST + 1: LEAST + 2}
SIZES = {-1: "ffffffff", LEAST: "00000080", MOST: "ffffff7f", 2**28: "00000010"}


def state(items: list[Item], opened: dict[int, Item] | None = None, counter: int = 0, **damage: int) -> State:
    at = {name.replace("q_", "q."): at for name, at in damage.items()}
    return {"items": items, "open": opened or {}, "counter": counter, "damage": at}


def sealed(opcode: str, name: str, records: str, wanted: State, why: str = "", is_bounded: bool = False) -> Border:
    """In an archive, of which the end is what its writer meant."""
    return Border("kestrel", opcode, name, {"q.1": data(records)}, wanted, why, is_bounded)


def current(opcode: str, name: str, records: str, wanted: State, why: str = "") -> Border:
    return Border("kestrel", opcode, name, {"q": data(records)}, wanted, why)


# numbers of open reads


def counters() -> Iterator[Border]:
    """SAVE_XID, and what the next reserve is called. 0 is no number, and behind the largest comes the smallest."""
    for xid, coded in XIDS.items():
        yield sealed("SAVE_XID", f"{xid}", f"04 {coded}", state([], counter=xid))
        yield sealed("SAVE_XID", f"{xid} twice", f"04 {coded} 04 {coded}", state([], counter=xid))
        wanted = state([], {NEXT[xid]: A}, NEXT[xid])
        yield sealed("REMOVE_TENTATIVE", f"behind {xid}", f"04 {coded} {ADD_A} 03", wanted)
        yield current("REMOVE_TENTATIVE", f"behind {xid}, current", f"04 {coded} {ADD_A} 03", wanted)
        yield sealed("REMOVE_TENTATIVE", f"behind {xid}, of nothing", f"04 {coded} 03", state([], counter=xid))
    over = state([], {-1: A, 1: B}, 1)
    yield sealed("REMOVE_TENTATIVE", "two around 0", f"04 feffffff {ADD_A} {ADD_B} 03 03", over)
    over = state([], {MOST: A, LEAST: B}, LEAST)
    yield sealed("REMOVE_TENTATIVE", "two around the end", f"04 feffff7f {ADD_A} {ADD_B} 03 03", over)
    in_use = state([], {1: A, 2: B}, 2)
    yield sealed("REMOVE_TENTATIVE", "a number in use", f"{ADD_A} {ADD_B} 09 01000000 04 00000000 03", in_use)
    ends = state([], {MOST: A, LEAST: B}, LEAST)
    yield sealed("REMOVE_TENTATIVE", "the last number in use", f"{ADD_A} {ADD_B} 09 ffffff7f 04 feffff7f 03", ends)


def numbered() -> Iterator[Border]:
    """The opcodes with a number, at each of its borders."""
    for xid, coded in XIDS.items():
        other = "02000000"
        opened = f"{ADD_A} 09 {coded}"
        yield sealed("REMOVE_TENTATIVE_XID", f"{xid}", opened, state([], {xid: A}, xid))
        yield sealed("REMOVE_TENTATIVE_XID", f"{xid} of nothing", f"09 {coded}", state([], counter=xid))
        yield sealed(
            "REMOVE_TENTATIVE_XID",
            f"{xid} twice",
            f"{ADD_A} {ADD_B} 09 {coded} 09 {coded}",
            state([B], {xid: A}, xid),
            "a number that is open gives its item back, which is the head then",
        )
        yield sealed("UNREMOVE", f"{xid}", f"{opened} {ADD_B} 05 {coded}", state([A, B], counter=xid))
        yield sealed("UNREMOVE", f"{xid} twice", f"{opened} 05 {coded} 05 {coded}", state([A], counter=xid))
        yield sealed("UNREMOVE", f"another than {xid}", f"{opened} 05 {other}", state([], {xid: A}, xid))
        yield sealed("CONFIRM_REMOVE", f"{xid}", f"{opened} {ADD_B} 06 {coded}", state([B], counter=xid))
        yield sealed(
            "CONFIRM_REMOVE", f"{xid} twice", f"{opened} {ADD_B} 06 {coded} 06 {coded}", state([B], counter=xid)
        )
        yield sealed("CONFIRM_REMOVE", f"another than {xid}", f"{opened} 06 {other}", state([], {xid: A}, xid))


def named() -> Iterator[Border]:
    """ADD_XID and both meanings of opcode 8, likewise."""
    for xid, coded in XIDS.items():
        opened = f"{ADD_A} 09 {coded}"
        named = f"07 {coded} {BLOCK_B}"
        yield sealed("ADD_XID", f"{xid}", named, state([B]))
        yield sealed("ADD_XID", f"{xid} reserved", f"{named} 03", state([], {xid: B}), "the counter stays")
        yield sealed("ADD_XID", f"{xid} removed", f"{named} 01", state([]))
        yield sealed("ADD_XID", f"{xid} reserved twice", f"{named} 03 07 {coded} {BLOCK_B} 03", state([B], {xid: B}))
        yield sealed(
            "ADD_XID",
            f"{xid} reserved and given back",
            f"{named} 03 05 {coded} 03",
            state([], {1: B}, 1),
            "an item that has come back is like any other",
        )
        yield sealed("STATE_DUMP", f"{xid}, no open read", f"08 {coded} 00000000", state([], counter=xid))
        listed = f"08 {coded} 01000000 07 05000000 {BLOCK_B} 03"
        yield sealed("STATE_DUMP", f"{xid}, an open read", listed, state([], {5: B}, xid))
        listed = f"08 05000000 01000000 07 {coded} {BLOCK_B} 03"
        yield sealed("STATE_DUMP", f"an open read {xid}", listed, state([], {xid: B}, 5))
        yield sealed("STATE_DUMP", f"an open read {xid} that is known", f"{opened} {listed}", state([], {xid: A}, 5))
        yield sealed("STATE_DUMP", f"{xid} goes on", f"{opened} 08 {coded} {BLOCK_B}", state([B], counter=xid))
        yield sealed("STATE_DUMP", f"{xid}, unknown, goes on", f"08 {coded} {BLOCK_B}", state([B]))


def lists() -> Iterator[Border]:
    """Opcode 8 has two meanings: a number below 16 is a count; of 16 and more on it is one if the list is there."""
    for count in (1, 15, 16, 17, 40):
        pairs = "".join(f"07 {xid:02x}000000 {BLOCK_B} 03" for xid in range(1, count + 1))
        wanted = state([A], dict.fromkeys(range(1, count + 1), B), 9)
        yield sealed("STATE_DUMP", f"a list of {count}", f"08 09000000 {count:02x}000000 {pairs} {ADD_A}", wanted)
        if count < 16:
            broken = f"{ADD_A} 08 09000000 {count + 1:02x}000000 {pairs}"
            if count < 15:
                yield sealed("STATE_DUMP", f"{count + 1} announced, {count} there", broken, state([A], q_1=22))
    seven = "08 05000000 11000000 0700000000000000 0000000000000000 62"
    yield sealed("STATE_DUMP", "a time that begins like a list", seven, state([(b"b", 7, 0)]))


# sizes and times


def blocks() -> Iterator[Border]:
    """The size of each opcode with an item: it counts what stands in front of the data too."""
    times = "0c00000000000000 0000000000000000"
    for opcode, op, least, fields, added_ms in (
        ("ADD", "00", 4, "00000000", 0),
        ("ADDX", "02", 16, times, 12),
        ("ADD_XID", "07 05000000", 16, times, 12),
        ("STATE_DUMP", "08 05000000", 16, times, 12),
    ):

        def record(size: int | str, rest: str, op: str = op, fields: str = fields) -> str:
            coded = size if isinstance(size, str) else f"{size:02x}000000"
            return f"{op} {coded} {fields} {rest}"

        wanted = state([A, (b"", added_ms, 0), B])
        yield sealed(opcode, f"size {least}", f"{ADD_A} {record(least, ADD_B)}", wanted)
        yield sealed(opcode, f"size {least}, at the end", ADD_A + record(least, ""), state([A, (b"", added_ms, 0)]))
        wanted = state([A, (b"z", added_ms, 0), B])
        yield sealed(opcode, f"size {least + 1}", f"{ADD_A} {record(least + 1, '7a')} {ADD_B}", wanted)
        rest = "7a" + ADD_B
        wanted = state([A, (b"z" + data(ADD_B), added_ms, 0)])
        yield sealed(opcode, "size to the end", f"{ADD_A} {record(least + 23, rest)}", wanted)
        yield sealed(opcode, "size one past the end", f"{ADD_A} {record(least + 24, rest)}", state([A], q_1=22))
        for size, coded in SIZES.items():
            yield sealed(opcode, f"size {size}", f"{ADD_A} {record(coded, rest)}", state([A], q_1=22), is_bounded=True)
        for size in sorted({0, 1, least - 1}):
            if opcode == "STATE_DUMP" and not size:
                # A list of none; then the first byte of a time is an opcode that does not exist.
                yield sealed(opcode, "size 0", f"{ADD_A} {record(0, rest)}", state([A], counter=5, q_1=31))
            else:
                yield sealed(opcode, f"size {size}", f"{ADD_A} {record(size, rest)}", state([A], q_1=22))


def moments() -> Iterator[Border]:
    for number, coded in I64.items():
        for opcode, op in (("ADDX", "02"), ("ADD_XID", "07 05000000"), ("STATE_DUMP", "08 05000000")):
            added = f"{op} 11000000 {coded} 0000000000000000 7a"
            yield sealed(opcode, f"added at {number}", added + ADD_A, state([(b"z", number, 0), A]))
            expiring = f"{op} 11000000 0100000000000000 {coded} 7a"
            yield sealed(opcode, f"expiry {number}", expiring + ADD_A, state([(b"z", 1, number), A]))
    for seconds, coded in I32.items():
        wanted = state([(b"z", 0, seconds * 1000), A])
        yield sealed("ADD", f"expiry {seconds} s", f"00 05000000 {coded} 7a {ADD_A}", wanted)


# opcodes


def removals() -> Iterator[Border]:
    yield sealed("REMOVE", "of nothing", "01", state([]))
    yield sealed("REMOVE", "one more than there are", f"{ADD_A} 01 01 {ADD_B}", state([B]))
    yield sealed("REMOVE", "a thousand of nothing", "01" * 1000 + ADD_A, state([A]))
    yield sealed("REMOVE", "beside an open read", f"{ADD_A} {ADD_B} 03 01", state([], {1: A}, 1))


def unknown() -> Iterator[Border]:
    for op in range(10, 256):
        yield current("unknown", f"{op}", f"{ADD_A} {op:02x} {ADD_B}", state([A], q=22))
        yield sealed("unknown", f"{op} in an archive", f"{ADD_A} {op:02x} {ADD_B}", state([A], q_1=22))
    for count in (1, 4, 5, 9, 21, 512):
        yield current("ADD", f"{count} zeros behind a record", ADD_A + "00" * count, state([A], q=22), "a size of 0")


def torn() -> Iterator[Border]:
    """Each opcode cut after each byte, in the current file and in an archive in front of it."""
    for opcode, record in (
        ("ADD", "00 05000000 00000000 7a"),
        ("ADDX", ADD_B),
        ("SAVE_XID", "04 05000000"),
        ("UNREMOVE", "05 01000000"),
        ("CONFIRM_REMOVE", "06 01000000"),
        ("ADD_XID", f"07 05000000 {BLOCK_B}"),
        ("STATE_DUMP", f"08 01000000 {BLOCK_B}"),
        ("REMOVE_TENTATIVE_XID", "09 05000000"),
    ):
        for count, begin in cuts(record):
            records = f"{ADD_A} {ADD_A} {RESERVE} {begin}"
            wanted = state([A], {1: A}, 1, **({"q": 45} if count else {}))
            yield current(opcode, f"cut at {count}", records, wanted)
            files = {"q.1": data(records), "q": data(ADD_B)}
            wanted = state([A, B], {1: A}, 1, **({"q_1": 45} if count else {}))
            yield Border("kestrel", opcode, f"cut at {count} in an archive", files, wanted)
    for count, begin in cuts(f"08 05000000 01000000 07 02000000 {BLOCK_B} 03"):
        wanted = state([A], **({"q": 22} if count else {}))
        yield current("STATE_DUMP", f"a list cut at {count}", ADD_A + begin, wanted)


def files() -> Iterator[Border]:
    a, b, c = data(ADD_A), data(ADD_B), data("02 11000000 0c00000000000000 0000000000000000 63")
    third = (b"c", 12, 0)
    yield Border("kestrel", "files", "an empty one", {"q": b""}, state([]))
    yield Border("kestrel", "files", "an empty archive", {"q.1": b"", "q": a}, state([A]))
    yield Border("kestrel", "files", "9 in front of 10", {"q.10": b, "q.9": a, "q": c}, state([A, B, third]))
    yield Border("kestrel", "files", "number 0", {"q.0": a, "q.1": b}, state([A, B]))
    large = {f"q.{2**63 - 1}": a, f"q.{2**63}": b, "q.1" + "0" * 30: c}
    yield Border("kestrel", "files", "numbers past 2^63", large, state([A, B, third]))
    beyond = {"q.5.pack": b, "q.5": a, "q.6": c}
    yield Border("kestrel", "files", "a pack and what it covers", beyond, state([B, third]))
    yield Border("kestrel", "files", "a pack below an archive", {"q.4.pack": a, "q.5": b}, state([A, B]))
    split = {"q.1": a[:5], "q": a[5:] + b}
    wanted = state([], q_1=0, q=0)
    yield Border("kestrel", "files", "a record over two files", split, wanted, "no record goes on in the next file")


BORDERS = [
    *counters(),
    *numbered(),
    *named(),
    *lists(),
    *blocks(),
    *moments(),
    *removals(),
    *unknown(),
    *torn(),
    *files(),
]
