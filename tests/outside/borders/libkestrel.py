"""libkestrel's segments and reader files at their borders. A state has the items by id, for each reader the ids that it
is still to get, and for each damaged file the byte at which its reading ends.
"""

from __future__ import annotations

from collections.abc import Iterator

from tests.outside.borders.table import I32, I64, Border, Files, State, cuts, data

SEGMENT, READER = "27642603", "263c2603"
# PUT: size, errors, id, added, data. Each has 26 bytes.
ONE = "86 01000000 00000000 0100000000000000 0a00000000000000 61"
TWO = "86 01000000 00000000 0200000000000000 0b00000000000000 62"
THREE = "86 01000000 00000000 0300000000000000 0c00000000000000 63"
AT_0 = "02 0000000000000000"
DONE_2 = "91 08000000 0200000000000000"
A, B, C = (0, 10, 0, b"a"), (0, 11, 0, b"b"), (0, 12, 0, b"c")
MAX_BYTES = 16 * 1024 * 1024
LONG_AGO = "an expiry of 0 or -1 is shown as 1, which is as long ago"


def state(items: dict[int, tuple[int, int, int, bytes]], readers: State | None = None, **damage: int) -> State:
    return {
        "items": items,
        "readers": readers or {},
        "damage": {key.replace("_", "."): at for key, at in damage.items()},
    }


def segment(opcode: str, name: str, records: str, wanted: State, why: str = "", is_bounded: bool = False) -> Border:
    return Border("libkestrel", opcode, name, {"jobs.1": data(SEGMENT + records)}, wanted, why, is_bounded)


def reader(
    opcode: str, name: str, records: str, left: list[int], at: int = -1, why: str = "", is_bounded: bool = False
) -> Border:
    """A reader of the items 1 to 3. `at`: where its file is damaged."""
    files = {"jobs.1": data(SEGMENT + ONE + TWO + THREE), "jobs.read.r": data(READER + records)}
    damage: State = {"jobs.read.r": at} if at >= 0 else {}
    wanted: State = {"items": {1: A, 2: B, 3: C}, "readers": {"r": left}, "damage": damage}
    return Border("libkestrel", opcode, name, files, wanted, why, is_bounded)


def put(size: str, errors: str, number: str, added: str, rest: str, command: str = "86") -> str:
    return f"{command} {size} {errors} {number} {added} {rest}"


# segments


def puts() -> Iterator[Border]:
    """Each field of a PUT, in both its forms."""
    for errors, coded in I32.items():
        record = put("01000000", coded, I64[2**32], I64[1], "7a")
        yield segment("PUT", f"errors {errors}", ONE + record, state({1: A, 2**32: (errors, 1, 0, b"z")}))
    for number, coded in I64.items():
        record = put("01000000", "00000000", coded, I64[1], "7a") + TWO
        if number == 1:
            wanted = state({1: (0, 1, 0, b"z"), 2: B})
            yield segment("PUT", "id 1", record, wanted)
            yield segment("PUT", "id 1 again", ONE + record, state({1: A, 2: B}), "of an id the first item counts")
        elif number > 0:
            yield segment("PUT", f"id {number}", ONE + record, state({1: A, number: (0, 1, 0, b"z"), 2: B}))
        else:
            why = "ids are not 0, and none is below it: the record is damaged"
            yield segment("PUT", f"id {number}", ONE + record, state({1: A}, jobs_1=30), why)
        for command, tail, expires_ms in (("86", "7a", 0), ("88", I64[2**32] + "7a", 2**32)):
            record = put("01000000", "00000000", "0200000000000000", coded, tail, command)
            wanted = state({1: A, 2: (0, number, expires_ms, b"z")})
            yield segment("PUT", f"{command} added {number}", ONE + record, wanted)
        record = put("01000000", "00000000", "0200000000000000", I64[1], coded + "7a", "88")
        shown = 1 if number in (0, -1) else number
        wanted = state({1: A, 2: (0, 1, shown, b"z")})
        yield segment("PUT", f"expiry {number}", ONE + record, wanted, LONG_AGO if number in (0, -1) else "")


