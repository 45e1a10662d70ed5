"""A hub on a simulated machine: its disk, descriptors, threads and clock are all stepped."""

from __future__ import annotations

import select
from random import Random
from typing import TYPE_CHECKING

from staniel.broker import protocols
from staniel.broker.admin.http.events import EVENT_BYTES_MAX
from staniel.broker.session import PULSE, SessionState
from staniel.journal.background import BackgroundTask
from staniel.journal.group_commit import Sync
from staniel.protocol.memcache.requests import Dialect
from staniel.server.connection import Connection, ConnectionState
from staniel.server.connection_limits import Reserve
from staniel.server.hub import Hub
from staniel.server.listener import Endpoint
from staniel.server.timeouts import IdleTimeout, LingerTimeout
from staniel.sim.disk.disk import Disk
from staniel.sim.hub.net import Link, ListeningSock, Net, ServerSock
from staniel.sim.hub.secure import SecureLink, SimSecurity, client_context
from staniel.sim.hub.workers import SimWorker
from staniel.sim.violations import Kind, Violation
from staniel.sim.world import World

if TYPE_CHECKING:
    from staniel.server.interfaces import Clock

OWED_TO_PAGE_MAX = EVENT_BYTES_MAX + 4096
LEAVING = select.EPOLLRDHUP | select.EPOLLHUP | select.EPOLLERR
BETWEEN_LOOKS_NS = (0, 0, 0, 0, 0, 0, 50_000, 300_000, 5_000_000)
STANDS_STILL_MS = 1500
HUNG_UP = (ConnectionState.DRAINING, ConnectionState.LINGERING, ConnectionState.CLOSED)
ON_THE_SPOT_NS = (20_000, 60_000, 60_000, 200_000, 4_000_000)


class SimMachine:
    """The simulator's implementation of server/interfaces.py's Machine; the clock is the world's."""

    def __init__(self, clock: Clock, rng: Random) -> None:
        self.clock = clock
        self.poller = Net(rng)
        self.syncs: SimWorker[Sync] = SimWorker(self.poller, "sync thread")
        self.tasks: SimWorker[BackgroundTask] = SimWorker(self.poller, "task thread")
        self._rng = rng
        self._ns = self._elapsed_ns = 0
        self._work = Random(0)  # a source of its own, so that a seed that has found something finds it again

    def now_ns(self) -> int:
        """Return the time. Work between two calls takes time."""
        self._ns += self._rng.choice(ON_THE_SPOT_NS)
        return self._ns

    def elapsed_ns(self) -> int:
        """Return the time. Serving a client takes no time, or longer than a turn may take."""
        self._elapsed_ns += self._work.choice(BETWEEN_LOOKS_NS)
        return self._elapsed_ns

    def step_ns(self) -> int:
        """Return 0: a request's share is never spent."""
        return 0

    def waiting_bytes(self, fd: int) -> int:
        sock = self.poller.open[fd]
        assert isinstance(sock, ServerSock)
        return len(sock.link.to_server)


class WorldsClock:
    def __init__(self, world: World) -> None:
        self._world = world

    def now_ms(self) -> int:
        return self._world.now_ms


