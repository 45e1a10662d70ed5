"""Summaries of segments say what replaying them in order says: any journal, any cuts, any order of merging."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from staniel.journal.errors import CorruptRecord
from staniel.journal.interval_set import IntervalSet
from staniel.journal.kestrel import records
from staniel.journal.kestrel.effect import (
    NOTHING,
    EffectMismatch,
    Origin,
    SegmentEffect,
    State,
    Symbol,
    apply,
    id_floor_of,
    merge,
)
from staniel.journal.kestrel.replay import Replay
from staniel.pipeline.formats.kestrel.effect_scan import (
    EMPTY,
    UNKNOWN,
    CounterUnknown,
    EffectScan,
    EntryState,
    XidScan,
    entry_state_of,
)
from staniel.queues.config import JournalDialect
from staniel.queues.item import Delivery
from tests.support.records import FOREIGN, NOW_MS, OPERATIONS, Operations, Scribe, addx, named, with_xid

DIALECTS = st.sampled_from(JournalDialect)
SEEDS = st.integers(0, 2**32)


class Journal:
    """A journal cut at record boundaries, with the payloads of its items in the order of adding."""

    def __init__(self, data: bytes, cuts: list[int]) -> None:
        self.items: list[tuple[bytes, int]] = []
        self.listed: list[bytes] = []
        ends = [0]
        at = 0
        while at < len(data):
            try:
                record = records.decode(data, at, len(data), 0)
            except CorruptRecord:
                break
            if record.listed is not None:
                self.listed += [each.payload(data) for each in record.listed]
            elif record.size >= 0:
                payload = record.payload(data)
                self.items.append((payload, record.added_ms if record.op else NOW_MS))
            ends.append(record.stop)
            at = record.stop
        chosen = sorted({0, ends[-1], *(ends[cut % len(ends)] for cut in cuts)})
        self.data = data[:at]
        self.segments = [data[start:stop] for start, stop in pairwise(chosen)] or [b""]

    def ids(self) -> list[int]:
        found, id_floor = [], -(1 << 90)
        for number, (_, added_ms) in enumerate(self.items):
            id_floor = max(id_floor, id_floor_of(added_ms, number))
            found.append(max(id_floor, 1) + number)  # as staniel.queues.line.Line gives it
        return found

    def contents(self, state: State) -> tuple[list[bytes], dict[int, tuple[bytes, int, int]], int]:
        """The line, and the open reads as (payload, deliveries, id)."""
        ids = self.ids()

        def payload(symbol: Symbol) -> bytes:
            return self.listed[symbol.number] if symbol.origin is Origin.LISTED else self.items[symbol.number][0]

        def item(symbol: Symbol) -> tuple[bytes, int, int]:
            return payload(symbol), symbol.deliveries, 0 if symbol.origin is Origin.LISTED else ids[symbol.number]

        line = [payload(symbol) for symbol in state.front]
        line += [data for data, _ in self.items[state.taken : state.added]]
        return line, {xid: item(symbol) for xid, symbol in state.opens.items()}, state.counter


def replayed(data: bytes) -> tuple[list[bytes], dict[int, tuple[bytes, int, int]], int]:
    replay = Replay(NOW_MS)
    assert replay.consume(data, 0) == len(data)
    opens: dict[int, Delivery] = replay.open
    held = {xid: (taken.item.data, taken.deliveries, taken.id) for xid, taken in opens.items()}
    return [item.data for item in replay.line.items()], held, replay.counter


def scanned(data: bytes, entry: EntryState = UNKNOWN, now_ms: int = 0) -> SegmentEffect:
    """The effect of a segment held whole in memory. Raises as EffectScan.consume, and CorruptRecord for a torn end."""
    scan = EffectScan(entry, 0, now_ms)
    if scan.consume(data, 0) < len(data):
        raise CorruptRecord("the file ends inside a record", scan.at)
    return scan.final_effect()


def follow(
    before: SegmentEffect, alone: SegmentEffect | None, again: Callable[[EntryState], SegmentEffect]
) -> SegmentEffect:
    """The effect of a queue's journal up to and with one more segment; `before` began with an empty queue.

    `alone`: what was summarised without knowledge of the queue, None if that was not possible. `again` summarises the
    segment with what is known now; it is called only if `alone` does not fit.
    """
    if alone is not None:
        try:
            merged = merge(before, alone)
            apply(merged)
            return merged
        except EffectMismatch:
            pass
    return merge(before, again(entry_state_of(apply(before))))


def alone(data: bytes, counter: int | None) -> SegmentEffect | None:
    try:
        return scanned(data, EntryState(counter), NOW_MS)
    except (EffectMismatch, CounterUnknown):
        return None


def resolved(segments: list[bytes]) -> SegmentEffect:
    """Left to right, as one reads a queue that one knows nothing of."""
    whole = NOTHING
    for data in segments:
        whole = follow(whole, alone(data, None), lambda entry, data=data: scanned(data, entry, NOW_MS))
    return whole


def folded(summaries: list[SegmentEffect], chance: random.Random) -> SegmentEffect:
    """Neighbours merged in a random order until one is left."""
    left = list(summaries)
    while len(left) > 1:
        at = chance.randrange(len(left) - 1)
        left[at : at + 2] = [merge(left[at], left[at + 1])]
    return left[0]


def counted(segments: list[bytes]) -> list[int]:
    """The counter at the beginning of each segment, by the cheap first pass."""
    counters = [0]
    for data in segments:
        xid_scan = XidScan()
        assert xid_scan.consume(data, 0) == len(data)
        after = xid_scan.counter_after(counters[-1])
        assert after is not None
        counters.append(after)
    return counters


@settings(max_examples=300, deadline=None)
@given(data=FOREIGN, cuts=st.lists(st.integers(0, 100), max_size=4))
def test_segments_of_any_records_resolve_to_what_replay_finds(data: bytes, cuts: list[int]) -> None:
    journal = Journal(data, cuts)
    assert journal.contents(apply(resolved(journal.segments))) == replayed(journal.data)


@settings(max_examples=300, deadline=None)
@given(operations=OPERATIONS, dialect=DIALECTS, cuts=st.lists(st.integers(0, 200), max_size=6), seed=SEEDS)
def test_summaries_of_our_journals_merge_in_any_order(
    operations: Operations, dialect: JournalDialect, cuts: list[int], seed: int
) -> None:
    scribe = Scribe(dialect)
    scribe.run(operations)
    journal = Journal(scribe.data, cuts)
    counters = counted(journal.segments)
    summaries = [alone(data, counter) for data, counter in zip(journal.segments, counters, strict=False)]
    known = [each for each in summaries if each is not None]
    assert len(known) == len(summaries), "what we write is never too little to summarise by itself"
    try:
        folds = [folded(known, random.Random(seed + turn)) for turn in range(3)]
    except EffectMismatch:  # a number was skipped because it was open: only the state before tells
        whole = resolved(journal.segments)
    else:
        whole = folds[0]
        assert folds[1] == whole and folds[2] == whole
    assert journal.contents(apply(whole)) == replayed(journal.data)


@settings(max_examples=200, deadline=None)
@given(data=FOREIGN, cuts=st.lists(st.integers(0, 100), max_size=4), seed=SEEDS)
def test_whenever_a_fold_of_foreign_records_succeeds_it_is_right(data: bytes, cuts: list[int], seed: int) -> None:
    journal = Journal(data, cuts)
    first = scanned(journal.segments[0], EMPTY, NOW_MS)
    rest = [alone(each, None) for each in journal.segments[1:]]
    summaries = [first, *(each for each in rest if each is not None)]
    if len(summaries) <= len(rest):
        return
    try:
        state = apply(folded(summaries, random.Random(seed)))
    except EffectMismatch:
        return
    assert journal.contents(state) == replayed(journal.data)


@settings(max_examples=100, deadline=None)
@given(data=FOREIGN, size=st.integers(1, 40))
def test_a_segment_may_come_in_pieces_without_its_payloads(data: bytes, size: int) -> None:
    journal = Journal(data, [])
    whole = EffectScan(EMPTY, 0, NOW_MS)
    whole.consume(journal.data, 0)
    pieces = EffectScan(EMPTY, 0, NOW_MS)
    at, want = 0, size
    while at < len(journal.data):
        piece = journal.data[at : at + want]
        used = pieces.consume(piece, len(journal.data) - at - len(piece))
        at += used
        want = size if used else 2 * want
    assert pieces.final_effect() == whole.final_effect() and pieces.facts == whole.facts


def test_a_payload_that_nobody_wants_is_not_asked_for() -> None:
    data = addx(b"x" * 10_000) + b"\1"
    scan = EffectScan(EMPTY)
    assert scan.consume(data[:21], len(data) - 21) == len(data) - 1


def test_marks_find_items_with_the_records_that_hold_their_flags() -> None:
    flags = with_xid(4, 7) + with_xid(4, 0)
    data = (b"\1" + flags + addx(b"x")) * 1025
    scan = EffectScan(UNKNOWN)
    scan.consume(data, 0)
    size = len(data) // 1025
    assert scan.facts.marks == [1, 1024 * size + 1]


def test_a_removal_in_front_of_every_item_needs_one_that_was_there() -> None:
    summary = scanned(b"\1" + addx(b"a"))
    assert (summary.need, summary.taken, summary.added) == (1, 1, 1)
    with pytest.raises(EffectMismatch, match="never added"):
        apply(summary)


def test_a_numbered_reserve_that_may_meet_an_item_with_its_own_number_is_left_to_who_knows_the_queue() -> None:
    data = named(7, 5, b"a") + b"\3"
    with pytest.raises(EffectMismatch):
        scanned(data, EntryState(0))
    assert list(scanned(data, EMPTY).opens) == [5]


def test_what_is_given_back_must_have_been_open_even_if_it_is_gone_in_the_end() -> None:
    data = addx(b"a") + with_xid(5, 7) + b"\1"
    with pytest.raises(EffectMismatch, match="7"):
        apply(scanned(data))
    assert apply(resolved([data])).items == 0


def test_spans_join_and_lose_single_numbers() -> None:
    found = IntervalSet.from_intervals([(5, 6), (1, 2), (3, 3)])
    assert found.intervals() == [(1, 3), (5, 6)]
    for number in (2, 6, 9):
        found.discard(number)
    assert found.intervals() == [(1, 1), (3, 3), (5, 5)]


def test_nothing_is_the_neutral_element() -> None:
    summary = scanned(b"\1" + addx(b"a") + with_xid(5, 4))
    assert merge(NOTHING, summary) == summary == merge(summary, NOTHING)


def test_the_counter_wraps_past_zero_in_the_first_pass_too() -> None:
    assert XidScan(None, 2).counter_after(-2) == 1
    assert XidScan(None, 1).counter_after(2**31 - 1) == -(2**31)
    assert XidScan(None, 0).counter_after(0) == 0
    assert XidScan(None, 1).counter_after(0) == 1
    assert XidScan(None, 1).counter_after(None) is None
