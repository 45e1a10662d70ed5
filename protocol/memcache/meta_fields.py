"""The part of a meta command that its reply repeats."""

from __future__ import annotations

from msgspec import Struct


class Meta(Struct, frozen=True, gc=False):
    """The contents of the reply to a meta command.

    `key` is as the client wrote it, in base64 if `base64` is set. `shown` has the requested flags, in the client's
    order. `quiet`: the usual reply is left out. `put_key`: the idempotency key of a put.
    """

    key: bytes
    base64: bool = False
    quiet: bool = False
    shown: tuple[bytes, ...] = ()
    put_key: str = ""


class PutKey(Struct, frozen=True, gc=False):
    """The idempotency key of a plain `set`."""

    key: str
