"""A client of the admin listener: one request for each connection, over the socket of a spool or over TCP.

No request is sent twice: another address of the server is tried only while no connection could be opened.
"""

from __future__ import annotations

import errno
import http.client
import json
import os
import socket
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any
from urllib.parse import quote, urlencode

from staniel.broker.config.addresses import TcpAddress, UnixAddress
from staniel.journal.kestrel.files import OWN_FOLDER
from staniel.protocol.http.requests import RAW
from staniel.server.cli.admin_address import (
    AdminAddress,
    AdminError,
    CertificateNotTrusted,
    ServerUnreachable,
    SpoolAddress,
    TlsAddress,
    TlsFiles,
    describe,
    spell_address,
)
from staniel.server.spool_socket import distrust, socket_address
from staniel.server.start_notice import LOCK_BYTES_MAX, StartState, read_lock
from staniel.server.text import OTHER_VERSION, printable

CONNECT_S_MAX = 5.0
SPOOL_LOCK = "lock"  # in the own folder of a spool; it names its holder
ERROR_BYTES_MAX = 300  # of another program's reply
NO_STANIEL = "the program that replies there is not Staniel's admin listener"


class Answer(dict[str, Any]):
    """The server's reply to a change. A missing field means another version: AdminError."""

    def __init__(self, reply: object) -> None:
        super().__init__(reply if isinstance(reply, dict) else {})

    def __missing__(self, name: str) -> Any:
        raise AdminError(f"{OTHER_VERSION} ({name} is missing in it)")


