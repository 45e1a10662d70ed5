"""The socket of a client, as the hub uses it. Compiled, client_socket.pyx takes its place: its calls cost less."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from staniel.server.interfaces import Sock


def client_socket(sock: socket.socket) -> socket.socket:
    """A non-blocking socket with `recv`, `send`, `fileno`, `shutdown` and `close`: the socket itself has them."""
    return sock


def channel_of(sock: Sock) -> Sock:
    """What a connection reads from and writes to: compiled, of one class for all kinds of sockets."""
    return sock


def plain_socket(sock: object) -> socket.socket | None:
    """The system's socket below a client's, for its options; None in a simulated world."""
    return sock if isinstance(sock, socket.socket) else None