class HubWorld(World):
    """A world with a hub. `door` accepts clients."""

    def __init__(self, config: str, disk: Disk, now_ms: int, rng: Random, clients_max: int) -> None:
        super().__init__(config, disk, now_ms)
        self.machine = SimMachine(WorldsClock(self), rng)
        self.net = self.machine.poller
        self.hub = Hub(self.broker, self.machine, clients_max)
        self.acceptor = ListeningSock(self.net)
        self.hub.listen(Endpoint(self.acceptor, protocols.memcache(Dialect.MEMCACHED)))
        self.admin_acceptor: ListeningSock | None = None
        self.secure_acceptor: ListeningSock | None = None
        self._secure_links: list[SecureLink] = []
        self.workers = (self.machine.syncs, self.machine.tasks)
        self.turns = 0
        self.stands_still = False
        self._looked_ms = now_ms

    def connect(self) -> Link:
        link = Link()
        self.acceptor.waiting.append(link)
        return link

    def connect_operator(self) -> Link:
        """Connect to the admin listener, which is open from then on."""
        if self.admin_acceptor is None:
            self.admin_acceptor = ListeningSock(self.net)
            self.hub.listen(Endpoint(self.admin_acceptor, protocols.http(), None, Reserve.OPERATORS))
        link = Link()
        self.admin_acceptor.waiting.append(link)
        return link

    def connect_secure(self) -> Link:
        """Connect with TLS. Its listener is open from then on."""
        if self.secure_acceptor is None:
            self.secure_acceptor = ListeningSock(self.net)
            self.hub.listen(Endpoint(self.secure_acceptor, protocols.memcache(Dialect.MEMCACHED), SimSecurity()))
            self._context = client_context()
        link = SecureLink(self._context)
        self._secure_links.append(link)
        self.secure_acceptor.waiting.append(link.wire)
        return link

    @property
    def outside(self) -> int:
        """The number of clients that are not accepted yet."""
        doors = (self.acceptor, self.admin_acceptor, self.secure_acceptor)
        return sum(len(door.waiting) for door in doors if door is not None)

    def pump(self) -> None:
        """Move what clients with TLS send to their wires, and continue their handshakes."""
        for link in self._secure_links:
            link.pump()
        self._secure_links = [link for link in self._secure_links if not link.wire.server_ended and not link.is_reset]

    def turn(self, ms: int = 0) -> None:
        """Let time pass, then let the hub handle the events."""
        self.now_ms += ms
        self.pump()
        events = self.net.poll()
        self._looked_ms = self.now_ms
        if self.stands_still and self.net.rng.random() < 0.05:
            for _ in range(4):
                self.net.meanwhile()
            self.now_ms += STANDS_STILL_MS
        self.handle_events(events)

    def handle_events(self, events: list[tuple[int, int]]) -> None:
        """Run a turn of the hub with these events. Raises Violation if it did something that no turn may do."""
        self.turns += 1
        counters, net = self.broker.counters, self.net
        before, meanwhile, users = counters.finished_but_add, net.meanwhile, self.broker.users
        silent_before = self.broker.limits.counts["client_timeout"]
        unread = self._unread()
        only_known = self._leaves_while_it_waits(events)
        if only_known:
            net.meanwhile = lambda: None
        try:
            self.hub.turn(events)
        finally:
            net.meanwhile = meanwhile
        if self.broker.limits.counts["client_timeout"] != silent_before:
            self._look_for_unheard(unread)
        expels = self.broker.users is not users  # a reload in this turn, after which clients may be disconnected
        if only_known and counters.finished_but_add != before and not expels:
            raise Violation(Kind.LOST, "an item was handed to a client whose hang-up was known")
        if not self.broker.status.enforced.reads and any(queue.waiters for queue in self.broker.queues):
            raise Violation(Kind.UNANSWERED, "a client waits for an item of a server that hands out none")
        for connection in self.hub._connections.values():
            if connection.session.waited_at is PULSE and connection.owed_bytes > OWED_TO_PAGE_MAX:
                raise Violation(Kind.LEAK, f"{connection.owed_bytes} bytes are kept for a page that does not read them")
        for alarm in self.broker.timers._slot_of:
            if isinstance(alarm, IdleTimeout | LingerTimeout) and alarm.connection.state is ConnectionState.CLOSED:
                raise Violation(Kind.LEAK, "an alarm keeps a connection that is gone")

    def _unread(self) -> list[Connection]:
        """Return the connections with bytes that arrived in time and are not read yet."""
        since_ms = self._looked_ms - self.broker.config.server.client_timeout_ms
        return [
            connection
            for connection in self.hub._connections.values()
            if connection.state is ConnectionState.OPEN and connection.active_ms > since_ms
            if isinstance(connection.sock, ServerSock) and connection.sock.link.to_server
        ]

    def _look_for_unheard(self, unread: list[Connection]) -> None:
        """Check the connections that were dropped as silent. Raises Violation if a client was not silent."""
        for connection in unread:
            sock = connection.sock
            assert isinstance(sock, ServerSock)
            if connection.state in HUNG_UP and sock.link.to_server and not sock.link.client_ended:
                raise Violation(Kind.STOLEN, "a client is hung up on as silent, and what it has said is not read")

    def _leaves_while_it_waits(self, events: list[tuple[int, int]]) -> bool:
        """Tell whether these events report the end of a client that waits for an item to keep, as all waiting clients
        do. No client may have been delivered an item at the end of the last turn by a client that left then; not even
        one that a reload has disconnected meanwhile.
        """
        sessions = {fd: connection.session for fd, connection in self.hub._connections.items()}
        waiting = {fd for fd, session in sessions.items() if session.state is SessionState.PARKED}
        if any(session.has_delivery for session in sessions.values()) or any(sessions[fd].opens for fd in waiting):
            return False
        return any(fd in waiting and mask & LEAVING for fd, mask in events)

    def turn_until_idle(self, until_ms: int, turns_max: int = 3000) -> None:
        """Run turns as the server's loop does, with threads that end, until `until_ms`. Let time pass only when nothing
        has anything to do. Raises Violation if that does not end.
        """
        for _ in range(turns_max):
            self.pump()
            events = self.net.ready_events()
            if events or not self.hub.is_idle:
                self.net.rng.shuffle(events)
                self.handle_events(events)
            moved = [worker.advance() for worker in self.workers]
            if any(moved) or events:
                continue
            if self.hub.is_idle:
                self.pump()
                if self.net.ready_events():
                    continue  # the turn has freed something: perhaps a place for a client outside
                if self.now_ms >= until_ms:
                    return
                self.now_ms = min(until_ms, max(self.now_ms + 1, self.hub.next_ms()))
                self.handle_events([])
        raise Violation(Kind.STUCK, "the hub has no rest")

    def stop(self) -> None:
        """Stop the server. Raises Violation if it cannot stop."""
        for worker in self.workers:
            worker.may_wait = True
        self.hub.stop()
        if not self.hub.is_stopping:
            raise Violation(Kind.STUCK, "the hub goes on")
        self.hub.close()
        self.pump()
        # The threads close their descriptors themselves.
        left = [fd for fd in self.net.open if fd not in {worker.fd for worker in self.workers}]
        if left or not all(worker.is_closed for worker in self.workers) or not self.net.is_closed:
            raise Violation(Kind.LEAK, f"descriptors {left} are open behind a stop")

    def look_for_leaks(self) -> None:
        """Check that no descriptors and timers are leaked, when all clients are gone and time has passed. Raises
        Violation.
        """
        known = {worker.fd for worker in self.workers} | {self.acceptor.fileno()}
        known.update(door.fileno() for door in (self.admin_acceptor, self.secure_acceptor) if door is not None)
        left = sorted(set(self.net.open) - known)
        if left or self.hub._connections or self.hub._of_session or len(self.hub.handshakes):
            raise Violation(Kind.LEAK, f"descriptors {left} belong to clients that are gone")
        if self.hub.connection_limits._counts:
            raise Violation(Kind.LEAK, "an address counts clients that are gone")
        for queue in self.broker.queues:
            if queue.in_transfer and not self.broker.operations.running:
                raise Violation(Kind.LEAK, f"{len(queue.in_transfer)} items of {queue.name} are set aside for nothing")
