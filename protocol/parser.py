"""The base of every protocol's parser: compiled code calls `feed` and reads `pending_bytes` without a look-up."""

from __future__ import annotations

from typing import Any


class Parser:
    """A parser of one connection: bytes in, requests out. Each parser also has `limit(limits)`.

    `pending_bytes` counts the bytes stored for an incomplete request or for the next turn; every `feed` updates it.
    """

    __slots__ = ("pending_bytes",)

    pending_bytes: int

    def feed(self, data: bytes) -> list[Any]:
        """Return the requests that `data` completes, in order."""
        raise NotImplementedError
