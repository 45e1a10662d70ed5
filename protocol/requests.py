"""The results of every parser that are no requests of its protocol."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec import Struct


class Invalid(Struct, frozen=True, gc=False):
    """Bytes that are no request, in their place in the stream.

    `reply` is the whole reply (empty: none); `hang_up`: the connection is closed after it; `why` says what is wrong.
    """

    reply: bytes
    hang_up: bool = False
    why: str = ""


class More(Struct, frozen=True, gc=False):
    """The rest of a feed that exceeds a turn's time. Call `resume` later.

    `resume` returns the requests in the stored bytes and in those that have arrived since, perhaps with another More at
    the end. A More is always the last request of a feed; until `resume` is called, `feed` only stores bytes.
    """

    resume: Callable[[], list[Any]]