def sizes() -> Iterator[Border]:
    """The size of a PUT: the fields behind it are those of an item with one byte of data, and TWO follows."""
    for command, expiry, expires_ms in (("86", "", 0), ("88", I64[1], 1)):
        fields = "00000000 0500000000000000 0100000000000000" + expiry
        empty = f"{command} 00000000 {fields}"
        both = {1: A, 5: (0, 1, expires_ms, b""), 2: B}
        yield segment("PUT", f"{command} size 0", ONE + empty + TWO, state(both))
        yield segment("PUT", f"{command} size 0 at the end", ONE + empty, state({1: A, 5: both[5]}))
        rest = f"{fields} 7a" + TWO
        whole = {1: A, 5: (0, 1, expires_ms, b"z")}
        yield segment("PUT", f"{command} size 1", f"{ONE} {command} 01000000 {rest}", state({**whole, 2: B}))
        reaching = {1: A, 5: (0, 1, expires_ms, b"z" + data(TWO))}
        yield segment("PUT", f"{command} size to the end", f"{ONE} {command} 1b000000 {rest}", state(reaching))
        for name, size in {
            "one past the end": "1c000000",
            "-1": "ffffffff",
            "-25": "e7ffffff",
            "-33": "dfffffff",
            "least": "00000080",
            "most": "ffffff7f",
            "16 MiB, not there": "00000001",
            "over 16 MiB": "01000001",
        }.items():
            records = f"{ONE} {command} {size} {rest}"
            yield segment("PUT", f"{command} size {name}", records, state({1: A}, jobs_1=30), is_bounded=True)
        # 7a is command 7 with 10 words, of which TWO has only 26 bytes.
        yield segment(
            "PUT",
            f"{command} size one too small",
            f"{ONE} {command} 00000000 {rest}",
            state({1: A, 5: both[5]}, jobs_1=55 if command == "86" else 63),
        )
    item, more = (
        data(put("00000001", "00000000", I64[1], I64[1], "")),
        data(put("01000001", "00000000", I64[1], I64[1], "")),
    )
    magic, payload = data(SEGMENT), b"\x5a" * MAX_BYTES
    yield Border(
        "libkestrel",
        "PUT",
        "16 MiB",
        {"jobs.1": magic + item + payload + data(TWO)},
        state({1: (0, 1, 0, payload), 2: B}),
    )
    yield Border(
        "libkestrel",
        "PUT",
        "16 MiB and a byte",
        {"jobs.1": magic + more + payload + b"\x5a" + data(TWO)},
        state({}, jobs_1=4),
        "the library's limit",
    )


def torn_puts() -> Iterator[Border]:
    """Cut after each byte; and zeros from each byte on, as where a page has not reached the disk."""
    expiring = "88 01000000 00000000 0200000000000000 0b00000000000000 6300000000000000 62"
    for command, record, item in (("86", TWO, B), ("88", expiring, (0, 11, 99, b"b"))):
        for count, begin in cuts(record):
            wanted = state({1: A}, **({"jobs_1": 30} if count else {}))
            yield segment("PUT", f"{command} cut at {count}", ONE + begin, wanted)
            zeros = begin + "00" * (len(data(record)) - count)
            yield segment("PUT", f"{command} zeros from {count}", ONE + zeros + "00" * 40, zeroed(command, count, item))


def zeroed(command: str, count: int, item: tuple[int, int, int, bytes]) -> State:
    """What a PUT of item 2 says that is zero from byte `count` on. Where the size is lost, it holds no data, and the
    zeros behind it end the file; without its id it is damaged.
    """
    if not count:
        return state({1: A})
    if count <= 9:
        return state({1: A}, jobs_1=30)
    errors, added_ms, expires_ms, payload = item
    head = 33 if command == "88" else 25
    added_ms = added_ms if count > 17 else 0
    if command == "88":
        expires_ms = expires_ms if count > 25 else 1
    payload = payload if count > head else b"\0"
    return state({1: A, 2: (errors, added_ms, expires_ms, payload)})


