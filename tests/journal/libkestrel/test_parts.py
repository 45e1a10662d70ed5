"""The libkestrel journal's parts against plain models: scanning, look-ups by id, and what is in a reader file."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from staniel.journal.errors import CorruptRecord
from staniel.journal.interval_set import IntervalSet
from staniel.journal.libkestrel import records as libkestrel
from staniel.journal.libkestrel import scan as libkestrel_scan
from staniel.journal.libkestrel.files import StreamFileKind, group_by_queue, name_error, parse
from staniel.journal.libkestrel.position import (
    SECTOR_BYTES,
    Position,
    ReaderFileScan,
    can_append,
    encode_position,
    encode_reader_file,
)
from staniel.journal.libkestrel.records import READER_MAGIC, SEGMENT_MAGIC, encode_put, read_record
from staniel.journal.libkestrel.recovery import StreamRecovery
from staniel.journal.libkestrel.scan import SegmentScan
from staniel.journal.libkestrel.segments import ItemTotals, StreamSegments
from staniel.queues.item import Item, Numbered
from staniel.sim.disk.disk import Disk
from tests.support.spool import new_disk, put_file

NOW_MS = 1_700_000_000_000
UNKNOWN = bytes.fromhex("73" + 12 * "01") + bytes.fromhex("f20300000001010101") + b"abc"


@pytest.fixture
def _short_marks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Marks so close that a small file has many."""
    monkeypatch.setattr(libkestrel_scan, "MARK_ITEMS", 3)
    monkeypatch.setattr(libkestrel_scan, "MARK_BYTES", 150)


def item(item_id: int, size: int = 5, expiring: bool = False) -> Numbered:
    return Numbered(b"%d" % item_id + b"x" * size, NOW_MS, NOW_MS + 1 if expiring else 0, 0, item_id)


ITEMS = st.builds(item, st.integers(1, 40), st.sampled_from([0, 5, 90]), st.booleans())
SEGMENTS = st.lists(st.lists(ITEMS, max_size=12).map(lambda items: sorted(items, key=lambda each: each.id)), max_size=4)


def segment(items: list[Numbered], between: bytes = b"") -> bytes:
    return SEGMENT_MAGIC + between.join(encode_put(each, each.id) for each in items)


def recovered(disk: Disk) -> StreamSegments:
    return StreamRecovery(disk, "s", "s/damaged").recover(group_by_queue(disk.list("s"))["q"], NOW_MS).segments


@given(SEGMENTS, st.sampled_from([b"", UNKNOWN]))
@pytest.mark.usefixtures("_short_marks")
def test_items_are_found_by_id_whatever_the_segments_are(found: list[list[Numbered]], between: bytes) -> None:
    disk = new_disk()
    model: dict[int, Numbered] = {}
    put_file(disk, "q.read.", encode_reader_file(Position()))
    for number, items in enumerate(found):
        put_file(disk, f"q.{number}", segment(items, between))
    for items in sorted((items for items in found if items), key=lambda items: items[0].id):
        for each in items:
            model.setdefault(each.id, each)
    segments = recovered(disk)
    ids = sorted(model)
    assert [each.id for each in segments.items()] == ids
    assert segments.last_id == max(ids, default=0)
    for item_id in range(43):
        assert segments.has(item_id) == (item_id in model)
        assert segments.next_after(item_id) == next((each for each in ids if each > item_id), segments.last_id + 1)
        below = [each for each in segments.items() if each.id <= item_id]
        sums = ItemTotals(len(below), sum(len(each.data) for each in below), sum(each.expires_ms > 0 for each in below))
        assert segments.sums_through(item_id) == sums
        assert [each.id for each in segments.read(item_id)] == ids_from(ids, item_id)[: len(segments.read(item_id))]
        assert bool(segments.read(item_id)) == bool(ids_from(ids, item_id))


def ids_from(ids: list[int], item_id: int) -> list[int]:
    return [each for each in ids if each >= item_id]


