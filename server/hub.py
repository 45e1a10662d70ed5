"""The hub, which owns all client sockets. One turn: read every ready socket, execute, write each journal once, send the
replies.

Fairness and back-pressure are decided here: which clients are read, executed and written in this turn, and which in a
later one. The poller, sockets, threads and clock are passed in (interfaces.py): the real ones, or the simulator's.
"""

from __future__ import annotations

import select
import socket
from collections.abc import Iterable

from staniel.broker.broker import Broker
from staniel.broker.config.load import ReloadError
from staniel.broker.events import Level
from staniel.broker.failures import report_failure
from staniel.broker.latencies import SAMPLE_NS
from staniel.broker.rights import STRANGER
from staniel.broker.session import CLOSING, PARKED, ProtocolSpec, Session
from staniel.protocol.limits import Limits
from staniel.server.connection import (
    CLOSED,
    DRAINING,
    ENDED,
    FLUSHING,
    LINGERING,
    OPEN,
    PEER_ENDED,
    READ_BYTES_MIN,
    READABLE_OR_ENDED,
    WAITS_FOR_SYNC,
    Connection,
)
from staniel.server.connection_limits import ConnectionLimits
from staniel.server.disk_work import SyncRunner, TaskRunner
from staniel.server.dispatcher import Dispatcher, unregister_quietly
from staniel.server.handshakes import Handshakes
from staniel.server.interfaces import Machine, SecureSock, Sock, close_quietly
from staniel.server.latency_samples import LatencySamples
from staniel.server.listener import UNWATCHED_HINT, Endpoint, Listener
from staniel.server.pending_bytes import PendingBytes
from staniel.server.read_schedule import EVENTS_PER_TURN, GONE, READABLE, Event, ReadSchedule, behind
from staniel.server.timeouts import ClientTimeouts

LOGIN_BYTES_MAX = 64 << 10  # a request before the login, and requests in the same packet
SHARE_NS = 4_000_000  # a turn's time for reading and for backlogs; also for closing
LEAST_SHARE_NS = SHARE_NS // 4  # the least time for backlogs, however long reading has taken
FREE_SHARE_NS = 250_000  # a longer turn postpones clients that send much
CROWDED_TURN_NS = 400_000  # the time of a turn that leaves out clients: a new request waits for the rest of one turn
# and for its own
CLOCK_CHECK_BYTES = 16 << 10  # read and sent between two readings of the clock: some 20 us
CLOCK_CHECK_CLIENTS = 8  # or this many clients served, however little they send
# Compiled, C numbers (hub.pxd). A client counts as this many bytes, so that one counter serves both bounds.
_CLOCK_CHECK_BYTES, _CLIENT_BYTES = CLOCK_CHECK_BYTES, CLOCK_CHECK_BYTES // CLOCK_CHECK_CLIENTS
SENT_BYTES_PER_TURN = 512 << 10  # then only short replies leave: the kernel copies the long ones while all clients wait


