"""The hub, which owns all client sockets. One turn: read every ready socket, execute, write each journal once, send the
replies.

Fairness and back-pressure are decided here: which clients are read, executed and written in this turn, and which in a
later one. The poller, sockets, threads and clock are passed in (interfaces.py): the real ones, or the simulator's.
"""

from __future__ import annotations

import select
import socket
from collections import OrderedDict
from collections.abc import Callable, Iterable

from staniel.broker.broker import Broker
from staniel.broker.config.load import ReloadError
from staniel.broker.events import Level
from staniel.broker.failures import report_failure
from staniel.broker.latencies import SAMPLE_NS, Histogram
from staniel.broker.rights import STRANGER
from staniel.broker.session import CLOSING, PARKED, READY, ProtocolSpec, Session
from staniel.journal.background import BackgroundTask
from staniel.journal.group_commit import Sync
from staniel.protocol.limits import Limits
from staniel.server.addresses import AddressCounts
from staniel.server.connection import (
    CLOSED,
    DRAINING,
    ENDED,
    FLUSHING,
    LINGERING,
    OPEN,
    PEER_ENDED,
    READ_BYTES_MAX,
    READ_BYTES_MIN,
    READABLE_OR_ENDED,
    WAITS_FOR_SYNC,
    Connection,
)
from staniel.server.handshakes import Handshakes
from staniel.server.interfaces import Acceptor, Machine, SecureSock, Security, Sock, close_quietly
from staniel.server.listener import UNWATCHED_HINT, Listener, Reserve
from staniel.server.pending_bytes import PendingBytes
from staniel.server.sync_latency import ONE_JOURNAL_NS, SEVERAL_JOURNALS_NS, SyncLatency
from staniel.server.timeouts import IdleTimeout, LingerTimeout, LoginTimeout

LINGER_MS = 2000
LOGIN_BYTES_MAX = 64 << 10  # a request before the login, and requests in the same packet
READABLE = select.EPOLLIN
GONE = select.EPOLLHUP | select.EPOLLERR
SHARE_NS = 4_000_000  # a turn's time for reading and for backlogs; also for closing
LEAST_SHARE_NS = SHARE_NS // 4  # the least time for backlogs, however long reading has taken
FREE_SHARE_NS = 250_000  # a longer turn postpones clients that send much
CROWDED_TURN_NS = 400_000  # the time of a turn that leaves out clients: a new request waits for the rest of one turn
# and for its own
CROWDED_READ_BYTES = 256 << 10
CLOCK_CHECK_BYTES = 16 << 10  # read and sent between two readings of the clock: some 20 us
CLOCK_CHECK_CLIENTS = 8  # or this many clients served, however little they send
# Compiled, C numbers (hub.pxd). A client counts as this many bytes, so that one counter serves both bounds.
_CLOCK_CHECK_BYTES, _CLIENT_BYTES = CLOCK_CHECK_BYTES, CLOCK_CHECK_BYTES // CLOCK_CHECK_CLIENTS
FEW = 4  # this many clients that send much are no crowd
FEW_REPLIES = 16  # with more in one turn, other clients will send requests before a sync has ended
EVENTS_PER_TURN = 1023  # the next turns get further events: a client without one may be ready too
FIRST_BYTES_MAX = 1 << 10  # a client that begins with more is read after those with short requests
WRITERS_PER_TURN = 8  # clients that are slow to read their replies
SAMPLES_MAX = 64  # replies timed at once: a disk that hangs holds them all
SENT_BYTES_PER_TURN = 512 << 10  # then only short replies leave: the kernel copies the long ones while all clients wait


