"""The watched descriptors that are not those of connected clients: of listeners, handshakes and threads. And the
sockets to close at the end of a turn.
"""

from __future__ import annotations

from collections.abc import Callable

from staniel.server.interfaces import Poller, Sock, close_quietly

OnReady = Callable[[int], None]
"""A handler of an event, called with the present time in ms."""


class Dispatcher:
    """The handlers of watched descriptors. `dropped`: the sockets to close at the end of the turn. Closed now, a
    descriptor could become the next client's, and this turn's events would be taken for that client's.
    """

    def __init__(self, poller: Poller) -> None:
        self._poller = poller
        self._handlers: dict[int, OnReady] = {}
        self.dropped: list[Sock] = []

    def __len__(self) -> int:
        return len(self._handlers)

    def __contains__(self, fd: int) -> bool:
        return fd in self._handlers

    def watch(self, fd: int, mask: int, on_ready: OnReady) -> None:
        """Call `on_ready` for each event of a descriptor. Raises OSError; `unwatch` is needed even then."""
        self._handlers[fd] = on_ready
        self._poller.register(fd, mask)

    def change_events(self, fd: int, mask: int) -> None:
        """Change the watched events. Raises OSError."""
        self._poller.modify(fd, mask)

    def unwatch(self, fd: int) -> None:
        self._handlers.pop(fd, None)
        unregister_quietly(self._poller, fd)

    def dispatch(self, fd: int, now_ms: int) -> None:
        """Handle an event. One of a client that was dropped earlier in this turn has no handler."""
        on_ready = self._handlers.get(fd)
        if on_ready is not None:
            on_ready(now_ms)

    def close_dropped(self) -> None:
        """Close the dropped sockets: the turn ends."""
        for sock in self.dropped:
            close_quietly(sock)
        self.dropped.clear()


def unregister_quietly(poller: Poller, fd: int) -> None:
    """Stop watching a descriptor. If epoll_ctl(2) fails, closing the descriptor has the same effect."""
    try:
        poller.unregister(fd)
    except OSError:
        pass
