"""The `async with` block of the clients, which closes them at its end."""

from __future__ import annotations

from types import TracebackType
from typing import Self


class Closing:
    """A client that its block closes. It connects when it is used."""

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
    """A client that its block connects, too."""

    async def __aenter__(self) -> Self:
        await self.connect()
        return self

    async def connect(self) -> None:
        """Connect."""
        raise NotImplementedError