class Hub:
    """A server of a broker's clients: `turn` by turn until `is_stopping`, then `close`.

    `_active` has the connections whose replies are sent in this turn, `_backlogged` those with more requests,
    `_holding` those with replies that wait for the disk. `_dropped` is the list of the dispatcher.
    """

    def __init__(self, broker: Broker, machine: Machine, clients_max: int) -> None:
        """Make a hub. `clients_max` is the number of descriptors for clients."""
        self.broker = broker
        self.clock = machine.clock
        self._elapsed_ns = machine.elapsed_ns
        self._poller = machine.poller
        self._workers = machine.syncs, machine.tasks
        self._connections: dict[int, Connection] = {}
        self._of_session: dict[Session, Connection] = {}
        broker.active_ms_of = self._active_ms_of
        self._listeners: list[Listener] = []
        self._active: list[Connection] = []
        self._backlogged: dict[Connection, None] = {}
        self._holding: dict[Connection, None] = {}
        self._queue_read_ns = self._rest_ns = 0  # when the queue was last read, and how long the rest took
        self._group = broker.group
        self._counters = broker.counters
        self._stopping = False
        self.connection_limits = ConnectionLimits(clients_max, broker.limits)
        self.connection_limits.on_room = self._resume_listeners
        self._make_parts(machine)
        self._configure(0)
        broker.reloaded, broker.has_sent_all = self._on_reload, self._has_sent_all
        broker.step_clock.now_ns = machine.step_ns
        broker.logged_in = self._on_login

    def _make_parts(self, machine: Machine) -> None:
        """Make the parts of the hub, and give each what it uses."""
        broker, timers, limits = self.broker, self.broker.timers, self.broker.limits
        self._schedule = schedule = ReadSchedule(self._connections, machine.waiting_bytes)
        self._dispatcher = dispatcher = Dispatcher(self._poller)
        self._dropped = dispatcher.dropped
        self._timeouts = ClientTimeouts(timers, schedule, limits, self._hang_up, self.drop)
        self._pending = PendingBytes(timers, schedule, limits, broker.rate_limited, self.drop)
        self._tracked = self._pending.tracked
        self.handshakes = Handshakes(
            timers,
            dispatcher,
            schedule,
            self.connection_limits,
            broker.report,
            self._admit_secure,
            self._elapsed_ns,
        )
        self._samples = LatencySamples(broker.latencies, broker.counters, broker.group, self._elapsed_ns)
        self._syncs = SyncRunner(
            machine.syncs, broker.group, machine.now_ns, broker.latencies.syncs, self._release_held
        )
        broker.group.wait_for = self._syncs.wait_for
        self._tasks = broker.maintenance.tasks
        self._task_runner = TaskRunner(machine.tasks, self._tasks, broker.finish_task)
        self._tasks.wait_for = self._task_runner.wait_for
        dispatcher.watch(machine.syncs.fd, select.EPOLLIN, self._syncs.on_ready)
        dispatcher.watch(machine.tasks.fd, select.EPOLLIN, self._task_runner.on_ready)

    # life

    def listen(self, endpoint: Endpoint) -> None:
        """Accept clients of an endpoint."""
        broker, limits = self.broker, self.connection_limits
        listener = Listener(endpoint, limits, self._dispatcher, broker.timers, broker.report, self._on_accept)
        self._listeners.append(listener)
        listener.resume(self.clock.now_ms())

    def _limits(self) -> Limits:
        config = self.broker.config
        return Limits(config.server.max_line_bytes, config.item_bytes_max)

    def _configure(self, now_ms: int) -> None:
        server = self.broker.config.server
        self.connection_limits.configure(server)
        self._pending.configure(server, now_ms)
        self._timeouts.client_timeout_ms = server.client_timeout_ms

    def _on_reload(self, now_ms: int) -> None:
        """Apply a reloaded configuration. Its limits also hold for connected clients."""
        self._configure(now_ms)
        self._resume_listeners(now_ms)
        limits = self._limits()
        for connection in self._connections.values():
            if connection.session.state is CLOSING:
                self._active.append(connection)  # its user was removed
            if connection.session.rights is STRANGER:
                connection.limit(limits_before_login(limits))
            else:
                connection.limit(limits)
                self._timeouts.start_idle(connection, now_ms)

    def _has_sent_all(self, session: Session) -> bool:
        connection = self._of_session.get(session)
        return connection is None or connection.owes_nothing

    def sockets(self) -> Iterable[Sock]:
        """Return the sockets of all clients."""
        return [connection.sock for connection in self._connections.values()]

    def _on_accept(self, endpoint: Endpoint, sock: Sock, name: str, now_ms: int) -> None:
        if endpoint.security is not None:
            self.handshakes.begin_handshake(endpoint, sock, name, now_ms)
        else:
            self.admit(sock, name, endpoint.protocol, self._limits(), now_ms)

    def admit(
        self,
        sock: Sock,
        name: str,
        protocol: ProtocolSpec,
        limits: Limits,
        now_ms: int,
        certificate: tuple[str, ...] = (),
    ) -> None:
        """Serve a new client. `certificate` has the names in its certificate, if it has shown one."""
        session = self.broker.connect(protocol, name, certificate, now_ms)
        if session.rights is STRANGER:
            limits = limits_before_login(limits)
        connection = Connection(sock, session, protocol.parser(limits), self._pending.changed)
        self._connections[connection.fd] = connection
        self._of_session[connection.session] = connection
        try:
            self._poller.register(connection.fd, READABLE_OR_ENDED)
        except OSError as error:
            self._drop_unwatched(connection, error, now_ms)
            return
        if session.rights is STRANGER:
            self._timeouts.start_login(connection, now_ms)
        else:
            self._timeouts.start_idle(connection, now_ms)

    def _active_ms_of(self, session: Session) -> int:
        """Return when this client last sent or took bytes; 0: unknown."""
        connection = self._of_session.get(session)
        return 0 if connection is None else connection.active_ms

    def _on_login(self, session: Session) -> None:
        connection = self._of_session.get(session)
        if connection is None:
            return
        connection.limit(self._limits())
        self._timeouts.cancel(connection)
        self._timeouts.start_idle(connection, self.clock.now_ms())

    def _admit_secure(
        self, sock: SecureSock, name: str, endpoint: Endpoint, certificate: tuple[str, ...], now_ms: int
    ) -> None:
        """Serve a client whose handshake is done. Its first request may have come with the end of the handshake, which
        only a read can show.
        """
        self.admit(sock, name, endpoint.protocol, self._limits(), now_ms, certificate)
        connection = self._connections.get(sock.fileno())
        if connection is not None:
            self._read(connection, now_ms)

    def _resume_listeners(self, now_ms: int) -> None:
        for listener in self._listeners:
            listener.resume(now_ms)

    def _hang_up(self, connection: Connection) -> None:
        """Close a connection once its replies have left."""
        connection.session.hang_up(b"")
        self._active.append(connection)

    def stop(self) -> None:
        """Stop after this turn."""
        self._stopping = True

    @property
    def is_stopping(self) -> bool:
        return self._stopping or self.broker.status.is_stopping

    @property
    def is_idle(self) -> bool:
        """True if the next turn may wait for an event or for `next_ms`."""
        return not self._backlogged and not self.broker.unsettled

    def next_ms(self) -> int:
        """Return when a turn has work, if no event comes before."""
        return self.broker.next_ms()

    def reload(self) -> None:
        """Reload the configuration, between two turns. The broker has reported any error in it."""
        now_ms = self.clock.now_ms()
        try:
            self.broker.reload(now_ms)
        except ReloadError:
            return
        except Exception as error:
            report_failure(self.broker.client_events, "reload", "SIGHUP", error, now_ms)
            return
        self.broker.audit.note_signal("reload", "SIGHUP", now_ms)

    def close(self) -> None:
        """Stop accepting, reply to every waiting client, sync every journal, close every socket."""
        now_ms = self.clock.now_ms()
        for listener in self._listeners:
            close_quietly(listener.endpoint.acceptor)
        self._listeners.clear()  # a connection dropped from here on makes no room for another
        self._syncs.stop(now_ms)
        self.broker.shutdown(now_ms)
        self.handshakes.close()
        for connection in list(self._connections.values()):
            self._send_last(connection)
        self._dispatcher.close_dropped()
        self._connections.clear()
        for worker in self._workers:
            worker.close()
        self._poller.close()

    def _send_last(self, connection: Connection) -> None:
        """Send all that the socket takes, and close it: there is no other client to serve any more."""
        connection.collect(self.broker.group.durable)
        connection.release(self.broker.group.gathering)
        left = -1
        try:
            while connection.unsent_bytes != left:
                left = connection.unsent_bytes
                connection.send()
        except OSError:
            pass  # the client is gone
        close_quietly(connection.sock)

    # a turn

    def turn(self, events: list[Event]) -> None:
        """Serve what is ready now, once. Clients for which there is no time come first in the next turn."""
        now_ms = self.clock.now_ms()
        schedule = self._schedule
        schedule.heard_ms, schedule.turn_ms = schedule.turn_ms, now_ms
        if len(events) >= EVENTS_PER_TURN:
            schedule.count_full_poll(len(self._connections) + len(self._dispatcher))
        queued: dict[int, int] | None = None
        began_ns = read = 0
        broker, group, connections, active = self.broker, self._group, self._connections, self._active
        if schedule.postponed or schedule.queue or self._pending.pressing:
            began_ns = self._elapsed_ns()
            events, queued = schedule.prioritize(events, self._pending.pressing, active)
        for _, mask in events:
            if mask != READABLE:
                events = self._serve_rare(events, now_ms)
                break
        elapsed_ns = self._elapsed_ns
        now_ns = elapsed_ns()
        if now_ns >= self._samples.request_due_ns and events:
            events = self._serve_sampled(events, now_ns, now_ms)
        until_ns, unchecked_bytes = now_ns + FREE_SHARE_NS, 0  # served since the last reading of the clock
        for fd, _ in events:
            connection = connections.get(fd)
            if connection is None:
                self._dispatcher.dispatch(fd, now_ms)
            elif (size := connection.serve(now_ms)) > 0:
                read += size
                active.append(connection)
                if group.pending_bytes > group.commit_above_bytes:
                    broker.commit(now_ms)  # the ballast must cover all unwritten bytes
                unchecked_bytes += _CLIENT_BYTES + size + connection.session.out_bytes
                if unchecked_bytes < _CLOCK_CHECK_BYTES and not connection.sends_much:
                    continue
                unchecked_bytes = 0
                if elapsed_ns() > until_ns:
                    self._read_short(behind(fd, events), until_ns - FREE_SHARE_NS + SHARE_NS, now_ms)
                    break
            elif not size:
                self._on_peer_end(connection, now_ms)
        if queued:
            self._read_queued(queued, 0 if read else began_ns + CROWDED_TURN_NS - self._rest_ns, began_ns, now_ms)
        self._counters.bytes_read += read
        if self._backlogged:
            self._run_backlogs(now_ns, now_ms)
        broker.tick(now_ms)
        if broker.woken:
            self._resume_woken(now_ns, now_ms)
        broker.commit(now_ms)
        sync = group.start_sync(now_ms)
        if sync is not None and self._syncs.run(sync, len(active), now_ms) and self._holding:
            self._release_held(now_ms)
        if self._tasks.is_due:
            self._task_runner.start_due()
        if broker.unsent.new:
            self._answer_with_items(now_ms)
        else:
            self._answer_all(now_ms)
        if queued or self._pending.changed or self._samples.open or self._dropped:
            self._end_turn(bool(queued), now_ms)

    def _end_turn(self, has_queued: bool, now_ms: int) -> None:
        """Do what only some turns need, when every reply has left."""
        if self._pending.changed:
            self._pending.count_changed(now_ms)
        if self._samples.open:
            self._samples.end_sent()
        if self._dropped:
            self._dispatcher.close_dropped()
        if has_queued:
            self._rest_ns = self._elapsed_ns() - self._queue_read_ns

    def _serve_sampled(self, events: list[Event], now_ns: int, now_ms: int) -> list[Event]:
        """Serve the first client alone, so that its request is known, and time its reply. Return the other events that
        this turn has time for.
        """
        samples = self._samples
        samples.request_due_ns = now_ns + SAMPLE_NS
        at = next((at for at, (fd, _) in enumerate(events) if fd in self._connections), -1)
        if at < 0 or samples.is_full:
            return events
        connection = self._connections[events[at][0]]
        samples.begin_request(connection.session)
        self._read(connection, now_ms)
        samples.end_request(connection.session, now_ns, now_ms)
        left = events[:at] + events[at + 1 :]
        if self._elapsed_ns() > now_ns + FREE_SHARE_NS:
            self._read_short(left, now_ns + SHARE_NS, now_ms)
            return []
        return left

    def _resume_woken(self, now_ns: int, now_ms: int) -> None:
        """Resume sessions whose wait has ended. The item of one of them is timed."""
        samples, first = self._samples, self.broker.woken[0]
        is_timed = now_ns >= samples.delivery_due_ns and first.has_delivery and not samples.is_full
        if is_timed:
            samples.begin_delivery(first, now_ns)
        for session in self.broker.resume_woken(now_ms):
            self._resume(session, now_ms)
        if is_timed:
            samples.end_delivery(first, now_ns, now_ms)

    def _read_short(self, events: list[Event], until_ns: int, now_ms: int) -> None:
        """Read short requests late in a turn: clients that send much wait for the next; others are served until
        `until_ns`.
        """
        for at, (fd, _) in enumerate(events):
            if self._elapsed_ns() > until_ns:
                self._schedule.postpone([event[0] for event in events[at:]])
                return
            connection = self._connections.get(fd)
            if connection is None:
                self._dispatcher.dispatch(fd, now_ms)
            elif self._schedule.sends_much(fd):
                self._schedule.read_last(fd)
            else:
                self._read(connection, now_ms)

    def _read_queued(self, ready: dict[int, int], until_ns: int, began_ns: int, now_ms: int) -> None:
        """Read once from each of `ready`, in the order of the queue, until `until_ns`; at least from one, and for at
        least a quarter of the time that others have had.
        """
        now_ns = self._elapsed_ns()
        until_ns = max(until_ns, now_ns + min(now_ns - began_ns, SHARE_NS) // 4)
        for connection in self._schedule.pop_queued(ready):
            has_sent_much = self._read(connection, now_ms) >= READ_BYTES_MIN
            connection.sends_much = has_sent_much or bool(connection.session.backlog)
            if ready[connection.fd] & ENDED and connection.session.state is PARKED:
                self._on_peer_end(connection, now_ms)  # gone already
            if connection.state is not CLOSED:
                self._pending.changed[connection] = None  # perhaps nothing is pending any more
            if connection.state is not OPEN or self._elapsed_ns() > until_ns:
                break  # returning a leaving client's open reads is a turn's work
        self._queue_read_ns = self._elapsed_ns()

    def _run_backlogs(self, began_ns: int, now_ms: int) -> None:
        """Run the backlogs one after the other, in the rest of this turn. If there is no time for all, those served go
        behind the others.
        """
        until_ns = max(began_ns + SHARE_NS, self._elapsed_ns() + LEAST_SHARE_NS)
        waiting = list(self._backlogged)
        for done, connection in enumerate(waiting, 1):
            self._run_backlog(connection, now_ms)
            if self._elapsed_ns() > until_ns:
                for served in waiting[:done]:
                    if served in self._backlogged:
                        del self._backlogged[served]
                        self._backlogged[served] = None
                return

    def _answer_all(self, now_ms: int) -> None:
        durable = self._group.durable
        active, self._active = self._active, []
        written, written_max = 0, SENT_BYTES_PER_TURN
        for connection in active:
            try:
                if written > written_max and connection.is_long:
                    self._answer(connection, durable, now_ms, may_send=False)
                    continue
                sent = connection.answer_now(durable)
                if sent >= 0:
                    written += sent
                elif sent == WAITS_FOR_SYNC:
                    self._holding[connection] = None
                else:
                    written_max -= self._answer(connection, durable, now_ms)
            except OSError:
                self.drop(connection, now_ms)
        self._counters.bytes_written += written
        if tracked := self._tracked:
            self._pending.changed.update(dict.fromkeys([answered for answered in active if answered in tracked]))

    def _answer_with_items(self, now_ms: int) -> None:
        """Send replies like `_answer_all`, some with items that return to their queues if the reply cannot leave."""
        handed = self.broker.unsent
        new, handed.new = handed.new, {}
        for session in new:
            connection = self._of_session[session]
            handed.place(session, connection.unsent_bytes + connection.held_bytes)
        self._answer_all(now_ms)
        for session in new:  # a reply that leaves whole and at once is not counted
            left = self._of_session.get(session)
            if left is None or not left.owes_answers:
                handed.pop(session)

    def _serve_rare(self, events: list[Event], now_ms: int) -> list[Event]:
        """Serve all events except plain readability; return the rest. Clients that leave while they wait come first:
        items that others put in this turn must not go to them.
        """
        rare = [event for event in events if event[1] != READABLE]
        waiting: list[tuple[Connection, int]] = []
        others: list[tuple[Connection, int]] = []
        for fd, mask in rare:
            connection = self._connections.get(fd)
            if connection is None:
                self._dispatcher.dispatch(fd, now_ms)
            elif connection.session.state is PARKED:
                waiting.append((connection, mask))
                if mask & (GONE | ENDED):
                    connection.session.leave_queue()  # so that its neighbour's returned item does not go to it either
            else:
                others.append((connection, mask))
        for connection, mask in waiting:
            self._serve_event(connection, mask, now_ms)
        until_ns = self._elapsed_ns() + SHARE_NS
        for connection, mask in others:
            self._serve_event(connection, mask, now_ms)
            if self._elapsed_ns() > until_ns:
                self._schedule.postpone(fd for fd, _ in behind(connection.fd, rare))
                break
        return [event for event in events if event[1] == READABLE]

    def _serve_event(self, connection: Connection, mask: int, now_ms: int) -> None:
        if connection.state is CLOSED:
            return
        if mask & GONE:
            self.drop(connection, now_ms)
        elif mask & select.EPOLLIN:
            self._read(connection, now_ms)
            if mask & ENDED and connection.session.state is PARKED:
                self._on_peer_end(connection, now_ms)  # gone already: it must get no item meanwhile
        elif mask & ENDED:
            self._on_early_end(connection, now_ms)
        if mask & select.EPOLLOUT:
            self._active.append(connection)

    def _read(self, connection: Connection, now_ms: int) -> int:
        """Read from a client. Return the number of bytes; 0 or less if there were none."""
        size = connection.serve(now_ms)
        if not size:
            self._on_peer_end(connection, now_ms)
        elif size > 0:
            self._counters.bytes_read += size
            self._active.append(connection)
            if self._group.pending_bytes > self._group.commit_above_bytes:
                self.broker.commit(now_ms)
        return size

    def _run_backlog(self, connection: Connection, now_ms: int) -> None:
        connection.active_ms = now_ms
        if connection.may_continue:
            connection.session.run_backlog(now_ms)
        self._active.append(connection)
        if not connection.session.backlog:
            self._resume_reading(connection, now_ms)
        if not connection.may_continue:
            self._backlogged.pop(connection, None)

    def _resume(self, session: Session, now_ms: int) -> None:
        """Continue with a parked session that has resumed: it has a reply, and perhaps more requests."""
        connection = self._of_session.get(session)
        if connection is not None:
            connection.active_ms = now_ms
            self._active.append(connection)
            if session.backlog:
                self._backlogged[connection] = None
            elif connection.unread_bytes or connection.events != READABLE_OR_ENDED:
                self._resume_reading(connection, now_ms)

    def _resume_reading(self, connection: Connection, now_ms: int) -> None:
        """Read from a client again after all its bytes are processed. `Connection.answer_now` does not set the
        events.
        """
        connection.unread_bytes = 0
        if connection.events != READABLE_OR_ENDED:
            self._watch(connection, now_ms)

    def _answer(self, connection: Connection, durable: int, now_ms: int, *, may_send: bool = True) -> int:
        """Send what may leave, keep the rest, and watch for the connection's next events. Return the number of bytes
        that the socket took. Raises OSError. Without `may_send` the connection comes early in the next turn.
        """
        if connection.state is CLOSED:
            return 0
        if connection.collect(durable):
            self._holding[connection] = None
        sent = connection.send() if may_send else 0
        if sent:
            connection.active_ms = now_ms
        if connection.unsent or connection.unread_bytes or connection.held:
            self._pending.changed[connection] = None
        if not may_send:
            self._schedule.postpone((connection.fd,))
        if connection.is_over:
            connection.enter(DRAINING if connection.state is OPEN else FLUSHING)
            connection.session.close(now_ms)
        if connection.state in (DRAINING, FLUSHING) and connection.owes_nothing:
            self._end_connection(connection, now_ms)
        elif connection.session.backlog and connection.may_continue:
            self._backlogged[connection] = None
        self._watch(connection, now_ms)
        return sent

    def _watch(self, connection: Connection, now_ms: int) -> None:
        if connection.state is not CLOSED:
            events = connection.wanted_events
            if events != connection.events:
                self._watch_for(connection, events, now_ms)

    def _watch_for(self, connection: Connection, events: int, now_ms: int) -> None:
        try:
            self._poller.modify(connection.fd, events)
            connection.events = events
        except OSError as error:
            self._drop_unwatched(connection, error, now_ms)

    def _drop_unwatched(self, connection: Connection, error: OSError, now_ms: int) -> None:
        """Drop a client whose socket the poller cannot watch. Only this client is lost."""
        why = f"cannot watch its socket: {error.strerror}; {UNWATCHED_HINT}"
        self.broker.client_events(Level.WARNING, "client.dropped", now_ms, client=connection.session.address, why=why)
        self.drop(connection, now_ms)

    # the end of a connection

    def _on_early_end(self, connection: Connection, now_ms: int) -> None:
        """Note that a client which is not being read has closed its side, perhaps behind many unread bytes."""
        if connection.session.state is PARKED:
            self._on_peer_end(connection, now_ms)
            return
        self._watch_for(connection, connection.events & ~ENDED, now_ms)

    def _on_peer_end(self, connection: Connection, now_ms: int) -> None:
        """Handle the end of a client's stream. Its requests are still executed, unless they would have to wait."""
        if connection.state is not OPEN:
            self.drop(connection, now_ms)
            return
        connection.enter(PEER_ENDED)
        if connection.is_over:
            connection.session.close(now_ms)
        self._active.append(connection)
        if connection.session.backlog:
            self._backlogged[connection] = None

    def _end_connection(self, connection: Connection, now_ms: int) -> None:
        """Close after all replies have left, or shut our side and wait until the client has closed its own."""
        if connection.state is FLUSHING:
            self.drop(connection, now_ms)
            return
        connection.enter(LINGERING)
        connection.unread_bytes = 0
        try:
            connection.sock.shutdown(socket.SHUT_WR)
        except OSError:
            self.drop(connection, now_ms)
            return
        self._timeouts.start_linger(connection, now_ms)

    def drop(self, connection: Connection, now_ms: int) -> None:
        """Close at once; the client's open reads go back."""
        if connection.state is CLOSED:
            return
        connection.enter(CLOSED)
        broker, session = self.broker, connection.session
        session.close(now_ms)
        if (unsent := broker.unsent.pop(session)) and connection.owes_answers:
            broker.take_back(unsent, now_ms)
        self._holding.pop(connection, None)
        self._backlogged.pop(connection, None)
        self._timeouts.cancel(connection)
        self._pending.forget(connection)
        self._schedule.queue.pop(connection.fd, None)
        del self._connections[connection.fd]
        del self._of_session[connection.session]
        unregister_quietly(self._poller, connection.fd)
        self._dropped.append(connection.sock)
        self.connection_limits.remove(session.address, now_ms)

    def _release_held(self, now_ms: int) -> None:
        """Send replies that have waited for the disk."""
        durable = self.broker.group.durable
        written_max = self._counters.bytes_written + SENT_BYTES_PER_TURN
        for connection in list(self._holding):
            try:
                may_send = self._counters.bytes_written < written_max
                connection.active_ms = now_ms
                if connection.held and may_send and connection.send_held(durable):
                    del self._holding[connection]
                    if not connection.unsent:
                        if connection in self._tracked:
                            self._pending.changed[connection] = None
                        continue
                elif not connection.release(durable):
                    del self._holding[connection]
            except OSError:
                if not connection.session.has_delivery:
                    self.drop(connection, now_ms)
                    continue
                connection.release(durable)  # the next send fails and drops it, once it has its item
                del self._holding[connection]
            self._active.append(connection)


def limits_before_login(limits: Limits) -> Limits:
    """Return the limits of unauthenticated clients."""
    return Limits(limits.line_bytes_max, min(limits.item_bytes_max, LOGIN_BYTES_MAX), may_log_in=True)
