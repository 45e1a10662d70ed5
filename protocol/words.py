"""Words of a request line that several protocols share: numbers, names, `noreply`."""

from __future__ import annotations

import re
import sys

INT32_MIN = -(2**31)
INT32_MAX = 2**31 - 1
UINT32_MAX = 2**32 - 1

_DECIMAL = re.compile(rb"[+-]?[0-9]{1,64}")


def integer(word: bytes, low: int, high: int) -> int | None:
    """Return a word's decimal number, None if it is no number or not within low..high.

    Python's own `int` accepts more (`1_0`, ` 1`) and raises for thousands of digits.
    """
    if _DECIMAL.fullmatch(word) is None:
        return None
    number = int(word)
    return number if low <= number <= high else None


def text(word: bytes) -> str:
    """Decode a word. Names are ISO-8859-1 on the wire, so every byte is a character."""
    return word.decode("latin-1")


IS_MORTAL = not (3, 12) <= sys.version_info < (3, 12, 6)
"""True if an unreferenced interned string is freed (CPython's issue 113993): a client may send any number of names."""


def queue_name(word: bytes) -> str:
    """Return the name of a queue: one string for all requests and for the queue, so that a dictionary finds it without
    comparing characters.
    """
    return sys.intern(text(word)) if IS_MORTAL else text(word)


def pop_noreply(words: list[bytes]) -> bool:
    """Remove a last word `noreply` from the list. Return True if it was there."""
    if words and words[-1] == b"noreply":
        words.pop()
        return True
    return False