def commands_in_segments() -> Iterator[Border]:
    """Every command byte, in front of TWO. All header words are 11 11 11 11, but for a data size, which is 3."""
    big = 0x1111111111111111
    for byte in range(256):
        command, words = divmod(byte, 16)
        why = ""
        if command < 8:
            record = f"{byte:02x}" + "11111111" * words
            wanted = state({1: A, 2: B}) if byte else state({1: A})
            why = "" if byte else "a zero command byte ends the data; what lies behind it is kept aside"
        elif not words:
            record, wanted = f"{byte:02x}", state({1: A}, jobs_1=30)
            why = "a data command has at least one word"
        else:
            record = f"{byte:02x} 03000000" + "11111111" * (words - 1) + "78797a"
            wanted = state({1: A, 2: B})
            if command == 8 and words in (6, 8):
                wanted = state({1: A, big: (0x11111111, big, big if words == 8 else 0, b"xyz"), 2: B})
            elif command == 8:
                wanted, why = state({1: A}, jobs_1=30), "a PUT has 6 or 8 words"
        opcode = "PUT" if command == 8 else f"{command:x}"
        yield segment(opcode, f"command byte {byte:02x} in a segment", ONE + record + TWO, wanted, why)
        if byte and record and not wanted["damage"]:
            short = data(record)[:-1].hex()
            at = {"jobs_1": 30} if len(short) else {}
            yield segment(
                opcode, f"command byte {byte:02x} in a segment, a byte short", ONE + short, state({1: A}, **at)
            )


def headers() -> Iterator[Border]:
    """The first four bytes of a segment, of the newest and of one before it."""
    sound = data(SEGMENT + TWO)

    def both(name: str, text: str, wanted: State | None = None, why: str = "") -> Iterator[Border]:
        there = wanted or state({2: B})
        yield Border(
            "libkestrel", "segment", f"{name}, not the newest", {"jobs.1": data(text), "jobs.2": sound}, there, why
        )
        yield Border(
            "libkestrel", "segment", f"{name}, the newest", {"jobs.1": sound, "jobs.2": data(text)}, there, why
        )

    yield from both("empty", "")
    yield from both("magic alone", SEGMENT)
    for count in (1, 4, 24, 1000):
        yield from both(f"magic and {count} zeros", SEGMENT + "00" * count)
    yield from both("all zeros", "00" * 64)
    for count in (1, 2, 3):
        yield from both(f"magic cut at {count}", SEGMENT[: 2 * count], why="no segment yet: nothing can stand in it")
    for at in range(4):
        for bent in ("00", "ff", f"{data(SEGMENT)[at] ^ 1:02x}"):
            text = SEGMENT[: 2 * at] + bent + SEGMENT[2 * at + 2 :]
            yield from both(f"magic with {bent} at {at}", text + ONE, why="another program's file is left alone")
    yield from both("a reader's magic", READER + ONE, why="another program's file is left alone")
    for count in (1, 3, 511, 512, 700):
        yield segment("segment", f"{count} zeros behind a record", ONE + "00" * count, state({1: A}))
        yield segment("segment", f"{count} bytes ff behind a record", ONE + "ff" * count, state({1: A}, jobs_1=30))
    yield segment("segment", "a record behind zeros", ONE + "0000" + TWO, state({1: A}), "a zero ends the data")


def families() -> Iterator[Border]:
    """Ids over several files. What stands in two is of the one that begins with the smaller id."""

    def family(name: str, wanted: State, **texts: str) -> Border:
        files = {f"jobs.{number[1:]}": data(SEGMENT + text) for number, text in texts.items()}
        return Border("libkestrel", "segment", name, files, wanted)

    other_one, other_two = ONE[:-2] + "78", TWO[:-2] + "79"
    x, y = (0, 10, 0, b"x"), (0, 11, 0, b"y")
    yield family("the same ids twice, the same first id", state({1: A, 2: B}), _1=ONE + TWO, _2=other_one + other_two)
    yield family("numbers against that", state({1: x, 2: y}), _10=ONE + TWO, _9=other_one + other_two)
    yield family("an overlap of one", state({1: A, 2: B, 3: C}), _1=ONE + TWO, _2=other_two + THREE)
    yield family("names against ids", state({1: A, 2: y, 3: C}), _1=TWO + THREE, _2=ONE + other_two)
    yield family("falling ids", state({1: A, 2: B, 3: C}), _1=THREE + TWO + ONE)
    yield family("a segment amid another", state({1: A, 2: y, 3: C}), _1=ONE + THREE, _2=other_two)
    yield family("a hole", state({1: A, 3: C}), _1=ONE, _2=THREE)
    yield family("number 0", state({1: A}), _0=ONE)
    yield family("a number of 30 digits", state({1: A, 2: B}), **{"_1" + "0" * 29: TWO}, _2=ONE)
    files = {"jobs.7": data(SEGMENT + ONE), "jobs.007": data(SEGMENT + TWO), "jobs.7x": data(SEGMENT + THREE)}
    yield Border("libkestrel", "segment", "numbers with zeros in front", files, state({1: A, 2: B}))


