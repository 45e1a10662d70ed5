"""The base classes of clients: their `async with` block connects and closes them."""

from __future__ import annotations

from types import TracebackType
from typing import Self


class Closing:
    """A client that its block closes at the end. It connects with its first request."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connections."""
        raise NotImplementedError


class Connecting(Closing):
    """A client that its block connects at the beginning and closes at the end."""

    async def __aenter__(self) -> Self:
        await self.connect()
        return self

    async def connect(self) -> None:
        """Connect."""
        raise NotImplementedError
