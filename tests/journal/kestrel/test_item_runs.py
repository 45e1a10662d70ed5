"""Items read in runs have the effect that they have one by one: any runs, cut anywhere, among any other records."""

from __future__ import annotations

from unittest.mock import patch

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from staniel.pipeline.formats.kestrel import item_runs
from staniel.pipeline.formats.kestrel.effect_scan import EMPTY, MARK_EVERY, UNKNOWN, EffectScan, EntryState
from staniel.pipeline.formats.kestrel.item_runs import RunKind, read_run
from tests.support.records import FOREIGN, NOW_MS, addx, with_xid

NEVER = 1 << 60  # items: no run is as long
SIZES = st.lists(st.integers(0, 30), min_size=1, max_size=12)
TIMES = st.sampled_from([0, -1, NOW_MS, NOW_MS + 5, 1 << 46, -(1 << 63)])
XIDS = st.sampled_from([0, 1, -3, 2**31 - 4, 7])
ENTRIES = st.sampled_from(
    [EMPTY, UNKNOWN, EntryState(5, 3, frozenset({7})), EntryState(5, 3, frozenset(), {1: 9}), EntryState(0, 0)]
)


@st.composite
def stretches(draw: st.DrawFn) -> bytes:
    """Items of which each is followed by the same records, but for a few; with other records around them."""
    made = [draw(FOREIGN) if draw(st.booleans()) else b""]
    for _ in range(draw(st.integers(1, 4))):
        kind, xid, step = draw(st.sampled_from(RunKind)), draw(XIDS), draw(st.sampled_from([1, 1, 1, 2]))
        added_ms, expires_ms = draw(TIMES), draw(st.sampled_from([0, 0, NOW_MS]))
        for number, size in enumerate(draw(SIZES)):
            made.append(addx(b"\2" * size, added_ms + number, expires_ms))
            made += [b"\1"] if kind is RunKind.REMOVED else []
            if kind is RunKind.READ:
                own = min(xid + number * step, 2**31 - 1)
                made.append(with_xid(9, own) + with_xid(draw(st.sampled_from([6, 6, 6, 3])), own))
        made.append(draw(st.sampled_from([b"", b"\1", with_xid(6, xid), with_xid(9, xid), with_xid(4, 3)])))
    return b"".join(made)


def scan(data: bytes, entry: EntryState, size: int, run_min: int) -> object:
    """What a scan in pieces finds, or which error it raises."""
    found = EffectScan(entry, 0, NOW_MS)
    at, want = 0, size
    with patch.object(item_runs, "RUN_MIN", run_min):
        try:
            while at < len(data) and want < 2 * len(data) + size:
                piece = data[at : at + want]
                used = found.consume(piece, max(0, len(data) - at - len(piece)))
                at += used
                want = size if used else 2 * want
            return at, found.final_effect(), found.facts, found.at
        except Exception as error:
            return type(error), str(error), found.at


@settings(max_examples=600, deadline=None)
@given(data=stretches(), entry=ENTRIES, size=st.integers(1, 2000), run_min=st.integers(1, 4))
@example(data=addx(b"a") * 9 + b"\1" * 30, entry=EMPTY, size=500, run_min=2)
@example(data=(addx(b"a") + with_xid(9, 1) + with_xid(6, 1)) * 3, entry=UNKNOWN, size=500, run_min=1)
def test_a_run_has_the_effect_of_its_records(data: bytes, entry: EntryState, size: int, run_min: int) -> None:
    assert scan(data, entry, size, run_min) == scan(data, entry, size, NEVER)


@pytest.mark.parametrize("kind", list(RunKind))
def test_marks_of_long_runs_are_those_of_single_items(kind: RunKind) -> None:
    made = bytearray(with_xid(4, 7) + with_xid(4, 0))
    for number in range(5 * MARK_EVERY // 2):
        made += addx(b"x" * (number % 97), NOW_MS + number // 3)
        made += b"\1" if kind is RunKind.REMOVED else b""
        made += with_xid(9, number + 1) + with_xid(6, number + 1) if kind is RunKind.READ else b""
    run = read_run(bytes(made), 10)
    assert run is not None and run.kind is kind and len(run.starts) == 5 * MARK_EVERY // 2
    assert scan(bytes(made), EMPTY, len(made), 32) == scan(bytes(made), EMPTY, len(made), NEVER)
    assert scan(bytes(made), UNKNOWN, 10_000, 32) == scan(bytes(made), UNKNOWN, 10_000, NEVER)


@pytest.mark.parametrize("broken", [b"\3", with_xid(9, 9) + with_xid(6, 8), with_xid(9, 50) + with_xid(6, 50)])
def test_a_run_ends_before_the_first_item_with_other_records(broken: bytes) -> None:
    pairs = [with_xid(9, number) + with_xid(6, number) for number in range(100)]
    data = b"".join(addx(b"x" * number) + (broken if number == 60 else pairs[number]) for number in range(100))
    run = read_run(data, 0)
    assert run is not None and len(run.starts) == 60 and run.xids == range(60)
