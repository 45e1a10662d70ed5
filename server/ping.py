"""Is a server there and answering? For health checks."""

from __future__ import annotations

import socket


def ping(host: str, port: int, timeout_s: float) -> str:
    """What the server says its version is. Raises OSError if there is none, or none that answers in time."""
    with socket.create_connection((host, port), timeout_s) as sock:
        sock.settimeout(timeout_s)
        sock.sendall(b"version\r\n")
        with sock.makefile("rb") as replies:
            words = replies.readline(1024).decode("latin-1").split()
    if len(words) != 2 or words[0] != "VERSION":
        raise OSError("the answer is not that of a memcache server")
    return words[1]
