"""The meter of the server's work, in lines of its code: the same in every run, whatever else the machine does.

Handed in as the loop's clock, it tells deterministically where work is not divided: a part that runs on without a look
at the clock is one long piece. Compiled code executes no lines; then no time passes.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache
from types import FrameType, TracebackType
from typing import Any

LINE_NS = 5_000  # slow on purpose: a hundred lines are a share, so a few dozen queues are many


class WorkMeter:
    """A meter of work. It counts while it is entered. `ns` is the clock."""

    def __init__(self) -> None:
        self.lines = 0
        self._before: Any = None

    def ns(self) -> int:
        return self.lines * LINE_NS

    def __enter__(self) -> WorkMeter:
        self._before = sys.gettrace()
        sys.settrace(self._counter())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        sys.settrace(self._before)

    def _counter(self) -> Callable[[FrameType, str, object], Any]:
        """Return a tracer that counts the lines of the server only. It runs at every line, so it is short."""

        def of_call(frame: FrameType, event: str, arg: object) -> Any:
            return of_line if _is_servers(frame.f_code.co_filename) else None

        def of_line(frame: FrameType, event: str, arg: object) -> Any:
            if event == "line":
                self.lines += 1
            return of_line

        return of_call


@cache
def _is_servers(file: str) -> bool:
    """Tell whether `file` counts. Libraries, and modules loaded on first use, do not: only the first request pays."""
    parts = file.rpartition("/staniel/")
    return bool(parts[1]) and not parts[2].startswith("sim/")
