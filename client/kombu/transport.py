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

from staniel.client.kombu import channel as channels
from staniel.client.kombu import names
from staniel.client.kombu.channel import put_error
from staniel.client.kombu.errors import ConnectionLost, PutRefused, RequestRefused
from staniel.client.kombu.wire import Address, Reply, Wire, connect

DEFAULT_PORT = 22133
CHECK_S = 1.0  # how often late replies are looked for
REAP_S = 1.0  # between two looks at the children of an exchange that can have no more

logger = get_logger(__name__)
_open: weakref.WeakSet[Transport] = weakref.WeakSet()


def _close_at_exit() -> None:
    """Close the connections that the program has left open: the queues of its replies end with them."""
    for transport in list(_open):
        if transport.is_own:
            with suppress(Exception):
                transport.close_connection(transport)


def _leave_after_fork() -> None:
    """Close the parent's sockets in a forked child: as long as it has them, a parent that is killed stays connected."""
    for transport in list(_open):
        with suppress(Exception):
            transport.leave_the_parent()


atexit.register(_close_at_exit)
os.register_at_fork(after_in_child=_leave_after_fork)


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
        self._process = os.getpid()
        self._loop: Any = None
        self._checked_at = 0.0

    def driver_version(self) -> str:
        try:
            return version("staniel")
        except PackageNotFoundError:
            return "unknown"

    # connect and close

    def establish_connection(self) -> Transport:
        self.leave_the_parent()
        self._usable_control()
        super().establish_connection()
        _open.add(self)
        return self

    def verify_connection(self, connection: Any) -> bool:
        return self.is_own and self.is_alive

    @property
    def is_own(self) -> bool:
        """True if the connections are this process's, not those of one before a fork."""
        return self._process == os.getpid()

    @property
    def is_alive(self) -> bool:
        """True if the server can be asked without connecting again."""
        return self._control is not None and (self._control.owed > 0 or self._control.is_usable)

    def close_connection(self, connection: Any) -> None:
        """Close everything. Never raises for a server that is gone."""
        _open.discard(self)
        for channel in [*self._avail_channels, *self.channels]:
            channel.close()
        self._avail_channels.clear()
        if self._control is not None:
            self._control.close()
            self._control = None
        for wire in list(self._wires.values()):
            self.drop_wire(wire)
        self._leave_loop()

    def leave_the_parent(self) -> None:
        """Drop the parent's connections without a word, in a forked child."""
        if self._process == os.getpid():
            return
        self._process = os.getpid()
        self._control_lock = threading.RLock()
        self._loop = None
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
        """Send requests over the connection that holds nothing, and return their replies."""
        with self._control_lock:
            control = self._usable_control()
            try:
                return control.call(*requests)
            except ConnectionLost:
                control.close()
                raise

    def put(self, name: str, data: bytes, ttl_s: int | None, *, is_parent: bool = False) -> None:
        """Store an item; take it out of a parent again, which is for copying. Raises PutRefused, RequestRefused."""
        key = name.encode("latin-1")
        life = b" T%d" % ttl_s if ttl_s else b""
        requests = [b"ms %b %d%b\r\n%b\r\n" % (key, len(data), life, data)]
        if is_parent:
            requests.append(b"mg %b v\r\n" % key)
        error = put_error(self.call(*requests)[0], name)
        if error is not None:
            raise error

    def _usable_control(self) -> Wire:
        """Return the connection for requests, made again if the server has closed it while it was idle."""
        self.leave_the_parent()
        if self._control is not None and not self._control.is_usable:
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
        """Delete the children that no client waits for, twice in a row: their programs were killed. That of a living
        one comes again with its next read.
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
        loop.on_tick.add(self._on_tick)
        for wire in self._wires.values():
            found = loop.readers.get(wire.fd)
            if found is None or wire not in found[1]:
                loop.add_reader(wire.fd, self._on_readable, wire)

    def _leave_loop(self) -> None:
        if self._loop is not None:
            self._loop.on_tick.discard(self._on_tick)
            self._loop = None

    def _forget_reader(self, wire: Wire) -> None:
        """Take a connection out of the loop, unless the loop has another one by this number."""
        if self._loop is None or self._process != os.getpid():
            return
        found = self._loop.readers.get(wire.fd)
        if found is not None and wire in found[1]:
            with suppress(KeyError, OSError, ValueError):
                self._loop.remove(wire.fd)

    def _on_readable(self, wire: Wire) -> None:
        if not wire.is_closed:
            wire.receive()
            self._deliver_all()

    def _on_tick(self) -> None:
        self._deliver_all()
        self._refill()

    def _deliver_all(self) -> None:
        for channel in list(self.channels):
            while channel.deliver_one():
                pass

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
        """Return the channels, another one first each time."""
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
