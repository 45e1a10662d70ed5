"""Boundaries noted for a run of equal records are those that would be noted for each of them."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from staniel.journal.kestrel.pack import STAND_IN_RECORD
from staniel.journal.kestrel.segments import SAMPLE_BYTES, IndexEntry, Segment, note_places, note_run

RUNS = st.lists(st.integers(1, 3 * SAMPLE_BYTES // len(STAND_IN_RECORD)), max_size=6)


@given(RUNS)
def test_a_run_of_equal_records_has_places_as_near_and_as_true(runs: list[int]) -> None:
    start = IndexEntry(17, 5, 1000, 3)
    by_runs, one_by_one = Segment("q", 1, start), Segment("q", 1, start)
    end = start
    for count in runs:
        end = IndexEntry(end.at + count * len(STAND_IN_RECORD), end.seq + count, end.added_bytes, end.added_expiring)
        note_run(by_runs, len(STAND_IN_RECORD), count, end)
        note_places(one_by_one, [STAND_IN_RECORD] * count, end)
    assert abs(len(by_runs.places) - len(one_by_one.places)) <= len(runs)
    for place in by_runs.places:
        assert place.at - start.at == len(STAND_IN_RECORD) * (place.seq - start.seq)
        assert (place.added_bytes, place.added_expiring) == (1000, 3)
    assert all(after.at - before.at >= SAMPLE_BYTES for before, after in pairwise(by_runs.places))
    gaps = [after.at - before.at for before, after in pairwise([start, *by_runs.places, end])]
    assert max(gaps) < 2 * SAMPLE_BYTES + len(STAND_IN_RECORD)