@given(st.lists(ITEMS, max_size=20), st.integers(1, 60), st.sampled_from([b"", UNKNOWN]))
@pytest.mark.usefixtures("_short_marks")
def test_a_segment_read_in_pieces_is_the_same_as_read_at_once(
    items: list[Numbered], piece: int, between: bytes
) -> None:
    data = segment(items, between)[4:]
    whole, parts = SegmentScan("q.1", 4), SegmentScan("q.1", 4)
    assert whole.consume(data, 0) == len(data)
    at, want = 0, piece
    while at < len(data):
        used = parts.consume(data[at : at + want], max(0, len(data) - at - want))
        at, want = at + used, piece if used else 2 * want
    assert parts.runs == whole.runs


@given(st.lists(ITEMS, min_size=1, max_size=8), st.data())
def test_a_segment_cut_anywhere_gives_its_whole_records(items: list[Numbered], data: st.DataObject) -> None:
    content = segment(items)[4:]
    cut = data.draw(st.integers(0, len(content)))
    ends = [0]
    for each in items:
        ends.append(ends[-1] + len(encode_put(each, each.id)))
    whole = max(end for end in ends if end <= cut)
    scan = SegmentScan("q.1", 4)
    if cut == whole:
        assert scan.consume(content[:cut], 0) == cut
    else:
        with pytest.raises(CorruptRecord) as bad:
            scan.consume(content[:cut], 0)
        assert bad.value.at == 4 + whole


@given(st.binary(max_size=200))
def test_no_bytes_of_a_segment_or_reader_file_are_anything_but_read_or_damage(content: bytes) -> None:
    for consumer in (SegmentScan("q.1", 4), ReaderFileScan()):
        try:
            used = consumer.consume(content, 0)
        except CorruptRecord:
            continue
        assert used <= len(content)


# reader files


def pieces(content: bytes) -> Iterator[tuple[int, int]]:
    """(start, end) of each record of a reader file."""
    at = len(READER_MAGIC)
    while at < len(content):
        record = read_record(content, at, len(content), 0)
        assert record is not None
        yield record.at, record.stop
        at = record.stop


CONFIRMED = st.lists(st.tuples(st.integers(0, 2**62), st.lists(st.integers(1, 2**62), max_size=150)), max_size=12)


@given(st.lists(st.integers(1, 2**62), max_size=200), CONFIRMED)
def test_no_record_of_a_reader_file_crosses_a_sector(first: list[int], later: list[tuple[int, list[int]]]) -> None:
    content = encode_reader_file(Position(7, first))
    done = set(first)
    head = 7
    for head, ids in later:
        assert can_append(len(content))
        content += b"".join(encode_position(head, ids, len(content)))
        done.update(ids)
    assert can_append(len(content))
    for start, end in pieces(content):
        assert start // SECTOR_BYTES == (end - 1) // SECTOR_BYTES
    read = ReaderFileScan()
    read.consume(content[4:], 0)
    assert read.position == Position(head, done)


@given(st.integers(1, 10**6), st.lists(st.integers(1, 300), max_size=40, unique=True))
def test_a_position_is_the_set_of_what_was_confirmed(head: int, order: list[int]) -> None:
    segments = StreamSegments(new_disk(), "s")
    position = Position(head)
    for number in order:
        position.confirm(head + number, head + number, segments)
    confirmed = {head + number for number in order}
    top = head
    while top + 1 in confirmed:
        top += 1
    assert position == Position(top, {each for each in confirmed if each > top})


@given(st.lists(st.tuples(st.integers(1, 60), st.integers(0, 9)), max_size=30), st.integers(0, 70))
def test_a_set_of_intervals_is_a_set(added: list[tuple[int, int]], cut: int) -> None:
    ids, model = IntervalSet(), set[int]()
    whole = IntervalSet.from_intervals((first, first + more) for first, more in added)
    for first, more in added:
        ids.add_interval(first, first + more)
        model.update(range(first, first + more + 1))
        assert (list(ids), len(ids), bool(ids)) == (sorted(model), len(model), bool(model))
    assert [each in ids for each in range(75)] == [each in model for each in range(75)]
    assert all(later > end + 1 for (_, end), (later, _) in pairwise(ids.intervals()))
    reach = cut - 1
    while reach + 1 in model:
        reach += 1
    assert ids.reach(cut) == reach
    outside = [each for each in range(cut, 200) if each not in model]
    assert [ids.nth_outside(cut, count) for count in range(20)] == outside[:20]
    ids.discard(cut)
    assert (ids == whole) == (cut not in model) and set(ids) == model - {cut}
    ids.drop_through(cut)
    assert list(ids) == sorted(each for each in model if each > cut)


