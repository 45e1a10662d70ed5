"""The observations of a run, and their verdict: items and jobs, memory and descriptors."""

from __future__ import annotations

from collections import Counter
from statistics import median

from msgspec import Struct, field

from staniel.bench.soak.mix.stage import Figures

RSS_GROWTH_MAX = 0.01
FILES_GROWTH_MAX = 2
WARM_UP_SHARE = 0.3  # of the rests of a life: caches and the allocator's pools fill
RESTS_MIN = 9  # of a life: three in each of the two compared parts, after the warm-up


class Life(Struct):
    """A life from a start to a death; `rests` has its figures without clients and items."""

    name: str
    start_s: float
    end_s: float = 0.0
    rests: list[Figures] = field(default_factory=list)

    @property
    def is_judged(self) -> bool:
        return len(self.rests) >= RESTS_MIN

    @property
    def drift(self) -> Drift:
        """The growth between the first and the last third of the rests after the warm-up."""
        warm = self.rests[int(len(self.rests) * WARM_UP_SHARE) :]
        part = max(1, len(warm) // 3)
        first, last = warm[:part], warm[-part:]
        rss_kb = [median(rest.rss_kb for rest in some) for some in (first, last)]
        files = [median(rest.files for rest in some) for some in (first, last)]
        disk_kb = [median(rest.disk_kb for rest in some) for some in (first, last)]
        return Drift(rss_kb[0], rss_kb[1] / rss_kb[0] - 1, files[1] - files[0], disk_kb[1] - disk_kb[0])


class Drift(Struct, frozen=True):
    """The growth within a life. A server that frees memory has not drifted."""

    rss_kb: float
    rss_growth: float
    files: float
    disk_kb: float

    def text(self) -> str:
        return f"memory {self.rss_growth:+.2%} of {self.rss_kb / 1024:.1f} MB, descriptors {self.files:+.0f}"

    @property
    def wrong(self) -> list[str]:
        found = []
        if self.rss_growth > RSS_GROWTH_MAX:
            found.append(f"memory grew by {self.rss_growth:.2%}, more than {RSS_GROWTH_MAX:.0%}")
        if abs(self.files) > FILES_GROWTH_MAX:
            found.append(f"descriptors: {self.files:+.0f}, more than {FILES_GROWTH_MAX}")
        return found


class Latency(Struct, frozen=True):
    """The latencies of the replies in an interval that ended at `at_s`; nan without replies."""

    at_s: float
    put_p50_ms: float
    put_p99_ms: float
    close_p50_ms: float
    close_p99_ms: float
    answers: int


class Seen(Struct):
    """The observations of one server's run."""

    name: str
    lives: list[Life] = field(default_factory=list)
    figures: list[Figures] = field(default_factory=list)
    latencies: list[Latency] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    starts_s: list[float] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    @property
    def judged(self) -> list[Life]:
        return [life for life in self.lives if life.is_judged]

    @property
    def all_wrong(self) -> list[str]:
        """The list of everything wrong, including missing tests: a run without a protocol has not tested it."""
        drifted = [f"{life.name}: {text}" for life in self.judged for text in life.drift.wrong]
        wanted = [f"put in {name}" for name in ("memcache", "text", "thrift", "workq")]
        idle = [f"nothing was {name}" for name in wanted if not self.counts[name]]
        return [*self.wrong, *drifted, *idle]
