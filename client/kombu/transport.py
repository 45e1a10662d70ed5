"""The transport: the connections of one kombu connection, and the event loop or thread that reads from them."""

from __future__ import annotations

import atexit
import os
import select
import socket
import ssl
import threading
import time
import weakref
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from kombu.log import get_logger
from kombu.transport import virtual

from staniel.client.forks import FORKS
from staniel.client.kombu import channel as channels
from staniel.client.kombu import names
from staniel.client.kombu.channel import put_error
from staniel.client.kombu.consuming import CLOSE_S
from staniel.client.kombu.errors import ConnectionLost, PutRefused, RequestRefused
from staniel.client.kombu.wire import Address, Reply, Wire, connect

DEFAULT_PORT = 22133
CHECK_S = 1.0  # between two checks for late replies
EVENTS_AHEAD = 64  # outstanding replies to events: as many as a pipe holds, so that a server that hangs is noticed
RELATIVE_TTL_S_MAX = 30 * 86_400  # a longer life is sent as a date, by this machine's clock
REAP_S = 1.0  # between two checks for children of an exchange without readers

logger = get_logger(__name__)
_open: weakref.WeakSet[Transport] = weakref.WeakSet()


def _close_at_exit() -> None:
    """Close the connections that the program has left open, so that the queues of its replies end with them."""
    for transport in list(_open):
        if transport.is_own:
            with suppress(Exception):
                transport.close_connection(transport)


def _leave_after_fork() -> None:
    """Close the parent's sockets in a forked child. Otherwise a parent that is killed would stay connected."""
    for transport in list(_open):
        with suppress(Exception):
            transport.leave_the_parent()


atexit.register(_close_at_exit)
os.register_at_fork(after_in_child=_leave_after_fork)


class Bell:
    """A pipe that is readable while messages wait, so that an event loop calls again at once."""

    def __init__(self) -> None:
        self.fd, self._other_end = os.pipe()
        self._is_rung = False

    def set(self, *, messages_wait: bool) -> None:
        if messages_wait and not self._is_rung:
            os.write(self._other_end, b"!")
        elif self._is_rung and not messages_wait:
            os.read(self.fd, 1)
        self._is_rung = messages_wait

    def close(self) -> None:
        os.close(self.fd)
        os.close(self._other_end)


