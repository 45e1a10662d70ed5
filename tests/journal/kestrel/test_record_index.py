"""Boundaries noted for a run of equal records are those that would be noted for each of them."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from staniel.journal.kestrel.pack import STAND_IN_RECORD
from staniel.journal.kestrel.segments import SAMPLE_BYTES, IndexEntry, LogSegment, index_records, index_run

RUNS = st.lists(st.integers(1, 3 * SAMPLE_BYTES // len(STAND_IN_RECORD)), max_size=6)


@given(RUNS)
def test_a_run_of_equal_records_has_places_as_near_and_as_true(runs: list[int]) -> None:
    start = IndexEntry(17, 5, 1000, 3)
    by_runs, one_by_one = LogSegment("q", 1, start), LogSegment("q", 1, start)
    end = start
    for count in runs:
        end = IndexEntry(end.at + count * len(STAND_IN_RECORD), end.seq + count, end.added_bytes, end.added_expiring)
        index_run(by_runs, len(STAND_IN_RECORD), count, end)
        index_records(one_by_one, [STAND_IN_RECORD] * count, end)
    assert abs(len(by_runs.index) - len(one_by_one.index)) <= len(runs)
    for entry in by_runs.index:
        assert entry.at - start.at == len(STAND_IN_RECORD) * (entry.seq - start.seq)
        assert (entry.added_bytes, entry.added_expiring) == (1000, 3)
    assert all(after.at - before.at >= SAMPLE_BYTES for before, after in pairwise(by_runs.index))
    gaps = [after.at - before.at for before, after in pairwise([start, *by_runs.index, end])]
    assert max(gaps) < 2 * SAMPLE_BYTES + len(STAND_IN_RECORD)
