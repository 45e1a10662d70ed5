"""The three ways to call a function: in the lane's thread, on an event loop, in a process of its own.

A runner belongs to one lane. `run` is called by the lane's thread; `interrupt`, which ends a call that takes too long,
by the keeper's.
"""

from __future__ import annotations

import ctypes
import threading
import traceback
from collections.abc import Awaitable, Callable
from concurrent.futures import CancelledError, Future
from enum import Enum
from typing import TYPE_CHECKING, Protocol

from msgspec import Struct

from staniel.worker.dead import GiveUp

if TYPE_CHECKING:
    from anyio.from_thread import BlockingPortal

Function = Callable[[bytes], object]
FORKED = 70  # exit status of a process that a function has forked, and which returns from it


class End(Enum):
    """The end of a call."""

    DONE = "done"
    FAILED = "failed"
    GAVE_UP = "gave up"


class Outcome(Struct, frozen=True):
    """The end of a call, with the traceback if it failed."""

    end: End
    reason: str = ""


DONE = Outcome(End.DONE)


class FunctionInterrupted(BaseException):
    """The exception that is raised in the thread of a function that takes too long. It is no Exception, so that
    functions do not catch it.
    """


class Runner(Protocol):
    """A way to call the function."""

    def run(self, data: bytes) -> Outcome:
        """Call the function, and return how that ended. It raises nothing."""

    def interrupt(self, why: str) -> None:
        """End the present call, if that is possible; `why` becomes its reason."""

    def close(self) -> None:
        """Free what the runner has; no call is running."""


def failure(error: BaseException, why: str = "") -> Outcome:
    """Return the outcome of an exception."""
    text = "".join(traceback.format_exception(error))
    end = End.GAVE_UP if isinstance(error, GiveUp) else End.FAILED
    return Outcome(end, f"{why}\n{text}" if why else text)


class ThreadRunner:
    """A runner in the lane's thread. An interrupted function gets an exception at its next step of Python. One that
    waits in C, as in a socket without a time-out, gets it when the wait ends.
    """

    def __init__(self, function: Function) -> None:
        self._function = function
        self._lock = threading.Lock()
        self._thread: int | None = None
        self._why = ""

    def run(self, data: bytes) -> Outcome:
        """Call the function."""
        try:
            self._thread = threading.get_ident()
            try:
                self._function(data)
            finally:
                self._end()
        except BaseException as error:  # an FunctionInterrupted may also come within `_end`
            self._end()
            why, self._why = self._why, ""
            return failure(error, why)
        self._why = ""
        return DONE

    def _end(self) -> None:
        with self._lock:
            if self._thread is not None:
                if self._why:
                    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self._thread), None)
                self._thread = None

    def interrupt(self, why: str) -> None:
        """Raise FunctionInterrupted in the function."""
        with self._lock:
            if self._thread is not None:
                self._why = why
                raised = ctypes.py_object(FunctionInterrupted)
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self._thread), raised)

    def close(self) -> None:
        """Do nothing."""


class AsyncCall:
    """A call of a coroutine function. `why`: why it is interrupted, or ""."""

    __slots__ = ("future", "why")

    def __init__(self) -> None:
        self.future: Future[Outcome] | None = None
        self.why = ""


class AsyncRunner:
    """A runner on the event loop of the worker, of which each lane has a task. An interrupted call is cancelled; `run`
    returns when the call has ended, which is later, or never.
    """

    def __init__(self, function: Callable[[bytes], Awaitable[object]], portal: BlockingPortal) -> None:
        self._function = function
        self._portal = portal
        self._running_call: AsyncCall | None = None
        self._ended = threading.Event()

    def run(self, data: bytes) -> Outcome:
        """Call the function, and wait for it."""
        self._ended.clear()
        call = self._running_call = AsyncCall()
        try:
            call.future = future = self._portal.start_task_soon(self._call, data)
            if call.why:  # the function may begin, and be interrupted, before its future is known here
                future.cancel()
            return future.result()
        except CancelledError as error:
            self._ended.wait()
            return failure(error, call.why)
        except Exception as error:  # there is no loop any more
            return failure(error)
        finally:
            self._running_call = None

    async def _call(self, data: bytes) -> Outcome:
        """Call the function on the loop, which no exception but a cancellation may reach: it would end the loop, and
        with it the functions of all lanes.
        """
        from anyio import get_cancelled_exc_class

        try:
            await self._function(data)
        except (get_cancelled_exc_class(), GeneratorExit):
            raise
        except BaseException as error:
            return failure(error)
        finally:
            self._ended.set()
        return DONE

    def interrupt(self, why: str) -> None:
        """Cancel the function."""
        call = self._running_call
        if call is not None:
            call.why = why
            if call.future is not None:
                call.future.cancel()

    def close(self) -> None:
        """Do nothing: the worker ends the loop."""
