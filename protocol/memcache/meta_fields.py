"""The part of a meta command that its reply repeats."""

from __future__ import annotations

from msgspec import Struct


class Meta(Struct, frozen=True, gc=False):
    """The contents of the reply to a meta command.

    `key` is as the client wrote it, in base64 if `base64` is set. `shown` has the requested flags, in the client's
    order. `quiet`: the usual reply is left out. `put_key`, `delay_ms`: the idempotency key and the delay of a put.
    """

    key: bytes
    base64: bool = False
    quiet: bool = False
    shown: tuple[bytes, ...] = ()
    put_key: str = ""
    delay_ms: int = 0


class PutKey(Struct, frozen=True, gc=False):
    """The idempotency key of a plain `set`."""

    key: str


class PutDelay(Struct, frozen=True, gc=False):
    """The delay of a plain `set`, and its idempotency key, if it has one."""

    delay_ms: int
    key: str = ""
