"""What is found of a file whose records are counted in runs is what is found one record at a time, whole or damaged."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec import Struct

from staniel.journal import dump
from staniel.journal.disk.replace_file import replace_file
from staniel.journal.dump import Dumper, rows, runs
from staniel.journal.errors import CorruptRecord
from staniel.journal.kestrel import sidecar
from staniel.journal.kestrel.dump import KestrelDumper
from staniel.journal.libkestrel.dump import LibkestrelDumper
from staniel.journal.libkestrel.records import (
    DATA_BYTES_MAX,
    PUT,
    PUT_HEAD,
    READER_MAGIC,
    SEGMENT_MAGIC,
    encode_put,
    encode_read_done,
    encode_read_head,
)
from staniel.journal.tools.verify import Inspection, inspect
from staniel.queues.item import Item
from staniel.sim.disk.disk import Disk
from tests.journal.kestrel.test_derived_effect import History
from tests.support.records import DAMAGED, FOREIGN, NOW_MS, addx, with_xid
from tests.support.spool import content_of, new_disk, put_file

ZEROS = st.builds(bytes, st.integers(0, 12))
PAYLOADS = st.one_of(st.binary(max_size=30), st.builds(bytes.__add__, st.binary(max_size=3), ZEROS))
STREAM = st.lists(
    st.one_of(
        st.builds(
            lambda data, expires_ms, item_id, errors: encode_put(Item(data, NOW_MS, expires_ms), item_id, errors),
            PAYLOADS,
            st.sampled_from([0, 0, -1, NOW_MS]),
            st.integers(-1, 9),
            st.integers(0, 2),
        ),
        st.builds(encode_read_head, st.integers(0, 9)),
        st.builds(encode_read_done, st.lists(st.integers(1, 9), max_size=3)),
        st.sampled_from([b"\x31" + bytes(4), b"\0"]),
    ),
    max_size=12,
).map(b"".join)


def put_of(size: int) -> bytes:
    """The head of a PUT with data of this size."""
    return PUT_HEAD.pack(PUT, size, 0, 1, NOW_MS)


PIECES = st.sampled_from([1, 7, 40, 100, 1 << 20])


@st.composite
def harmed(draw: st.DrawFn, files: st.SearchStrategy[bytes]) -> bytes:
    """A file with bits flipped, stretches doubled, left out or zeroed, and a cut."""
    data = draw(files)
    for kind in draw(st.lists(st.sampled_from(["flip", "double", "leave out", "zero", "cut"]), max_size=3)):
        at, stop = sorted(draw(st.integers(0, len(data))) for _ in range(2))
        if kind == "flip" and data:
            at = min(at, len(data) - 1)
            data = data[:at] + bytes([data[at] ^ 1 << draw(st.integers(0, 7))]) + data[at + 1 :]
        data = {
            "double": data[:stop] + data[at:],
            "leave out": data[:at] + data[stop:],
            "zero": data[:at] + bytes(stop - at) + data[stop:],
            "cut": data[:stop],
        }.get(kind, data)
    return data


class Outcome(Struct):
    """Of one file: how many records, where the last begins and ends, its payload, and what is wrong behind it."""

    records: int = 0
    last_at: int = -1
    end: int = -1
    data: bytes | None = None
    why: tuple[type[CorruptRecord], str, int] | None = None


def by_rows(disk: Disk, dumper: Dumper) -> Outcome:
    found = Outcome()
    try:
        for row in rows(disk, "s/q", dumper):
            found = Outcome(found.records + 1, row.at, row.at + row.size, row.data)
    except CorruptRecord as error:
        found.why = type(error), error.why, error.at
    return found


def by_runs(disk: Disk, dumper: Dumper) -> tuple[Outcome, int]:
    """Also how many runs there are."""
    found, last, count = Outcome(), None, 0
    try:
        for last in runs(disk, "s/q", dumper):
            count += 1
            found.records += last.records
            assert found.end in (-1, last.at)
            found.end = last.at + last.size
    except CorruptRecord as error:
        found.why = type(error), error.why, error.at
    if last is not None:
        row = dumper.row(last.data, last.last_at, last.stop, 0, 0)
        assert row is not None and row.size == last.stop - last.last_at
        found.last_at, found.data = found.end - row.size, row.data
    return found, count


def check(data: bytes, piece_bytes: int, first: Dumper, second: Dumper) -> None:
    disk = new_disk()
    put_file(disk, "q", data)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dump, "PIECE_BYTES", piece_bytes)
        assert by_runs(disk, second)[0] == by_rows(disk, first)


@settings(max_examples=500, deadline=None)
@given(data=st.one_of(DAMAGED, harmed(FOREIGN), harmed(st.lists(st.builds(addx, PAYLOADS)).map(b"".join))), size=PIECES)
@example(data=b"\x02", size=1 << 20)
@example(data=b"\x03\x02" + bytes(20), size=1 << 20)
@example(data=addx(b"a") + with_xid(9, 4)[:-1], size=1 << 20)
def test_runs_of_kestrel_s_records_are_those_that_are_read_one_by_one(data: bytes, size: int) -> None:
    check(data, size, KestrelDumper(), KestrelDumper())


@settings(max_examples=500, deadline=None)
@given(data=harmed(STREAM), size=PIECES, magic=st.sampled_from([SEGMENT_MAGIC, SEGMENT_MAGIC, READER_MAGIC]))
@example(data=put_of(-9), size=1 << 20, magic=SEGMENT_MAGIC)
@example(data=put_of(DATA_BYTES_MAX + 1) + bytes(DATA_BYTES_MAX + 1), size=1 << 25, magic=SEGMENT_MAGIC)
def test_runs_of_libkestrel_s_records_are_those_that_are_read_one_by_one(data: bytes, size: int, magic: bytes) -> None:
    check(magic + data, size, LibkestrelDumper(magic), LibkestrelDumper(magic))


def test_many_records_make_few_runs() -> None:
    disk = new_disk()
    put_file(disk, "q", (addx(b"x" * 100) + b"\1" + with_xid(9, 1) + with_xid(6, 1)) * 1_000)
    assert by_runs(disk, KestrelDumper()) == (by_rows(disk, KestrelDumper()), 1)
    puts = b"".join(encode_put(Item(b"x", 1, at % 2), at + 1) for at in range(1_000))
    replace_file(disk, "s/q", SEGMENT_MAGIC + puts)
    assert by_runs(disk, LibkestrelDumper(SEGMENT_MAGIC)) == (by_rows(disk, LibkestrelDumper(SEGMENT_MAGIC)), 1)


def sealed_disk() -> Disk:
    history = History("documents", 'queues.q.max_memory_size = "1MB"\nqueues.q.max_journal_size = "1GB"')
    history.run([("burst", 60), ("open", 2), ("abort", 0), ("seal",), ("burst", 9)])
    return history.world.disk


def nothing(dumper: Dumper, data: bytes, at: int, end: int) -> tuple[int, int, int]:
    """In the place of `skip`: each record is looked at."""
    return 0, at, at


def inspected(disk: Disk) -> tuple[list[Inspection], list[Inspection]]:
    """By runs, and one by one."""
    fast = list(inspect(disk, "s"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(KestrelDumper, "skip", nothing)
        patch.setattr(LibkestrelDumper, "skip", nothing)
        return fast, list(inspect(disk, "s"))


@settings(max_examples=100, deadline=None)
@given(draw=st.data())
def test_an_inspection_says_the_same_of_damaged_spools(draw: st.DataObject) -> None:
    disk = sealed_disk()
    for name in [name for name, is_regular in disk.list("s") if is_regular]:
        replace_file(disk, f"s/{name}", draw.draw(harmed(st.just(content_of(disk, f"s/{name}")))))
    put_file(disk, "stream.0", draw.draw(harmed(STREAM.map(SEGMENT_MAGIC.__add__))))
    put_file(disk, "stream.1", draw.draw(harmed(STREAM.map(SEGMENT_MAGIC.__add__))))
    put_file(disk, "stream.read.a", draw.draw(harmed(STREAM.map(READER_MAGIC.__add__))))
    fast, one_by_one = inspected(disk)
    assert fast == one_by_one and len(fast) >= 5
    assert sidecar.names_in(disk, "s")
