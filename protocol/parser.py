"""The base of every protocol's parser: compiled code calls `feed` and reads `pending_bytes` without a look-up."""

from __future__ import annotations

from typing import Any


class Parser:
    """The reading half of one connection: bytes in, requests out. Each parser also has `limit(limits)`.

    `pending_bytes`: bytes kept for a request that is not complete, or for the next turn; every `feed` updates it.
    """

    __slots__ = ("pending_bytes",)

    pending_bytes: int

    def feed(self, data: bytes) -> list[Any]:
        """Every request that `data` completes, in order."""
        raise NotImplementedError