class AdminClient:
    """A client of one server. `addresses` are ways to reach it, the best first. `token` is sent over TCP; b"" for none.
    `tls` is for addresses under TLS. `timeout_s` is the longest wait for a piece of a reply. Every request raises
    AdminError.
    """

    def __init__(
        self, addresses: Sequence[AdminAddress], token: bytes, timeout_s: float, tls: TlsFiles | None = None
    ) -> None:
        self._addresses = addresses
        self._token = token
        self._timeout_s = timeout_s
        self._tls = tls or TlsFiles()

    def get(self, path: str, also_good: Collection[int] = (), **query: object) -> Any:
        """Return the JSON of a reply with status 200 or one of `also_good`."""
        return self._request("GET", f"{path}?{urlencode(query)}" if query else path, b"", also_good)

    def begin_operation(self, method: str, path: str, body: dict[str, object] | None) -> Answer:
        """Begin an operation. The reply comes at once and has its id, or its result if it was short."""
        wanted = {"prefer": "respond-async"}
        return Answer(self._request(method, path, json.dumps(body or {}).encode(), (202,), wanted))

    def post(self, path: str, body: dict[str, object] | None = None) -> Answer:
        return Answer(self._request("POST", path, json.dumps(body or {}).encode(), ()))

    def store(self, path: str, item: bytes, **query: object) -> Answer:
        """Store an item byte by byte with POST."""
        return Answer(self._request("POST", f"{path}?{urlencode(query)}", item, (), {"content-type": RAW}))

    def delete(self, path: str, body: dict[str, object] | None = None) -> Answer:
        return Answer(self._request("DELETE", path, json.dumps(body).encode() if body else b"", ()))

    @contextmanager
    def stream(self, path: str, silent_s_max: float) -> Iterator[http.client.HTTPResponse]:
        """Yield an endless reply, to be read as it comes. Raises TimeoutError after `silent_s_max` without data."""
        connection, address = self._connect()
        connection.sock.settimeout(silent_s_max)
        try:
            connection.request("GET", path, headers=self._headers(address))
            answer = connection.getresponse()
            if answer.status != 200:
                self._parse_reply(answer.status, answer.read(), address, ())
            yield answer
        finally:
            connection.close()

    def where(self) -> str:
        """Return the server's name in messages."""
        return describe(self._addresses[0])

    @contextmanager
    def kept(self) -> Iterator[Callable[[str, dict[str, object]], Answer]]:
        """Yield a POST on one connection for all its calls: open reads of the connection return to their queues when it
        ends.
        """
        connection, address = self._connect()
        connection.auto_open = 0
        headers = self._headers(address) | {"connection": "keep-alive"}

        def post(path: str, body: dict[str, object]) -> Answer:
            return Answer(self._request_on(connection, address, "POST", path, json.dumps(body).encode(), (), headers))

        try:
            yield post
        finally:
            connection.close()

    def _request(
        self,
        method: str,
        path: str,
        body: bytes,
        also_good: Collection[int],
        headers: Mapping[str, str] = MappingProxyType({}),
    ) -> Any:
        connection, address = self._connect()
        try:
            return self._request_on(
                connection, address, method, path, body, also_good, {**self._headers(address), **headers}
            )
        finally:
            connection.close()

    def _request_on(
        self,
        connection: http.client.HTTPConnection,
        address: AdminAddress,
        method: str,
        path: str,
        body: bytes,
        also_good: Collection[int],
        headers: dict[str, str],
    ) -> Any:
        try:
            try:
                connection.request(method, path, body, headers)
            except (BrokenPipeError, ConnectionResetError):
                pass  # the body is too large: the server has replied, and reads no more of it
            answer = connection.getresponse()
            status, data = answer.status, answer.read()
        except TimeoutError:
            again = "" if method == "GET" else "; it may still carry out the request: check before you repeat it"
            raise AdminError(f"{describe(address)} did not reply within {self._timeout_s:g} s{again}") from None
        except http.client.HTTPException as error:
            hung_up = isinstance(error, http.client.RemoteDisconnected) and isinstance(address, TcpAddress)
            hint = "; if that is its tls_port, say https://" if hung_up else ""
            raise AdminError(f"{describe(address)}: {NO_STANIEL}: {_shorten(str(error))}{hint}") from error
        except (OSError, ValueError) as error:
            raise AdminError(f"{describe(address)}: {_error_text(error)}") from error
        return self._parse_reply(status, data, address, also_good)

    def follow(self, path: str) -> tuple[http.client.HTTPResponse, socket.socket]:
        """Send a POST, and return a reply that continues, and its socket. Closing the reply ends both."""
        connection, address = self._connect()
        try:
            connection.request("POST", path, b"{}", self._headers(address))
            sock = connection.sock  # stays open as long as the answer; one under TLS has no dup()
            answer = connection.getresponse()
            if answer.status != 200:
                self._parse_reply(answer.status, answer.read(), address, ())
            return answer, sock
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            raise AdminError(f"{describe(address)}: {_error_text(error)}") from error

    def _headers(self, address: AdminAddress) -> dict[str, str]:
        headers = {"content-type": "application/json", "connection": "close"}
        if self._token and not isinstance(address, SpoolAddress):
            headers["authorization"] = f"Bearer {self._token.decode('latin-1')}"
        return headers

    def _parse_reply(self, status: int, body: bytes, address: AdminAddress, also_good: Collection[int]) -> Any:
        try:
            reply = json.loads(body)
        except (ValueError, RecursionError):
            raise AdminError(f"{describe(address)}: {NO_STANIEL} (HTTP status {status})") from None
        if status == 200 or status in also_good:
            return reply
        if status == 401:
            wants = "it does not accept this token" if self._token else "it requires a token"
            mend = "name the token_file of [admin], or of a user, with --token-file"
            raise AdminError(f"{describe(address)}: {wants}: {mend}")
        why = reply.get("error") if isinstance(reply, dict) else None
        text = _shorten(why) if isinstance(why, str) else f"{describe(address)}: HTTP status {status}"
        raise AdminError(text, status)

    def _connect(self) -> tuple[http.client.HTTPConnection, AdminAddress]:
        """Connect to the first address that accepts."""
        failures: list[str] = []
        for address in self._addresses:
            connection = _connection(address, min(CONNECT_S_MAX, self._timeout_s), self._tls)
            try:
                connection.connect()
            except (OSError, ValueError, http.client.HTTPException) as error:
                connection.close()
                failures.append(_unreachable(address, error))
                continue
            connection.sock.settimeout(self._timeout_s)
            return connection, address
        raise ServerUnreachable("; ".join(dict.fromkeys(failures)))


class SpoolConnection(http.client.HTTPConnection):
    """A connection to the server of a spool, if the server is trusted."""

    def __init__(self, spool: str, timeout_s: float) -> None:
        super().__init__("staniel", timeout=timeout_s)
        self._folder = os.path.join(spool, OWN_FOLDER)

    def connect(self) -> None:
        """Connect. Raises OSError; PermissionError with the reason if the other end belongs to another user."""
        address = socket_address(self._folder)
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            sock.settimeout(self.timeout)
            sock.connect(address)
            if why := distrust(sock, self._folder):
                raise PermissionError(errno.EACCES, why)
        except OSError:
            sock.close()
            raise
        self.sock = sock


