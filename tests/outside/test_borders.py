"""The borders of the three formats: what the tables in borders/ say, the server's recovery and the readers from outside
find, however many bytes are read at once; and a rule broken on either border is found by the tables.
"""

from __future__ import annotations

import subprocess
import sys
import tracemalloc
from collections.abc import Container
from pathlib import Path
from unittest.mock import patch

import pytest

from staniel.journal.errors import CorruptRecord
from staniel.journal.kestrel import records as kestrel_records
from staniel.journal.kestrel import replay as kestrel_replay
from staniel.journal.libkestrel import position, records, scan, segments
from staniel.journal.workq import records as workq_records
from staniel.journal.workq import recovery as workq_recovery
from staniel.journal.workq import segments as workq_segments
from tests.outside.borders import kestrel, libkestrel, workq
from tests.outside.borders.sides import outside, readers_of_the_next, server
from tests.outside.borders.table import Border

ROOT = Path(__file__).parents[2]
BORDERS = [*kestrel.BORDERS, *libkestrel.BORDERS, *workq.BORDERS]
PIECES = (1, 9, 1 << 18)  # bytes that are read at once, at first
LARGE_BYTES = 1 << 16  # files that are not read byte by byte
MEMORY_MAX = 2 << 20  # of reading a small file, whatever its numbers say
OPCODES = sorted({(border.format, border.opcode) for border in BORDERS})
TABLES = (
    "tests.outside.borders.kestrel",
    "tests.outside.borders.libkestrel",
    "tests.outside.borders.workq",
)


def borders_of(format: str, opcode: str) -> list[Border]:
    return [border for border in BORDERS if (border.format, border.opcode) == (format, opcode)]


def is_large(border: Border) -> bool:
    return sum(map(len, border.files.values())) > LARGE_BYTES


def wrong(border: Border) -> list[object]:
    """What of a border is found otherwise, by whom."""
    sizes = PIECES[-1:] if is_large(border) else PIECES
    found = [
        ("outside", outside(border)),
        *((f"the server, {size} at once", server(border, size)) for size in sizes),
    ]
    return [(border.title, who, state, border.wanted, border.why) for who, state in found if state != border.wanted]


@pytest.mark.parametrize(("format", "opcode"), OPCODES)
def test_both_find_what_the_bytes_say(format: str, opcode: str) -> None:
    assert [row for border in borders_of(format, opcode) for row in wrong(border)] == []


def test_an_item_that_is_put_then_comes_to_every_reader() -> None:
    with_readers = [border for border in BORDERS if border.wanted.get("readers") and not is_large(border)]
    assert with_readers and [each.title for each in with_readers if not all(readers_of_the_next(each).values())] == []


def test_each_border_has_a_name_of_its_own() -> None:
    assert len({border.title for border in BORDERS}) == len(BORDERS)


def test_a_number_that_claims_more_than_the_file_has_costs_no_memory() -> None:
    bounded = [border for border in BORDERS if border.is_bounded]
    assert {border.format for border in bounded} == {border.format for border in BORDERS}
    for border in bounded:
        tracemalloc.start()
        server(border, PIECES[-1])
        _, peak_bytes = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak_bytes < MEMORY_MAX, border.title


def test_the_tables_use_nothing_of_the_server() -> None:
    program = f"import {', '.join(TABLES)}, sys; print([name for name in sys.modules if name.startswith(NAMES)])"
    names = "('staniel', 'google_crc32c', 'msgspec')"
    found = subprocess.run(
        [sys.executable, "-c", program.replace("NAMES", names)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert found.stdout.strip() == "[]"


def id_of_any_number(data: bytes, record: records.StreamRecord) -> int:
    if record.words not in (6, 8):
        raise CorruptRecord("", record.at)
    return int.from_bytes(data[record.header_at + 8 : record.header_at + 16], "little", signed=True)


def ids_of_whole_ones(data: bytes, record: records.StreamRecord) -> tuple[int, ...]:
    count = record.data_bytes // 8
    return tuple(int.from_bytes(data[record.data_at + 8 * at :][:8], "little", signed=True) for at in range(count))


def any_start(data: bytes, at: int) -> tuple[int, int]:
    """A frame whose checksum nobody looks at."""
    size, start = workq_records.read_unsigned(data, at + 15)
    if not 0 < size <= len(data) - start - 4:
        raise CorruptRecord("")
    return start, start + size + 4


def one_more(last: int, *in_use: Container[int]) -> int:
    """The next number, without a look at the ends or at those in use."""
    return last + 1


BROKEN = [
    ("kestrel", kestrel_replay, "next_xid", one_more, "REMOVE_TENTATIVE"),
    ("kestrel", kestrel_records, "BLOCK_HEAD_BYTES", 15, "ADD_XID"),
    (
        "kestrel",
        kestrel_records,
        "FIXED_BYTES",
        {**kestrel_records.FIXED_BYTES, 10: 1},
        "unknown",
    ),
    (
        "kestrel",
        kestrel_replay.Replay,
        "_open_listed",
        lambda self, counter, listed, data: None,
        "STATE_DUMP",
    ),
    ("workq", workq_segments, "read_frame", any_start, "delete"),
    ("workq", workq_records, "_VARINT_BYTES_MAX", 9, "add"),
    ("workq", workq_records, "_VARINT_BYTES_MAX", 11, "complete"),
    ("workq", workq_recovery, "written_ns", workq_records.read_time, "start-attempt"),
    ("workq", workq_records, "read_signed", workq_records.read_unsigned, "schedule"),
    ("workq", workq_records, "PAYLOAD_BYTES_MAX", 1 << 20, "add"),
    ("libkestrel", scan, "decode_put_id", id_of_any_number, "PUT"),
    ("libkestrel", position, "decode_read_done", ids_of_whole_ones, "READ_DONE"),
    ("libkestrel", records, "DATA_BYTES_MAX", (16 << 20) + 1, "PUT"),
    ("libkestrel", records, "DATA_BYTES_MAX", (16 << 20) - 1, "READ_DONE"),
    (
        "libkestrel",
        position.Position,
        "reconcile",
        lambda self, segments: None,
        "READ_HEAD",
    ),
    (
        "libkestrel",
        segments.StreamSegments,
        "_outside",
        lambda self, run, taken: [run],
        "segment",
    ),
]


@pytest.mark.pure
@pytest.mark.parametrize(
    ("format", "holder", "name", "other", "opcode"),
    BROKEN,
    ids=[f"{format}-{name}-{opcode}" for format, _, name, _, opcode in BROKEN],
)
def test_a_broken_rule_is_found(format: str, holder: object, name: str, other: object, opcode: str) -> None:
    """By a border of `opcode`."""
    with patch.object(holder, name, other):
        assert any(differs(border) for border in borders_of(format, opcode))


def differs(border: Border) -> bool:
    try:
        if border.wanted.get("readers") and not is_large(border) and not all(readers_of_the_next(border).values()):
            return True
        return server(border, PIECES[-1]) != border.wanted
    except Exception:
        return True