# reader files


def heads() -> Iterator[Border]:
    left_of = {0: [1, 2, 3], 1: [2, 3]}
    for number, coded in I64.items():
        left = left_of.get(number, [1, 2, 3] if number < 0 else [])
        yield reader("READ_HEAD", f"{number}", f"02 {coded}", left)
        yield reader("READ_HEAD", f"{number} then 1", f"02 {coded} 02 {I64[1]}", [2, 3], why="the last one counts")
        yield reader(
            "READ_HEAD", f"2 then {number}", f"02 0200000000000000 02 {coded}", left, why="the last one counts"
        )
    for number, left in {2: [3], 3: [], 4: []}.items():
        yield reader("READ_HEAD", f"{number}", f"02 0{number}00000000000000", left)
    yield reader("READ_HEAD", "none at all", "", [1, 2, 3])
    yield reader("READ_HEAD", "behind what is done", f"{DONE_2} {AT_0}", [1, 3])
    yield reader("READ_HEAD", "backwards past what is done", f"02 0300000000000000 {DONE_2} {AT_0}", [1, 3])
    for count, begin in cuts("02 0200000000000000"):
        at = 13 if count else -1
        yield reader("READ_HEAD", f"cut at {count}", f"02 {I64[1]} {begin}", [2, 3], at)
    for words in range(16):
        if words not in (0, 2):
            records = f"02 {I64[1]} 0{words:x}" + "11" * 4 * words + DONE_2
            yield reader("READ_HEAD", f"{words} words", records, [2, 3], 13, "a READ_HEAD has 2 words")
    # The ids of the items are 5 and 9.
    gap = (
        SEGMENT
        + put("00000000", I32[0], "0500000000000000", I64[1], "")
        + put("00000000", I32[0], "0900000000000000", I64[1], "")
    )
    for head, left in {"04": [5, 9], "05": [9], "06": [9], "08": [9], "09": [], "0a": []}.items():
        files = {"jobs.1": data(gap), "jobs.read.r": data(f"{READER} 02 {head}00000000000000")}
        wanted = state({5: (0, 1, 0, b""), 9: (0, 1, 0, b"")}, {"r": left})
        yield Border("libkestrel", "READ_HEAD", f"{int(head, 16)} beside a hole", files, wanted)


