"""The base of every protocol's parser: compiled code calls `feed` without a look-up."""

from __future__ import annotations

from typing import Any


class Parser:
    """The reading half of one connection: bytes in, requests out. Besides, each has `pending_bytes`, kept for a request
    that has not ended, and `limit(limits)`.
    """

    def feed(self, data: bytes) -> list[Any]:
        """Every request that `data` completes, in order."""
        raise NotImplementedError
