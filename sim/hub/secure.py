"""Clients of the hub with TLS: OpenSSL itself, at both ends, over simulated sockets.

Keys are new in each handshake, but with this kind of certificate no length depends on them: only the seed decides what
arrives in which turn.
"""

from __future__ import annotations

import ssl
import tempfile

from staniel.server.interfaces import Sock
from staniel.server.tls_socket import RECORD_BYTES_MAX, TlsSocket
from staniel.sim.hub.net import Link

# Ed25519, whose signatures have one length. It signs nothing but handshakes of this simulator.
PEM = """\
-----BEGIN PRIVATE KEY-----
MC4CAQAwBQYDK2VwBCIEIFawtPgOwr+BINeLWvWxYOmq/cBC7s68IrhLFEVFZ85L
-----END PRIVATE KEY-----
-----BEGIN CERTIFICATE-----
MIHWMIGJoAMCAQICAQEwBQYDK2VwMBQxEjAQBgNVBAMMCXNpbXVsYXRlZDAgFw0w
MDAxMDEwMDAwMDBaGA8yOTk5MDEwMTAwMDAwMFowFDESMBAGA1UEAwwJc2ltdWxh
dGVkMCowBQYDK2VwAyEARTv0sCAwAEAFFCxIOb3duvfSvkRZyPMWSMOihRMe8tow
BQYDK2VwA0EAfHZwwsHHpd1L1L54dFIQl46tlpmy6VTrB8fDjNYAax9NtaqQcWXe
jGRblSg7m1B4yITRKkeDzCuWKBCA94X5Bw==
-----END CERTIFICATE-----
"""


class SimSecurity:
    """The simulator's implementation of server/interfaces.py's Security."""

    timeout_ms = 10_000

    def __init__(self) -> None:
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self._context.num_tickets = 0
        with tempfile.NamedTemporaryFile("w", suffix=".pem") as file:  # OpenSSL reads files only
            file.write(PEM)
            file.flush()
            self._context.load_cert_chain(file.name)

    def wrap(self, sock: Sock) -> TlsSocket:
        return TlsSocket(sock, self._context)


def client_context() -> ssl.SSLContext:
    made = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    made.check_hostname = False
    made.verify_mode = ssl.CERT_NONE
    return made


class SecureLink(Link):
    """A connection as its client sees it, in plain bytes; `wire` is the same as the server's socket sees it. `pump`
    moves the client's bytes, and the handshake.
    """

    def __init__(self, context: ssl.SSLContext) -> None:
        self.wire = Link()
        self._arrived, self._leaving = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._arrived, self._leaving)
        self._fed_bytes = 0  # of wire.sent
        self._is_open = False  # true when the handshake is done
        self._has_ended = False
        self._heard = bytearray()
        self._all = bytearray()
        super().__init__()

    @property
    def to_client(self) -> bytearray:
        """The bytes that the client can read now. Reading them frees room on the wire."""
        if self._is_open:
            self._hear()
        return self._heard

    @to_client.setter
    def to_client(self, data: bytearray) -> None:
        self._heard = data

    @property
    def sent(self) -> bytearray:
        """All bytes that the server's socket has taken, as far as they can be decrypted."""
        if self._is_open:
            self._hear()
        return self._all

    @sent.setter
    def sent(self, data: bytearray) -> None:
        self._all = data

    def reset(self) -> None:
        super().reset()
        self.wire.reset()

    def pump(self) -> None:
        wire = self.wire
        self.server = wire.server
        if not wire.is_reset:
            if not self._is_open:
                self._shake_hands()
            elif self.to_server:
                self._tls.write(bytes(self.to_server))
                self.to_server.clear()
            if self.client_ended and self._is_open and not self._has_ended:
                self._has_ended = True
                try:
                    self._tls.unwrap()
                except ssl.SSLError:
                    pass  # the client has closed its side; the server has not yet
            wire.to_server += self._leaving.read()
            wire.client_ended = wire.client_ended or self._has_ended or self.client_gone
            wire.client_gone = self.client_gone
        self.is_reset = wire.is_reset
        self.server_ended = wire.server_ended

    def _shake_hands(self) -> None:
        self._feed()
        try:
            self._tls.do_handshake()
            self._is_open = True
            self.pump()
        except ssl.SSLWantReadError:
            pass

    def _feed(self) -> None:
        self._arrived.write(bytes(self.wire.sent[self._fed_bytes :]))
        self._fed_bytes = len(self.wire.sent)
        self.wire.to_client.clear()

    def _hear(self) -> None:
        self._feed()
        try:
            while data := self._tls.read(RECORD_BYTES_MAX):
                self._heard += data
                self._all += data
        except ssl.SSLError:
            pass  # no whole record yet, or the end
