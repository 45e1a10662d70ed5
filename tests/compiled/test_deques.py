"""The calls of a deque that the hot path makes, compiled and plain: what the methods do."""

from __future__ import annotations

import sys
from collections import deque

import pytest

from staniel.queues.deques import append, popleft


class Backwards(deque[int]):
    """A deque with methods of its own."""

    def append(self, item: int) -> None:
        self.appendleft(item)


def test_items_come_out_in_the_order_in_which_they_went_in() -> None:
    line: deque[int] = deque()
    for number in range(200):
        append(line, number)
    assert [popleft(line) for _ in range(200)] == list(range(200))
    with pytest.raises(IndexError):
        popleft(line)
    append(line, 7)
    assert popleft(line) == 7


def test_a_bounded_deque_drops_its_first_item() -> None:
    line = deque([1, 2], maxlen=2)
    append(line, 3)
    assert list(line) == [2, 3]


def test_each_call_takes_and_gives_one_reference() -> None:
    item, line = object(), deque[object]()
    before = sys.getrefcount(item)
    append(line, item)
    assert sys.getrefcount(item) == before + 1
    assert popleft(line) is item
    assert sys.getrefcount(item) == before


def test_of_a_subclass_the_method_of_deque_is_called() -> None:
    line = Backwards([1])
    append(line, 2)
    assert list(line) == [1, 2] and popleft(line) == 1


@pytest.mark.parametrize("wrong", [[1], None, 3])
def test_anything_else_is_refused(wrong: object) -> None:
    with pytest.raises(TypeError):
        append(wrong, 1)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        popleft(wrong)  # type: ignore[arg-type]
