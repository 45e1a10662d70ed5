"""What is written is read back the same, by the real reader and by the judge, whole or in pieces, cut or bent."""

from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from staniel.journal.kestrel.encoder import Encoder
from staniel.journal.kestrel.replay import Replay
from staniel.queues.config import JournalDialect
from staniel.queues.item import past_bytes
from staniel.queues.queue import Queue
from tests.support.judge import Judge
from tests.support.records import (
    FOREIGN,
    NOW_MS,
    OPERATIONS,
    Operations,
    Scribe,
    add,
    addx,
    content,
    feed,
    named,
    pasts,
    state,
    state_dump,
    with_xid,
)

DIALECTS = st.sampled_from(JournalDialect)
PIECES = st.sampled_from([1, 2, 7, 30, 1 << 20])


def read(*files: bytes, piece_bytes: int = 1 << 20) -> tuple[Replay, list[int]]:
    replay = Replay(NOW_MS)
    return replay, [feed(replay, data, piece_bytes) for data in files]


def both_read(*files: bytes, piece_bytes: int = 1 << 20) -> Replay:
    """Read by both; they agree on the state and on every valid prefix."""
    replay, prefixes = read(*files, piece_bytes=piece_bytes)
    judge = Judge(NOW_MS)
    assert prefixes == [judge.read(data) for data in files]
    assert state(replay) == judge.state()
    line = replay.line
    assert line.bytes == sum(len(item.data) for item in line.items())
    assert all(xid == taken.xid for xid, taken in replay.open.items())
    return replay


@given(OPERATIONS, DIALECTS, PIECES)
@settings(max_examples=300, deadline=None)
def test_a_history_is_read_back_as_it_was_written(
    operations: Operations, dialect: JournalDialect, piece_bytes: int
) -> None:
    scribe = Scribe(dialect)
    scribe.run(operations)
    replay = both_read(scribe.data, piece_bytes=piece_bytes)
    assert state(replay)[:2] == scribe.state()
    assert replay.counter == scribe.encoder.counter
    assert replay.open.keys() == scribe.encoder.open
    ids = {xid: taken.id for xid, taken in scribe.queue.open_reads.items()}
    assert {xid: taken.id for xid, taken in replay.open.items()} == ids
    assert pasts(replay.line.items()) == pasts(scribe.queue.line.items())
    written = {xid: past_bytes(taken.item) for xid, taken in scribe.queue.open_reads.items()}
    assert {xid: past_bytes(taken.item) for xid, taken in replay.open.items()} == written


@given(OPERATIONS, DIALECTS)
@settings(max_examples=150, deadline=None)
def test_every_item_has_the_same_id_after_a_replay(operations: Operations, dialect: JournalDialect) -> None:
    scribe = Scribe(dialect)
    scribe.run(operations)
    replay, _ = read(scribe.data)
    line = scribe.queue.line
    ids = [(taken.id, taken.item.data) for taken in (line.pop() for _ in range(len(line)))]
    assert [(taken.id, taken.item.data) for taken in (replay.line.pop() for _ in range(len(replay.line)))] == ids


@given(OPERATIONS, OPERATIONS, DIALECTS, DIALECTS)
@settings(max_examples=150, deadline=None)
def test_a_history_goes_on_after_a_restart_in_either_dialect(
    before: Operations, after: Operations, first: JournalDialect, second: JournalDialect
) -> None:
    """As the store does it: the encoder takes over the reader's counter and open reads, recovery puts those back."""
    scribe = Scribe(first)
    scribe.run(before)
    replay, _ = read(scribe.data)
    scribe.encoder = Encoder(second, replay.counter)
    scribe.encoder.open.update(replay.open)
    scribe.queue = Queue("q", scribe.queue.config, scribe, NOW_MS)
    scribe.queue.load(replay.line, replay.open, replay.counter)
    scribe.queue.return_open_reads(0)
    scribe.run(after)
    assert state(both_read(scribe.data))[:2] == scribe.state()


@given(OPERATIONS, DIALECTS, st.booleans())
@settings(max_examples=150, deadline=None)
def test_a_snapshot_is_read_back_as_the_same_state_and_history_goes_on_behind_it(
    operations: Operations, dialect: JournalDialect, tail: bool
) -> None:
    scribe = Scribe(dialect)
    scribe.run(operations)
    queue, counter = scribe.queue, scribe.encoder.counter
    encoder = Encoder(dialect)
    scribe.data = b"".join(encoder.snapshot(counter, queue.open_reads, queue.line.items()))
    scribe.encoder = encoder
    replay = both_read(scribe.data)
    assert state(replay)[:2] == scribe.state()
    assert replay.counter == encoder.counter
    assert replay.counter == counter or not (queue.open_reads or len(queue.line))
    if tail:
        scribe.run([("add", b"x", 9), ("open",), ("open",), ("abort", 0), ("open",), ("confirm", 1)])
        assert state(both_read(scribe.data))[:2] == scribe.state()


