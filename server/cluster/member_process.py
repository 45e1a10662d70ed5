"""The process of a member: from its start, through the roles, to its stop.

It follows until the member is told to take over. Then it recovers its spool like a server that stands alone, on an Fs
that records, and serves clients with a hub whose sockets stand behind a gate. A leader that is deposed begins anew as
a new program in the same process: nothing that it had in memory can be written any more. One that has handed the lead
over has closed its spool, and begins anew within the program.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import Awaitable, Callable
from threading import Event

import trio
from msgspec import Struct

from staniel.broker.broker import Broker
from staniel.broker.config.addresses import TcpAddress, format_address, parse_address
from staniel.broker.config.load import Config, ConfigError
from staniel.broker.events import EventSink, Level
from staniel.broker.recovery import RecoverySummary
from staniel.cluster.core import MemberConfig
from staniel.cluster.effects import Refusal
from staniel.cluster.key import Key
from staniel.cluster.spool_changes import encode_changes
from staniel.cluster.spool_names import SpoolPaths
from staniel.cluster.status import Accepted, MemberStatus, Refused
from staniel.journal.disk.fs import Fs, JournalFailure
from staniel.journal.spool import SpoolError
from staniel.server.clock import ServerClock
from staniel.server.cluster.admin import MemberAdmin, Orders
from staniel.server.cluster.disk_calls import NotingFs
from staniel.server.cluster.driver import DiskIsFull, Driver, MemberStopped, MustBeginAnew, Outside
from staniel.server.cluster.etcd_link import Answers, EtcdLink, MemberEntry
from staniel.server.cluster.leading import LeaderService
from staniel.server.cluster.member_config import MemberConfiguration, policy_of
from staniel.server.cluster.member_tls import member_security, open_etcd
from staniel.server.cluster.member_view import heirs_of, status_of
from staniel.server.cluster.reactor import Reactor
from staniel.server.cluster.refuser import Refuser
from staniel.server.cluster.room import is_of_full_disk, lack_of_room
from staniel.server.cluster.supervision import Supervision
from staniel.server.sockets import BoundSockets
from staniel.server.spool_socket import allowed_clients

TICK_S = 0.1
CONNECT_S = 2.0
LAST_REPLIES_S = 5.0
FULL_S = 2.0  # before a member whose disk is full begins anew
ENDINGS = (MustBeginAnew, MemberStopped, JournalFailure, SpoolError, ConfigError, OSError, MemoryError)


class Parts(Struct):
    """The parts that `serve_member` has made. `make_broker` recovers the spool on an Fs that it is given. `tasks` run
    all the time.
    """

    config: Config
    fs: NotingFs
    bound: BoundSockets
    clock: ServerClock
    report: EventSink
    make_broker: Callable[[Fs], tuple[Broker, RecoverySummary]]
    make_service: Callable[[Driver, Broker, RecoverySummary], LeaderService]
    tasks: tuple[Callable[[], Awaitable[None]], ...]


class MemberProcess:
    """A member with all that it needs. `ending`: why it ends, None for a stop by an operator."""

    def __init__(self, parts: Parts, paths: SpoolPaths, configuration: MemberConfiguration) -> None:
        config = parts.config.cluster
        self._parts, self._config, self._report = parts, config, parts.report
        self.reactor = Reactor()
        of_set = MemberConfig(config.advertise, config.min_in_sync, policy_of(parts.config))
        self.driver = Driver(of_set, parts.fs, paths, self.reactor, config.lease_ms, parts.report)
        self.driver.links.security = member_security(config)
        self.driver.outside = Outside(
            self._ask_etcd, self._connect_to, self._begin_to_lead, self._begin_to_serve, self._close_clients
        )
        self.entries: dict[bytes, MemberEntry] = {}
        entry = MemberEntry(config.member, replication_address(config.listen, config.advertise), config.advertise)
        inputs, member = self.driver.then_carry_out, self.driver.member
        answers = Answers(
            inputs(member.key_read),
            inputs(member.transaction_taken),
            inputs(member.transaction_refused),
            inputs(member.ask_unanswered),
            self.driver.key_watched,
            self._take_entries,
        )
        lease_s = -(-config.lease_ms // 1000)
        self.etcd = EtcdLink(open_etcd(config), config.name, self.driver.kept.member_id, entry, lease_s, answers)
        self.supervision = Supervision(self.driver, self.entries, config.lease_ms / 1000, parts.report, parts.fs.calls)
        self._reload = configuration.reload
        orders = Orders(
            self.status, self._init, self._hand_over, self._remove, self._reload, lambda: configuration.guard
        )
        self.admin = MemberAdmin(orders)
        self.refuser = Refuser(self.reactor, self.leader_address, self.admin.reply, allowed_clients())
        self.supervision.lack_of_room = self._lack_of_room
        self.service: LeaderService | None = None
        self.ending: Exception | None = None
        self._made: tuple[Broker, RecoverySummary] | None = None
        self._recovered = Event()
        self._recovered.set()
        self._heir: tuple[bytes, str] | None = None
        self._is_connecting = self._is_stopping = self._is_left = False
        self.stop_cause = ""
        self._nursery: trio.Nursery | None = None

    # --- life ---

    async def run(self) -> None:
        """Run until a signal, an order, or an error, which is in `ending`."""
        self.driver.links.listen(self._config.listen)
        bound = self._parts.bound
        for sock, _ in bound.all():
            sock.listen(self._parts.config.server.connection_backlog or 1024)
        self._refuse_clients()
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            await nursery.start(self._handle_signals)
            self._start(self._react)
            self._start(self.etcd.watch)
            self._start(self.etcd.stay_alive, self.supervision.is_alive)
            self._start(self._tick)
            for task in self._parts.tasks:
                self._start(task)
            self._try(self.driver.start)
        self.driver.links.close_all()
        if self.ending is not None:
            await trio.to_thread.run_sync(self._recovered.wait)  # it notes its failed syncs, the next program could not
        if not isinstance(self.ending, MustBeginAnew) or isinstance(self.ending, DiskIsFull):
            with trio.move_on_after(CONNECT_S):
                await self.etcd.leave()
        if isinstance(self.ending, DiskIsFull):
            await trio.sleep(FULL_S)

    @property
    def can_begin_again(self) -> bool:
        """True if this member begins anew, and its spool was left as its records say: nothing in this program's memory
        can change it any more, so no new program is needed, and loading one would keep the other members waiting.
        """
        return self._is_left and isinstance(self.ending, MustBeginAnew) and not isinstance(self.ending, DiskIsFull)

    def close(self) -> None:
        """Close what a new program would not have, once this part has ended. Raises OSError, JournalFailure."""
        self.refuser.close()
        self.driver.close()
        self.reactor.close()
        self._parts.fs.close()

    def _refuse_clients(self) -> None:
        """Tell clients who leads, and serve operators."""
        bound = self._parts.bound
        self.refuser.listen(bound.all(), bound.of_spool[0] if bound.of_spool is not None else None)

    def _start(self, task: Callable[..., Awaitable[object]], *arguments: object) -> None:
        assert self._nursery is not None
        self._nursery.start_soon(self._guard, task, *arguments)

    async def _guard(self, task: Callable[..., Awaitable[object]], *arguments: object) -> None:
        try:
            await task(*arguments)
        except ENDINGS as why:
            self._end(why)

    def _try(self, call: Callable[[], object]) -> None:
        try:
            call()
        except ENDINGS as why:
            self._end(why)

    def _end(self, why: Exception | None) -> None:
        """End all tasks. The first reason counts."""
        if self._nursery is not None and not self._nursery.cancel_scope.cancel_called:
            if is_of_full_disk(why) and self.service is None:
                why = DiskIsFull(str(why))
            self.ending = None if self._is_stopping and isinstance(why, MustBeginAnew) else why
            self._nursery.cancel_scope.cancel()

    async def _handle_signals(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT, signal.SIGHUP) as received:
            task_status.started()
            async for number in received:
                if number == signal.SIGHUP:
                    if self.service is not None:
                        self.service.loop.reload()
                    else:
                        self._reload()
                else:
                    self._stop(f"signal {signal.Signals(number).name}")

    def _stop(self, why: str) -> None:
        self._is_stopping = True
        self.stop_cause = why
        if self.service is not None:
            self.service.stop(why)
        elif self.driver.member.leader is None:
            self._try(self.driver.close_files)
            self._end(None)
        else:
            self._end(None)  # while it takes over: the next start goes on as after a crash

    async def _react(self) -> None:
        """Handle the reactor's events, unless a hub does."""
        while True:
            await trio.lowlevel.wait_readable(self.reactor.fileno())
            if self.service is not None and not self.service.has_ended.is_set():
                await self.service.has_ended.wait()
            self.reactor.handle_events(self._parts.clock.now_ms())
            self.driver.end_turn()

    async def _tick(self) -> None:
        while True:
            await trio.sleep(TICK_S)
            self.refuser.drop_late(self._parts.clock.now_ms())
            self.driver.links.drop_late(self._parts.clock.now_ms())
            self.supervision.look_after(trio.current_time())

    # --- etcd ---

    def _ask_etcd(self, effect: object) -> None:
        self._start(self.etcd.ask, effect)

    def _take_entries(self, entries: dict[bytes, MemberEntry]) -> None:
        self.entries.clear()
        self.entries.update(entries)
        self.supervision.has_entries = True
        self.driver.connect_now()

    # --- following ---

    def _lack_of_room(self) -> str:
        return lack_of_room(self._parts.fs, self._parts.config.server.spool)

    def _connect_to(self, leader_id: bytes) -> None:
        if self._lack_of_room():
            return
        entry, key = self.entries.get(leader_id), self.driver.member.core.key
        if entry is not None and key is not None and key.leader_id == leader_id and not self._is_connecting:
            self._is_connecting = True
            self._start(self._connect, entry.replication, key)

    async def _connect(self, address: str, key: Key) -> None:
        try:
            sock = await open_link(address, self.etcd.wait_until_entered)
        except (OSError, trio.TooSlowError) as error:
            # Nothing listens there: the process is gone, and its lease need not end first.
            self.supervision.note_connect(key, is_refused=is_refusal(error))
            return  # the supervision asks again
        finally:
            self._is_connecting = False
        self.supervision.note_connect(key, is_refused=False)
        self.driver.connected(sock)

    def leader_address(self) -> str:
        """Return where clients reach the leader, "" if it is not known, or is this member, which takes over."""
        core = self.driver.member.core
        return "" if core.key is None or core.key.leader_id == core.id else core.key.address

    # --- leading ---

    def _begin_to_lead(self, upto: int) -> None:
        self._start(self._lead, upto)

    async def _lead(self, upto: int) -> None:
        driver = self.driver
        self._report(Level.INFO, "cluster.takes_over", epoch=driver.kept.promised, records=upto)
        applied = trio.Event()
        driver.files.become_leaders(upto, applied.set)
        await applied.wait()
        broker, summary = await trio.to_thread.run_sync(self._recover, abandon_on_cancel=True)
        self._made = broker, summary
        driver.member.recovered(tuple(encode_changes(driver.recorder.take_changes())))
        driver.carry_out()

    def _recover(self) -> tuple[Broker, RecoverySummary]:
        """Recover the spool, in a thread."""
        self._recovered.clear()
        try:
            return self._parts.make_broker(self.driver.recording_fs)
        finally:
            self._recovered.set()

    def _begin_to_serve(self) -> None:
        if self.service is not None:
            raise MustBeginAnew  # the lead could not be handed over: its spool is closed already
        assert self._made is not None
        self.refuser.close()
        self.service = service = self._parts.make_service(self.driver, *self._made)
        self.supervision.begin_to_serve(service)
        self.driver.file.make_room = lambda: service.broker.make_room(self._parts.clock.now_ms())
        service.listen(self._parts.bound, self.admin)
        self._start(self._serve_clients, service)

    async def _serve_clients(self, service: LeaderService) -> None:
        await service.run()
        await self._end_leading(service)

    async def _end_leading(self, service: LeaderService) -> None:
        """Leave a spool that says what its records say; then hand over, or stop."""
        driver = self.driver
        service.close()
        driver.file.make_room = driver.file.remove_reserve
        self._refuse_clients()
        driver.end_turn()
        with trio.move_on_after(LAST_REPLIES_S):
            await driver.answered_all()
        if not driver.recorder.has_changes and service.is_clean:
            driver.spool.store_place(driver.kept.stream.last)
            driver.member.note_clean_end()
            driver.carry_out()
            driver.file.sync_now()
            self._is_left = True
        if self._heir is None:
            self._is_stopping = True
            self.stop_cause = self.stop_cause or str(service.broker.status.stop_cause.get("why", ""))
            self._heir = self._heir_named("")  # a stop hands the lead over, too, if another member can take it
        if self._heir is not None and driver.member.hand_over(*self._heir) is None:
            driver.carry_out()
            await trio.sleep(self._config.lease_ms / 1000)
        raise MustBeginAnew  # etcd has not answered, or no member can take the lead

    def _close_clients(self) -> None:
        self.driver.gate.drop_all()
        self._report(Level.WARNING, "cluster.deposed", epoch=self.driver.kept.promised)

    # --- operators ---

    def status(self) -> MemberStatus:
        """Return what this member tells of itself."""
        is_handing_over, lack = bool(self._heir), self._lack_of_room()
        return status_of(self._config, self.driver, self.entries, self.etcd, lack, is_handing_over=is_handing_over)

    def _init(self) -> Accepted | Refused:
        refusal = self.driver.member.init(os.urandom(16))
        self.driver.carry_out()
        return Refused(refusal.value) if refusal is not None else Accepted(self.driver.kept.member_id.hex())

    def _refuse_order(self) -> Refused:
        address = self.leader_address()
        return Refused(f"{Refusal.NOT_LEADER.value}; {address} does" if address else Refusal.NOT_LEADER.value)

    def _remove(self, name: str) -> Accepted | Refused:
        leader = self.driver.member.leader
        if leader is None or not leader.first:
            return self._refuse_order()
        running = set(self.entries) | {peer.id for peer in leader.peers.values()}
        named = [id for id, entry in self.etcd.known.items() if name in (entry.name, id.hex())]
        if not named:
            return Refused(f"no member is {name!r}: GET /cluster lists them")
        if any(member_id in running for member_id in named):
            return Refused(f"{name!r} runs: stop it first")
        for member_id in named:
            self._start(self.etcd.remove, member_id)
        return Accepted(named[0].hex())

    def _hand_over(self, to: str) -> Accepted | Refused:
        driver, service = self.driver, self.service
        leader = driver.member.leader
        if leader is None or service is None:
            return self._refuse_order()
        if self._heir is not None:
            return Refused(Refusal.HANDING_OVER.value)
        self._heir = heir = self._heir_named(to)
        if heir is None:
            named = f"no other member in sync is {to!r}" if to else "no other member is in sync"
            return Refused(f"{named}: GET /cluster lists them")
        driver.gate.is_shut = True
        service.stop("the lead is handed over")
        return Accepted(heir[0].hex())

    def _heir_named(self, name: str) -> tuple[bytes, str] | None:
        """Return the id and the address of a member that can take the lead; "": any."""
        leader = self.driver.member.leader
        for member_id, entry in heirs_of(leader, self.entries).items() if leader is not None else ():
            if name in ("", entry.name, member_id.hex()):
                return member_id, entry.clients
        return None