class Hub:
    """A server of a broker's clients: `turn` by turn until `is_stopping`, then `close`.

    `_postponed` has descriptors that the last turn had no time for, in order. `_read_queue` has clients that send much
    and so are read after the others, the longest-waiting first. `_backlogged` has sessions with more requests.
    `_holding` has connections with replies that wait for the disk.
    """

    def __init__(self, broker: Broker, machine: Machine, clients_max: int) -> None:
        """Make a hub. `clients_max` is the number of descriptors for clients."""
        self.broker = broker
        self.clock = machine.clock
        self.addresses = AddressCounts()
        self._clients_max = clients_max
        self._limit_connections()
        self._now_ns = machine.now_ns
        self._elapsed_ns = machine.elapsed_ns
        self._waiting_bytes = machine.waiting_bytes
        self._poller, self._sync_thread, self._task_thread = machine.poller, machine.syncs, machine.tasks
        self._tasks = broker.maintenance.tasks
        self._tasks.wait_for = self._wait_for
        broker.group.wait_for = self._wait_for_sync
        broker.reloaded, broker.has_sent_all = self._on_reload, self._has_sent_all
        broker.step_clock.now_ns = machine.step_ns
        broker.logged_in = self._on_login
        self._poller.register(self._sync_thread.fd, select.EPOLLIN)
        self._poller.register(self._task_thread.fd, select.EPOLLIN)
        self._connections: dict[int, Connection] = {}
        self._of_session: dict[Session, Connection] = {}
        self._handlers: dict[int, Callable[[int], None]] = {  # for watched descriptors that are no client's
            self._sync_thread.fd: self._on_sync_ready,
            self._task_thread.fd: self._on_task_ready,
        }
        self._listeners: list[Listener] = []
        self._active: list[Connection] = []  # their replies are sent in this turn
        self._backlogged: dict[Connection, None] = {}
        self._holding: dict[Connection, None] = {}
        self.handshakes = Handshakes(self, broker.report)
        self._pending = PendingBytes(self)
        self._tracked = self._pending.tracked
        self._dropped: list[Sock] = []  # closed at the end of the turn
        self._postponed: dict[int, int] = {}
        self._is_cut = False  # more clients may be ready than this turn has events for
        self.heard_ms = 0
        """All bytes that clients sent before this time have been read, except those of postponed clients."""
        self._turn_ms = self._round_ms = self._heard_in_rounds_ms = self._looks_left = 0
        self._read_queue: OrderedDict[int, int] = OrderedDict()
        self._queue_read_ns = self._rest_ns = 0  # when `_read_queue` was last read, and how long the rest took
        self._group = broker.group
        self._counters = broker.counters
        self._latency_of_one = SyncLatency(ONE_JOURNAL_NS)
        self._latency_of_several = SyncLatency(SEVERAL_JOURNALS_NS)
        self._latencies = broker.latencies
        self._sample_due_ns = self._delivery_due_ns = 0
        # Replies that are timed: (histogram, batch, begin).
        self._sampled: list[tuple[Histogram, int, int]] = []
        self._sync: Sync | None = None  # in the thread
        self._stopping = False

    # life

    def listen(
        self,
        acceptor: Acceptor,
        protocol: ProtocolSpec,
        security: Security | None = None,
        reserve: Reserve = Reserve.NONE,
    ) -> None:
        """Accept clients from a listening socket; with `security`, under TLS."""
        listener = Listener(self, acceptor, protocol, self._limits(), self.broker.report, security, reserve)
        self._listeners.append(listener)
        self._handlers[acceptor.fileno()] = listener.on_ready

    def _limits(self) -> Limits:
        config = self.broker.config
        return Limits(config.server.max_line_bytes, config.item_bytes_max)

    def _on_reload(self, now_ms: int) -> None:
        """Apply a reloaded configuration. Its limits also hold for connected clients."""
        limits, timeout_ms = self._limits(), self.broker.config.server.client_timeout_ms
        self._limit_connections()
        self._resume_listeners()
        self._pending.count_all_soon(now_ms)
        for listener in self._listeners:
            listener.limits = limits
        for connection in self._connections.values():
            if connection.session.state is CLOSING:
                self._active.append(connection)  # its user was removed
            is_stranger = connection.session.rights is STRANGER
            connection.limit(of_strangers(limits) if is_stranger else limits)
            if is_stranger or not timeout_ms:
                continue  # a removed time-out does nothing when it fires
            if connection.alarm is None:
                self._set_idle_timeout(connection, now_ms)
            elif isinstance(connection.alarm, IdleTimeout):
                connection.alarm.restart(now_ms)

    def _has_sent_all(self, session: Session) -> bool:
        connection = self._of_session.get(session)
        return connection is None or connection.owes_nothing

    def _set_idle_timeout(self, connection: Connection, now_ms: int) -> None:
        connection.alarm = timeout = IdleTimeout(connection, self, now_ms)
        timeout.restart(now_ms)

    def sockets(self) -> Iterable[Sock]:
        """Return the sockets of all clients."""
        return [connection.sock for connection in self._connections.values()]

    def _limit_connections(self) -> None:
        """Set the limits of connections. The operators' reserve also comes out of the system's descriptors; if these
        are few, only a part of it.
        """
        server = self.broker.config.server
        self.reserved_connections = min(server.reserved_connections, self._clients_max // 8)
        room = self._clients_max - Reserve.SPOOL * self.reserved_connections
        self.max_connections = min(room, server.max_connections or room)
        self.broker.limits.max_connections = self.max_connections

    def has_room(self, reserve: Reserve = Reserve.NONE) -> bool:
        """Return True if another client may be accepted, given the listener's reserve."""
        room = self.max_connections + reserve * self.reserved_connections
        return len(self._connections) + len(self.handshakes) < room

    def has_many(self, client: str, reserve: Reserve) -> bool:
        """Return True if the client's address has reached its limit of connections."""
        limit = self.broker.config.server.max_connections_per_address
        return limit is not None and self.addresses.count(client) >= limit + reserve * self.reserved_connections

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
            limits = of_strangers(limits)
        connection = Connection(sock, session, protocol.parser(limits), self._pending.changed)
        self._connections[connection.fd] = connection
        self._of_session[connection.session] = connection
        try:
            self._poller.register(connection.fd, READABLE_OR_ENDED)
        except OSError as error:
            self._drop_unwatched(connection, error, now_ms)
            return
        if session.rights is STRANGER:
            connection.alarm = LoginTimeout(connection, self, now_ms)
        elif self.broker.config.server.client_timeout_ms:
            self._set_idle_timeout(connection, now_ms)

    def _on_login(self, session: Session) -> None:
        connection = self._of_session.get(session)
        if connection is None:
            return
        connection.limit(self._limits())
        self._forget_alarm(connection)
        if self.broker.config.server.client_timeout_ms:
            self._set_idle_timeout(connection, self.clock.now_ms())

    def admit_secure(
        self, sock: SecureSock, name: str, listener: Listener, certificate: tuple[str, ...], now_ms: int
    ) -> None:
        """Serve a client whose handshake is done. Its first request may have come with the end of the handshake, which
        only a read can show.
        """
        self.admit(sock, name, listener.protocol, listener.limits, now_ms, certificate)
        connection = self._connections.get(sock.fileno())
        if connection is not None:
            self._read(connection, now_ms)

    def discard(self, sock: Sock, client: str) -> None:
        """Close a socket that did not become a client's; it makes room for another."""
        self.addresses.remove(client)
        self.close_soon(sock)
        self._resume_listeners()

    def close_soon(self, sock: Sock) -> None:
        """Close a socket at the end of the turn. Closed now, its descriptor could become the next client's, and this
        turn's events would be taken for that client's.
        """
        self._dropped.append(sock)

    def _resume_listeners(self) -> None:
        for listener in self._listeners:
            listener.resume()

    def elapsed_ns(self) -> int:
        return self._elapsed_ns()

    def watch_fd(self, fd: int, mask: int, on_ready: Callable[[int], None]) -> None:
        """Watch a descriptor that is neither a client's nor a listener's. Raises OSError."""
        self._handlers[fd] = on_ready
        self._poller.register(fd, mask)

    def watch_fd_for(self, fd: int, mask: int) -> None:
        """Change the watched events. Raises OSError."""
        self._poller.modify(fd, mask)

    def unwatch_fd(self, fd: int) -> None:
        del self._handlers[fd]
        self._unregister(fd)

    def _unregister(self, fd: int) -> None:
        """Stop watching. If epoll_ctl(2) fails, closing the descriptor has the same effect."""
        try:
            self._poller.unregister(fd)
        except OSError:
            pass

    def hang_up(self, connection: Connection) -> None:
        """Close a connection once its replies have left."""
        connection.session.hang_up(b"")
        self._active.append(connection)

    def watch(self, listener: Listener) -> None:
        """Watch a listener. Raises OSError."""
        try:
            self._poller.register(listener.acceptor.fileno(), select.EPOLLIN)
        except FileExistsError:
            pass  # an `unwatch` failed before

    def unwatch(self, listener: Listener, until_ms: int) -> None:
        """Stop watching; call the listener's `on_timer` at `until_ms`, if that is not 0."""
        self._unregister(listener.acceptor.fileno())
        if until_ms:
            self.broker.timers.set(listener, until_ms)

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
            close_quietly(listener.acceptor)
        self._listeners.clear()  # a connection dropped from here on makes no room for another
        if self._sync is not None:
            self._group.cut_short()
            self._end_sync(self._sync_thread.wait(), now_ms)
        self.broker.shutdown(now_ms)
        self.handshakes.close()
        for connection in list(self._connections.values()):
            self._send_last(connection)
        self._close_dropped()
        self._connections.clear()
        self._sync_thread.close()
        self._task_thread.close()
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

    def turn(self, events: list[tuple[int, int]]) -> None:
        """Serve what is ready now, once. Clients for which there is no time come first in the next turn."""
        now_ms = self.clock.now_ms()
        self.heard_ms, self._turn_ms = self._turn_ms, now_ms
        if len(events) >= EVENTS_PER_TURN:
            self._count_full_look()
        queued: dict[int, int] | None = None
        began_ns = read = 0
        if self._postponed or self._read_queue or self._pending.pressing:
            began_ns = self._elapsed_ns()
            events, queued = self._prioritize(events)
        broker, group, connections, active = self.broker, self._group, self._connections, self._active
        for _, mask in events:
            if mask != READABLE:
                events = self._serve_rare(events, now_ms)
                break
        elapsed_ns = self._elapsed_ns
        now_ns = elapsed_ns()
        if now_ns >= self._sample_due_ns and events:
            events = self._serve_sampled(events, now_ns, now_ms)
        until_ns = now_ns + FREE_SHARE_NS
        unchecked_bytes = 0  # served since the last reading of the clock
        for fd, _ in events:
            connection = connections.get(fd)
            if connection is None:
                self._notify(fd, now_ms)
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
        if (sync := group.start_sync(now_ms)) is not None:
            self._run_sync(sync, now_ms)
        if self._tasks.is_due:
            self._start_tasks()
        if broker.unsent.new:
            self._answer_with_items(now_ms)
        else:
            self._answer_all(now_ms)
        if queued or self._pending.changed or self._sampled or self._dropped:
            self._end_turn(bool(queued), now_ms)

    def _end_turn(self, has_queued: bool, now_ms: int) -> None:
        """Do what only some turns need, when every reply has left."""
        if self._pending.changed:
            self._pending.count_changed(now_ms)
        if self._sampled:
            self._end_samples()
        if self._dropped:
            self._close_dropped()
        if has_queued:
            self._rest_ns = self._elapsed_ns() - self._queue_read_ns

    def _start_tasks(self) -> None:
        for task in self._tasks.start():
            self._task_thread.start(task)

    def _count_full_look(self) -> None:
        """Count a poll that returned its maximum: more clients may be ready. The kernel first reports those that it has
        not reported for longest; so after enough polls all clients are known that were ready before this one.
        """
        before_ms, self.heard_ms = self.heard_ms, self._heard_in_rounds_ms
        if not self._looks_left:
            self._round_ms = before_ms
            watched = len(self._connections) + len(self.handshakes) + len(self._handlers)
            self._looks_left = watched // EVENTS_PER_TURN + 1
        self._looks_left -= 1
        if not self._looks_left:
            self.heard_ms = self._heard_in_rounds_ms = self._round_ms

    def _serve_sampled(self, events: list[tuple[int, int]], now_ns: int, now_ms: int) -> list[tuple[int, int]]:
        """Serve the first client alone, so that its request is known, and time its reply. Return the other events that
        this turn has time for.
        """
        self._sample_due_ns = now_ns + SAMPLE_NS
        at = next((at for at, (fd, _) in enumerate(events) if fd in self._connections), -1)
        if at < 0 or len(self._sampled) > SAMPLES_MAX:
            return events
        connection, counters, latencies = self._connections[events[at][0]], self._counters, self._latencies
        session = connection.session
        puts, gets, session.shown = counters.cmd_set, counters.cmd_get, None
        self._read(connection, now_ms)
        added_ms = session.shown_added_ms(now_ms)
        has_put, has_got = counters.cmd_set > puts, counters.cmd_get > gets
        if has_put != has_got and session.state is READY and not session.backlog:
            self._sampled.append((latencies.puts if has_put else latencies.gets, session.batch, now_ns))
            latencies.add_rest(added_ms, now_ms)
        left = events[:at] + events[at + 1 :]
        if self._elapsed_ns() > now_ns + FREE_SHARE_NS:
            self._read_short(left, now_ns + SHARE_NS, now_ms)
            return []
        return left

    def _resume_woken(self, now_ns: int, now_ms: int) -> None:
        """Resume sessions whose wait has ended. The item of one of them is timed."""
        broker = self.broker
        first = broker.woken[0]
        if now_ns < self._delivery_due_ns or not first.has_delivery or len(self._sampled) > SAMPLES_MAX:
            for session in broker.resume_woken(now_ms):
                self._resume(session, now_ms)
            return
        self._delivery_due_ns = now_ns + SAMPLE_NS
        first.shown = None
        for session in broker.resume_woken(now_ms):
            self._resume(session, now_ms)
        self._latencies.add_rest(first.shown_added_ms(now_ms), now_ms)
        self._sampled.append((self._latencies.deliveries, first.batch, now_ns))

    def _end_samples(self) -> None:
        """End the samples whose replies have left in this turn."""
        durable, now_ns = self._group.durable, self._elapsed_ns()
        for histogram, batch, began_ns in self._sampled:
            if batch <= durable:
                histogram.add(now_ns - began_ns)
        self._sampled = [each for each in self._sampled if each[1] > durable]

    def _prioritize(self, events: list[tuple[int, int]]) -> tuple[list[tuple[int, int]], dict[int, int]]:
        """Return the events to serve at once, the postponed ones first, and apart from them those of clients to read
        last.

        Clients to read last are those with pending bytes (one with an unfinished request sends as much as we read) and,
        if there was no time for all, clients that send much. Hundreds of them must not delay one with whole, short
        requests.
        """
        late, self._postponed = self._postponed, {}
        queue, pressing, connections = self._read_queue, self._pending.pressing, self._connections
        self._is_cut = len(events) >= EVENTS_PER_TURN
        if self._is_cut and late:
            ready = {fd for fd, _ in events}
            self._postpone(fd for fd in late if fd not in ready)
        is_crowded = bool(late or queue)
        front, queued, writers = list[tuple[int, int]](), dict[int, int](), list[int]()
        for event in events:
            fd, mask = event
            if mask == READABLE:
                if fd in queue or fd in pressing or (is_crowded and fd in connections and self._sends_much(fd)):
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
        self._active.extend([connections[fd] for fd in writers[:WRITERS_PER_TURN]])
        self._postpone(writers[WRITERS_PER_TURN:])
        if not queued and not self._is_cut:
            queue.clear()  # their bytes have been read in another way
        queue.update(queued)
        return front, queued

    def _sends_much(self, fd: int) -> bool:
        """Return True if the client is known to send much; before the first read, by its received bytes."""
        connection = self._connections[fd]
        if connection.is_new and not connection.sends_much:
            try:
                connection.sends_much = self._waiting_bytes(fd) > FIRST_BYTES_MAX
            except OSError:
                return False  # the read fails, too, and ends it
        return connection.sends_much

    def _read_short(self, events: list[tuple[int, int]], until_ns: int, now_ms: int) -> None:
        """Read short requests late in a turn: clients that send much wait for the next; others are served until
        `until_ns`.
        """
        for at, (fd, _) in enumerate(events):
            if self._elapsed_ns() > until_ns:
                self._postpone([event[0] for event in events[at:]])
                return
            connection = self._connections.get(fd)
            if connection is None:
                self._notify(fd, now_ms)
            elif self._sends_much(fd):
                self._read_queue[fd] = READABLE
            else:
                self._read(connection, now_ms)

    def _read_queued(self, ready: dict[int, int], until_ns: int, began_ns: int, now_ms: int) -> None:
        """Read once from each of `ready`, in the order of the queue, until `until_ns`; at least from one, and for at
        least a quarter of the time that others have had.
        """
        queue, now_ns = self._read_queue, self._elapsed_ns()
        until_ns = max(until_ns, now_ns + min(now_ns - began_ns, SHARE_NS) // 4)
        bytes_max = CROWDED_READ_BYTES if len(ready) > FEW else READ_BYTES_MAX
        for fd in list(queue):
            if fd not in ready and self._is_cut:
                continue
            del queue[fd]
            connection = self._connections.get(fd)
            if fd not in ready or connection is None:
                continue
            if connection.read_bytes > bytes_max:
                connection.read_bytes = bytes_max
            has_sent_much = self._read(connection, now_ms) >= READ_BYTES_MIN
            connection.sends_much = has_sent_much or bool(connection.session.backlog)
            if ready[fd] & ENDED and connection.session.state is PARKED:
                self._on_peer_end(connection, now_ms)  # gone already
            if connection.state is not CLOSED:
                self._pending.changed[connection] = None  # perhaps nothing is pending any more
            if connection.state is not OPEN or self._elapsed_ns() > until_ns:
                break  # returning a leaving client's open reads is a turn's work
        self._queue_read_ns = self._elapsed_ns()

    def is_postponed(self, fd: int) -> bool:
        """Return True if a client's descriptor is ready, and there has been no time for it since."""
        return fd in self._read_queue or fd in self._postponed

    def _postpone(self, fds: Iterable[int]) -> None:
        """Postpone descriptors to the next turn."""
        for fd in fds:
            self._postponed.setdefault(fd, len(self._postponed))

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
            self._pending.changed.update(dict.fromkeys([each for each in active if each in tracked]))

    def _answer_with_items(self, now_ms: int) -> None:
        """Send replies like `_answer_all`, some with items that return to their queues if the reply cannot leave."""
        handed = self.broker.unsent
        new, handed.new = handed.new, {}
        for session in new:
            connection = self._of_session[session]
            handed.place(session, connection.unsent_bytes + connection.held_bytes)
        self._answer_all(now_ms)
        for session in new:  # a reply that leaves whole and at once is not counted
            found = self._of_session.get(session)
            if found is None or not found.owes_answers:
                handed.pop(session)

    def _notify(self, fd: int, now_ms: int) -> None:
        """Handle an event that is no client's. It has no handler if its client was dropped earlier in this turn."""
        handler = self._handlers.get(fd)
        if handler is not None:
            handler(now_ms)

    def _serve_rare(self, events: list[tuple[int, int]], now_ms: int) -> list[tuple[int, int]]:
        """Serve all events except plain readability; return the rest. Clients that leave while they wait come first:
        items that others put in this turn must not go to them.
        """
        rare = [event for event in events if event[1] != READABLE]
        waiting: list[tuple[Connection, int]] = []
        others: list[tuple[Connection, int]] = []
        for fd, mask in rare:
            connection = self._connections.get(fd)
            if connection is None:
                self._notify(fd, now_ms)
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
                self._postpone(fd for fd, _ in behind(connection.fd, rare))
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
            self._postpone((connection.fd,))
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
        self._forget_alarm(connection)
        connection.alarm = LingerTimeout(connection, self.drop)
        self.broker.timers.set(connection.alarm, now_ms + LINGER_MS)

    def _forget_alarm(self, connection: Connection) -> None:
        """Drop the connection's timer, which would keep it in memory until it is due."""
        if connection.alarm is not None:
            self.broker.timers.drop(connection.alarm)
            connection.alarm = None

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
        self._forget_alarm(connection)
        self._pending.forget(connection)
        self._read_queue.pop(connection.fd, None)
        del self._connections[connection.fd]
        del self._of_session[connection.session]
        self._unregister(connection.fd)
        self.discard(connection.sock, session.address)

    def _close_dropped(self) -> None:
        for sock in self._dropped:
            close_quietly(sock)
        self._dropped.clear()

    # the disk

    def _run_sync(self, sync: Sync, now_ms: int) -> None:
        """Run a sync: at once if the disk has been fast lately and little else is to do, else beside the turns."""
        latency = self._latency_of_one if len(sync.files) == 1 else self._latency_of_several
        is_crowded = sync.redo is not None and self._sync_thread.is_cheap and len(self._active) > FEW_REPLIES
        if sync.is_plain and (latency.is_brief or latency.is_worth_a_try) and not is_crowded:
            began_ns = self._now_ns()
            sync.run()
            took_ns = self._now_ns() - began_ns
            latency.add(took_ns, has_waited=True)
            self._latencies.syncs.add(took_ns)
            self._group.finish_sync(sync, now_ms)
            if self._holding:
                self._release_held(now_ms)
        else:
            self._sync = sync
            self._sync_thread.start(sync)

    def _on_sync_ready(self, now_ms: int) -> None:
        sync = self._sync_thread.finished()
        if sync is not None:
            self._end_sync(sync, now_ms)

    def _end_sync(self, sync: Sync, now_ms: int) -> None:
        """Finish a sync that the thread has run."""
        assert sync is self._sync
        self._latencies.syncs.add(self._sync_thread.took_ns)
        if sync.is_plain:
            latency = self._latency_of_one if len(sync.files) == 1 else self._latency_of_several
            latency.add(self._sync_thread.took_ns)
        self._sync = None
        self._group.finish_sync(sync, now_ms)
        self._release_held(now_ms)

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

    def _on_task_ready(self, now_ms: int) -> None:
        """Finish a task that has ended."""
        task = self._task_thread.finished()
        if task is not None:
            self.broker.finish_task(task, now_ms)

    def _wait_for_sync(self, sync: Sync) -> None:
        """Wait for a sync that is writing to the redo log, because this turn must write to it. The sync ends as usual
        afterwards.
        """
        if sync is self._sync:
            self._sync_thread.join()

    def _wait_for(self, task: BackgroundTask) -> None:
        """Wait for a task when the server stops."""
        ended = self._task_thread.wait()
        assert ended is task


def of_strangers(limits: Limits) -> Limits:
    """Return the limits of unauthenticated clients."""
    return Limits(limits.line_bytes_max, min(limits.item_bytes_max, LOGIN_BYTES_MAX), may_log_in=True)


def behind(fd: int, events: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the events behind the one of this descriptor."""
    return events[[event[0] for event in events].index(fd) + 1 :]
