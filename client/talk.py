"""The type of a conversation: requests of one protocol to bytes, and bytes to replies. A connection uses it for any
protocol.
"""

from __future__ import annotations

from typing import Protocol, TypeVar

from staniel.protocol.client.replies import ProtocolViolation

RequestT = TypeVar("RequestT")
ReplyT = TypeVar("ReplyT")
_RequestT = TypeVar("_RequestT", contravariant=True)


class Talk(Protocol[_RequestT, ReplyT]):
    """A conversation of `protocol/client`."""

    @property
    def unanswered(self) -> int:
        """Requests without a complete reply."""

    def send(self, *requests: _RequestT) -> bytes:
        """Return the bytes to send."""

    def receive(self, data: bytes) -> list[ReplyT | ProtocolViolation]:
        """Return the replies that `data` completes."""
