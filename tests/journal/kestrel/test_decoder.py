"""Every reader of records, in loops of its own or not, finds what the one decoder finds, in whole and damaged bytes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec import Struct

from staniel.journal.dump import rows
from staniel.journal.errors import CorruptRecord, TruncatedRecord
from staniel.journal.kestrel.dump import KestrelDumper
from staniel.journal.kestrel.find_copies import Search
from staniel.journal.kestrel.item_reader import read_items
from staniel.journal.kestrel.records import ADD, ADDX, FIXED_BYTES, STATE_DUMP, Record, decode
from staniel.journal.kestrel.replay import Replay
from staniel.journal.transfer_log import FilePosition
from staniel.pipeline.formats.kestrel.effect_scan import EMPTY, EffectScan, XidScan
from staniel.queues.item import Item
from staniel.sim.disk.disk import Disk
from tests.support.records import DAMAGED, NOW_MS, addx, named, state_dump, with_xid


class Decoded(Struct):
    """What the decoder finds in a file: records, where they end, and why if that is before the file does."""

    records: list[Record]
    end: int
    why: str = ""
    is_truncated: bool = False


def decoded(data: bytes) -> Decoded:
    found, at = list[Record](), 0
    while at < len(data):
        try:
            record = decode(data, at, len(data), 0)
        except CorruptRecord as error:
            return Decoded(found, error.at, error.why, isinstance(error, TruncatedRecord))
        found.append(record)
        at = record.stop
    return Decoded(found, at)


def in_pieces(data: bytes, size: int, consume: Callable[[bytes, int], int]) -> Decoded:
    """How a reader comes through a file that it gets in pieces, twice as large where one does not suffice."""
    at, want = 0, size
    while at < len(data):
        piece = data[at : at + want]
        try:
            used = consume(piece, max(0, len(data) - at - len(piece)))
        except CorruptRecord as error:
            return Decoded([], at + error.at, error.why, isinstance(error, TruncatedRecord))
        assert used or len(piece) < len(data) - at
        at += used
        want = size if used else 2 * want
    return Decoded([], at)


PIECES = st.integers(1, 60)
TORN = addx(b"abc")[:-1]


def end_of(found: Decoded) -> tuple[int, str, bool]:
    return found.end, found.why, found.is_truncated


@settings(max_examples=400, deadline=None)
@given(data=DAMAGED, size=PIECES)
@example(data=TORN, size=60)
@example(data=addx(b"a") + named(8, 5, b"x" * 20), size=7)
@example(data=state_dump(5, [(1, b"a"), (2, b"b")]) + TORN, size=30)
@example(data=with_xid(4, 3) + with_xid(4, 0) + b"\x0b", size=6)
def test_every_reader_ends_where_the_decoder_does_and_says_the_same(data: bytes, size: int) -> None:
    expected = end_of(decoded(data))
    assert end_of(in_pieces(data, size, Replay(NOW_MS).consume)) == expected
    assert end_of(in_pieces(data, size, EffectScan(EMPTY, 0, NOW_MS).consume)) == expected
    assert end_of(in_pieces(data, size, XidScan().consume)) == expected
    saves: list[int] = []
    assert end_of(in_pieces(data, size, lambda piece, rest: read_items(piece, 0, rest, [], 999, saves))) == expected


@settings(max_examples=400, deadline=None)
@given(data=DAMAGED, size=PIECES, count_max=st.integers(1, 5))
def test_items_that_are_read_are_those_of_the_decoder(data: bytes, size: int, count_max: int) -> None:
    expected = [record for record in decoded(data).records if record.size >= 0]
    items: list[Item] = []
    saves: list[int] = []
    in_pieces(data, size, lambda piece, rest: read_items(piece, 0, rest, items, count_max, saves))
    found = [(item.data, item.added_ms, item.expires_ms) for item in items]
    assert found == [(record.payload(data), record.added_ms, record.expires_ms) for record in expected]


@settings(max_examples=200, deadline=None)
@given(data=DAMAGED, size=PIECES)
def test_replay_and_the_effect_scan_count_the_items_of_the_decoder(data: bytes, size: int) -> None:
    items = [record for record in decoded(data).records if record.size >= 0]
    replay, scan = Replay(NOW_MS), EffectScan(EMPTY, 0, NOW_MS)
    in_pieces(data, size, replay.consume)
    in_pieces(data, size, scan.consume)
    effect = scan.final_effect()
    expected = sum(record.size for record in items), sum(record.expires_ms != 0 for record in items)
    assert (replay.line.added_bytes, replay.line.added_expiring) == expected
    assert (effect.added, effect.added_bytes, effect.added_expiring) == (len(items), *expected)


@settings(max_examples=200, deadline=None)
@given(data=DAMAGED)
def test_a_dump_has_a_row_for_each_record_of_the_decoder(data: bytes) -> None:
    disk = Disk()
    disk.append("q").write(data)
    expected, found = decoded(data), list[tuple[int, bytes | None]]()
    end = len(data), "", False
    try:
        for row in rows(disk, "q", KestrelDumper()):
            found.append((row.at + row.size, row.data))
    except CorruptRecord as error:
        end = error.at, error.why, isinstance(error, TruncatedRecord)
    assert end == end_of(expected)
    items = [record.payload(data) if record.size >= 0 else None for record in expected.records]
    assert found == list(zip([record.stop for record in expected.records], items, strict=True))


@settings(max_examples=200, deadline=None)
@given(data=DAMAGED)
def test_a_search_finds_the_items_of_the_decoder_as_long_as_records_are_our_own(data: bytes) -> None:
    disk = Disk()
    disk.make_folder("spool")
    disk.append("spool/q").write(data)
    expected, at = [], 0
    for record in decoded(data).records:
        if record.op == ADDX:
            expected.append((at, record.payload(data)))
        elif record.op not in FIXED_BYTES:
            break
        at = record.stop
    search = Search(disk, "spool", "q")
    assert [(place.at, item.data) for place, item in search.added_since(FilePosition(0, 0))] == expected


@pytest.mark.parametrize("number", [1, 2**63 - 1, 2**63, 2**64, 10**200])
def test_a_search_takes_the_current_file_last_whatever_the_numbers_of_archives(number: int) -> None:
    disk = Disk()
    disk.make_folder("spool")
    for name, payload in ((f"q.{number}", b"older"), ("q", b"newer")):
        disk.append(f"spool/{name}").write(addx(payload))
    search = Search(disk, "spool", "q")
    assert [item.data for _, item in search.added_since(search.position_after(number - 1, 0))] == [b"older", b"newer"]
    assert [item.data for _, item in search.added_since(search.position_after(number, 0))] == [b"newer"]


def test_the_decoder_tells_both_meanings_of_opcode_8_apart() -> None:
    listed = decode(data := state_dump(5, [(1, b"a"), (2, b"bc")]), 0, len(data), 0)
    assert (listed.op, listed.xid, listed.size) == (STATE_DUMP, 5, -1)
    assert listed.listed is not None and [(each.xid, each.payload(data)) for each in listed.listed] == [
        (1, b"a"),
        (2, b"bc"),
    ]
    goes_on = decode(data := named(8, 5, b"abc"), 0, len(data), 0)
    assert (goes_on.op, goes_on.xid, goes_on.payload(data), goes_on.listed) == (STATE_DUMP, 5, b"abc", None)


def test_starlings_items_have_no_add_time() -> None:
    data = b"\0" + (7).to_bytes(4, "little") + (9).to_bytes(4, "little") + b"abc"
    assert decode(data, 0, len(data), 0) == Record(ADD, 12, 0, 9, 3, 0, 9000)
