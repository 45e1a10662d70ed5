"""TLS between members, and to etcd: contexts and logins from [cluster].

Both sides of a connection between members show a certificate of `ca`, and accept any other of it: it must sign members
alone. Names are not compared, because a member is found by the address that etcd tells.
"""

from __future__ import annotations

import ssl

from staniel.broker.config.schema import ClusterSettings, TlsSettings
from staniel.broker.config.toml import ConfigError
from staniel.cluster.etcd.client import TIMEOUT_S, Etcd
from staniel.server.certificates import CIPHERS_OF_1_2, end_of, make_context
from staniel.server.interfaces import Sock
from staniel.server.tls_socket import TlsSocket, reason

PASSWORD_BYTES_MAX = 4096


class MemberSecurity:
    """The contexts for connections between members. `ends_ms`: when this member's certificate expires, in epoch
    milliseconds, 0 if that is not known. Raises ConfigError if the files do not make contexts.
    """

    def __init__(self, cluster: ClusterSettings) -> None:
        files = TlsSettings(
            certificate=cluster.certificate, key=cluster.key, client_ca=cluster.ca, client_certificates="required"
        )
        try:
            self._accepting = make_context(files)
        except ConfigError as error:
            key = "ca" if error.key == "tls.client_ca" else error.key.removeprefix("tls.")
            raise ConfigError(f"cluster.{key}", error.why) from error
        self._connecting = client_context(cluster.ca, cluster.certificate, cluster.key, "")
        self._connecting.check_hostname = False
        self.ends_ms = end_of(cluster.certificate) or 0

    def wrap(self, sock: Sock, *, is_client: bool) -> TlsSocket:
        """Put TLS on a socket. `is_client`: this member has connected."""
        return TlsSocket(sock, self._connecting if is_client else self._accepting, is_client=is_client)


def member_security(cluster: ClusterSettings) -> MemberSecurity | None:
    """Return the security of connections between members; None if [cluster] has no certificate. Raises ConfigError."""
    return MemberSecurity(cluster) if cluster.certificate else None


def client_context(ca: str, certificate: str, key: str, prefix: str) -> ssl.SSLContext:
    """Return a context that trusts `ca` alone, and shows a certificate if there is one. `prefix`: of the keys in
    [cluster], for errors. Raises ConfigError.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers(CIPHERS_OF_1_2)
    at = "ca"
    try:
        context.load_verify_locations(ca)
        at = "certificate"
        if certificate:
            context.load_cert_chain(certificate, key or None, password=lambda: b"")
    except (OSError, ValueError) as error:
        path = ca if at == "ca" else f"{certificate} and {key}" if key else certificate
        why = reason(error) if isinstance(error, ssl.SSLError) else getattr(error, "strerror", None) or str(error)
        raise ConfigError(f"cluster.{prefix}{at}", f"{path} cannot be used: {why}") from error
    return context


def open_etcd(cluster: ClusterSettings) -> Etcd:
    """Return the client of a cluster's etcd. Raises ConfigError."""
    tls = None
    if any(url.startswith("https://") for url in cluster.etcd):
        if cluster.etcd_ca:
            tls = client_context(cluster.etcd_ca, cluster.etcd_certificate, cluster.etcd_key, "etcd_")
        else:
            tls = ssl.create_default_context()
    login = (cluster.etcd_user, _read_password(cluster.etcd_password_file)) if cluster.etcd_user else None
    return Etcd(cluster.etcd, timeout_s=TIMEOUT_S, tls=tls, login=login)


def _read_password(path: str) -> str:
    try:
        with open(path, "rb") as file:
            password = file.read(PASSWORD_BYTES_MAX).split(b"\n")[0].strip().decode()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ConfigError("cluster.etcd_password_file", f"{path} cannot be read: {why}") from error
    if not password:
        raise ConfigError("cluster.etcd_password_file", f"expected a password in the first line of {path}")
    return password
