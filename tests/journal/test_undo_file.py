"""What of an undo file counts, however a power cut has left its end."""

from __future__ import annotations

import pytest

from staniel.journal.undo_file import (
    HOMEWARD_VERSION,
    RESUMED_VERSION,
    Back,
    Began,
    Moving,
    Over,
    Settled,
    UndoContent,
    frame,
    read_content,
    slice_frame,
)
from staniel.queues.item import Delivery, Item
from tests.support.spool import new_disk, put_file

BEGAN = frame(Began(RESUMED_VERSION, 1, 0, 1, "purge", b"q", total=2))
SLICES = [slice_frame([Delivery(Item(b"%d" % number * 100, 1), 0, xid=number)]) for number in (1, 2)]


def content(data: bytes) -> UndoContent:
    disk = new_disk()
    put_file(disk, "file", data)
    found = read_content(disk, "s/file")
    assert isinstance(found, UndoContent)
    return found


@pytest.mark.parametrize("behind", [b"", bytes(50), b"\xff" * 50])
def test_the_last_frame_counts_if_its_payload_is_whole_whatever_lies_behind_it(behind: bytes) -> None:
    whole = BEGAN + SLICES[0] + SLICES[1]
    assert content(whole + behind).end == len(whole)
    torn = whole[:-30] + bytes(30)
    assert content(torn + behind).end == len(BEGAN + SLICES[0])


def test_the_payloads_of_frames_before_the_last_one_are_not_read() -> None:
    first = SLICES[0][:-30] + bytes(30)
    found = content(BEGAN + first + frame(Over()))
    assert len(found.slices) == 1 and found.is_over


def test_where_copies_end_is_known_of_each_target_for_itself() -> None:
    began = frame(Began(HOMEWARD_VERSION, 1, 0, 1, "redrive", b"dead", total=2, is_homeward=True))
    slices = [frame(Moving(1, 0, 10, [], target=target)) for target in (b"a", b"b", b"a", b"b")]
    settled = [frame(Settled(1, 0, 7, 70)), frame(Settled(2, 0, 3, 30))]
    found = content(began + b"".join(slices + settled))
    assert found.targets == ["a", "b"] and found.queues == ["dead", "a", "b"]
    assert found.routes == [("dead", "a"), ("dead", "b")]
    assert [found.moved_behind[found.target_of(number)].end_for(number, (0, 10)) for number in (2, 3)] == [
        (7, 70),
        (3, 30),
    ]


def test_a_slice_of_which_nothing_was_copied_says_nothing_of_where_copies_end() -> None:
    began = frame(Began(RESUMED_VERSION, 1, 0, 1, "move", b"q", b"r", total=3))
    slices = [frame(Moving(1, 0, 10, [])) for _ in range(3)]
    found = content(b"".join([began, *slices, frame(Settled(1, 0, 7, 70)), frame(Settled(2, 0))]))
    assert found.moved_behind["r"].end_for(2, (0, 10)) == (7, 70)
    backs = [frame(Back(0, 10, [])) for _ in range(3)]
    settled = [frame(Settled(3, 1, 7, 70)), frame(Settled(3, 2))]
    found = content(b"".join([began, *slices, frame(Settled(3, 0)), *backs, *settled]))
    assert found.returned_behind.end_for(2, (0, 10)) == (7, 70)
