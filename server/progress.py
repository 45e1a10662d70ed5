"""The progress of a recovery, as a changing line on a terminal and regular lines in the log; and that of tools."""

from __future__ import annotations

from collections.abc import Callable
from typing import TextIO

from staniel.broker.events import EventSink, Level
from staniel.broker.recovery import RecoveryProgress

LINE_EVERY_MS = 100
LOG_EVERY_MS = 5000
TOOL_QUIET_MS = 1000  # a tool that ends within this time shows nothing
CLEAR = "\r\x1b[K"


class TerminalLine:
    """A changing line on a terminal; nothing is shown on other streams. `out` None: closed."""

    def __init__(self, out: TextIO | None) -> None:
        self._out = out if out is not None and out.isatty() else None
        self._has_text = False

    @property
    def is_terminal(self) -> bool:
        return self._out is not None

    def show(self, text: str) -> None:
        self._write(f"{CLEAR}{text}")
        self._has_text = True

    def clear(self) -> None:
        """Clear the line, before other output."""
        if self._has_text:
            self._write(CLEAR)
            self._has_text = False

    def _write(self, text: str) -> None:
        if self._out is not None:
            try:
                self._out.write(text)
                self._out.flush()
            except OSError:
                self._out = None  # the terminal is gone


def megabytes(size: int) -> int:
    return round(size / 1e6)


class Display:
    """A progress callback for recovery. A start that ends before LINE_EVERY_MS shows nothing. `out` None: closed."""

    def __init__(self, report: EventSink, steady_ms: Callable[[], int], out: TextIO | None) -> None:
        self._report = report
        self._steady_ms = steady_ms
        self._line = TerminalLine(out)
        self._began_ms = steady_ms()
        self._line_ms = self._began_ms + LINE_EVERY_MS
        self._log_ms = self._began_ms + LOG_EVERY_MS

    def __call__(self, progress: RecoveryProgress) -> None:
        now_ms = self._steady_ms()
        if now_ms >= self._log_ms:
            self._log_ms = now_ms + LOG_EVERY_MS
            self._log(progress, now_ms)
        if self._line.is_terminal and now_ms >= self._line_ms:
            self._line_ms = now_ms + LINE_EVERY_MS
            self._line.show(self._text(progress, now_ms))
        if progress.queues == progress.all_queues:
            self._line.clear()

    def _log(self, progress: RecoveryProgress, now_ms: int) -> None:
        self._line.clear()
        self._report(
            Level.INFO,
            "recovery.progress",
            done_mb=megabytes(progress.bytes),
            all_mb=megabytes(progress.all_bytes),
            queues=progress.queues,
            all_queues=progress.all_queues,
            mb_a_second=self._speed(progress, now_ms),
        )

    def _text(self, progress: RecoveryProgress, now_ms: int) -> str:
        share = 100 * progress.bytes // max(1, progress.all_bytes)
        done = f"{megabytes(progress.bytes)} of {megabytes(progress.all_bytes)} MB"
        queues = f"{progress.queues} of {progress.all_queues} queues"
        return f"recovering: {share} %, {done}, {queues}, {self._speed(progress, now_ms)} MB/s"

    def _speed(self, progress: RecoveryProgress, now_ms: int) -> int:
        return megabytes(progress.bytes * 1000 // max(1, now_ms - self._began_ms))


class Ticker:
    """The progress of a tool, only on a terminal's standard error: a changing line, from the first second on. `out`
    None: closed. `all_bytes` 0: the total is unknown.
    """

    def __init__(self, what: str, steady_ms: Callable[[], int], out: TextIO | None, all_bytes: int = 0) -> None:
        self._what = what
        self._of = f" of {megabytes(all_bytes)}" if all_bytes else ""
        self._steady_ms = steady_ms
        self._line = TerminalLine(out)
        self._next_ms = steady_ms() + TOOL_QUIET_MS
        self._bytes = 0

    def __call__(self, more_bytes: int) -> None:
        self._bytes += more_bytes
        if not self._line.is_terminal or (now_ms := self._steady_ms()) < self._next_ms:
            return
        self._next_ms = now_ms + LINE_EVERY_MS
        self._line.show(f"{self._what}: {megabytes(self._bytes)}{self._of} MB")

    def clear(self) -> None:
        """Clear the line, before other output."""
        self._line.clear()
