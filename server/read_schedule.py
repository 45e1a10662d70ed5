"""The order in which clients are read: first clients with short requests, then clients that send much, each in its
turn. Clients for which a turn has no time are read in the next one.
"""

from __future__ import annotations

import select
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator

from staniel.broker.session import PARKED
from staniel.server.connection import ENDED, READ_BYTES_MAX, Connection

READABLE = select.EPOLLIN
GONE = select.EPOLLHUP | select.EPOLLERR
CROWDED_READ_BYTES = 256 << 10
FEW = 4  # this many clients that send much are no crowd
EVENTS_PER_TURN = 1023  # the next turns get further events: a client without one may be ready too
FIRST_BYTES_MAX = 1 << 10  # a client that begins with more is read after those with short requests
WRITERS_PER_TURN = 8  # clients that are slow to read their replies

Event = tuple[int, int]
"""A descriptor and the mask of its events."""


class ReadSchedule:
    """The clients to read now, later in this turn, and in the next one.

    `heard_ms`: all bytes that clients sent before this time have been read, except those of postponed clients;
    `turn_ms` is the time of this turn. `postponed` has descriptors that the last turn had no time for, in order.
    `queue` has clients that send much and so are read after the others, the longest-waiting first.
    """

    def __init__(self, connections: dict[int, Connection], waiting_bytes: Callable[[int], int]) -> None:
        self._connections = connections
        self._waiting_bytes = waiting_bytes
        self.heard_ms = self.turn_ms = 0
        self.postponed: dict[int, int] = {}
        self.queue: OrderedDict[int, int] = OrderedDict()
        self._is_cut = False  # more clients may be ready than this turn has events for
        self._round_ms = self._heard_in_rounds_ms = self._polls_left = 0

    def count_full_poll(self, watched: int) -> None:
        """Count a poll that returned its maximum of events, of `watched` descriptors: more clients may be ready. The
        kernel first reports those that it has not reported for longest; so after enough polls all clients are known
        that were ready before this one.
        """
        before_ms, self.heard_ms = self.heard_ms, self._heard_in_rounds_ms
        if not self._polls_left:
            self._round_ms = before_ms
            self._polls_left = watched // EVENTS_PER_TURN + 1
        self._polls_left -= 1
        if not self._polls_left:
            self.heard_ms = self._heard_in_rounds_ms = self._round_ms

    def prioritize(
        self, events: list[Event], pressing: set[int], active: list[Connection]
    ) -> tuple[list[Event], dict[int, int]]:
        """Return the events to serve at once, the postponed ones first, and apart from them those of clients to read
        last. Append to `active` the clients to send more to.

        Clients to read last are those with pending bytes, `pressing` (one with an unfinished request sends as much as
        we read) and, if there was no time for all, clients that send much. Hundreds of them must not delay one with
        whole, short requests.
        """
        late, self.postponed = self.postponed, {}
        queue, connections = self.queue, self._connections
        self._is_cut = len(events) >= EVENTS_PER_TURN
        if self._is_cut and late:
            ready = {fd for fd, _ in events}
            self.postpone(fd for fd in late if fd not in ready)
        is_crowded = bool(late or queue)
        front, queued, writers = list[Event](), dict[int, int](), list[int]()
        for event in events:
            fd, mask = event
            if mask == READABLE:
                if fd in queue or fd in pressing or (is_crowded and fd in connections and self.sends_much(fd)):
                    queued[fd] = mask
                    continue
            elif fd in pressing and not mask & GONE and connections[fd].session.state is not PARKED:
                if mask & select.EPOLLOUT:
                    writers.append(fd)
                if mask & READABLE:
                    queued[fd] = mask
                if mask & READABLE or not mask & ENDED:
                    continue
                event = fd, ENDED
            front.append(event)
        if late:
            last = len(late)
            front.sort(key=lambda event: late.get(event[0], last))
            writers.sort(key=lambda fd: late.get(fd, last))
        active.extend([connections[fd] for fd in writers[:WRITERS_PER_TURN]])
        self.postpone(writers[WRITERS_PER_TURN:])
        if not queued and not self._is_cut:
            queue.clear()  # their bytes have been read in another way
        queue.update(queued)
        return front, queued

    def sends_much(self, fd: int) -> bool:
        """Return True if the client is known to send much; before the first read, by its received bytes."""
        connection = self._connections[fd]
        if connection.is_new and not connection.sends_much:
            try:
                connection.sends_much = self._waiting_bytes(fd) > FIRST_BYTES_MAX
            except OSError:
                return False  # the read fails, too, and ends it
        return connection.sends_much

    def read_last(self, fd: int) -> None:
        """Read a client after the others in the next turn."""
        self.queue[fd] = READABLE

    def pop_queued(self, ready: dict[int, int]) -> Iterator[Connection]:
        """Remove the clients from the queue one by one, the longest-waiting first, and yield those in `ready`."""
        bytes_max = CROWDED_READ_BYTES if len(ready) > FEW else READ_BYTES_MAX
        for fd in list(self.queue):
            if fd not in ready and self._is_cut:
                continue
            del self.queue[fd]
            connection = self._connections.get(fd)
            if fd not in ready or connection is None:
                continue
            if connection.read_bytes > bytes_max:
                connection.read_bytes = bytes_max
            yield connection

    def is_postponed(self, fd: int) -> bool:
        """Return True if a client's descriptor is ready, and there has been no time for it since."""
        return fd in self.queue or fd in self.postponed

    def postpone(self, fds: Iterable[int]) -> None:
        """Postpone descriptors to the next turn."""
        for fd in fds:
            self.postponed.setdefault(fd, len(self.postponed))


def behind(fd: int, events: list[Event]) -> list[Event]:
    """Return the events behind the one of this descriptor."""
    return events[[event[0] for event in events].index(fd) + 1 :]