@given(OPERATIONS, DIALECTS)
@settings(max_examples=60, deadline=None)
def test_cut_at_any_byte_what_is_left_is_read_up_to_the_last_whole_record(
    operations: Operations, dialect: JournalDialect
) -> None:
    scribe = Scribe(dialect)
    scribe.run(operations)
    for size in range(0, len(scribe.data), max(1, len(scribe.data) // 150)):
        replay, (prefix,) = read(scribe.data[:size])
        whole = max(end for end in scribe.ends if end <= size)
        # A change with a past, flags or an announced counter is more than one record: the first may be whole by itself.
        # Of several items that go at once, some may be gone. An open read is open before its counter is restored.
        rest = scribe.data[whole:prefix]
        cleared, opened = rest.strip(b"\1") == b"", b"\3" in rest[5:6] or rest[:1] == b"\x09"
        records_bytes = prefix - whole - (opened and rest[:1] != b"\x09")
        assert whole <= prefix <= size and (cleared or (records_bytes % 5 == 0 and records_bytes <= 50))
        if opened:
            after = min(end for end in scribe.ends if end > size)
            assert state(replay)[:2] == state(read(scribe.data[:after])[0])[:2]
        elif prefix == whole or not cleared:
            assert state(replay)[:2] == state(read(scribe.data[:whole])[0])[:2]


@given(FOREIGN, FOREIGN, PIECES)
@settings(max_examples=500, deadline=None)
def test_foreign_files_are_read_as_the_format_says(first: bytes, second: bytes, piece_bytes: int) -> None:
    both_read(first, second, piece_bytes=piece_bytes)


@given(FOREIGN, st.data(), PIECES)
@settings(max_examples=500, deadline=None)
def test_a_bent_or_cut_file_is_read_as_far_as_it_is_sound(data: bytes, draw: st.DataObject, piece_bytes: int) -> None:
    if data:
        at, bit = draw.draw(st.integers(0, len(data) - 1)), draw.draw(st.integers(0, 7))
        data = data[:at] + bytes([data[at] ^ 1 << bit]) + data[at + 1 :]
    both_read(data, data[: draw.draw(st.integers(0, len(data)))], piece_bytes=piece_bytes)


@given(st.binary(max_size=200), PIECES)
@settings(max_examples=200, deadline=None)
def test_noise_is_read_without_harm(data: bytes, piece_bytes: int) -> None:
    both_read(data, piece_bytes=piece_bytes)


def test_every_bit_of_a_small_journal_can_flip() -> None:
    scribe = Scribe(JournalDialect.DOCUMENTS)
    scribe.run(
        [("add", b"abc", 5), ("add", b"de", 0), ("open",), ("add", b"f", 0), ("open",), ("abort", 0), ("remove_head",)]
    )
    for at in range(len(scribe.data)):
        for bit in range(8):
            both_read(scribe.data[:at] + bytes([scribe.data[at] ^ 1 << bit]) + scribe.data[at + 1 :])


@pytest.mark.parametrize("size", [-1, -(2**31), 15, 2**31 - 1])
@pytest.mark.parametrize("head", [b"\2", b"\7\1\0\0\0", b"\0", b"\x08\1\0\0\0"])
def test_a_size_that_lies_costs_nothing(head: bytes, size: int) -> None:
    size = 3 if size == 15 and head == b"\0" else size
    data = addx(b"kept") + head + size.to_bytes(4, "little", signed=True) + bytes(40)
    tracemalloc.start()
    replay, (prefix,) = read(data)
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert prefix == len(addx(b"kept")) and [item.data for item in replay.line.items()] == [b"kept"]
    assert peak_bytes < 1 << 20


def test_a_tail_of_zeros_is_damage() -> None:
    _, (prefix,) = read(addx(b"a") + bytes(4096))
    assert prefix == len(addx(b"a"))


def test_opcode_8_as_a_list_keeps_what_is_open_and_adds_what_is_not() -> None:
    data = addx(b"a") + b"\3" + state_dump(7, [(1, b"copy"), (3, b"only here")]) + addx(b"b") + b"\3"
    replay = both_read(data)
    assert {xid: taken.item.data for xid, taken in replay.open.items()} == {1: b"a", 3: b"only here", 8: b"b"}


def test_opcode_8_as_continue_confirms_and_appends() -> None:
    replay = both_read(addx(b"a") + b"\3" + named(8, 1, b"next"))
    assert not replay.open and [item.data for item in replay.line.items()] == [b"next"]


def test_opcode_8_with_sixteen_and_more_is_a_list_only_if_the_list_is_there() -> None:
    listed = [(xid, b"x") for xid in range(1, 17)]
    assert len(both_read(state_dump(0, listed)).open) == 16
    replay = both_read(state_dump(0, listed)[:-1])
    assert not replay.open and len(replay.line) == 1
    assert replay.line.items()[0].data == b""


def test_starlings_items_are_as_old_as_the_replay() -> None:
    replay = both_read(add(b"a", 1_800_000_000) + add(b"b"))
    assert [content(item) for item in replay.line.items()] == [
        (b"a", NOW_MS, 1_800_000_000_000, 0),
        (b"b", NOW_MS, 0, 0),
    ]


def test_an_id_that_is_open_is_never_overwritten() -> None:
    replay = both_read(addx(b"a") + addx(b"b") + with_xid(9, 5) + with_xid(9, 5))
    found = [item.data for item in replay.line.items()] + [taken.item.data for taken in replay.open.values()]
    assert sorted(found) == [b"a", b"b"]


def test_the_documents_dialect_writes_opcodes_1_to_7_only_and_kestrels_no_3_4_7() -> None:
    operations: Operations = [("jump", 5), ("add", b"", 0), ("open",), ("add", b"", 0), ("open",), ("abort", 0)]
    scribes = {dialect: Scribe(dialect) for dialect in JournalDialect}
    for scribe in scribes.values():
        scribe.run(operations)
        assert state(both_read(scribe.data))[:2] == scribe.state()
    opcodes = {dialect: [scribe.data[end] for end in scribe.ends[:-1]] for dialect, scribe in scribes.items()}
    assert opcodes[JournalDialect.DOCUMENTS] == [2, 4, 2, 3, 5]
    assert opcodes[JournalDialect.KESTREL_24] == [2, 9, 2, 9, 5]
