"""What a wait looks like from outside: how long a call took, and an item that comes while somebody waits."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from tests.support.process import Server, until
from tests.support.wire import Wire, stats

WAIT_MS = 150
LATE_SECONDS_MAX = 30.0  # the machine may be busy; a wait in seconds instead of milliseconds lasts longer


@contextmanager
def takes_about(wait_ms: int) -> Iterator[None]:
    """The block may not end before `wait_ms` are over, nor long after."""
    began = time.monotonic()
    yield
    took_s = time.monotonic() - began
    assert wait_ms / 1000 <= took_s + 0.005 < wait_ms / 1000 + LATE_SECONDS_MAX, f"{took_s:.3f} s"


@contextmanager
def item_for_the_waiter(server: Server, queue: str, data: bytes) -> Iterator[None]:
    """Puts an item as soon as somebody waits in `queue`; the block is what waits."""
    failures: list[str] = []

    def put() -> None:
        if not until(lambda: stats(server.address).get(f"queue_{queue}_waiters") == "1"):
            failures.append("nobody came to wait")
        with Wire(server.address) as wire:
            wire.put(queue, data)

    thread = threading.Thread(target=put)
    thread.start()
    yield
    thread.join()
    assert not failures
