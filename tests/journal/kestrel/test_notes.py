"""Notes: the past of an item in front of its record, for our reader alone; every other reader sees the item as ever."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from staniel.journal.errors import CorruptRecord
from staniel.journal.kestrel.encoder import Encoder
from staniel.journal.kestrel.files import Files, sort_out
from staniel.journal.kestrel.item_reader import read_items
from staniel.journal.kestrel.notes import NOTE_BYTES_MAX, fact_in, note_records
from staniel.journal.kestrel.recovery import Recovery
from staniel.journal.kestrel.replay import Replay
from staniel.queues.config import JournalDialect
from staniel.queues.item import Delivery, Item, item_with, past_bytes
from staniel.sim.disk.disk import Disk
from tests.support.judge import Judge
from tests.support.records import NOW_MS, addx, content, feed, with_xid

ITEM = item_with(b"past!", b"data", NOW_MS, 0, 0)
WITH_FLAGS = item_with(b"past!", b"data", NOW_MS, 0, 2**32 - 1)
NOTE_BYTES = 30  # of one about `past!`
FACTS = st.binary(min_size=1, max_size=40)


def encoder_at(counter: int, dialect: JournalDialect = JournalDialect.DOCUMENTS) -> Encoder:
    encoder = Encoder(dialect)
    encoder.counter = counter
    return encoder


def replayed(data: bytes) -> Replay:
    replay = Replay(NOW_MS)
    assert feed(replay, data) == len(data)
    return replay


def test_a_note_is_the_records_that_the_document_describes() -> None:
    head, first, second = 0x5D4E_0005, int.from_bytes(b"past", "little"), ord("!")
    rest = note_records(b"past!", NOW_MS, b"data", 9)[15:]
    assert note_records(b"past!", NOW_MS, b"data", 9)[:15] == with_xid(4, head) + with_xid(4, first) + with_xid(
        4, second
    )
    assert rest[5:] == with_xid(4, 0) + with_xid(4, 9) and rest[:5] == with_xid(4, 2_013_018_525)
    assert len(note_records(b"past!", NOW_MS, b"data", 9)) == NOTE_BYTES


@pytest.mark.parametrize("item", [ITEM, WITH_FLAGS])
def test_another_reader_sees_the_item_as_ever(item: Item) -> None:
    data = with_xid(4, 5) + encoder_at(5).addx(item) + addx(b"next") + b"\3"
    judge = Judge(NOW_MS)
    assert judge.read(data) == len(data)
    items, opened, counter = judge.state()
    assert (items, opened, counter) == ([content(Item(b"next", NOW_MS))], {6: content(item)}, 6)
    assert past_bytes(replayed(data).open[6].item) == b"past!"


@given(
    st.lists(st.tuples(FACTS, st.binary(max_size=9), st.sampled_from([0, 1, 2**31])), max_size=9), st.integers(1, 50)
)
@settings(max_examples=150, deadline=None)
def test_items_are_read_with_their_pasts_in_any_pieces(rows: list[tuple[bytes, bytes, int]], piece_bytes: int) -> None:
    encoder = encoder_at(3)
    items = [item_with(fact, data, NOW_MS, 0, flags) for fact, data, flags in rows]
    data = b"".join(map(encoder.addx, items))
    replay = Replay(NOW_MS)
    feed(replay, data, piece_bytes)
    assert replay.line.items() == items
    found: list[Item] = []
    saves: list[int] = []
    at = 0
    while at < len(data):
        size = piece_bytes
        while (used := read_items(data[at : at + size], 0, max(0, len(data) - at - size), found, 99, saves)) == 0:
            size *= 2
        at += used
    assert found == items


@pytest.mark.parametrize("dialect", JournalDialect)
@pytest.mark.parametrize("item", [ITEM, WITH_FLAGS])
def test_an_open_item_keeps_its_past_in_a_rewritten_file(dialect: JournalDialect, item: Item) -> None:
    data = b"".join(Encoder(dialect).snapshot(8, {4: Delivery(item, 1, 1, 4)}, [item]))
    replay = replayed(data)
    assert replay.open[4].item == item and replay.line.items() == [item] and replay.counter == 8


def test_a_note_counts_for_its_own_item_only() -> None:
    """Another program may have put an item of its own behind it."""
    torn_off = encoder_at(0).addx(ITEM)[:NOTE_BYTES]
    for other in (addx(b"dato"), addx(b"data", NOW_MS + 1), addx(b"data2")):
        (item,) = replayed(torn_off + other).line.items()
        assert type(item) is Item


@given(st.lists(st.integers(-(2**31), 2**31 - 1), max_size=8), st.binary(max_size=4))
def test_rows_of_records_that_are_no_note_tell_nothing(ids: list[int], data: bytes) -> None:
    assert fact_in(ids, NOW_MS, data) == b""


def test_a_note_with_a_byte_changed_tells_nothing() -> None:
    data = bytearray(encoder_at(0).addx(ITEM))
    for at in range(NOTE_BYTES - 5):
        bent = bytes(data[:at]) + bytes([data[at] ^ 64]) + bytes(data[at + 1 :])
        try:
            replay = replayed(bent)
        except AssertionError:
            continue  # an opcode is another one
        assert all(past_bytes(item) in (b"", b"past!") for item in replay.line.items())


def recovered(data: bytes) -> tuple[Replay, bytes]:
    """What a start makes of a current file with these bytes, and what it leaves of them."""
    disk = Disk()
    disk.make_folder("s")
    file = disk.append("s/q")
    file.write(data)
    file.close()
    files: Files = sort_out(disk.list("s"))[0]["q"]
    found = Recovery(disk, "s").recover("q", files, NOW_MS)
    return found.replay, disk.read("s/q", 0, disk.size("s/q"))


def test_a_note_whose_item_is_cut_off_is_cut_off_too_and_the_counter_is_as_before() -> None:
    """Its words would be the number of the last transaction, by which unfinished transfers are judged."""
    before = with_xid(4, 5) + addx(b"a") + b"\3"
    encoder = encoder_at(6)
    whole = before + encoder.addx(WITH_FLAGS)
    for end in range(len(before), len(whole)):
        replay, left = recovered(whole[:end])
        assert (replay.counter, left, list(replay.open)) == (6, before, [6]), end
        again = left + encoder.addx(ITEM) + b"\3"
        judge = Judge(NOW_MS)
        assert judge.read(again) == len(again)
        assert judge.state()[2] == 7 and judge.state()[1][7] == content(ITEM)


def test_a_long_fact_is_read_back_and_no_longer_one_is_looked_for() -> None:
    fact = bytes(range(256)) * 4
    assert len(fact) == NOTE_BYTES_MAX
    (item,) = replayed(encoder_at(1).addx(item_with(fact, b"", NOW_MS, 0, 0))).line.items()
    assert past_bytes(item) == fact
    with pytest.raises(AssertionError):
        note_records(fact + b"x", NOW_MS, b"", 1)


def test_a_truncated_item_behind_a_note_is_reported_from_the_note_on() -> None:
    whole = encoder_at(0).addx(ITEM)
    replay = Replay(NOW_MS)
    with pytest.raises(CorruptRecord) as caught:
        replay.consume(whole[:-1], 0)
    assert caught.value.at - replay.end_file(is_sealed=False) == 0 and replay.counter == 0
