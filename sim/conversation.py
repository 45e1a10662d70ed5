"""A simulated connection's requests and the bytes that answer them, whatever the protocol.

`queues/conversation.py` and `jobs/conversation.py` define the requests, and split the bytes into answers.
"""

from __future__ import annotations

from collections import deque
from typing import Any


class Conversation:
    """The requests and answers of a connection. `waiting`: requests that have not been answered in full, the oldest
    first.
    """

    line_end = b"\r\n"

    def __init__(self) -> None:
        self.waiting: deque[Any] = deque()
        self._rest = b""

    @property
    def is_unfinished(self) -> bool:
        """True if a part of an answer has come that counts only with its end, which takes another turn."""
        return False

    def expect(self, request: Any) -> None:
        self.waiting.append(request)

    def feed(self, data: bytes) -> list[Any]:
        """Return the answers, or parts of answers, that these bytes complete. Raises ValueError if they answer no
        request.
        """
        self._rest += data
        found: list[Any] = []
        while self._rest:
            if not self.waiting:
                raise ValueError(f"an answer to nothing: {self._rest[:60]!r}")
            answer = self._next()
            if answer is None:
                break
            if answer.end:
                self.waiting.popleft()
            found.append(answer)
        return found

    def _next(self) -> Any:
        """Take the next part of the answer to `waiting[0]` off the received bytes; None if it is not all there yet."""
        raise NotImplementedError

    def _line(self) -> bytes | None:
        """Take the next line, without its end, off the received bytes; None if it is not complete yet."""
        line, end, rest = self._rest.partition(self.line_end)
        if not end:
            return None
        self._rest = rest
        return line
