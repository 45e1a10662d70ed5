"""How much work the server does, in lines of its code: the same in every run, whatever else the machine does.

Handed in as the loop's clock, it tells deterministically where work is not divided: what runs on without a look at
the clock is one long piece. Compiled code executes no lines; then no time passes.
"""

from __future__ import annotations

import sys
from functools import cache
from types import FrameType, TracebackType
from typing import Any

LINE_NS = 5_000  # slow on purpose: a hundred lines are a share, so a few dozens of queues are many


class WorkMeter:
    """Counts while it is entered. `ns` is the clock."""

    def __init__(self) -> None:
        self.lines = 0
        self._before: Any = None

    def ns(self) -> int:
        return self.lines * LINE_NS

    def __enter__(self) -> WorkMeter:
        self._before = sys.gettrace()
        sys.settrace(self._trace)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        sys.settrace(self._before)

    def _trace(self, frame: FrameType, event: str, arg: object) -> Any:
        """Count the lines of the server: the world around it costs nothing."""
        if event == "line":
            self.lines += 1
        elif event == "call" and not _is_servers(frame.f_code.co_filename):
            return None
        return self._trace


@cache
def _is_servers(file: str) -> bool:
    """Libraries and what is loaded when it is first needed cost nothing, because only the first request pays for it."""
    parts = file.rpartition("/staniel/")
    return bool(parts[1]) and not parts[2].startswith("sim/")
