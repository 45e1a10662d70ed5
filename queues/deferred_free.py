"""Items that are removed but still in memory, because freeing all of them at once takes time. Each turn frees more than
clients can put meanwhile.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator

from staniel.queues.item import Delivery, Item, Numbered

ITEMS_PER_STEP = 4096  # 0.05 us each, more if they are cold
BYTES_PER_STEP = 4 << 20  # the kernel takes back 4 KB in 0.1 us
LEAST_ITEMS = 256  # fewer items are freed immediately, if they are not large


class DeferredFree:
    """Frees dropped items a few at a time. Call `free_some` as long as something is `left`."""

    def __init__(self) -> None:
        self.left: deque[Iterator[int]] = deque()

    def add(self, items: deque[Item] | list[Delivery] | dict[int, Delivery], size: int) -> None:
        """Free `items`, immediately if they are few. `size`: the bytes of their payload, at most. The caller must not
        use this collection any more.
        """
        if len(items) <= LEAST_ITEMS and size <= BYTES_PER_STEP:
            items.clear()
        elif isinstance(items, deque):
            self.left.append(_items(items))
        elif isinstance(items, list):
            self.left.append(_given_back(items))
        else:
            self.left.append(_reads(items))

    def add_pieces(self, pieces: Iterable[list[Numbered]]) -> None:
        """Free lists of a few hundred items each."""
        self.left.extend(map(_numbered, pieces))

    def free_some(self) -> None:
        """Free some of the items."""
        items, size = ITEMS_PER_STEP, BYTES_PER_STEP
        left = self.left
        while left and items > 0 and size > 0:
            for freed in left[0]:
                items -= 1
                size -= freed
                if items <= 0 or size <= 0:
                    return
            left.popleft()


# Each generator frees one collection and yields the size of each freed item.


def _items(items: deque[Item]) -> Iterator[int]:
    while items:
        yield len(items.popleft().data)


def _numbered(items: list[Numbered]) -> Iterator[int]:
    while items:
        yield len(items.pop().data)


def _given_back(items: list[Delivery]) -> Iterator[int]:
    while items:
        yield len(items.pop().item.data)


def _reads(reads: dict[int, Delivery]) -> Iterator[int]:
    while reads:
        yield len(reads.popitem()[1].item.data)
