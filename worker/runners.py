"""The ways to call a function: in the lane's thread; in a process of its own, see `processes`; on an event loop, see
`loop`.

A runner belongs to one lane. `run` is called by the lane's thread; `interrupt`, which ends a call that takes too long,
by the keeper's.
"""

from __future__ import annotations

import ctypes
import threading
import traceback
from collections.abc import Callable
from enum import Enum
from typing import Protocol

from msgspec import Struct

from staniel.worker.dead import GiveUp

Function = Callable[[bytes], object]
NextData = Callable[[], bytes | None]
"""A function that notes that a call has succeeded and begins the next item: its data, None if there is none."""
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


def is_always_due() -> bool:
    """Return True: an interruption is meant for any call."""
    return True


class Runner(Protocol):
    """A way to call the function."""

    def prepare(self) -> None:
        """Do what may take long before a call and is no part of it. Raises nothing: `run` returns why it failed."""

    def run(self, data: bytes, next_data: NextData | None = None) -> Outcome | None:
        """Call the function, and return how that ended. It raises nothing but what `next_data` does: after a call that
        succeeds, a runner may ask it for the next call. It returns None if there is none.
        """

    def interrupt(self, why: str, is_due: Callable[[], bool] = is_always_due) -> None:
        """End the present call, if that is possible and `is_due` still says so: the call that the caller means may have
        ended, and the next have begun. `why` becomes its reason.
        """

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

    def prepare(self) -> None:
        """Do nothing."""

    def run(self, data: bytes, next_data: NextData | None = None) -> Outcome:
        """Call the function, once."""
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

    def interrupt(self, why: str, is_due: Callable[[], bool] = is_always_due) -> None:
        """Raise FunctionInterrupted in the function."""
        with self._lock:
            if self._thread is not None and is_due():
                self._why = why
                raised = ctypes.py_object(FunctionInterrupted)
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(self._thread), raised)

    def close(self) -> None:
        """Do nothing."""