def test_a_head_moves_over_ids_that_no_item_has() -> None:
    disk = new_disk()
    put_file(disk, "q.1", segment([item(1), item(5), item(6), item(9)]))
    segments = recovered(disk)
    position = Position(0)
    for item_id in (1, 5, 9, 6):
        position.confirm(item_id, item_id, segments)
    assert position == Position(9)


# sizes and names


def test_an_item_of_16_mib_is_read_and_one_byte_more_is_damage() -> None:
    largest = Numbered(b"x" * libkestrel.DATA_BYTES_MAX, NOW_MS, 0, 0, 1)
    scan = SegmentScan("q.1", 4)
    data = encode_put(largest, 1)
    assert scan.consume(data, 0) == len(data)
    too_large = encode_put(Item(largest.data + b"x", NOW_MS), 1)
    with pytest.raises(CorruptRecord):
        SegmentScan("q.1", 4).consume(too_large, 0)


def test_a_record_with_15_header_words_is_stepped_over() -> None:
    record = read_record(b"\x1f" + bytes(60), 0, 61, 0)
    assert record is not None
    assert record.stop == 61


@pytest.mark.parametrize("size", [-(2**31), -25, -1, libkestrel.DATA_BYTES_MAX + 1, 2**31 - 1])
def test_a_size_out_of_bounds_is_damage_and_allocates_nothing(size: int) -> None:
    with pytest.raises(CorruptRecord):
        SegmentScan("q.1", 4).consume(struct.pack("<Bi", 0x86, size) + bytes(40), 0)


@pytest.mark.parametrize(
    ("file_name", "kind"),
    [
        ("jobs.1321401903634", StreamFileKind.SEGMENT),
        ("jobs.read.", StreamFileKind.READER),
        ("jobs.read.a.b.c", StreamFileKind.READER),
        ("jobs.read.7", StreamFileKind.READER),
        ("jobs.read.a~~5", StreamFileKind.TEMP),
        ("jobs.read.~~5", StreamFileKind.TEMP),
        ("jobs.read.a~b~~5", StreamFileKind.TEMP),
        ("jobs.read.a~~", StreamFileKind.TEMP),
        ("jobs.read.a~~5~~6", StreamFileKind.TEMP),
        ("jobs.read.a.b~", StreamFileKind.FOREIGN),
        ("jobs.5~~6", StreamFileKind.TEMP),
        ("jobs.read", StreamFileKind.FOREIGN),
        ("jobs.readmenot", StreamFileKind.FOREIGN),
        ("jobs.", StreamFileKind.FOREIGN),
        ("jobs.100.bak", StreamFileKind.FOREIGN),
        ("jobs.read.a~b", StreamFileKind.FOREIGN),
        ("archive~jobs.100", StreamFileKind.FOREIGN),
        ("jobs+a.100", StreamFileKind.FOREIGN),
        ("jobs", StreamFileKind.FOREIGN),
        ("jobs.-5", StreamFileKind.FOREIGN),
        ("jobs.\u0661", StreamFileKind.FOREIGN),
    ],
)
def test_a_file_name_says_what_it_is(file_name: str, kind: StreamFileKind) -> None:
    assert parse(file_name).kind is kind


@pytest.mark.parametrize("name", ["jobs", "a:b_c-D9"])
def test_letters_digits_and_three_signs_make_a_name(name: str) -> None:
    assert name_error(name) == ""


@pytest.mark.parametrize("name", ["", "a b", "a+b", "a.b", "\u00e9", "a\n", "a/b", "a~b"])
def test_a_name_with_anything_else_is_refused(name: str) -> None:
    assert name_error(name)
