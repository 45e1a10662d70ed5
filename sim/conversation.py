"""The requests of a simulated connection and the bytes that reply to them, for any protocol.

`queues/conversation.py` and `jobs/conversation.py` define the requests, and split the bytes into replies.
"""

from __future__ import annotations

from collections import deque
from typing import Any


class Conversation:
    """The requests and replies of a connection. `waiting`: requests without a complete reply, the oldest first."""

    line_end = b"\r\n"

    def __init__(self) -> None:
        self.waiting: deque[Any] = deque()
        self._rest = b""

    @property
    def is_unfinished(self) -> bool:
        """True if a part of a reply has come that counts only with its end, which takes another turn."""
        return False

    def expect(self, request: Any) -> None:
        self.waiting.append(request)

    def feed(self, data: bytes) -> list[Any]:
        """Return the replies, or parts of replies, that these bytes complete. Raises ValueError if they belong to no
        request.
        """
        self._rest += data
        parts: list[Any] = []
        while self._rest:
            if not self.waiting:
                raise ValueError(f"an answer to nothing: {self._rest[:60]!r}")
            answer = self._next()
            if answer is None:
                break
            if answer.end:
                self.waiting.popleft()
            parts.append(answer)
        return parts

    def _next(self) -> Any:
        """Remove and return the next part of the reply to `waiting[0]` from the received bytes; None if it is
        incomplete.
        """
        raise NotImplementedError

    def _line(self) -> bytes | None:
        """Remove and return the next line, without its end, from the received bytes; None if it is incomplete."""
        line, end, remaining = self._rest.partition(self.line_end)
        if not end:
            return None
        self._rest = remaining
        return line