class SocketConnection(http.client.HTTPConnection):
    """A connection over a Unix socket, reached through its folder's descriptor, because its path may exceed the
    system's limit.
    """

    def __init__(self, folder: str, name: str, timeout_s: float) -> None:
        super().__init__("staniel", timeout=timeout_s)
        self._folder, self._name = folder, name

    def connect(self) -> None:
        at = os.open(self._folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                sock.settimeout(self.timeout)
                sock.connect(f"/proc/self/fd/{at}/{self._name}")
            except OSError:
                sock.close()
                raise
        finally:
            os.close(at)
        self.sock = sock


def _connection(address: AdminAddress, timeout_s: float, tls: TlsFiles) -> http.client.HTTPConnection:
    """Return an unopened connection. Raises AdminError for an unusable file for TLS."""
    match address:
        case TlsAddress():
            from staniel.server.cli.tls_client import secure_connection  # OpenSSL takes 30 ms to load

            return secure_connection(address, timeout_s, tls)
        case SpoolAddress(spool):
            return SpoolConnection(spool, timeout_s)
        case UnixAddress(path):
            return SocketConnection(os.path.dirname(path) or ".", os.path.basename(path), timeout_s)
        case TcpAddress(host, port):
            return http.client.HTTPConnection(host, port, timeout=timeout_s)


def queue_path(name: str, *parts: str) -> str:
    """Return the path of a queue in the API, for any letters in its name."""
    return "/".join(["/api/queues", quote(name, safe="", errors="surrogateescape"), *parts])


def _unreachable(address: AdminAddress, error: Exception) -> str:
    if isinstance(error, PermissionError) and isinstance(address, SpoolAddress) and error.filename is None:
        return f"{describe(address)} is not trusted: {_error_text(error)}"
    if isinstance(error, PermissionError) and not isinstance(address, TlsAddress):
        hint = "run this as the server's user, or give its [admin] address with --url"
        return f"{describe(address)} refuses this user: {hint}"
    if isinstance(address, SpoolAddress):
        spool = printable(os.path.abspath(address.spool))
        holder, state = _read_holder(address.spool)
        if state is not None:
            return f"{describe(address)} ({printable(holder)}) is starting{': ' * bool(state.text)}{state.text}"
        if holder:
            why = "it stops, has [admin] socket = false or runs in another container: give its [admin] port with --url"
            return f"{printable(holder)} has the spool {spool} open and does not listen for it: {why}"
        if isinstance(error, FileNotFoundError | ConnectionRefusedError | NotADirectoryError):
            start = "start it, or name another with --spool, --config or --url"
            return f"no server listens for the spool {spool}: {start}"
        return f"no server answers on the spool {spool}: {_error_text(error)}"
    where = printable(spell_address(address))
    if isinstance(error, CertificateNotTrusted):
        return f"{where} is not trusted: {_error_text(error)}"
    if isinstance(address, TlsAddress) and _is_tls(error):
        ways = "a port without TLS is http://…, a server that asks for certificates gets --certificate"
        return f"{where} and this command cannot agree on TLS: {_error_text(error)}: {ways}"
    return f"no server answers on {where}: {_error_text(error)}; start it, or name another with --url or --spool"


def _is_tls(error: Exception) -> bool:
    """Return True if the port is open, but the handshake failed."""
    from ssl import SSLError

    return isinstance(error, SSLError)


def starts(spool: str) -> StartState | None:
    """Return the progress of the start of this spool's server; None if none is starting."""
    return _read_holder(spool)[1]


def _read_holder(spool: str) -> tuple[str, StartState | None]:
    """Return the holder of the spool, by its lock file, and the progress of its start; ("", None) if there is none, or
    it is unknown. The lock itself is not touched: a server that starts at this moment must get it.
    """
    try:
        with open(os.path.join(spool, OWN_FOLDER, SPOOL_LOCK), "rb") as file:
            lock_status = os.fstat(file.fileno())
            holder, state = read_lock(file.read(LOCK_BYTES_MAX))
        device = lock_status.st_dev
        place = f"{os.major(device):02x}:{os.minor(device):02x}:{lock_status.st_ino}"
        with open("/proc/locks", encoding="ascii") as locks:
            is_held = any(line.split()[1] == "FLOCK" and place in line.split() for line in locks)
    except (OSError, IndexError):
        return "", None
    return (holder or "a server", state) if is_held else ("", None)


def _error_text(error: Exception) -> str:
    return printable((error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__)


def _shorten(text: str) -> str:
    return printable(text if len(text) <= ERROR_BYTES_MAX else f"{text[:ERROR_BYTES_MAX]}…")
