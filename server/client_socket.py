"""The socket of a client, as the hub uses it. Compiled, client_socket.pyx takes its place: its calls cost less."""

from __future__ import annotations

import socket


def client_socket(sock: socket.socket) -> socket.socket:
    """A non-blocking socket with `recv`, `send`, `fileno`, `shutdown` and `close`: the socket itself has them."""
    return sock
