"""Each common change can be recorded with and without a change object: a journal writes and tells the same."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from staniel.journal.kestrel.log import Log
from staniel.queues.changes import Added, Change, Confirmed, Opened, Removed
from staniel.queues.item import Item
from staniel.sim.disk.disk import Disk
from tests.journal.batches import group_on, log_of

ITEMS = st.builds(Item, st.binary(max_size=40), st.integers(0, 2**40), st.integers(0, 2**40), st.integers(0, 2**32 - 1))
XIDS = st.integers(1, 2**31 - 1)
CHANGES = st.lists(
    st.builds(Added, ITEMS)
    | st.builds(Removed, st.integers(0, 2**60))
    | st.builds(Opened, st.integers(0, 2**60), XIDS)
    | st.builds(Confirmed, st.integers(0, 2**60), XIDS),
    max_size=8,
)


def record_without_an_object(log: Log, change: Change) -> None:
    match change:
        case Added(item):
            log.record_added(item)
        case Removed(item_id):
            log.record_removed(item_id)
        case Opened(item_id, xid):
            log.record_opened(item_id, xid)
        case Confirmed(item_id, xid):
            log.record_confirmed(item_id, xid)


def recorded(changes: list[Change], record: Callable[[Log, Change], None], told: list[Change] | None) -> object:
    log = log_of(group_on(Disk()))
    log.listener = None if told is None else told.append
    for change in changes:
        record(log, change)
    group = log.group
    return log.unwritten(), log.pending_bytes, group.pending_bytes, log.encoder.took, log.encoder.counter


@given(CHANGES)
@pytest.mark.parametrize("is_watched", [False, True])
def test_both_ways_write_the_same_bytes_and_tell_the_same(is_watched: bool, changes: list[Change]) -> None:
    one, other = ([], []) if is_watched else (None, None)  # type: tuple[list[Change] | None, list[Change] | None]
    assert recorded(changes, Log.record, one) == recorded(changes, record_without_an_object, other)
    assert one == other
    assert one is None or one == changes
