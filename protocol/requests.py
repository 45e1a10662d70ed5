"""What the parser of every protocol hands out beside the protocol's own requests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from msgspec import Struct


class Invalid(Struct, frozen=True, gc=False):
    """Bytes that are no request, in their place in the stream.

    `reply` is the whole answer (empty: none); `hang_up`: the connection is closed after it; `why` says what is wrong.
    """

    reply: bytes
    hang_up: bool = False
    why: str = ""


class More(Struct, frozen=True, gc=False):
    """The parser has done as much as a turn of the hub has time for, and keeps the rest: call `resume` later.

    `resume` returns the requests in what was kept and in what has arrived since, perhaps with another More at the end.
    Always the last request of a feed; until `resume` is called, `feed` only stores bytes.
    """

    resume: Callable[[], list[Any]]
