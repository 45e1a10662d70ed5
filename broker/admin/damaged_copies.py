"""The copies in `.staniel/damaged`: bytes that recovery could not read and has cut off. Nothing reads them, and only an
operator removes them (`staniel journal damaged`).
"""

from __future__ import annotations

from staniel.journal.disk.fs import Fs
from staniel.queues.calendar import Calendar

LOOK_AT_ONCE = 1000  # names listed at each look; a folder with more is listed every REST_MS
REST_MS = 300_000
OLD_MS = 7 * 24 * 3600 * 1000
LARGE_BYTES = 64 << 20
LARGE_PART = 100  # of the disk: a hundredth


class DamagedCopies:
    """The copies in the folder: their `count` and `bytes`, and the wall clock's time when the oldest was written
    (`oldest_ms`, 0: unknown). Each copy is measured once, because none changes.
    """

    def __init__(self, fs: Fs, folder: str, calendar: Calendar) -> None:
        self.bytes = self.oldest_ms = 0
        self.folder = folder
        self._fs = fs
        self._calendar = calendar
        self._known: dict[str, tuple[int, int]] = {}  # by name: size and time
        self._next_ms = 0

    @property
    def count(self) -> int:
        return len(self._known)

    def list_copies(self, now_ms: int) -> None:
        """List the copies. If the folder cannot be listed, the last result stays."""
        if now_ms < self._next_ms:
            return
        try:
            entries = self._fs.list(self.folder)
        except FileNotFoundError:
            entries = []
        except OSError:
            return
        known, self._known = self._known, {}
        for name, is_file in entries:
            measured = known.get(name) or self._measure(name, is_file)
            if measured is not None:
                self._known[name] = measured
        self.bytes = sum(size for size, _ in self._known.values())
        self.oldest_ms = min((at_ms for _, at_ms in self._known.values() if at_ms), default=0)
        self._next_ms = now_ms + REST_MS if len(entries) > LOOK_AT_ONCE else 0

    def age_ms(self, now_ms: int) -> int:
        """Return the age of the oldest copy, whatever the wall clock was set to since; 0 if unknown."""
        return max(0, now_ms - self._calendar.moment_ms(self.oldest_ms, now_ms)) if self.oldest_ms else 0

    def are_to_be_looked_at(self, now_ms: int, disk_bytes: int) -> bool:
        """Tell whether an operator should look at them: a copy is a week old, or all take 64 MB or a hundredth of the
        disk.
        """
        return self.age_ms(now_ms) >= OLD_MS or self.bytes > min(LARGE_BYTES, disk_bytes // LARGE_PART)

    def _measure(self, name: str, is_file: bool) -> tuple[int, int] | None:
        path = f"{self.folder}/{name}"
        try:
            return (self._fs.size(path) if is_file else 0), self._fs.modified_ms(path)
        except OSError:
            return None
