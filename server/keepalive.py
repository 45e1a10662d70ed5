"""TCP keep-alive, for hosts that have vanished (power, network) without closing their connections.

Keepalive probes a silent host; TCP_USER_TIMEOUT limits how long sent data may stay unacknowledged. Linux also counts a
closed window against that limit, although the host answers every probe, so it would disconnect a client that merely
reads slowly. So the limit is lifted for such clients.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable
from struct import Struct

import trio

from staniel.server.client_socket import plain_socket
from staniel.server.interfaces import Sock

CHECKS_A_TIMEOUT = 4
SLICE = 200  # connections checked before the hub runs again: under a millisecond
# The kernel's struct tcp_info: unanswered probes, unacknowledged segments, unsent bytes.
INFO = Struct("=3xB20xI116xI")
PROBES_MIN = 2  # one may be in flight


def configure(sock: socket.socket, keepalive_ms: int, user_timeout_ms: int) -> None:
    """Set the options that each accepted connection inherits from `sock`. 0: the system's default. Raises OSError."""
    if keepalive_ms:
        seconds = keepalive_ms // 1000
        idle, every = seconds - seconds // 2, max(1, seconds // 12)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, min(idle, 32_767))
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, min(every, 32_767))
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, min(127, -(-(seconds - idle) // every)))
    if user_timeout_ms:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, min(user_timeout_ms, 2**31 - 1))


def adjust_user_timeout(sock: socket.socket, user_timeout_ms: int) -> None:
    """Lift the limit for a client that does not read and whose host answers, and restore it for all others. Raises
    OSError.
    """
    probes, unacknowledged, unsent = INFO.unpack(sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, INFO.size))
    is_slow = unsent and not unacknowledged and probes < PROBES_MIN
    wanted_ms = 0 if is_slow else user_timeout_ms
    if sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) != wanted_ms:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, wanted_ms)


async def spare_slow_readers(sockets: Callable[[], Iterable[Sock]], user_timeout_ms: int) -> None:
    """Check every client a few times in each time-out, until cancelled."""
    while user_timeout_ms:
        await trio.sleep(user_timeout_ms / 1000 / CHECKS_A_TIMEOUT)
        for number, client in enumerate(list(sockets()), 1):
            sock = plain_socket(getattr(client, "below", client))  # a secure one stands on it
            if sock is not None and sock.family != socket.AF_UNIX:
                try:
                    adjust_user_timeout(sock, user_timeout_ms)
                except OSError:
                    pass  # closed meanwhile
            if not number % SLICE:
                await trio.lowlevel.checkpoint()
