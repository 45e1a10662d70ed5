"""The descriptors of a member: other members' connections, refused clients, the sync of its file. They have a poller of
their own. Before the member leads, a task of trio waits for it; the hub of a leader has it among its own descriptors.
"""

from __future__ import annotations

import os
import select

from staniel.server.dispatcher import Dispatcher, OnReady
from staniel.server.poller import Poller

EVENTS_PER_TURN = 64


class Reactor:
    """The poller, and who handles the events of each descriptor. `wake` has `on_woken` called once."""

    def __init__(self) -> None:
        self._poller = Poller()
        self.dispatcher = Dispatcher(self._poller)
        self._flag = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self.on_woken: OnReady = lambda now_ms: None
        self.dispatcher.watch(self._flag, select.EPOLLIN, self._take_flag)

    def fileno(self) -> int:
        return self._poller.fileno()

    def wake(self) -> None:
        """Have `on_woken` called soon, however idle the process is."""
        os.eventfd_write(self._flag, 1)

    def _take_flag(self, now_ms: int) -> None:
        os.eventfd_read(self._flag)
        self.on_woken(now_ms)

    def handle_events(self, now_ms: int) -> None:
        """Handle what is ready."""
        for fd, _ in self._poller.poll(0, EVENTS_PER_TURN):
            self.dispatcher.dispatch(fd, now_ms)
        self.dispatcher.close_dropped()