async def open_link(address: str, wait_until_entered: Callable[[], Awaitable[None]]) -> socket.socket:
    """Connect to a leader, once etcd has the entry of this process: a leader that counts on a member finds it there
    as long as the member lives. Raises OSError, trio.TooSlowError.
    """
    where = parse_address(address)
    assert isinstance(where, TcpAddress)
    with trio.fail_after(CONNECT_S):
        await wait_until_entered()
        stream = await trio.open_tcp_stream(where.host, where.port)
    return os_socket(stream)


def is_refusal(error: BaseException) -> bool:
    """Tell whether an attempt to connect has failed because nothing listens there. trio groups the errors of all the
    addresses of a host.
    """
    cause = error.__cause__ or error
    errors = cause.exceptions if isinstance(cause, BaseExceptionGroup) else (cause,)
    return all(isinstance(one, ConnectionRefusedError) for one in errors)


def os_socket(stream: trio.SocketStream) -> socket.socket:
    """Return the system's socket of a stream, which is the caller's then."""
    return socket.socket(fileno=stream.socket.detach())


def replication_address(listen: str, advertise: str) -> str:
    """Return where other members connect: at `listen`, on the host of `advertise` if it listens on all addresses."""
    where, clients = parse_address(listen), parse_address(advertise)
    assert isinstance(where, TcpAddress) and isinstance(clients, TcpAddress)
    host = clients.host if where.host in ("0.0.0.0", "::") else where.host
    return format_address(TcpAddress(host, where.port))


def begin_anew() -> None:
    """Replace this program by a new one in the same process."""
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
