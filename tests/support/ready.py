"""Waiting for a descriptor. select.select refuses numbers above 1023, which a long run of tests reaches."""

from __future__ import annotations

import select
from typing import Protocol


class HasFileno(Protocol):
    def fileno(self) -> int: ...


def is_readable(source: HasFileno | int, seconds: float | None = 0.0) -> bool:
    """Whether `source` can be read, or has ended, within `seconds`; None: it is waited for until then."""
    return _comes(source, select.POLLIN, None if seconds is None else max(0.0, seconds) * 1000)


def is_writable(source: HasFileno | int) -> bool:
    """Whether `source` takes bytes now."""
    return _comes(source, select.POLLOUT, 0)


def _comes(source: HasFileno | int, event: int, within_ms: float | None) -> bool:
    poll = select.poll()
    poll.register(source, event)
    return bool(poll.poll(within_ms))
