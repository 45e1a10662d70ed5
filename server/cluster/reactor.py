"""The descriptors of a member: other members' connections, refused clients, the sync of its file. They have a poller of
their own. Before the member leads, a task of trio waits for it; the hub of a leader has it among its own descriptors.
"""

from __future__ import annotations

from staniel.server.dispatcher import Dispatcher
from staniel.server.poller import Poller

EVENTS_PER_TURN = 64


class Reactor:
    """The poller, and who handles the events of each descriptor."""

    def __init__(self) -> None:
        self._poller = Poller()
        self.dispatcher = Dispatcher(self._poller)

    def fileno(self) -> int:
        return self._poller.fileno()

    def handle_events(self, now_ms: int) -> None:
        """Handle what is ready."""
        for fd, _ in self._poller.poll(0, EVENTS_PER_TURN):
            self.dispatcher.dispatch(fd, now_ms)
        self.dispatcher.close_dropped()

    def close(self) -> None:
        """Close the poller."""
        self.dispatcher.close_dropped()
        self._poller.close()
