"""A connection under TLS to the admin listener. It is loaded only when used."""

from __future__ import annotations

import http.client
import socket
import ssl

from staniel.server.cli.admin_address import AdminError, CertificateNotTrusted, TlsAddress, TlsFiles
from staniel.server.text import printable


def secure_connection(address: TlsAddress, timeout_s: float, files: TlsFiles) -> http.client.HTTPSConnection:
    """Return an unopened connection. Raises AdminError for an unusable file."""
    return SecureConnection(address.host, address.port, timeout_s, *secure_context(address.shows, files))


def secured(sock: socket.socket, address: TlsAddress, files: TlsFiles) -> ssl.SSLSocket:
    """Put TLS on an open connection. Raises OSError, which includes CertificateNotTrusted, and AdminError."""
    context, shown = secure_context(address.shows, files)
    try:
        secure = context.wrap_socket(sock, server_hostname=address.host)
    except ssl.SSLCertVerificationError as error:
        raise _not_trusted(error) from error
    _check_shown(secure, shown)
    return secure


def secure_context(shows: str, files: TlsFiles) -> tuple[ssl.SSLContext, bytes]:
    """Return the context, and the certificate that the server must show, in DER; empty: any that the context
    accepts.
    """
    shown = b""
    if files.ca or not shows:
        context = ssl.create_default_context(cafile=_check_authorities(files.ca))
    else:
        # The server's certificate itself is known, so neither an authority nor the host's name needs a check.
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        shown = _read_first_certificate(shows)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if files.certificate:
        try:
            context.load_cert_chain(files.certificate, files.key or None, password="")  # one with a password is refused
        except (OSError, ValueError) as error:
            raise _unusable_file(f"{files.certificate} {files.key}".strip(), error) from error
    return context, shown


def _not_trusted(error: ssl.SSLCertVerificationError) -> CertificateNotTrusted:
    return CertificateNotTrusted(
        None, f"its certificate is not accepted: {error.verify_message.rstrip('.')}: {_remedy(error)}"
    )


def _check_shown(sock: ssl.SSLSocket, shown: bytes) -> None:
    if shown and sock.getpeercert(binary_form=True) != shown:
        sock.close()
        why = "it shows another certificate than its configuration names: reload the server, or give --ca"
        raise CertificateNotTrusted(None, why)


class SecureConnection(http.client.HTTPSConnection):
    """A connection. `shown` is the certificate that the server must show, in DER; empty: any that the context
    accepts.
    """

    def __init__(self, host: str, port: int, timeout_s: float, context: ssl.SSLContext, shown: bytes) -> None:
        super().__init__(host, port, timeout=timeout_s, context=context)
        self._shown = shown

    def connect(self) -> None:
        """Connect. Raises OSError, which includes CertificateNotTrusted."""
        try:
            super().connect()
        except ssl.SSLCertVerificationError as error:
            raise _not_trusted(error) from error
        assert isinstance(self.sock, ssl.SSLSocket)
        _check_shown(self.sock, self._shown)


def _remedy(error: ssl.SSLCertVerificationError) -> str:
    match error.verify_code:
        case 62 | 64:  # X509_V_ERR_HOSTNAME_MISMATCH, X509_V_ERR_IP_ADDRESS_MISMATCH
            return "use a name of the server that its certificate has (subjectAltName)"
        case 9 | 10:  # X509_V_ERR_CERT_NOT_YET_VALID, X509_V_ERR_CERT_HAS_EXPIRED
            return "renew it, or set the clock"
        case _:
            return "name the authority that signed it with --ca"


def _check_authorities(path: str) -> str | None:
    """Check a file of authorities and return its path; None for the system's. Raises AdminError."""
    if not path:
        return None
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(path)
    except OSError as error:
        raise _unusable_file(path, error) from error
    return path


def _read_first_certificate(path: str) -> bytes:
    """Return the first certificate of a PEM file, in DER. Raises AdminError."""
    end = "-----END CERTIFICATE-----"
    try:
        with open(path, encoding="ascii") as file:
            text = file.read()
        begin = text.index("-----BEGIN CERTIFICATE-----")
        return ssl.PEM_cert_to_DER_cert(text[begin : text.index(end) + len(end)])
    except (OSError, ValueError) as error:
        raise _unusable_file(path, error) from error


def _unusable_file(path: str, error: Exception) -> AdminError:
    why = (error.strerror if isinstance(error, OSError) else None) or str(error)
    return AdminError(f"{printable(path)}: {printable(why)}: expected a file in PEM")
