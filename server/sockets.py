"""The binding of TCP and Unix sockets, and locks for the paths of Unix sockets.

A path can be bound again once its file is removed, so a second server would take it from a living one. Each path has a
lock file beside it, `PATH.lock`, which is locked for the life of the server and stays afterwards: a lock on a file that
others may remove guards nothing.
"""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import stat
from collections.abc import Callable
from types import TracebackType

from staniel.broker import protocols
from staniel.broker.config.addresses import Address, TcpAddress, UnixAddress, format_address
from staniel.broker.config.load import LISTENERS, Config
from staniel.broker.session import ProtocolSpec
from staniel.server import keepalive
from staniel.server.spool_socket import socket_address

PORT_HINT = "choose another with --port, or stop the program that has it"
PATH_HINT = "choose another path, or stop the program that listens there"
SHORTER_HINT = "give a shorter one in `listen`, in /run for example"
PATH_BYTES_MAX = 107  # a Unix socket's path: the kernel's struct has 108 bytes, one for its end
HTTP_LIBRARY = "h11: pip install 'h11>=0.16,<1'"
THRIFT_EXTRA = "an extra: pip install 'staniel[thrift]'"
LOCK_SUFFIX = ".lock"
LOCALHOST = "localhost"
NO_IPV6 = (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL)


class StartError(Exception):
    """The server cannot start; the text says why and what to do."""


