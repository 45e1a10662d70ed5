"""What a target of fuzzing is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple


class Target(NamedTuple):
    """`check` raises; `seeds` are inputs to begin with, `brief_runs` how many more a run of the tests tries."""

    check: Callable[[bytes], None]
    seeds: Callable[[], Iterator[bytes]]
    brief_runs: int = 150
