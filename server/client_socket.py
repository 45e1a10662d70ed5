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


def send_pieces(channel: Sock, pieces: list[bytes], size_max: int) -> int:
    """Send all pieces, of which there is one at least, in one call, and keep of them what the socket did not take: one
    piece, mostly none.

    Returns the number of bytes sent, or -1 if the pieces are longer than `size_max` together: nothing was sent then.
    Raises BlockingIOError, OSError.
    """
    data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
    if len(data) > size_max:
        return -1
    sent = channel.send(data)
    pieces.clear()
    if sent < len(data):
        pieces.append(data[sent:])
    return sent


def plain_socket(sock: object) -> socket.socket | None:
    """The system's socket below a client's, for its options; None in a simulated world."""
    return sock if isinstance(sock, socket.socket) else None
