"""The thread that waits for the disk, so that nobody else has to.

Knows one sync at a time: run it, then raise a flag that the hub's poller sees. Refuses to know what is synced. A
thread of our own and an eventfd cost a third of a trip through a pool of worker threads, and every durable reply pays
that.
"""

from __future__ import annotations

import os
import threading
from queue import SimpleQueue
from time import perf_counter_ns

from journal.group import Sync


class Committer:
    """`fd` becomes readable when the sync that was started has ended."""

    def __init__(self) -> None:
        self.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._orders: SimpleQueue[Sync | None] = SimpleQueue()
        self._done: SimpleQueue[tuple[Sync, BaseException | None]] = SimpleQueue()
        self.took_ns = 0  # by the last sync
        self._thread = threading.Thread(target=self._work, name="committer", daemon=True)
        self._thread.start()

    def start(self, sync: Sync) -> None:
        """Run `sync` in the thread."""
        self._orders.put(sync)

    def finished(self) -> Sync:
        """The sync that has ended; waits for it. Raises what it raised."""
        sync, error = self._done.get()
        os.eventfd_read(self.fd)
        if error is not None:
            raise error
        return sync

    def close(self) -> None:
        """End the thread once it is idle."""
        self._orders.put(None)
        self._thread.join()
        os.close(self.fd)

    def _work(self) -> None:
        while (sync := self._orders.get()) is not None:
            error: BaseException | None = None
            began_ns = perf_counter_ns()
            try:
                sync.run()
            except BaseException as wrong:  # carried to the hub, which ends the process
                error = wrong
            self.took_ns = perf_counter_ns() - began_ns
            os.eventfd_write(self.fd, 1)  # before the answer: whoever holds the answer may read the flag
            self._done.put((sync, error))
