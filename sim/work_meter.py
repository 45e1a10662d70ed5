"""The meter of the server's work, in lines of its code: the same in every run, whatever else the machine does.

As the loop's clock, it shows deterministically where work is not divided: code that does not read the clock for long is
one long piece. Compiled code executes no lines, so no time passes in it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache
from types import FrameType, TracebackType
from typing import Any

LINE_NS = 5_000  # slow on purpose: a hundred lines use up a share, so a few dozen queues are many


class WorkMeter:
    """A meter of work. It counts inside its context. `ns` is the clock."""

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
        """Return a tracer that counts only the lines of the server. It is short, because it runs at every line."""

        def of_call(frame: FrameType, event: str, arg: object) -> Any:
            return of_line if _is_servers(frame.f_code.co_filename) else None

        def of_line(frame: FrameType, event: str, arg: object) -> Any:
            if event == "line":
                self.lines += 1
            return of_line

        return of_call


@cache
def _is_servers(file: str) -> bool:
    """Tell whether `file` counts. Libraries do not, nor modules loaded on first use, because only the first request
    loads them.
    """
    parts = file.rpartition("/staniel/")
    return bool(parts[1]) and not parts[2].startswith("sim/")
