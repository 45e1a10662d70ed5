"""The wait for a journal that the system refuses to open again. Its file was closed to make room for others, its
changes must be written, and replies may depend on them. No client is served while the server tries.
"""

from __future__ import annotations

from collections.abc import Callable

from staniel.broker.events import EventSink, Level
from staniel.journal.disk.refusals import described, remedy

PAUSE_MS = 100
TRIES_MAX = 100  # 10 s: then the process ends, and the next start serves all other queues


class ReopenWait:
    """The hook `OpenFiles.wait` of a server."""

    def __init__(self, report: EventSink, pause: Callable[[float], None]) -> None:
        self._report = report
        self._pause = pause

    def __call__(self, path: str, error: OSError, tries: int) -> bool:
        """Wait, and tell the operator once why. Returns False after the last try."""
        if tries == TRIES_MAX:
            return False
        if not tries:
            todo = remedy(error, "make it possible to open it").removesuffix(", then start again")
            hint = f"all replies wait until it can be opened, {TRIES_MAX * PAUSE_MS // 1000} s at most; {todo}"
            self._report(Level.ERROR, "journal.unopened", file=path, why=described(error, path), hint=hint)
        self._pause(PAUSE_MS / 1000)
        return True
