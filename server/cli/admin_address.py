"""Ways to reach the admin listener of a server, and the errors of a request to it."""

from __future__ import annotations

import os
from typing import TypeAlias

from msgspec import Struct

from staniel.broker.config.addresses import TcpAddress, UnixAddress, format_address
from staniel.server.text import printable


class AdminError(Exception):
    """A failed request: one line says why, and what to do. `status` is that of the HTTP reply, 0 without one."""

    def __init__(self, why: str, status: int = 0) -> None:
        super().__init__(why)
        self.status = status


class ServerUnreachable(AdminError):
    """No server could be reached."""


class CertificateNotTrusted(OSError):
    """The server's certificate is not accepted."""


class SpoolAddress(Struct, frozen=True):
    """The abstract socket of a spool."""

    spool: str


class TlsAddress(Struct, frozen=True):
    """A port under TLS. `shows` is the file with the certificate that the server must show, named in its configuration;
    "": one of the host, signed by a trusted authority.
    """

    host: str
    port: int
    shows: str = ""


AdminAddress: TypeAlias = SpoolAddress | TcpAddress | TlsAddress | UnixAddress


class TlsFiles(Struct, frozen=True):
    """Files in PEM: the trusted authorities ("": the system's), and the client's own certificate and key."""

    ca: str = ""
    certificate: str = ""
    key: str = ""


def describe(address: AdminAddress) -> str:
    if isinstance(address, SpoolAddress):
        return f"the server of the spool {printable(os.path.abspath(address.spool))}"
    return f"the server on {printable(spell_address(address))}"


def spell_address(address: TcpAddress | TlsAddress | UnixAddress) -> str:
    if isinstance(address, TlsAddress):
        return f"https://{format_address(TcpAddress(address.host, address.port))}"
    return format_address(address)
