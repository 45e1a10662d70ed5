"""Histograms of durations for Prometheus: the measured durations and the bounds of their buckets.

All syncs are counted. Requests and items are sampled, at most one every SAMPLE_NS, so that the others cost nothing.
"""

from __future__ import annotations

from bisect import bisect_left

SAMPLE_NS = 10_000_000
REQUEST_BOUNDS_S = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10)
"""Bounds from a reply out of memory to a failing disk."""
REST_BOUNDS_S = (0.001, 0.01, 0.1, 1, 5, 15, 60, 300, 900, 3_600, 21_600, 86_400, 604_800)
"""Bounds from an item that a client waits for to an item that has waited for a week."""


class Histogram:
    """Counts of values by size. `bounds_s`: the largest value of each bucket, in seconds. `counts` has one more bucket,
    for larger values. `sum_ns` is in nanoseconds.
    """

    __slots__ = ("_bounds_ns", "bounds_s", "counts", "sum_ns")

    def __init__(self, bounds_s: tuple[float, ...]) -> None:
        self.bounds_s = bounds_s
        self._bounds_ns = [round(bound * 1e9) for bound in bounds_s]
        self.counts = [0] * (len(bounds_s) + 1)
        self.sum_ns = 0

    def add(self, value_ns: int) -> None:
        self.counts[bisect_left(self._bounds_ns, value_ns)] += 1
        self.sum_ns += value_ns


class Latencies:
    """The server's histograms. `puts`, `gets`: from reading a request's last byte to passing its reply to the socket,
    for replies without a wait. `deliveries`: to a waiting client, from the beginning of the turn in which the item
    came. `syncs`: syncs of the disk. `rests`: how long an item was in the server before a get took or opened it.
    """

    __slots__ = ("deliveries", "gets", "puts", "rests", "syncs")

    def __init__(self) -> None:
        self.puts = Histogram(REQUEST_BOUNDS_S)
        self.gets = Histogram(REQUEST_BOUNDS_S)
        self.deliveries = Histogram(REQUEST_BOUNDS_S)
        self.syncs = Histogram(REQUEST_BOUNDS_S)
        self.rests = Histogram(REST_BOUNDS_S)

    def add_rest(self, added_ms: int, now_ms: int) -> None:
        """Count how long a leaving item was in the server. `added_ms` 0: unknown."""
        if added_ms:
            self.rests.add(max(0, now_ms - added_ms) * 1_000_000)
