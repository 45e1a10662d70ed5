"""The socket of a client, as the hub uses it. The compiled build uses client_socket.pyx instead, whose calls
cost less.
"""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from staniel.server.interfaces import Sock


def client_socket(sock: socket.socket) -> socket.socket:
    """Return a non-blocking socket with `recv`, `send`, `fileno`, `shutdown` and `close`: here the socket itself."""
    return sock


def channel_of(sock: Sock) -> Sock:
    """Return the object from which a connection reads and to which it writes: in the compiled build of one class for
    all kinds of sockets.
    """
    return sock


def send_pieces(channel: Sock, pieces: list[bytes], size_max: int) -> int:
    """Send all pieces, at least one, in one call, and keep of them what the socket did not take: one piece, mostly
    none.

    Return the number of bytes sent, or -1 if the pieces are longer than `size_max` together: then nothing was sent.
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
    """Return the system's socket below a client's, for its options; None in a simulated world."""
    return sock if isinstance(sock, socket.socket) else None
