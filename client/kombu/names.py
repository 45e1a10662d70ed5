"""Names of kombu's queues and exchanges as names of Staniel's queues. The mapping is reversible.

A queue's name on the server cannot hold `.`, `/`, `~`, blanks, control characters or more than 200 bytes, and `+` makes
a fan-out child. So `.` becomes `:`, and each other byte outside SAFE becomes `=` and two hexadecimal digits.
"""

from __future__ import annotations

import re
from functools import lru_cache

NAME_BYTES_MAX = 200  # the server's limit
EXCHANGE = "!"  # begins the name of an exchange's fan-out parent; no encoded queue's name contains it

_UNSAFE = re.compile(rb"[^A-Za-z0-9_@,.-]")
_ESCAPE = re.compile(rb"=([0-9A-F]{2})")


@lru_cache(maxsize=1024)
def encode(name: str) -> str:
    """Return the name on the server. Raises ValueError if it is empty or too long there."""
    escaped = _UNSAFE.sub(lambda found: b"=%02X" % found[0][0], name.encode("utf-8", "surrogateescape"))
    encoded = escaped.replace(b".", b":").decode("ascii")
    if not encoded:
        raise ValueError("the name of a queue is empty")
    return _checked(encoded, name)


def decode(encoded: str) -> str:
    """Return the name from which `encode` made `encoded`."""
    escaped = encoded.encode("latin-1").replace(b":", b".")
    return _ESCAPE.sub(lambda found: bytes.fromhex(found[1].decode()), escaped).decode("utf-8", "surrogateescape")


@lru_cache(maxsize=1024)
def parent(exchange: str) -> str:
    """Return the name of the parent that copies its items to all queues of an exchange."""
    return _checked(EXCHANGE + encode(exchange), exchange)


@lru_cache(maxsize=1024)
def child(exchange: str, queue: str) -> str:
    """Return the name of the queue with the copies that one queue gets from an exchange."""
    return _checked(f"{parent(exchange)}+{encode(queue)}", queue)


def _checked(encoded: str, name: str) -> str:
    if len(encoded) > NAME_BYTES_MAX:
        raise ValueError(
            f"the name {name!r} is {len(encoded)} bytes long on the server, of at most {NAME_BYTES_MAX}; shorten it"
        )
    return encoded
