"""Certificates for tests: authorities, servers, clients; expired, foreign and self-signed ones."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from ipaddress import IPv4Address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from msgspec import Struct

DAY = timedelta(days=1)
PrivateKey = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey


class Files(Struct, frozen=True):
    """A certificate and its key, in PEM."""

    certificate: Path
    key: Path


class Authority:
    """Signs certificates into `folder`, under names of its own."""

    def __init__(self, folder: Path, name: str = "authority") -> None:
        self._folder, self._name = folder, name
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._own = _certificate(name, self._key, name, self._key, is_authority=True)
        self.path = folder / f"{name}.pem"
        self.path.write_bytes(_pem(self._own))

    def issue(
        self,
        name: str,
        file: str = "",
        *,
        is_expired: bool = False,
        is_rsa: bool = False,
        curve: ec.EllipticCurve | None = None,
        ends_in: timedelta = DAY,
        begins: datetime | None = None,
        ends: datetime | None = None,
        extension: x509.UnrecognizedExtension | None = None,
    ) -> Files:
        """For a server on 127.0.0.1, or for a client called `name`. `ends`: a moment, instead of `ends_in`.
        `extension`: in place of the names of a server.
        """
        own = ec.generate_private_key(curve or ec.SECP256R1())
        key = rsa.generate_private_key(65537, 2048) if is_rsa else own
        ends_in = -DAY if is_expired else ends_in
        ends = ends or datetime.now(UTC) + ends_in
        made = _certificate(name, key, self._name, self._key, begins=begins, ends=ends, extension=extension)
        return _write(self._folder, file or name, made, key)


def self_signed(folder: Path, name: str) -> Files:
    key = ec.generate_private_key(ec.SECP256R1())
    return _write(folder, f"self-{name}", _certificate(name, key, name, key), key)


def _certificate(
    name: str,
    key: PrivateKey,
    issuer: str,
    signing: ec.EllipticCurvePrivateKey,
    *,
    is_authority: bool = False,
    begins: datetime | None = None,
    ends: datetime | None = None,
    extension: x509.UnrecognizedExtension | None = None,
) -> x509.Certificate:
    now = datetime.now(UTC)
    usage = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH])
    names = [x509.DNSName("localhost"), x509.IPAddress(IPv4Address("127.0.0.1"))]
    builder = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
        .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, issuer)]))
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(begins or now - 3 * DAY)
        .not_valid_after(ends or now + DAY)
        .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
    )
    if not is_authority:
        builder = builder.add_extension(extension or x509.SubjectAlternativeName(names), critical=False)
        builder = builder.add_extension(usage, critical=False)
    return builder.sign(signing, hashes.SHA256())


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _write(folder: Path, name: str, certificate: x509.Certificate, key: PrivateKey) -> Files:
    made = Files(folder / f"{name}.pem", folder / f"{name}.key")
    made.certificate.write_bytes(_pem(certificate))
    plain = serialization.NoEncryption()
    pkcs8 = serialization.PrivateFormat.PKCS8
    made.key.touch(mode=0o600)
    made.key.write_bytes(key.private_bytes(serialization.Encoding.PEM, pkcs8, plain))
    return made
