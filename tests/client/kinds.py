"""The three ways to use a client: blocking, on asyncio and on trio. A test's body is written once, with `await`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import anyio
import pytest

import staniel.client
import staniel.client.aio

KINDS = ("blocking", "asyncio", "trio")
each_kind = pytest.mark.parametrize("kind", KINDS)
each_loop = pytest.mark.parametrize("kind", KINDS[1:])
Body = Callable[[Callable[..., Any]], Awaitable[None]]


class Adapted:
    """A blocking client behind methods that are awaited. Each blocks the loop until it is done."""

    adapts: type = staniel.client.Client

    def __init__(self, *args: Any, **options: Any) -> None:
        self.blocking = self.adapts(*args, **options)

    async def __aenter__(self) -> Adapted:
        self.blocking.__enter__()
        return self

    async def __aexit__(self, *error: Any) -> None:
        self.blocking.__exit__(*error)

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.blocking, name)

        async def call(*args: Any, **options: Any) -> Any:
            return method(*args, **options)

        return call

    @asynccontextmanager
    async def reserve(self, *args: Any, **options: Any) -> AsyncIterator[Any]:
        with self.blocking.reserve(*args, **options) as item:
            yield item

    @asynccontextmanager
    async def monitor(self, *args: Any, **options: Any) -> AsyncIterator[Any]:
        with self.blocking.monitor(*args, **options) as items:
            yield AdaptedItems(items)


class AdaptedJobs(Adapted):
    adapts = staniel.client.Jobs


class AdaptedClusterJobs(Adapted):
    adapts = staniel.client.ClusterJobs


class AdaptedMulti(Adapted):
    adapts = staniel.client.MultiClient


class AdaptedItems:
    def __init__(self, items: Any) -> None:
        self._items = items

    def __aiter__(self) -> AdaptedItems:
        return self

    async def __anext__(self) -> Any:
        for item in self._items:
            return item
        raise StopAsyncIteration


class AdaptedPool(Adapted):
    adapts = staniel.client.Pool

    @asynccontextmanager
    async def client(self, *args: Any, **options: Any) -> AsyncIterator[Any]:
        with self.blocking.client(*args, **options) as client:
            yield AdaptedLent(client)


class AdaptedClusterPool(AdaptedPool):
    adapts = staniel.client.ClusterPool


class AdaptedLent(Adapted):
    """A client that a pool has lent: the same one is equal to itself."""

    def __init__(self, client: Any) -> None:
        self.blocking = client

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AdaptedLent) and other.blocking is self.blocking

    def __hash__(self) -> int:
        return id(self.blocking)


ADAPTED: dict[str, type[Adapted]] = {
    "Client": Adapted,
    "Jobs": AdaptedJobs,
    "Pool": AdaptedPool,
    "MultiClient": AdaptedMulti,
    "ClusterJobs": AdaptedClusterJobs,
    "ClusterPool": AdaptedClusterPool,
}


def play(kind: str, body: Body, *, of: str = "Client") -> None:
    """Run `body` with the class of this kind, one of ADAPTED."""
    make: Callable[..., Any]
    if kind == "blocking":
        make = ADAPTED[of]
    else:
        make = getattr(staniel.client.aio, of)
    backend = "asyncio" if kind == "blocking" else kind

    async def whole() -> None:
        with anyio.fail_after(60):
            await body(make)

    anyio.run(whole, backend=backend)


def connected(make: Callable[..., Any], address: tuple[str, int], **options: Any) -> AbstractAsyncContextManager[Any]:
    made: AbstractAsyncContextManager[Any] = make(*address, **options)
    return made
