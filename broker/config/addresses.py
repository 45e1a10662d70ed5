"""Addresses of listeners as text: "HOST:PORT", "[::1]:PORT", "unix:PATH". Names are not resolved here."""

from __future__ import annotations

from typing import TypeAlias

from msgspec import Struct

PORT_MAX = 65_535


class TcpAddress(Struct, frozen=True):
    """A TCP address. `host` is a name or an address without brackets; port 0 lets the system choose."""

    host: str
    port: int


class UnixAddress(Struct, frozen=True):
    path: str


Address: TypeAlias = TcpAddress | UnixAddress


def parse_address(text: str) -> Address:
    """Parse one of the three notations. Raises ValueError for any other text."""
    if text.startswith("unix:"):
        return _unix(text.removeprefix("unix:"))
    host, _, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif not is_host(host) or ":" in host:
        raise ValueError(text)
    if not (is_host(host) and port.isascii() and port.isdigit() and len(port) <= 5 and int(port) <= PORT_MAX):
        raise ValueError(text)
    return TcpAddress(host, int(port))


def format_address(address: Address) -> str:
    """Return the text that `parse_address` turns back into the same address."""
    match address:
        case UnixAddress(path):
            return f"unix:{path}"
        case TcpAddress(host, port):
            return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_host(text: str) -> bool:
    """Tell whether `text` is a name or an address without a port. An IPv6 address never has exactly one colon."""
    return text != "" and text.count(":") != 1 and not any(letter in "[]/" or letter.isspace() for letter in text)


def is_loopback(host: str) -> bool:
    """Tell whether only programs of this machine can reach `host`. A name other than localhost may be any address."""
    return host in ("localhost", "::1") or (host.startswith("127.") and host.replace(".", "").isdigit())


def _unix(path: str) -> UnixAddress:
    if not path or "\0" in path:
        raise ValueError(path)
    return UnixAddress(path)
