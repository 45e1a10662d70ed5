"""Work of a client that is cancelled after so many steps of its loop."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import anyio
import trio

from staniel.client import ConnectionLost

Work = Callable[[], Awaitable[object]]


async def cancel_on_asyncio(work: Work, steps: int, native: bool) -> None:
    """Cancel `work` by anyio's scope, or as asyncio does. It may end before, or lose its connection."""
    scope = anyio.CancelScope()

    async def in_scope() -> None:
        with scope:
            await work()

    task = asyncio.ensure_future(in_scope())
    for _ in range(steps):
        await asyncio.sleep(0)
    task.cancel() if native else scope.cancel()
    await asyncio.wait([task])
    assert task.cancelled() or task.exception() is None or isinstance(task.exception(), ConnectionLost)


async def cancel_on_trio(work: Work, steps: int) -> None:
    """Cancel `work`, which may end before."""

    async def cancel(scope: trio.CancelScope) -> None:
        for _ in range(steps):
            await trio.lowlevel.checkpoint()
        scope.cancel()

    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(cancel, scope)
            await work()
