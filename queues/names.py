"""Which queue names are legal. The name is also a file name, so this is a matter of safety, not of taste."""

from __future__ import annotations

NAME_BYTES_MAX = 200  # a file name has 255: room for `.<digits>.pack` and a little more
RESERVED = frozenset("./~\0")


def name_error(name: str) -> str:
    """Why `name` cannot be a queue's name; empty if it can. `.`, `/` and `~` mean something in journal file names."""
    if not name:
        return "a queue name cannot be empty"
    if not RESERVED.isdisjoint(name):
        return "a queue name cannot hold . / ~ or NUL"
    if len(name.encode("utf-8", "surrogateescape")) > NAME_BYTES_MAX:
        return f"a queue name cannot be longer than {NAME_BYTES_MAX} bytes"
    return ""


def parent_of(name: str) -> str:
    """The fan-out parent of `orders+audit` is `orders`; "" for a name without `+`."""
    parent, plus, _ = name.partition("+")
    return parent if plus else ""
