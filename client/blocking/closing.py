# Made of client/aio/closing.py by packaging/blocking_client.py (`make blocking`): change that file, not this one.
"""The base classes of clients: their `with` block connects and closes them."""

from __future__ import annotations

from types import TracebackType
from typing import Self


class Closing:
    """A client that its block closes at the end. It connects with its first request."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        raise NotImplementedError


class Connecting(Closing):
    """A client that its block connects at the beginning and closes at the end."""

    def __enter__(self) -> Self:
        self.connect()
        return self

    def connect(self) -> None:
        """Connect."""
        raise NotImplementedError
