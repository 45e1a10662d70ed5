"""The service of a leader: its hub, whose clients stand behind the gate, and whose turns end with its records."""

from __future__ import annotations

import select
from collections.abc import Callable
from contextlib import suppress
from functools import partial

import trio

from staniel.broker.broker import Broker
from staniel.broker.session import ProtocolSpec
from staniel.cluster.stream import RecordKind
from staniel.journal.disk.fs import is_there
from staniel.journal.redo.log import IN_USE
from staniel.protocol.limits import Limits
from staniel.server.cluster.admin import AdminSock, MemberAdmin
from staniel.server.cluster.driver import Driver
from staniel.server.cluster.gate import GatedAcceptor, GatedSock
from staniel.server.connection_limits import Reserve
from staniel.server.gc_policy import GcPolicy
from staniel.server.hub import Hub
from staniel.server.interfaces import Security, Sock
from staniel.server.listener import Endpoint
from staniel.server.loop import Loop
from staniel.server.machine import ListeningSocket, SystemMachine
from staniel.server.read_schedule import Event
from staniel.server.secret_files import watch_secrets
from staniel.server.sockets import BoundSockets
from staniel.server.spool_socket import allowed_clients

RESTORED = "etcd was restored to an older state, writes are refused: see docs/replication.md"


class LeaderHub(Hub):
    """A hub whose turns end with the records of what has changed. `etcd_restored` returns why etcd must not be trusted,
    or "". `admin` serves requests about the cluster.
    """

    def __init__(self, broker: Broker, machine: SystemMachine, clients_max: int, driver: Driver) -> None:
        super().__init__(broker, machine, clients_max)
        self._driver = driver
        self.etcd_restored: Callable[[], str] = str
        self.admin: MemberAdmin | None = None
        driver.gate.on_open = self._watch_open
        self._dispatcher.watch(driver.reactor.fileno(), select.EPOLLIN, driver.reactor.handle_events)

    @property
    def running_sync(self) -> object:
        """The sync of journals that a thread runs now, or None."""
        return self._syncs.running

    def admit(
        self,
        sock: Sock,
        name: str,
        protocol: ProtocolSpec,
        limits: Limits,
        now_ms: int,
        certificate: tuple[str, ...] = (),
    ) -> None:
        """Serve a new client. The gate of operators under TLS is above it: it reads their requests."""
        if protocol.name == "admin" and not isinstance(sock, GatedSock):
            assert self.admin is not None
            sock = AdminSock(self._driver.gate, sock, self.admin, is_of_spool=False, certificate=certificate)
        super().admit(sock, name, protocol, limits, now_ms, certificate)

    def look_at_set(self) -> None:
        """Refuse clients' writes while the set is too small, or once etcd may let another member lead that lacks
        something, and take them again.
        """
        member = self._driver.member
        if member.leader is None:
            return
        count, least = len(member.leader.members), member.core.config.min_in_sync
        why = f"{count} of {least} members are in sync (min_in_sync), writes are refused" if count < least else ""
        if self.etcd_restored():
            why = RESTORED
        if why != self.broker.status.refusal:
            self.broker.refuse_writes(why)

    def turn(self, events: list[Event]) -> None:
        self.look_at_set()
        super().turn(events)
        self._driver.end_turn()
        self._ignore_refusing()

    def _ignore_refusing(self) -> None:
        """Wait no more for sockets that take bytes, but not from the gate."""
        for sock in self._driver.gate.take_refusing():
            connection = self._connections.get(sock.fileno())
            if connection is not None and connection.sock is sock:
                with suppress(OSError):  # then it is asked again in each turn
                    self._poller.modify(connection.fd, connection.events & ~select.EPOLLOUT)

    def _watch_open(self, sock: GatedSock) -> None:
        """Wait for such a socket again, at once: the release may come from outside of a turn."""
        connection = self._connections.get(sock.fileno())
        if connection is not None and connection.sock is sock:
            self._watch_for(connection, connection.events, self.clock.now_ms())


class LeaderService:
    """A leader's hub and its loop. `has_ended`: the hub handles the reactor's events no more. `security`: of listeners
    with TLS.
    """

    def __init__(self, driver: Driver, broker: Broker, machine: SystemMachine, clients_max: int, gc: GcPolicy) -> None:
        self._driver = driver
        self.broker = broker
        self.hub = LeaderHub(broker, machine, clients_max, driver)
        self.loop = Loop(self.hub, machine, gc)
        self.has_ended = trio.Event()
        self.security: Security | None = None
        watch_secrets(broker)
        driver.record_kind = self._record_kind

    def listen(self, bound: BoundSockets, admin: MemberAdmin) -> None:
        """Accept clients."""
        self.hub.admin = admin
        for sock, wire in bound.all():
            is_of_spool = bound.of_spool is not None and sock is bound.of_spool[0]
            acceptor = ListeningSocket(sock, allowed_clients() if is_of_spool else None)
            reserve = Reserve.SPOOL if is_of_spool else Reserve.OPERATORS if wire.name == "admin" else Reserve.NONE
            gate = self._driver.gate
            if wire.name == "admin" and sock in bound.secure:
                gated = GatedAcceptor(acceptor, gate, lambda gate, sock: sock)
            elif wire.name == "admin":
                gated = GatedAcceptor(acceptor, gate, partial(AdminSock, admin=admin, is_of_spool=is_of_spool))
            else:
                gated = GatedAcceptor(acceptor, gate)
            self.hub.listen(Endpoint(gated, wire, self.security if sock in bound.secure else None, reserve))

    async def run(self) -> None:
        """Serve until stopped."""
        await self.loop.run()

    def stop(self, why: str) -> None:
        """Stop after this turn."""
        self.broker.status.stop(why)
        self.loop.stop()

    def close(self) -> None:
        """Stop accepting, reply to every client that waits, and leave the spool synced and closed."""
        self.hub.close()
        self.has_ended.set()

    @property
    def is_clean(self) -> bool:
        """True if the spool is closed and no redo log is in use: another server can go on from its files alone."""
        fs, path = self.broker.fs, f"{self.broker.spool.own}/version"
        return is_there(fs, path) and not fs.read(path, 0, 100).startswith(IN_USE.encode())

    @property
    def running_sync(self) -> object:
        """The sync of journals that a thread runs now, or None."""
        return self.hub.running_sync

    def _record_kind(self) -> RecordKind:
        """Return the kind of the records of this turn: no client puts anything while writes are refused."""
        return RecordKind.CHANGE if self.broker.status.refusal else RecordKind.PUT
