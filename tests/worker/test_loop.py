"""Calls on the event loop of a worker, a batch at a time: each has a task, a context and a cancellation of its own."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterator
from contextvars import ContextVar

import anyio
import anyio.lowlevel
import pytest

from staniel.worker import GiveUp
from staniel.worker.loop import AsyncRunner, LoopThread
from staniel.worker.runners import DONE, FORKED, End, Outcome

WORD: ContextVar[bytes] = ContextVar("word")
STOPPED = Outcome(End.FAILED, "the worker stops")


@pytest.fixture
def loop() -> Iterator[LoopThread]:
    started = LoopThread(lambda why: None)
    yield started
    started.end()


class Batch:
    """Items that a runner is given one after the other, and which of them have succeeded."""

    def __init__(self, *items: bytes) -> None:
        self.waiting = list(items)
        self.running = b""
        self.succeeded: list[bytes] = []

    def _begin(self) -> bytes | None:
        self.running = self.waiting.pop(0) if self.waiting else b""
        return self.running or None

    def _next(self) -> bytes | None:
        self.succeeded.append(self.running)
        return self._begin()

    def call_all(self, runner: AsyncRunner) -> dict[bytes, Outcome]:
        """Call the function with all items, and return the outcomes that were not successes."""
        failed: dict[bytes, Outcome] = {}
        while (data := self._begin()) is not None:
            outcome = runner.run(data, self._next)
            if outcome is not None:
                failed[self.running] = outcome
        return failed


def call_all(loop: LoopThread, function: Callable[[bytes], Awaitable[object]], *items: bytes) -> dict[bytes, Outcome]:
    """Call a function with items, check that those that did not fail succeeded once and in order, return the failed."""
    batch = Batch(*items)
    failed = batch.call_all(loop.runner(function))
    assert batch.succeeded == [data for data in items if data not in failed]
    return failed


def test_each_call_of_a_batch_has_a_task_and_a_context_of_its_own(loop: LoopThread) -> None:
    tasks: set[asyncio.Task[object] | None] = set()
    words: list[bytes] = []

    async def function(data: bytes) -> None:
        words.append(WORD.get(b""))
        WORD.set(data)
        tasks.add(asyncio.current_task())
        await anyio.lowlevel.checkpoint()
        assert WORD.get() == data

    assert call_all(loop, function, b"1", b"2", b"3") == {}
    assert (words, len(tasks)) == ([b"", b"", b""], 3)


def test_what_a_call_raises_is_its_own_end_alone(loop: LoopThread) -> None:
    raised: dict[bytes, BaseException] = {
        b"2": ValueError("two"), b"3": SystemExit(3), b"4": KeyboardInterrupt(), b"6": GiveUp("six"),
        b"7": asyncio.CancelledError(), b"8": GeneratorExit(), b"9": BaseExceptionGroup("nine", [SystemExit(9)]),
    }  # fmt: skip

    async def function(data: bytes) -> None:
        if data in raised:
            await anyio.lowlevel.checkpoint()
            raise raised[data]

    failed = call_all(loop, function, *[b"%d" % number for number in range(1, 11)])
    assert {data: outcome.end for data, outcome in failed.items()} == {
        data: End.GAVE_UP if data == b"6" else End.FAILED for data in raised
    }
    assert all(type(raised[data]).__name__ in outcome.reason for data, outcome in failed.items())


def test_a_call_that_leaves_a_scope_open_or_is_cancelled_by_another_fails_alone(loop: LoopThread) -> None:
    async def function(data: bytes) -> None:
        if data == b"2":
            anyio.CancelScope().__enter__()
        if data == b"3":
            task = asyncio.current_task()
            assert task is not None
            asyncio.get_running_loop().call_soon(task.cancel)
            await anyio.sleep(600)

    failed = call_all(loop, function, b"1", b"2", b"3", b"4")
    assert {data: outcome.end for data, outcome in failed.items()} == {b"2": End.FAILED, b"3": End.FAILED}


def test_an_interrupted_call_is_cancelled_at_each_await_but_in_a_shield_and_the_next_is_not(loop: LoopThread) -> None:
    cancellations: list[str] = []

    async def function(data: bytes) -> None:
        if data != b"2":
            await anyio.lowlevel.checkpoint()
            return
        runner.interrupt("the worker stops")
        for _ in range(3):
            try:
                await anyio.sleep(600)
            except anyio.get_cancelled_exc_class():
                cancellations.append("cancelled")
        with anyio.CancelScope(shield=True):
            await anyio.lowlevel.checkpoint()
            cancellations.append("shielded")

    runner, batch = loop.runner(function), Batch(b"1", b"2", b"3", b"4")
    assert batch.call_all(runner) == {b"2": STOPPED}
    assert batch.succeeded == [b"1", b"3", b"4"]
    assert cancellations == ["cancelled", "cancelled", "cancelled", "shielded"]


def test_the_reason_of_an_interrupted_call_says_where_it_waited(loop: LoopThread) -> None:
    async def wait_for_long() -> None:
        await anyio.sleep(600)

    async def function(data: bytes) -> None:
        runner.interrupt("the worker stops")
        await wait_for_long()

    runner = loop.runner(function)
    outcome = runner.run(b"a")
    assert outcome is not None and outcome.end is End.FAILED
    assert outcome.reason.startswith("the worker stops\nTraceback") and "in wait_for_long" in outcome.reason


def test_an_interruption_that_comes_when_its_call_has_ended_does_not_concern_the_next(loop: LoopThread) -> None:
    async def function(data: bytes) -> None:
        if data == b"1":
            runner.interrupt("too late")  # the loop notices it between the end of this call and the next
        await asyncio.sleep(0) if data == b"2" else None

    runner, batch = loop.runner(function), Batch(b"1", b"2")
    assert batch.call_all(runner) == {}
    assert batch.succeeded == [b"1", b"2"]


def test_a_call_is_not_interrupted_for_an_earlier_one_of_its_batch(loop: LoopThread) -> None:
    async def function(data: bytes) -> None:
        if data == b"2":
            runner.interrupt("the function took longer than 1 s", lambda: batch.running == b"1")
            await anyio.lowlevel.checkpoint()
            await anyio.lowlevel.checkpoint()

    runner, batch = loop.runner(function), Batch(b"1", b"2")
    assert batch.call_all(runner) == {}


def test_a_surprise_between_two_calls_reaches_the_lane(loop: LoopThread) -> None:
    async def function(data: bytes) -> None: ...

    def next_data() -> bytes | None:
        raise RuntimeError("a surprise")

    runner = loop.runner(function)
    with pytest.raises(RuntimeError, match="a surprise"):
        runner.run(b"a", next_data)
    assert runner.run(b"b") is DONE


def test_a_process_that_a_coroutine_function_forks_begins_no_other_item(loop: LoopThread) -> None:
    statuses: list[int] = []

    async def function(data: bytes) -> None:
        if data == b"fork":
            child = os.fork()
            if child:
                statuses.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))  # noqa: ASYNC222 – it ends at once

    assert call_all(loop, function, b"1", b"fork", b"2") == {}
    assert statuses == [FORKED]


def test_a_loop_that_has_ended_makes_no_call() -> None:
    async def function(data: bytes) -> None: ...

    ended = LoopThread(lambda why: None)
    runner = ended.runner(function)
    ended.end()
    ended.end()
    outcome = runner.run(b"a")
    assert outcome is not None and outcome.end is End.FAILED
    runner.interrupt("nothing runs")
