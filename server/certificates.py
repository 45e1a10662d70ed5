"""The certificate of [tls], as the SSLContext that new connections are made with: read at the start, and again at every
reload. What cannot be read is refused, and the one before stays.
"""

from __future__ import annotations

import os
import ssl
import stat

from staniel.broker.config.load import Config
from staniel.broker.config.schema import TlsSettings
from staniel.broker.config.toml import ConfigError
from staniel.broker.events import EventSink, Level
from staniel.server.interfaces import Sock
from staniel.server.tls_socket import TlsSocket, reason

# Of TLS 1.2; those of 1.3 are all of this kind. A key for each connection, and a cipher that authenticates: no CBC,
# which testssl.sh lists under LUCKY13.
CIPHERS_OF_1_2 = "@SECLEVEL=2:ECDHE+AESGCM:ECDHE+CHACHA20:!aNULL"
# The one group that every client of TLS 1.3 must have (RFC 8446, 9.1). OpenSSL's own list ends in finite fields of 8192
# bits, which a client may ask for and which cost the server 140 ms a handshake. Python can name one group, or all.
GROUP = "prime256v1"


class Certificates:
    """interfaces.py's Security. Raises ConfigError if there is no context to be made of the settings."""

    def __init__(self, config: Config, report: EventSink) -> None:
        self._report = report
        self.timeout_ms = config.tls.handshake_timeout_ms
        self._context = make_context(config.tls)
        self._next: tuple[ssl.SSLContext, int] | None = None
        self._warn(config.tls)

    def wrap(self, sock: Sock) -> TlsSocket:
        return TlsSocket(sock, self._context)

    def prepare(self, config: Config) -> None:
        """Read what a reload wants. Raises ConfigError."""
        if config.tls.certificate:  # without one there are to be no TLS listeners, from the next start on
            self._next = make_context(config.tls), config.tls.handshake_timeout_ms
            self._warn(config.tls)

    def take_over(self) -> None:
        """From now on. Connections that are there keep what they have."""
        if self._next is not None:
            (self._context, self.timeout_ms), self._next = self._next, None

    def _warn(self, tls: TlsSettings) -> None:
        path = tls.key or tls.certificate
        if os.stat(path).st_mode & stat.S_IROTH:
            hint = "every user of this machine can read the private key"
            self._report(Level.WARNING, "tls.key_readable", path=path, hint=hint)


def make_context(tls: TlsSettings) -> ssl.SSLContext:
    """TLS 1.2 and newer. Raises ConfigError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers(CIPHERS_OF_1_2)
    context.set_ecdh_curve(GROUP)
    # A client that asks for a renegotiation is told no; one that resumes would keep what an old certificate allowed.
    # By TLS 1.2 a session can still be resumed by its number, for two hours: Python has no switch for OpenSSL's memory
    # of those. It is the context's, so it ends with a reload.
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_TICKET | ssl.OP_NO_COMPRESSION
    context.options |= ssl.OP_CIPHER_SERVER_PREFERENCE
    context.num_tickets = 0
    _read_key(context, tls)
    if tls.client_ca:
        try:
            context.load_verify_locations(tls.client_ca)
        except (OSError, ssl.SSLError) as error:
            raise ConfigError("tls.client_ca", _unreadable(tls.client_ca, error)) from error
        context.verify_mode = ssl.CERT_REQUIRED if tls.client_certificates == "required" else ssl.CERT_OPTIONAL
    return context


def _read_key(context: ssl.SSLContext, tls: TlsSettings) -> None:
    for name, path in (("certificate", tls.certificate), ("key", tls.key)):
        try:
            with open(path or tls.certificate, "rb"):
                pass
        except OSError as error:
            raise ConfigError(f"tls.{name}", _unreadable(path, error)) from error
    try:
        # Without a password OpenSSL would ask on the terminal.
        context.load_cert_chain(tls.certificate, tls.key or None, password=lambda: b"")
    except (OSError, ValueError) as error:
        where = f"{tls.certificate} and {tls.key}" if tls.key else tls.certificate
        why = f"no certificate with its key, unencrypted, in {where}"
        found = reason(error) if isinstance(error, ssl.SSLError) else str(error)
        raise ConfigError("tls.certificate", f"{why}: {found}") from error


def _unreadable(path: str, error: OSError) -> str:
    if isinstance(error, ssl.SSLError):
        return f"no certificates in {path}: {reason(error)}"
    return f"{path} cannot be read: {error.strerror}"
