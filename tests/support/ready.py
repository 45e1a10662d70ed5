"""Waiting for a descriptor. select.select refuses numbers above 1023, which a long run of tests reaches."""

from __future__ import annotations

import select
from typing import Protocol


class HasFileno(Protocol):
    def fileno(self) -> int: ...


def is_readable(source: HasFileno | int, seconds: float = 0.0) -> bool:
    """Whether `source` can be read, or has ended, within `seconds`."""
    poll = select.poll()
    poll.register(source, select.POLLIN)
    return bool(poll.poll(max(0.0, seconds) * 1000))


def is_writable(source: HasFileno | int) -> bool:
    """Whether `source` takes bytes now."""
    poll = select.poll()
    poll.register(source, select.POLLOUT)
    return bool(poll.poll(0))
