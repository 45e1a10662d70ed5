"""Dead letters: an item that failed too often, with the reason, as one item on the queue of dead letters."""

from __future__ import annotations

import msgspec
from msgspec import Struct

REASON_CHARACTERS_MAX = 8_000
"""Longer tracebacks lose their middle."""


class GiveUp(Exception):
    """The exception that a function raises to make its item a dead letter at once, without another try."""


class DeadLetter(Struct, frozen=True):
    """A dead letter. `data` is the item as it was put (base64 in the JSON), `reason` the last traceback."""

    queue: str
    id: int
    flags: int
    attempts: int
    died_at: str
    worker: str
    reason: str
    data: bytes

    def encode(self) -> bytes:
        """Return the JSON that is put."""
        return msgspec.json.encode(
            msgspec.structs.replace(self, worker=escaped(self.worker), reason=escaped(self.reason))
        )

    @staticmethod
    def decode(data: bytes) -> DeadLetter:
        """Return the dead letter that an item is. Raises ValueError."""
        return msgspec.json.decode(data, type=DeadLetter)


def escaped(text: str) -> str:
    """Return a text that UTF-8 can express: `\\udcff` for half a surrogate pair, which Python makes of a file's name
    that is not UTF-8.
    """
    return text.encode("utf-8", "backslashreplace").decode()


def shortened(reason: str) -> str:
    """Return a traceback without its middle, if it is long."""
    if len(reason) <= REASON_CHARACTERS_MAX:
        return reason
    half = REASON_CHARACTERS_MAX // 2
    return f"{reason[:half]}\n[…]\n{reason[-half:]}"
