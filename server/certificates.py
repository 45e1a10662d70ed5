"""The certificate of [tls], as the SSLContext for new connections. It is read at the start and at every reload. An
unreadable one is refused, and the previous one stays.
"""

from __future__ import annotations

import re
import ssl
from binascii import a2b_base64
from calendar import timegm
from datetime import UTC, datetime

from staniel.broker.admin.health import CERTIFICATE_WARNING_MS
from staniel.broker.config.load import Config
from staniel.broker.config.schema import TlsSettings
from staniel.broker.config.toml import ConfigError
from staniel.broker.events import EventSink, Level
from staniel.server.clock import wall_ms
from staniel.server.interfaces import Sock
from staniel.server.tls_socket import TlsSocket, reason

# For TLS 1.2; those of 1.3 are all of this kind: a key for each connection, and a cipher that authenticates. No CBC,
# which testssl.sh lists under LUCKY13.
CIPHERS_OF_1_2 = "@SECLEVEL=2:ECDHE+AESGCM:ECDHE+CHACHA20:!aNULL"
# The one group that every client of TLS 1.3 must have (RFC 8446, 9.1). OpenSSL's own list ends in finite fields of 8192
# bits, which a client may ask for and which cost the server 140 ms a handshake. Python can name one group, or all.
GROUP = "prime256v1"


PEM = re.compile("-----BEGIN (?:X509 |TRUSTED )?CERTIFICATE-----([^-]*)-----END")
# In DER: tags, and the bit of a length that is a count of bytes.
DER_VERSION, DER_UTC_TIME, DER_LONG = 0xA0, 0x17, 0x80


class Certificates:
    """The Security of interfaces.py. `ends_ms` is when the present certificate expires, in epoch milliseconds; None:
    not in a known form. Raises ConfigError if the settings do not make a context.
    """

    def __init__(self, config: Config, report: EventSink) -> None:
        self._report = report
        self.timeout_ms = config.tls.handshake_timeout_ms
        self._context = make_context(config.tls)
        self.ends_ms = end_of(config.tls.certificate)
        self._next: tuple[ssl.SSLContext, int, int | None] | None = None
        self._warn(config.tls, self.ends_ms)

    def wrap(self, sock: Sock) -> TlsSocket:
        return TlsSocket(sock, self._context)

    def prepare(self, config: Config) -> None:
        """Read the certificate of a reload. Raises ConfigError."""
        if config.tls.certificate:  # without one, the TLS listeners end at the next start
            context = make_context(config.tls)
            ends_ms = end_of(config.tls.certificate)
            self._next = context, config.tls.handshake_timeout_ms, ends_ms
            self._warn(config.tls, ends_ms)

    def take_over(self) -> None:
        """Use the prepared certificate from now on. Existing connections keep theirs."""
        if self._next is not None:
            (self._context, self.timeout_ms, self.ends_ms), self._next = self._next, None

    def _warn(self, tls: TlsSettings, ends_ms: int | None) -> None:
        if ends_ms is not None and ends_ms - wall_ms() < CERTIFICATE_WARNING_MS:
            ends = datetime.fromtimestamp(ends_ms // 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
            hint = "clients that check it refuse it from then on; renew it, then: staniel reload"
            self._report(Level.WARNING, "tls.certificate_expires", path=tls.certificate, ends=ends, hint=hint)


def make_context(tls: TlsSettings) -> ssl.SSLContext:
    """Return a context for TLS 1.2 and newer. Raises ConfigError."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers(CIPHERS_OF_1_2)
    context.set_ecdh_curve(GROUP)
    # Renegotiations are refused; a resumed session would keep the permissions of an old certificate. In TLS 1.2 a
    # session can still be resumed by its number for two hours: Python cannot switch off OpenSSL's memory of sessions,
    # which belongs to the context and so ends with a reload.
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
        raise ConfigError("tls.certificate", _why_unusable(tls, error)) from error


def _why_unusable(tls: TlsSettings, error: OSError | ValueError) -> str:
    """Return why a certificate and key are unusable: OpenSSL says neither which file nor why."""
    where = f"{tls.certificate} and {tls.key}" if tls.key else tls.certificate
    why = f"no certificate with its key, unencrypted, in {where}"
    if not isinstance(error, ssl.SSLError) or error.reason:
        return f"{why}: {reason(error) if isinstance(error, ssl.SSLError) else error}"
    for path, kind in ((tls.certificate, b"CERTIFICATE-----"), (tls.key or tls.certificate, b"PRIVATE KEY-----")):
        try:
            with open(path, "rb") as file:
                text = file.read()
        except OSError as gone:
            return _unreadable(path, gone)
        if kind == b"PRIVATE KEY-----" and b"ENCRYPTED" in text:
            return f"{why}: the key in {path} is encrypted"
        if kind not in text:
            what = "certificate" if kind == b"CERTIFICATE-----" else "private key"
            return f"{why}: there is no {what} in PEM in {path}"
    return f"{why}: one of them is damaged"


def end_of(path: str) -> int | None:
    """Return when the first certificate in a PEM file, the server's own, expires, in epoch milliseconds; None if
    unknown. OpenSSL is no help: Python shows a certificate only after verifying it.
    """
    try:
        with open(path, encoding="latin-1") as file:
            first = PEM.search(file.read())
        der = a2b_base64(first[1]) if first is not None else b""
        _, at, _ = _element(der, 0)  # Certificate
        _, at, _ = _element(der, at)  # TBSCertificate; RFC 5280, 4.1
        tag, _, end = _element(der, at)
        for _ in range(3 if tag == DER_VERSION else 2):  # the version if it is not 1, serial, algorithm, issuer
            _, _, end = _element(der, end)
        _, at, _ = _element(der, end)  # Validity
        _, _, at = _element(der, at)  # its beginning
        tag, begin, end = _element(der, at)
        text = der[begin:end].decode("ascii")
        if tag == DER_UTC_TIME:  # two digits of the year
            text = ("19" if text >= "5" else "20") + text
        return 1000 * timegm(datetime.strptime(text, "%Y%m%d%H%M%SZ").timetuple())
    except (OSError, IndexError, ValueError):
        return None


def _element(der: bytes, at: int) -> tuple[int, int, int]:
    """Return an element's tag, and where its content begins and ends. Raises IndexError."""
    size, begin = der[at + 1], at + 2
    if size & DER_LONG:
        begin += size & ~DER_LONG
        size = int.from_bytes(der[at + 2 : begin], "big")
    return der[at], begin, begin + size


def _unreadable(path: str, error: OSError) -> str:
    if isinstance(error, ssl.SSLError):
        return f"no certificates in {path}: {reason(error)}"
    return f"{path} cannot be read: {error.strerror}"
