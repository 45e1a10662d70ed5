"""The kinds of mistakes that a history can find, and how items are printed."""

from __future__ import annotations

from enum import Enum


class Kind(Enum):
    LOST = "lost"  # a promised item is missing, or was removed without a cause
    INVENTED = "invented"  # an item that was never put, or whose put was refused
    DUPLICATED = "duplicated without cause"
    TWICE = "acknowledged twice"
    REDELIVERED = "redelivered after an acknowledged close"
    TWO_HOLDERS = "two holders at once"
    ORDER = "order violated"
    EARLY = "handed out before it is due"
    LATE = "due, and kept from a client that waits"
    NO_PREFIX = "not a prefix of the queue's history"
    STATISTICS = "statistics unlike the model"
    NO_ANSWER = "an answer that does not belong there"
    NO_START = "the server does not start"
    WAITS = "a turn waits for a thread"
    STUCK = "the server never ends"
    UNANSWERED = "a request without an answer"
    STOLEN = "a connection touched by what is not its own"
    LEAK = "kept for a client that is gone"
    RIGHTS = "served without the right to it"
    HOLD = "a hold does not keep what it promises"
    LIMIT = "more than a limit allows"
    TOO_LONG = "a turn does more than its share"
    FALSE_ALARM = "a loss is reported that there was not"
    BROKEN = "the server breaks off"  # an exception that only a failing disk may cause, or one that must never happen


class Violation(Exception):
    """A violation of a promise. `why` is for people: what was found, and what should have been."""

    def __init__(self, kind: Kind, why: str) -> None:
        super().__init__(f"{kind.value}: {why}")
        self.kind = kind
        self.why = why


def shown(data: bytes) -> str:
    """Return an item as text, cut if long."""
    text = data.decode("latin-1") or "''"
    return text if len(text) <= 12 else f"{text[:8]}…({len(text)} B)"


def listed(items: list[bytes]) -> str:
    return "[" + " ".join(shown(data) for data in items) + "]"
