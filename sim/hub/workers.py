"""A stepped thread of the hub: it gets a task, has run, and raises its flag, each at a moment of its own.

Raises Violation if the hub's request would make the hub wait.
"""

from __future__ import annotations

import select
from enum import Enum
from typing import Generic

from staniel.server.interfaces import E
from staniel.sim.hub.net import Net
from staniel.sim.violations import Kind, Violation


class Stage(Enum):
    IDLE = "idle"
    GIVEN = "given"
    HAS_RUN = "has run"
    FLAGGED = "flagged"  # the poller sees it


_NEXT = {
    Stage.IDLE: Stage.GIVEN,
    Stage.GIVEN: Stage.HAS_RUN,
    Stage.HAS_RUN: Stage.FLAGGED,
    Stage.FLAGGED: Stage.IDLE,
}
"""The stage that follows a stage; `_enter_next` enters it."""


class SimWorker(Generic[E]):
    """A stepped thread. `may_wait`: true while the server stops."""

    def __init__(self, net: Net, name: str) -> None:
        self._net = net
        self.name = name
        self.fd = net.open_fd(self)
        self.took_ns = 0
        self.is_cheap = False
        self.stage = Stage.IDLE
        self.may_wait = False
        self.is_closed = False
        self._task: E | None = None
        self._error: Exception | None = None

    def ready(self) -> int:
        return select.EPOLLIN if self.stage is Stage.FLAGGED else 0

    def start(self, task: E) -> None:
        if self.stage is not Stage.IDLE:
            raise Violation(Kind.BROKEN, f"the {self.name} has two tasks at once")
        self._task = task
        self._enter_next()

    def _enter_next(self) -> None:
        self.stage = _NEXT[self.stage]

    def advance(self) -> bool:
        """Do a step of the thread. Return whether there was one."""
        if self.stage is Stage.GIVEN:
            assert self._task is not None
            self._enter_next()
            self.took_ns = self._net.rng.choice((20_000, 90_000, 90_000, 3_000_000))
            try:
                self._task.run()
            except Exception as error:  # passed on to the hub
                self._error = error
            return True
        if self.stage is Stage.HAS_RUN:
            self._enter_next()
            return True
        return False

    def finished(self) -> E | None:
        if self.stage is not Stage.FLAGGED:
            return None
        task, error = self._task, self._error
        self._task = self._error = None
        self._enter_next()
        if error is not None:
            raise error
        return task

    def wait(self) -> E:
        if not self.may_wait:
            raise Violation(Kind.WAITS, f"a turn waits for the {self.name}")
        while self.advance():
            pass
        task = self.finished()
        if task is None:
            raise Violation(Kind.STUCK, f"the stop waits for the {self.name}, which has nothing to do")
        return task

    def join(self) -> None:
        while self.stage is Stage.GIVEN:
            self.advance()

    def close(self) -> None:
        while self.advance():
            pass
        self.is_closed = True
