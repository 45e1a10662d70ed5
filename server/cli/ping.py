"""The command `staniel ping`: it asks a server for its version, its status and what it cannot serve. For health
checks.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from time import monotonic

from msgspec import Struct

STATUS_UP = "up"
UNAUTHENTICATED = "CLIENT_ERROR unauthenticated"  # memcached says so too
RECEIVE_BYTES = 1 << 16
ANSWER_BYTES_MAX = 1 << 20  # a Kestrel shows all its queues
COUNTS = ("paused_queues", "unreadable_queues", "unreadable_command_logs")


class ServerSilent(TimeoutError):
    """The error for an open port that sends nothing: the system accepts connections for a program that does not."""


class ServerStarting(Exception):
    """The state of a server that recovers its spool and serves no clients yet; the text is its progress."""


class PingAnswer(Struct, frozen=True):
    """A reply. `status` and the numbers are those of `stats`; a server without them counts as healthy. `wants_login`:
    it has users, and tells an unauthenticated client nothing else.
    """

    version: str
    status: str = STATUS_UP
    paused_queues: int = 0
    unreadable_queues: int = 0
    unreadable_command_logs: int = 0
    wants_login: bool = False

    @property
    def held_back(self) -> str:
        """The present restrictions of the server, or that they are unknown; empty if there are none."""
        if self.wants_login:
            return "and wants a login, so its status is not known: ask with --unix PATH, or staniel health"
        restrictions = [] if self.status == STATUS_UP else [f"status {self.status}"]
        if self.paused_queues:
            restrictions.append(f"{self.paused_queues} paused queue{'s' * (self.paused_queues > 1)}")
        if self.unreadable_queues:
            restrictions.append(f"{self.unreadable_queues} unreadable queue{'s' * (self.unreadable_queues > 1)}")
        if self.unreadable_command_logs:
            restrictions.append("an unreadable command log")
        return ", ".join(restrictions)


def plain(sock: socket.socket) -> socket.socket:
    return sock


def ping(
    host: str,
    port: int,
    timeout_s: float,
    unix_path: str = "",
    secure: Callable[[socket.socket], socket.socket] = plain,
) -> PingAnswer:
    """Return the server's answer, within `timeout_s` in all; with `unix_path`, of the server that listens there.

    `secure` begins TLS, if the port uses it. Raises OSError if there is no server, or none that replies in time;
    ServerSilent if an open port sends nothing at all.
    """
    until_s = monotonic() + timeout_s
    try:
        with _connect_unix(unix_path, until_s) if unix_path else _connect(host, port, until_s) as bare:
            bare.settimeout(_left_s(until_s))
            with secure(bare) as sock:
                return _ask(_Lines(sock, until_s))
    except (UnicodeError, OverflowError) as error:
        # Python's resolver raises these for names such as "a..b", of 64 letters, or with surrogates.
        raise OSError(f"no such host: {error}") from error


def _ask(lines: _Lines) -> PingAnswer:
    lines.ask(b"version\r\n")
    try:
        line = lines.next()
    except TimeoutError:
        if lines.has_heard:
            raise
        raise ServerSilent("timed out") from None
    if line == UNAUTHENTICATED:
        return PingAnswer("", wants_login=True)
    words = line.split()
    if len(words) != 2 or words[0] != "VERSION":
        raise OSError("the answer is not that of a memcache server")
    lines.ask(b"stats server\r\n")
    return _read_stats(words[1].rpartition("staniel-")[2], lines)  # as `staniel --version` says it


def _connect(host: str, port: int, until_s: float) -> socket.socket:
    """Connect, with one deadline for all addresses of the host. Raises OSError, UnicodeError, OverflowError."""
    failure = OSError("no address")
    for family, kind, protocol, _, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        sock = socket.socket(family, kind, protocol)
        try:
            sock.settimeout(_left_s(until_s))
            sock.connect(address)
            return sock
        except OSError as error:
            sock.close()
            failure = error
    raise failure


def _connect_unix(path: str, until_s: float) -> socket.socket:
    """Connect to a Unix socket. Raises OSError, also for a path that is too long."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.settimeout(_left_s(until_s))
        sock.connect(path)
    except OSError:
        sock.close()
        raise
    return sock


def _left_s(until_s: float) -> float:
    left_s = until_s - monotonic()
    if left_s <= 0:
        raise TimeoutError("timed out")
    return left_s


def _read_stats(version: str, lines: _Lines) -> PingAnswer:
    """Read the figures. Other servers of the protocol, and older ones, do not have them."""
    counts = dict.fromkeys(COUNTS, 0)
    status = STATUS_UP
    while (words := lines.next().split(maxsplit=2))[:1] == ["STAT"]:
        if len(words) == 3 and words[1] == "status":
            status = words[2]
        elif len(words) == 3 and words[1] in counts and words[2].isdecimal():
            counts[words[1]] = int(words[2])
    paused, queues, logs = (counts[name] for name in COUNTS)
    return PingAnswer(version, status, paused, queues, logs)


class _Lines:
    """A conversation with one deadline, which a server that sends a byte now and then does not prolong."""

    def __init__(self, sock: socket.socket, until_s: float) -> None:
        self._sock = sock
        self._until_s = until_s
        self._heard = b""
        self._bytes = 0

    @property
    def has_heard(self) -> bool:
        return self._bytes > 0

    def ask(self, line: bytes) -> None:
        self._sock.settimeout(_left_s(self._until_s))
        self._sock.sendall(line)

    def next(self) -> str:
        """Return the next line; the rest at the end of the stream. Raises OSError."""
        while b"\n" not in self._heard:
            self._sock.settimeout(_left_s(self._until_s))
            data = self._sock.recv(RECEIVE_BYTES)
            self._bytes += len(data)
            if not data or self._bytes > ANSWER_BYTES_MAX:
                break
            self._heard += data
        line, _, self._heard = self._heard.partition(b"\n")
        return line.decode("latin-1").rstrip("\r")