class BoundSockets:
    """The bound sockets, not yet listening, of every address of a configuration: memcache first, then text, workq,
    admin and thrift. `sockets` pairs each with its protocol; those in `secure` use TLS. Raises StartError.
    """

    def __init__(self, config: Config) -> None:
        self.sockets: list[tuple[socket.socket, ProtocolSpec]] = []
        self.secure: set[socket.socket] = set()
        self.of_spool: tuple[socket.socket, ProtocolSpec] | None = None
        self._locks: list[int] = []
        self._paths: list[tuple[str, tuple[int, int]]] = []
        dialect = config.memcache.dialect
        try:
            creates, refused = config.memcache.create_on_read, frozenset(config.memcache.refuse)
            self._open(config, "memcache", lambda: protocols.memcache(dialect, creates, refused))
            self._open(config, "text", lambda: protocols.text(dialect, config.text.create_on_read))
            self._open(config, "workq", protocols.workq)
            self._open(config, "admin", lambda: protocols.http(loads=True), HTTP_LIBRARY)
            self._open(config, "thrift", lambda: protocols.thrift(dialect, config.thrift.create_on_read), THRIFT_EXTRA)
        except (StartError, ImportError):
            self.close()
            raise

    def __enter__(self) -> BoundSockets:
        return self

    def __exit__(self, kind: type[BaseException] | None, wrong: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close the sockets, and remove the Unix sockets that are still the ones bound here."""
        for sock, _ in self.all():
            sock.close()
        for path, identity in self._paths:
            try:
                if _identity(path) == identity:
                    os.unlink(path)
            except OSError:
                pass  # gone, or not ours to remove any more
        for lock in self._locks:
            os.close(lock)
        self.sockets, self.of_spool, self._paths, self._locks = [], None, [], []

    def all(self) -> list[tuple[socket.socket, ProtocolSpec]]:
        """Return all sockets, with the spool's if there is one."""
        return [*self.sockets, self.of_spool] if self.of_spool is not None else list(self.sockets)

    def _open(self, config: Config, name: str, load: Callable[[], ProtocolSpec], needs: str = "") -> None:
        """Bind a listener's addresses, if it has any: only then its protocol is loaded. `needs` names what must be
        installed, for the message if it is missing.
        """
        addresses = config.addresses(name)
        of_tls = config.tls_addresses(name)
        if not (addresses or of_tls):
            return
        try:
            protocol = load()
        except ImportError as missing:
            if not needs:
                raise
            raise StartError(f"[{name}] needs {needs}") from missing
        for address in addresses:
            if isinstance(address, UnixAddress):
                self.sockets.append((self._bind_unix(address, config.socket_mode(name)), protocol))
            else:
                self.sockets += [(sock, protocol) for sock in _bind_all(address, config)]
        for tcp in of_tls:
            for sock in _bind_all(tcp, config):
                self.sockets.append((sock, protocol))
                self.secure.add(sock)

    def open_for_spool(self, folder: str) -> OSError | None:
        """Bind the operators' socket of the spool whose own folder this is; this process has locked it. Return the
        reason if it cannot be bound.
        """
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        try:
            protocol = protocols.http()
            sock.bind(socket_address(folder))
        except ImportError as missing:
            sock.close()
            return OSError(errno.ENOPKG, str(missing))
        except OSError as error:
            sock.close()
            return error
        self.of_spool = (sock, protocol)
        return None

    def _bind_unix(self, address: UnixAddress, mode: int) -> socket.socket:
        path = address.path
        size = len(os.fsencode(path))
        if size > PATH_BYTES_MAX:
            raise _unable(address, f"the path has {size} bytes, the system takes {PATH_BYTES_MAX}", SHORTER_HINT)
        try:
            self._locks.append(os.open(path + LOCK_SUFFIX, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
            fcntl.flock(self._locks[-1], fcntl.LOCK_EX | fcntl.LOCK_NB)
            _remove_left_socket(path)
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
            try:
                # The file is created with this mode less the umask, so it never has more permissions than it should.
                os.fchmod(sock.fileno(), mode)
                sock.bind(path)
                self._paths.append((path, _identity(path)))
                os.chmod(path, mode)
            except OSError:
                sock.close()
                raise
        except BlockingIOError:
            raise _unable(address, "another server listens there", PATH_HINT) from None
        except OSError as error:
            raise _unable(address, error.strerror or str(error), PATH_HINT) from error
        return sock


def _bind_all(address: TcpAddress, config: Config) -> list[socket.socket]:
    """Return a socket for each address of the host: `localhost` has one of each family, because programs try
    either first.
    """
    if address.host != LOCALHOST:
        return [_bind(address, config)]
    first = _bind(TcpAddress("127.0.0.1", address.port), config)
    try:
        return [first, _bind(TcpAddress("::1", first.getsockname()[1]), config)]
    except StartError as error:
        cause = error.__cause__
        if isinstance(cause, OSError) and cause.errno in NO_IPV6:
            return [first]
        first.close()
        raise


def _has_pair(address: TcpAddress, config: Config) -> bool:
    """Return True if another listener has an IPv4 address with the same port, so that this one must be IPv6 only."""
    addresses = [other for name in LISTENERS for other in config.all_addresses(name)]
    others = [other for other in addresses if isinstance(other, TcpAddress) and ":" not in other.host]
    return address.port != 0 and any(other.port == address.port for other in others)


def _bind(address: TcpAddress, config: Config) -> socket.socket:
    server = config.server
    try:
        family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
        sock = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        try:
            if family == socket.AF_INET6 and _has_pair(address, config):
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            keepalive.configure(sock, server.tcp_keepalive_ms, server.tcp_user_timeout_ms)
            sock.bind((address.host, address.port))
        except OSError:
            sock.close()
            raise
    except OSError as error:
        raise _unable(address, error.strerror or str(error), PORT_HINT) from error
    return sock


def _remove_left_socket(path: str) -> None:
    """Remove the socket of an ended server. Raises OSError; BlockingIOError if a server listens there."""
    try:
        if not stat.S_ISSOCK(os.lstat(path).st_mode):
            return  # bind says that the name is taken
    except FileNotFoundError:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)
            return
    raise BlockingIOError


def _identity(path: str) -> tuple[int, int]:
    status = os.lstat(path)
    return status.st_dev, status.st_ino


def _unable(address: Address, why: str, hint: str) -> StartError:
    return StartError(f"cannot listen on {format_address(address)}: {why}; {hint}")
