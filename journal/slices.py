"""Work that is too long for one turn, written as a generator. It yields how many items it has just done, and returns
its result.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from itertools import islice
from typing import Generic, TypeVar

ITEMS_PER_SLICE = 2_000  # about two milliseconds

Row = TypeVar("Row")
Result = TypeVar("Result")
Slices = Generator[int, None, Result]


def sliced(rows: Iterable[Row]) -> Iterator[list[Row]]:
    """Yield `rows` in lists of a slice's size; the last one may be shorter."""
    rest = iter(rows)
    while some := list(islice(rest, ITEMS_PER_SLICE)):
        yield some


class SlicedWork(Generic[Result]):
    """Running work. `result` is set once it `is_over`. Work that fits into one slice is over after one step."""

    result: Result

    def __init__(self, slices: Slices[Result]) -> None:
        self._slices = slices
        self.is_over = False

    def do_slice(self) -> None:
        """Do a slice."""
        left = ITEMS_PER_SLICE
        try:
            while left > 0:
                left -= next(self._slices)
        except StopIteration as end:
            self.result, self.is_over = end.value, True