def done() -> Iterator[Border]:
    """READ_DONE behind a head of 0."""
    two, three = "0200000000000000", "0300000000000000"
    for name, ids, left in (
        ("no id", "", [1, 2, 3]),
        ("one id", two, [1, 3]),
        ("the head", I64[0], [1, 2, 3]),
        ("head + 1", I64[1], [2, 3]),
        ("the last id", three, [1, 2]),
        ("behind the last id", "0400000000000000", [1, 2, 3]),
        ("all", I64[1] + two + three, []),
        ("out of order", three + I64[1], [2]),
        ("one twice", two + two, [1, 3]),
        ("2^31 among others", I64[2**31] + two, [1, 3]),
        ("2^32 among others", I64[2**32] + two, [1, 3]),
        ("2^63-1 among others", two + I64[2**63 - 1], [1, 3]),
        ("-1 among others", I64[-1] + two, [1, 3]),
        ("-2^63 among others", I64[-(2**63)] + two, [1, 3]),
        ("0 among others", I64[0] + two, [1, 3]),
        ("63 ids", two * 63, [1, 3]),
        ("64 ids, over a border of 512 bytes", three * 64, [1, 2]),
        ("8192 ids", two * 8191 + three, [1]),
    ):
        size = (len(data(ids))).to_bytes(4, "little").hex()
        yield reader("READ_DONE", name, f"{AT_0} 91 {size} {ids}", left)
        yield reader("READ_DONE", f"{name}, in front of the head", f"91 {size} {ids} {AT_0}", left)
    yield reader("READ_DONE", "two add up", f"{AT_0} {DONE_2} 91 08000000 {three}", [1])
    yield reader("READ_DONE", "one in two records", f"{AT_0} {DONE_2} {DONE_2}", [1, 3])
    yield reader("READ_DONE", "at the head of 2", f"02 {two} {DONE_2}", [3])
    yield reader("READ_DONE", "below the head of 2", f"02 {two} 91 08000000 {I64[1]}", [3])
    yield reader("READ_DONE", "right above the head of 2", f"02 {two} 91 08000000 {three}", [])


def done_beside_a_hole() -> Iterator[Border]:
    """The ids of the items are 5 and 9. Ids that no item has may be among those that are done."""
    items = "".join(put("00000000", I32[0], f"0{number}00000000000000", I64[1], "") for number in (5, 9))
    for head, ids, left in (
        (0, "5", [9]),
        (0, "9", [5]),
        (0, "59", []),
        (0, "1234", [5, 9]),
        (0, "678", [5, 9]),
        (4, "5", [9]),
        (4, "6", [5, 9]),
        (4, "5678", [9]),
        (5, "678", [9]),
        (5, "9", []),
        (8, "9", []),
        (8, "5", [9]),
    ):
        number = f"{8 * len(ids):02x}000000"
        coded = "".join(f"0{each}00000000000000" for each in ids)
        records = f"{READER} 02 0{head}00000000000000 91 {number} {coded}"
        files = {"jobs.1": data(SEGMENT + items), "jobs.read.r": data(records)}
        wanted = state({5: (0, 1, 0, b""), 9: (0, 1, 0, b"")}, {"r": left})
        yield Border("libkestrel", "READ_DONE", f"{' '.join(ids)} beside a hole, the head at {head}", files, wanted)


