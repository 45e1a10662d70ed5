"""A sync or a chore that the broker has handed out: begun, run and ended at moments of their own, as by a thread.

Knows whether it has run and how that went. Refuses to know when it should.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from staniel.journal.group_commit import JournalFailure


class Thread:
    """A sync or chore that the broker has handed out. `work` is what its thread does."""

    def __init__(self, task: Any, work: Callable[[], None], began_ms: int) -> None:
        self.task = task
        self.work = work
        self.began_ms = began_ms
        self.has_run = False
        self.failure: Exception | None = None

    def run(self) -> None:
        self.has_run = True
        try:
            self.work()
        except (JournalFailure, OSError) as failure:
            self.failure = failure
