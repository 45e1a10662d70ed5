"""Journals with failed work to try again, and the times of the retries. Each failure doubles a journal's delay."""

from __future__ import annotations

import heapq

from staniel.journal.kestrel.log import Log

RETRY_MS = 1000
RETRY_MAX_MS = 60_000
ENTRIES_SPARE = 64  # beyond two a journal; if there are more, entries of journals that do not wait any more are removed


class Retries:
    """Journals that wait for their next try. Finding those that are due costs the same for any number of journals."""

    def __init__(self) -> None:
        self._rests: dict[Log, tuple[int, int]] = {}  # of failed journals: the earliest next try, and the delay
        self._waiting: dict[Log, int] = {}  # when `pop_due` returns them
        self._heap: list[tuple[int, int, Log]] = []  # times of retries; one that differs from `_waiting` is outdated
        self._count = 0  # entries pushed so far: breaks ties, because journals cannot be compared

    def __len__(self) -> int:
        return len(self._waiting)

    def rests(self, log: Log, now_ms: int) -> bool:
        """Tell whether `log` must not be tried now, because it has just failed."""
        return now_ms < self._rests.get(log, (0, 0))[0]

    def fail(self, log: Log, now_ms: int) -> None:
        """Schedule another try of `log` after a failure, later than after the failure before."""
        rest_ms = min(RETRY_MAX_MS, 2 * self._rests.get(log, (0, RETRY_MS // 2))[1])
        self._rests[log] = now_ms + rest_ms, rest_ms
        self._wait(log, now_ms + rest_ms)

    def soon(self, log: Log) -> None:
        """Schedule a try of `log` as soon as there is time."""
        self._wait(log, 0)

    def drop(self, log: Log) -> None:
        """Forget `log` and its failures."""
        self._rests.pop(log, None)
        self._waiting.pop(log, None)

    def is_due(self, now_ms: int) -> bool:
        """Tell whether `pop_due` would return a journal."""
        heap = self._heap
        while heap and self._waiting.get(heap[0][2]) != heap[0][0]:
            heapq.heappop(heap)
        return bool(heap) and heap[0][0] <= now_ms

    def pop_due(self, now_ms: int, most: int) -> list[Log]:
        """Return at most `most` journals whose time has come, each once."""
        logs: list[Log] = []
        while len(logs) < most and self.is_due(now_ms):
            log = heapq.heappop(self._heap)[2]
            del self._waiting[log]
            logs.append(log)
        return logs

    def _wait(self, log: Log, moment_ms: int) -> None:
        self._waiting[log] = moment_ms
        self._count += 1
        heapq.heappush(self._heap, (moment_ms, self._count, log))
        if len(self._heap) > 2 * len(self._waiting) + ENTRIES_SPARE:
            self._heap = [(moment_ms, at, log) for at, (log, moment_ms) in enumerate(self._waiting.items())]
            heapq.heapify(self._heap)
