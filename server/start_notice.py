"""The progress of a start, for commands and the supervisor. A server that recovers its spool serves no clients yet, so
it writes its progress behind its name in the spool's lock file, which only the holder of the lock writes. It begins as
soon as it holds the lock, because on a slow disk the syncs before recovery take seconds.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

from msgspec import Struct

from staniel.journal.disk.os_fs import CloseGone, OsFs, to_native

if TYPE_CHECKING:
    from staniel.broker.recovery import RecoveryProgress  # commands read what it is, and recover nothing

WRITE_EVERY_MS = 500
LINE_BYTES = 160
LOCK_BYTES_MAX = 1000  # the file: its holder, and this line
REMAINING_AFTER_MS = 1000  # before that the speed is not meaningful


class StartState(Struct, frozen=True):
    """The progress of a start. Bytes are those of journal files; all 0 before the first file. `elapsed_ms` counts from
    the first read.
    """

    bytes: int
    all_bytes: int
    queues: int
    all_queues: int
    elapsed_ms: int

    @property
    def text(self) -> str:
        """The progress as `40 % of 12,345 MB read, 3 of 10 queues, about 25 s left`; "" while nothing is known."""
        if not self.all_queues:
            return ""
        percent = 100 * self.bytes // max(1, self.all_bytes)
        text = f"{percent} % of {round(self.all_bytes / 1e6):,} MB read, {self.queues} of {self.all_queues} queues"
        if self.queues >= self.all_queues:
            return f"{text}, the last steps are under way"
        if self.elapsed_ms < REMAINING_AFTER_MS or not self.bytes:
            return text
        left_s = (self.all_bytes - self.bytes) * self.elapsed_ms // self.bytes // 1000
        return f"{text}, about {_duration(max(1, left_s))} left"


class StartNotice:
    """A progress callback for recovery. `notify` gets each text."""

    def __init__(self, steady_ms: Callable[[], int], notify: Callable[[str], None]) -> None:
        self._steady_ms = steady_ms
        self._notify = notify
        self._began_ms = self._next_ms = 0
        self._fd = -1
        self._at = 0

    def announce_start(self, lock_path: str) -> None:
        """Say that the server starts. `lock_path` is the lock file, held by this process."""
        try:
            self._fd = os.open(to_native(lock_path), os.O_WRONLY | os.O_CLOEXEC)
            self._at = os.fstat(self._fd).st_size
        except OSError:
            pass  # commands are told that the server does not listen
        self.read_from_now_on()
        self._show(StartState(0, 0, 0, 0, 0))

    def read_from_now_on(self) -> None:
        """Count the time from now on, in which recovery reads."""
        self._began_ms = self._next_ms = self._steady_ms()

    def __call__(self, progress: RecoveryProgress) -> None:
        now_ms = self._steady_ms()
        if now_ms < self._next_ms and progress.queues < progress.all_queues:
            return
        self._next_ms = now_ms + WRITE_EVERY_MS
        elapsed_ms = now_ms - self._began_ms
        self._show(StartState(progress.bytes, progress.all_bytes, progress.queues, progress.all_queues, elapsed_ms))

    def _show(self, state: StartState) -> None:
        self._notify(f"starting: {state.text}" if state.text else "starting")
        line = str([state.bytes, state.all_bytes, state.queues, state.all_queues, state.elapsed_ms])
        self._write(line.encode().ljust(LINE_BYTES) + b"\n")

    def _write(self, line: bytes) -> None:
        if self._fd < 0:
            return
        try:
            os.pwrite(self._fd, line, self._at)
        except OSError:
            self.end()  # a start does not depend on it

    def end(self) -> None:
        """Erase the progress: the server serves, and its lock file only names it."""
        if self._fd < 0:
            return
        try:
            os.pwrite(self._fd, b" " * LINE_BYTES + b"\n", self._at)
        except OSError:
            pass
        os.close(self._fd)
        self._fd = -1


class StartFs(OsFs):
    """The disk of a server, which begins its notice once it holds the lock of its spool."""

    def __init__(self, close_gone: CloseGone, notice: StartNotice, lock_name: str) -> None:
        super().__init__(close_gone)
        self._notice = notice
        self._lock_name = lock_name

    def lock(self, path: str) -> None:
        super().lock(path)
        if path.endswith(self._lock_name):
            self._notice.announce_start(path)


def read_lock(data: bytes) -> tuple[str, StartState | None]:
    """Return (the holder of a lock file with this content, the progress of its start; None if it does not start)."""
    holder, _, line = data.decode("utf-8", "replace").partition("\n")
    if not line.strip():
        return holder.strip(), None
    try:
        numbers = [int(number) for number in line.strip().strip("[]").split(",")]
        return holder.strip(), StartState(*numbers[:5])
    except (ValueError, TypeError):  # read while it was written
        return holder.strip(), StartState(0, 0, 0, 0, 0)


def _duration(seconds: int) -> str:
    if seconds < 120:
        return f"{seconds} s"
    return f"{seconds // 60} min" if seconds < 7200 else f"{seconds // 3600} h {seconds % 3600 // 60} min"