class Transport(virtual.Transport):
    """Staniel for kombu. The options are in docs/celery.md."""

    Channel = channels.Channel
    default_port = DEFAULT_PORT
    driver_type = "staniel"
    driver_name = "staniel"
    polling_interval = None
    implements = virtual.Transport.implements.extend(
        asynchronous=True, exchange_type=frozenset(["direct", "topic", "fanout"]), heartbeats=False
    )
    connection_errors = (*virtual.Transport.connection_errors, ConnectionLost, PutRefused, OSError, EOFError)
    channel_errors = (*virtual.Transport.channel_errors, RequestRefused)
    recoverable_connection_errors = connection_errors
    recoverable_channel_errors = ()

    def __init__(self, client: Any, **options: Any) -> None:
        super().__init__(client, **options)
        self.declared: set[str] = set()
        self.transient: set[str] = set()  # queues that end with their consumer
        self._control: Wire | None = None
        self._control_lock = threading.RLock()
        self._wires: dict[int, Wire] = {}
        self._forks = FORKS.count
        self._loop: Any = None
        self._bell: Bell | None = None  # while there is a loop
        self._has_delivered = False  # since the loop's last tick
        self._checked_at = 0.0

    def driver_version(self) -> str:
        try:
            return version("staniel")
        except PackageNotFoundError:
            return "unknown"

    # connect and close

    def establish_connection(self) -> Transport:
        self.leave_the_parent()
        with self._control_lock:
            self._usable_control()
        super().establish_connection()
        _open.add(self)
        return self

    def verify_connection(self, connection: Any) -> bool:
        return self.is_own and self.is_alive

    @property
    def is_own(self) -> bool:
        """True if the connections are this process's, not those of one before a fork."""
        return self._forks == FORKS.count

    @property
    def is_alive(self) -> bool:
        """True if the server can be reached without connecting again."""
        return self._control is not None and self._control.is_usable

    def close_connection(self, connection: Any) -> None:
        """Close everything. Never raises if the server is gone."""
        _open.discard(self)
        for channel in [*self._avail_channels, *self.channels]:
            channel.close()
        self._avail_channels.clear()
        self._close_control()
        for wire in list(self._wires.values()):
            self.drop_wire(wire)
        self._leave_loop()

    def _close_control(self) -> None:
        """Close the connection for requests. Another thread that waits for a reply on it has some time to get that."""
        has_turn = self._control_lock.acquire(timeout=CLOSE_S)
        try:
            if self._control is not None:
                if has_turn:
                    self._control.drain_replies(CLOSE_S)
                self._control.close()
                self._control = None
        finally:
            if has_turn:
                self._control_lock.release()

    def leave_the_parent(self) -> None:
        """Close the parent's connections in a forked child, without sending anything."""
        if self._forks == FORKS.count:
            return
        self._forks = FORKS.count
        self._control_lock = threading.RLock()
        self._loop = None
        if self._bell is not None:
            self._bell.close()
            self._bell = None
        for wire in [*self._wires.values(), *([self._control] if self._control else [])]:
            wire.close()
        self._wires = {}
        self._control = None
        for channel in self.channels:
            channel.reader.holders, channel.reader.lanes = [], []
            channel.reader.inbox.clear()
            channel.qos.restore_unacked_once()

    def _address(self) -> Address:
        client, options = self.client, self.client.transport_options
        return Address(
            client.hostname or "localhost",
            int(client.port or DEFAULT_PORT),
            _tls(client.ssl),
            client.userid or "",
            client.password or "",
            client.connect_timeout or options.get("connect_timeout_s", 10),
            options.get("answer_timeout_s", 30),
        )

    # requests and replies

    def call(self, *requests: bytes) -> list[Reply]:
        """Send requests over the connection without open reads, and return their replies."""
        with self._control_lock:
            control = self._usable_control()
            try:
                return control.call(*requests)
            except ConnectionLost:
                control.close()
                raise

    def put(self, name: str, data: bytes, ttl_s: int | None) -> None:
        """Store an item. Raises PutRefused, RequestRefused."""
        error = put_error(self.call(_put_request(name, data, ttl_s))[0], name)
        if error is not None:
            raise error

    def put_to_parent(self, name: str, data: bytes, ttl_s: int, *, waits: bool) -> None:
        """Let the server copy an item to the children, and remove it from the parent. Without `waits`, a refusal is
        only logged. Raises PutRefused, RequestRefused.
        """
        requests = _put_request(name, data, ttl_s), b"mg %b v\r\n" % name.encode("latin-1")
        if waits:
            error = put_error(self.call(*requests)[0], name)
            if error is not None:
                raise error
            return

        def on_reply(reply: Reply) -> None:
            if (error := put_error(reply, name)) is not None:
                logger.warning("an event was not stored: %s", error)

        with self._control_lock:
            control = self._usable_control()
            try:
                control.send(b"".join(requests), on_reply, _forget)
                while control.owed > EVENTS_AHEAD:
                    control.wait_and_receive()
            except ConnectionLost:
                control.close()
                raise

    def _usable_control(self) -> Wire:
        """Return the connection for requests, made again if the server has closed it while it was idle."""
        self.leave_the_parent()
        if self._control is not None and not self._control.is_usable_now():
            self._control.close()
            self._control = None
        if self._control is None:
            self._control = connect(self._address())
        return self._control

    def make_child(self, exchange: str, queue: str) -> None:
        """Let the server copy an exchange's messages to this queue from now on."""
        try:
            request = b"mg %b\r\n" % names.child(exchange, queue).encode("latin-1")
        except ValueError as error:
            raise RequestRefused(str(error)) from error
        (reply,) = self.call(request)
        if reply.is_error and "fan-out children" in reply.why:
            self._reap(names.parent(exchange))
            (reply,) = self.call(request)
        if reply.is_error:
            raise RequestRefused(f"the server refuses to make a queue for {queue!r}: {reply.why}")

    def _reap(self, parent: str) -> None:
        """Delete the children that no client has waited for in two checks in a row, because their programs were killed.
        If the program runs, its next read creates the child again.
        """
        dead = self._unwatched(parent)
        time.sleep(REAP_S)
        for name in dead & self._unwatched(parent):
            logger.warning("deleting %s, which no client reads", names.decode(name.partition("+")[2]))
            self.call(b"delete %b\r\n" % name.encode("latin-1"))

    def _unwatched(self, parent: str) -> set[str]:
        (reply,) = self.call(b"stats\r\n")
        start = f"STAT queue_{parent}+".encode("latin-1")
        lines = [line[len(b"STAT queue_") :].decode("latin-1") for line in reply.lines if line.startswith(start)]
        found = (line.rpartition("_waiters ") for line in lines)
        return {name for name, is_waiters, waiters in found if is_waiters and waiters == "0"}

    # read

    def open_wire(self) -> Wire:
        """Make a connection that is read by the event loop, or by drain_events."""
        self.leave_the_parent()
        wire = connect(self._address())
        self._wires[wire.fd] = wire
        if self._loop is not None:
            self._loop.add_reader(wire.fd, self._on_readable, wire)
        return wire

    def drop_wire(self, wire: Wire) -> None:
        if self._wires.get(wire.fd) is wire:
            del self._wires[wire.fd]
            self._forget_reader(wire)
        wire.close()

    def register_with_event_loop(self, connection: Any, loop: Any) -> None:
        """Read from now on whenever this loop says so."""
        if self._loop is not loop:
            self._leave_loop()
        self._loop = loop
        self._bell = self._bell or Bell()
        loop.on_tick.add(self._on_tick)
        if not self._is_read(self._bell.fd, self._bell):
            loop.add_reader(self._bell.fd, self._on_bell, self._bell)
        for wire in self._wires.values():
            if not self._is_read(wire.fd, wire):
                loop.add_reader(wire.fd, self._on_readable, wire)

    def _leave_loop(self) -> None:
        if self._loop is None:
            return
        self._loop.on_tick.discard(self._on_tick)
        if self._bell is not None:
            self._forget_reader(self._bell)
            self._bell.close()
            self._bell = None
        self._loop = None

    def _is_read(self, fd: int, reader: Wire | Bell) -> bool:
        """Tell whether the loop reads this reader; the number of a closed one may be another's."""
        found = self._loop.readers.get(fd)
        return found is not None and reader in found[1]

    def _forget_reader(self, reader: Wire | Bell) -> None:
        """Take a descriptor out of the loop, unless the loop has another one by this number."""
        if self._loop is None or self._forks != FORKS.count:
            return
        if self._is_read(reader.fd, reader):
            with suppress(KeyError, OSError, ValueError):
                self._loop.remove(reader.fd)

    def _on_readable(self, wire: Wire) -> None:
        if not wire.is_closed:
            wire.receive()
            self._deliver_next()

    def _on_bell(self, bell: Bell) -> None:
        self._deliver_next()

    def _on_tick(self) -> None:
        self._has_delivered = False
        self._refill()
        if self._bell is not None:
            self._bell.set(messages_wait=any(channel.reader.inbox for channel in self.channels))

    def _deliver_next(self) -> None:
        """Deliver one message a tick. A pool may run it at once, and signals and commands are handled in between."""
        if not self._has_delivered:
            self._has_delivered = any(channel.deliver_one() for channel in self._in_turn())

    def _refill(self) -> None:
        for channel in list(self.channels):
            channel.refill()
        now = time.monotonic()
        if now - self._checked_at > CHECK_S:
            self._checked_at = now
            for wire in list(self._wires.values()):
                wire.check()

    def drain_events(self, connection: Any, timeout: float | None = None) -> None:
        """Deliver one message. Raises TimeoutError if none comes in time."""
        self.leave_the_parent()
        end = None if timeout is None else time.monotonic() + timeout
        while True:
            if any(channel.deliver_one() for channel in self._in_turn()):
                return
            self._refill()
            left_s = CHECK_S if end is None else min(CHECK_S, end - time.monotonic())
            if left_s < 0:
                raise socket.timeout("no message came in time")  # noqa: UP041 - what kombu expects, by its name
            self._receive(left_s)

    def _in_turn(self) -> list[channels.Channel]:
        """Return the channels, beginning with another one each time."""
        if len(self.channels) > 1:
            self.channels.append(self.channels.pop(0))
        return list(self.channels)

    def _receive(self, wait_s: float) -> None:
        poll = select.poll()
        for fd in self._wires:
            poll.register(fd, select.POLLIN | select.POLLHUP | select.POLLERR)
        for fd, _ in poll.poll(wait_s * 1000):
            wire = self._wires.get(fd)
            if wire is not None:
                wire.receive()


def _put_request(name: str, data: bytes, ttl_s: int | None) -> bytes:
    if ttl_s and ttl_s > RELATIVE_TTL_S_MAX:
        ttl_s += int(time.time())
    life = b" T%d" % ttl_s if ttl_s else b""
    return b"ms %b %d%b\r\n%b\r\n" % (name.encode("latin-1"), len(data), life, data)


def _forget(reply: Reply) -> None:
    """Ignore a reply on which nothing depends."""


def _tls(option: Any) -> ssl.SSLContext | None:
    """Return a context for kombu's `ssl` option: True, a context, or a dictionary with file names."""
    if not option or isinstance(option, ssl.SSLContext):
        return option or None
    files = option if isinstance(option, dict) else {}
    context = ssl.create_default_context(cafile=files.get("ca_certs") or files.get("ssl_ca_certs"))
    certificate = files.get("certfile") or files.get("ssl_certfile")
    if certificate:
        context.load_cert_chain(certificate, files.get("keyfile") or files.get("ssl_keyfile"))
    return context