def done_sizes() -> Iterator[Border]:
    """The size of a READ_DONE counts bytes, and there must be as many."""
    two = "0200000000000000"
    for name, size, ids in (
        ("1, as if it counted ids", "01000000", two),
        ("7", "07000000", two),
        ("9", "09000000", two + "00"),
        ("12", "0c000000", two + "00000000"),
        ("8 where 7 are", "08000000", two[:-2]),
        ("16 where 8 are", "10000000", two),
        ("1024 where 8 are", "00040000", two),
        ("16 MiB where 8 are", "00000001", two),
        ("16 MiB and 8", "08000001", two),
        ("2^31-8", "f8ffff7f", two),
        ("2^31-1", "ffffff7f", two),
        ("-1", "ffffffff", two),
        ("-8", "f8ffffff", two),
        ("-2^31", "00000080", two),
    ):
        records = f"{AT_0} {DONE_2} 91 {size} {ids}"
        yield reader("READ_DONE", f"size {name}", records, [1, 3], 26, "the header word counts bytes", is_bounded=True)
    for count, begin in cuts(f"91 10000000 {two} 0300000000000000"):
        at = 13 if count else -1
        yield reader("READ_DONE", f"cut at {count}", AT_0 + begin, [1, 2, 3], at)
    for words in range(16):
        if words != 1:
            records = f"{AT_0} 9{words:x}" + "08000000" * words + two + DONE_2
            yield reader("READ_DONE", f"{words} words", records, [1, 2, 3], 13, "a READ_DONE has 1 word")
    files: Files = {"jobs.1": data(SEGMENT + ONE + TWO + THREE)}
    for name, size, count, left, damage in (
        ("of 16 MiB", "00000001", MAX_BYTES // 8, [1, 3], {}),
        ("of 16 MiB and 8", "08000001", MAX_BYTES // 8 + 1, [1, 2, 3], {"jobs.read.r": 13}),
    ):
        ids = data(two) * count
        wanted: State = {"items": {1: A, 2: B, 3: C}, "readers": {"r": left}, "damage": damage}
        content = data(f"{READER} {AT_0} 91 {size}") + ids
        yield Border("libkestrel", "READ_DONE", name, {**files, "jobs.read.r": content}, wanted)


def commands_in_readers() -> Iterator[Border]:
    """Every command byte between READ_HEAD 0 and a READ_DONE of id 2. All header words are 11 11 11 11, but for a data
    size, which is 8.
    """
    for byte in range(256):
        command, words = divmod(byte, 16)
        if byte >> 4 in (0, 9) and byte not in (0x00, 0x02, 0x91):
            continue  # these have their own rows above
        left, at, why = [1, 3], -1, ""
        if byte == 0x02:
            record, left, why = "02" + "11" * 8, [], "a head behind the last id is the last id"
        elif not byte:
            record, left, why = "00", [1, 2, 3], "a zero command byte ends the data"
        elif command < 8:
            record = f"{byte:02x}" + "11111111" * words
        elif not words:
            record, left, at, why = f"{byte:02x}", [1, 2, 3], 13, "a data command has at least one word"
        else:
            record = f"{byte:02x} 08000000" + "11111111" * (words - 1) + "1111111111111111"
        opcode = {0: "READ_HEAD", 9: "READ_DONE"}.get(command, f"{command:x}")
        name = f"command byte {byte:02x} in a reader"
        yield reader(opcode, name, AT_0 + record + DONE_2, left, at, why)
        if byte and at < 0:
            yield reader(
                opcode,
                f"{name}, a byte short",
                AT_0 + data(record)[:-1].hex(),
                [1, 2, 3],
                13 if len(data(record)) > 1 else -1,
            )


def reader_headers() -> Iterator[Border]:
    """The first four bytes of a reader's file. Of one that cannot be read, everything is still to come."""
    items = {"jobs.1": data(SEGMENT + ONE + TWO + THREE)}

    def header(name: str, text: str, at: int = 0, left: list[int] | None = None) -> Border:
        damage: State = {"jobs.read.r": at} if at >= 0 else {}
        wanted: State = {"items": {1: A, 2: B, 3: C}, "readers": {"r": left or [1, 2, 3]}, "damage": damage}
        return Border("libkestrel", "reader", name, {**items, "jobs.read.r": data(text)}, wanted)

    yield header("empty", "", -1)
    yield header("magic alone", READER, -1)
    for count in (1, 2, 3):
        yield header(f"magic cut at {count}", READER[: 2 * count])
    for at in range(4):
        for bent in ("00", "ff", f"{data(READER)[at] ^ 1:02x}"):
            yield header(f"magic with {bent} at {at}", READER[: 2 * at] + bent + READER[2 * at + 2 :] + f"02 {I64[1]}")
    yield header("a segment's magic", SEGMENT + f"02 {I64[1]}")
    for count in (1, 4, 494, 700):
        yield header(f"{count} zeros behind a record", f"{READER} 02 {I64[1]}" + "00" * count, -1, [2, 3])
    only = {"jobs.read.r": data(f"{READER} 02 0300000000000000 91 08000000 0500000000000000")}
    yield Border("libkestrel", "reader", "without any segment", only, state({}, {"r": []}))
    beside = {"jobs.read.": data(f"{READER} 02 {I64[1]}"), "jobs.read.r": data(f"{READER} 02 0200000000000000")}
    wanted = state({1: A, 2: B, 3: C}, {"r": [3]})
    yield Border("libkestrel", "reader", "the default reader beside another", {**items, **beside}, wanted)


BORDERS = [
    *puts(),
    *sizes(),
    *torn_puts(),
    *commands_in_segments(),
    *headers(),
    *families(),
    *heads(),
    *done(),
    *done_beside_a_hole(),
    *done_sizes(),
    *commands_in_readers(),
    *reader_headers(),
]
