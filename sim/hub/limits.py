"""Clients and operators of a hub whose limits are small: of connections in all and by address, of open reads and of
waits. Some clients are refused.
"""

from __future__ import annotations

from collections import Counter
from random import Random

from staniel.broker import protocols
from staniel.protocol.memcache.requests import Dialect
from staniel.server.connection_limits import address_of
from staniel.sim.hub.clients import Answer, NetClient
from staniel.sim.hub.net import Link, ListeningSock
from staniel.sim.hub.operators import Operator
from staniel.sim.hub.run import HubRun
from staniel.sim.hub.world import HubWorld
from staniel.sim.violations import Kind, Violation

ADDRESSES = ("10.0.0.1", "10.0.0.2", "10.0.0.3")
WHY = "too many connections (max_connections_per_address)"
OPEN_READS_MAX, WAITERS_MAX = 2, 1


class TurnedAway(NetClient):
    """A client that may be told why it is refused, before anything else. `farewell`: the text of that."""

    farewell = protocols.memcache(Dialect.MEMCACHED).farewell(WHY)
    is_refused = False

    def _answers(self) -> list[Answer]:
        heard = bytes(self._heard)
        if heard and heard == self.link.sent and self.farewell.startswith(heard):
            if self.link.server_ended or self.link.is_reset:
                self.is_refused = True
                self._heard.clear()
            return []
        return super()._answers()


class TurnedAwayOperator(TurnedAway, Operator):
    farewell = protocols.http().farewell(WHY)


class LimitedWorld(HubWorld):
    """A world that checks the limits after each turn."""

    def __init__(self, config: str, disk: object, now_ms: int, rng: Random, clients_max: int) -> None:
        self._before: Counter[str] = Counter()  # after the last turn: a reload that allows fewer disconnects no client
        self._count_before = 0
        super().__init__(config, disk, now_ms, rng, clients_max)  # type: ignore[arg-type]

    def handle_events(self, events: list[tuple[int, int]]) -> None:
        super().handle_events(events)
        hub, server = self.hub, self.broker.config.server
        most, reserved = hub.connection_limits.max_connections, hub.connection_limits.reserved_connections
        sessions = [connection.session for connection in hub._connections.values()]
        clients = Counter(address_of(session.address) for session in sessions if session.protocol != "admin")
        if clients.total() > max(most, self._before.total()):
            raise Violation(Kind.LIMIT, f"{clients.total()} clients are served, {most} may be")
        if len(sessions) > max(most + 2 * reserved, self._count_before):
            raise Violation(Kind.LIMIT, f"{len(sessions)} connections, {reserved} beyond {most} may be")
        if hub.connection_limits._count != len(sessions) + len(hub.handshakes):
            raise Violation(Kind.LEAK, f"{hub.connection_limits._count} connections count, {len(sessions)} are served")
        of_each = server.max_connections_per_address
        for address, count in clients.items():
            if of_each is not None and count > max(of_each, self._before[address]):
                raise Violation(Kind.LIMIT, f"{count} clients come from {address}, {of_each} may")
        self._before, self._count_before = clients, len(sessions)
        for queue in self.broker.queues:
            if len(queue.open_reads) > OPEN_READS_MAX + WAITERS_MAX:
                raise Violation(Kind.LIMIT, f"{len(queue.open_reads)} items of {queue.name} are open")
            if len(queue.waiters) > WAITERS_MAX:
                raise Violation(Kind.LIMIT, f"{len(queue.waiters)} clients wait for {queue.name}")


class LimitRun(HubRun):
    def _config(self) -> str:
        text, rng = super()._config(), self.rng
        lines = [
            f"server.max_connections = {rng.choice((2, 3, 4))}",
            f"server.reserved_connections = {rng.choice((1, 2))}",
            f"default.max_open_reads = {OPEN_READS_MAX}",
            f"default.max_waiters = {WAITERS_MAX}",
        ]
        if rng.random() < 0.7:
            lines.append(f"server.max_connections_per_address = {rng.choice((1, 2))}")
        return text + "\n".join(lines) + "\n"

    def make_world(self) -> HubWorld:
        return LimitedWorld(self.config, self.disk, self.now_ms, self.rng, 100)

    def _connect(self) -> NetClient:
        self.actors += 1
        is_operator = self.rng.randrange(100) < self.profile.operators
        link: Link = self.world.connect_operator() if is_operator else self.world.connect()
        link.client = f"{self.rng.choice(ADDRESSES)}:{self.actors}"
        kind = TurnedAwayOperator if is_operator else TurnedAway
        client = kind(f"{'o' if is_operator else 'c'}{self.actors}", link)
        client.why_over = "silence"  # there may be too many clients
        self.clients.append(client)
        return client

    def _may_be_short(self, client: NetClient) -> bool:
        return (isinstance(client, TurnedAway) and client.is_refused) or super()._may_be_short(client)

    def _turn_until_idle(self) -> None:
        super()._turn_until_idle()
        hub, limits = self.world.hub, self.world.hub.connection_limits
        total = len(hub._connections) + len(hub.handshakes)
        for listener in hub._listeners:
            door = listener.endpoint.acceptor
            assert isinstance(door, ListeningSock)
            reserved = listener.endpoint.reserve * limits.reserved_connections
            if door.waiting and total < limits.max_connections + reserved:
                raise Violation(Kind.UNANSWERED, f"{len(door.waiting)} clients wait outside, and there is room")
