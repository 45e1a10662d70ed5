"""The event loop of a worker in the mode ASYNC, and the calls on it. Background tasks of a function cannot end it."""

from __future__ import annotations

import asyncio
import os
import threading
import traceback
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future
from contextlib import suppress
from contextvars import Context, copy_context
from functools import partial
from typing import Any, TypeVar

import anyio

from staniel.worker.runners import DONE, FORKED, End, NextData, Outcome, failure, is_always_due

T = TypeVar("T")


class LastingLoop(asyncio.SelectorEventLoop):
    """A loop that continues after SystemExit and KeyboardInterrupt. asyncio lets them through, so a task or a callback
    of one function would end the functions of all lanes. `tell` gets the traceback.
    """

    def __init__(self, tell: Callable[[str], None]) -> None:
        super().__init__()
        self._tell = tell

    def run_forever(self) -> None:
        """Run until `stop`. What was due beside the callback that raised is still due."""
        while True:
            try:
                super().run_forever()
            except (SystemExit, KeyboardInterrupt):
                self._tell(traceback.format_exc())
            else:
                return


class LoopThread:
    """A `LastingLoop` in a daemon thread. If functions do not end, `end` is not called, and the thread stays until the
    program exits.
    """

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell
        started: Future[tuple[asyncio.AbstractEventLoop, asyncio.Event, Context]] = Future()
        self._thread = threading.Thread(target=self._run, args=[started], daemon=True, name="staniel-loop")
        self._thread.start()
        self._loop, self._stop, self._context = started.result()

    def runner(self, function: Callable[[bytes], Awaitable[object]]) -> AsyncRunner:
        """Make a runner of a lane."""
        return AsyncRunner(function, self)

    def call_soon(self, callback: Callable[..., object], *arguments: object) -> None:
        """Call a function on the loop, from any thread. Raises RuntimeError if the loop has ended."""
        self._loop.call_soon_threadsafe(callback, *arguments)

    def start_task(self, coroutine: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Start a task, on the loop, in a context of its own."""
        return self._loop.create_task(coroutine, context=self._context.copy())

    def end(self) -> None:
        """Wait until the loop has ended."""
        with suppress(RuntimeError):  # it has ended by itself
            self.call_soon(self._stop.set)
        self._thread.join()

    def _run(self, started: Future[tuple[asyncio.AbstractEventLoop, asyncio.Event, Context]]) -> None:
        async def serve() -> None:
            stop = asyncio.Event()
            started.set_result((asyncio.get_running_loop(), stop, copy_context()))
            await stop.wait()

        try:
            anyio.run(serve, backend_options={"loop_factory": lambda: LastingLoop(self._tell)})
        except BaseException as error:
            if not started.done():
                started.set_exception(error)


class Batch:
    """Calls of a coroutine function, one after the other, for which the lane's thread waits once. Its fields belong to
    the thread of the loop.
    """

    __slots__ = ("ended", "next_data", "scope", "task", "why")

    def __init__(self, next_data: NextData | None) -> None:
        self.next_data = next_data
        self.ended: Future[Outcome | None] = Future()
        self.scope: anyio.CancelScope | None = None
        self.task: asyncio.Task[Outcome] | None = None
        self.why = ""
        """Why the present call is interrupted."""


class AsyncRunner:
    """A runner on the event loop of the worker. Each call is a task of its own, in a context and a cancel scope of its
    own. After a call that succeeds the loop itself begins the next one: a hop from thread to thread takes longer than a
    short function. An interrupted call is cancelled; `run` returns when the call has ended, which is later, or never.
    """

    def __init__(self, function: Callable[[bytes], Awaitable[object]], loop: LoopThread) -> None:
        self._function = function
        self._loop = loop
        self._batch: Batch | None = None
        self._process = os.getpid()

    def prepare(self) -> None:
        """Do nothing."""

    def run(self, data: bytes, next_data: NextData | None = None) -> Outcome | None:
        """Call the function, and wait for it. The loop's thread calls `next_data`."""
        batch = self._batch = Batch(next_data)
        try:
            self._loop.call_soon(self._start_call, batch, data)
        except RuntimeError as error:  # there is no loop any more
            return failure(error)
        return batch.ended.result()

    def interrupt(self, why: str, is_due: Callable[[], bool] = is_always_due) -> None:
        """Cancel the function. The loop's thread calls `is_due`."""
        if (batch := self._batch) is not None:
            with suppress(RuntimeError):
                self._loop.call_soon(self._cancel_call, batch, why, is_due)

    def close(self) -> None:
        """Do nothing: the worker ends the loop."""

    def _start_call(self, batch: Batch, data: bytes) -> None:
        batch.scope = None
        batch.task = self._loop.start_task(self._call(batch, data))
        batch.task.add_done_callback(partial(self._end_call, batch))

    async def _call(self, batch: Batch, data: bytes) -> Outcome:
        """Call the function, whose exceptions do not reach the loop: they could end it, and with it the functions of
        all lanes.
        """
        with anyio.CancelScope() as batch.scope:
            try:
                if not batch.why:
                    await self._function(data)
            except BaseException as error:
                return failure(error, batch.why)
            finally:
                if os.getpid() != self._process:
                    os._exit(FORKED)  # the function has forked and returned twice: this is not the worker
        return Outcome(End.FAILED, batch.why) if batch.why else DONE

    def _cancel_call(self, batch: Batch, why: str, is_due: Callable[[], bool]) -> None:
        if (batch.task is None or not batch.task.done()) and is_due():
            batch.why = why
            if batch.scope is not None:
                batch.scope.cancel()

    def _end_call(self, batch: Batch, task: asyncio.Task[Outcome]) -> None:
        """Begin the next call, or end the batch."""
        try:
            outcome: Outcome | None = task.result()
        except BaseException as error:  # the function left a scope of its own open, or was cancelled before it began
            outcome = failure(error, batch.why)
        try:
            if outcome is DONE and batch.next_data is not None:
                data = batch.next_data()
                if data is not None:
                    self._start_call(batch, data)
                    return
                outcome = None
            batch.ended.set_result(outcome)
        except BaseException as error:
            batch.ended.set_exception(error)
