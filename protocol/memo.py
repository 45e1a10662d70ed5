"""A bounded memo: a plain dict, read with `get` and filled by `remember`."""

from __future__ import annotations

from typing import TypeVar

K = TypeVar("K")
V = TypeVar("V")

ENTRIES_MAX = 4096


def remember(memo: dict[K, V], key: K, value: V) -> None:
    """Add an entry. A full memo is emptied first: that is cheaper than keeping an order, and used entries soon
    return.
    """
    if len(memo) >= ENTRIES_MAX:
        memo.clear()
    memo[key] = value
