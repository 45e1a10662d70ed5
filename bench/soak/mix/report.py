"""The report of a run: Markdown, and a chart of each server."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from statistics import median

from staniel.bench.harness.chart import Line, Panel, Span, over_time
from staniel.bench.harness.machine import Machine
from staniel.bench.soak.mix.stage import PROTOCOLS
from staniel.bench.soak.mix.verdict import FILES_GROWTH_MAX, RESTS_MIN, RSS_GROWTH_MAX, Latency, Life, Seen

POINTS_MAX = 360  # of a line in a chart
KINDS = ("put in ", "opened in ", "confirmed in ", "taken in ", "connections in ")


def markdown(seen: Sequence[Seen], machine: Machine, seconds: float, seed: int, version: str) -> str:
    """Return the report of all servers, one after the other."""
    wrong = sum(len(server.all_wrong) for server in seen)
    verdict = f"FAILED, {wrong} wrong" if wrong else "passed"
    lines = [
        f"{seconds / 3600:.3g} hours, seed {seed}, {machine.date}: **{verdict}**.",
        "",
        f"{version}; {machine.python}, Linux {machine.kernel}, {machine.cores} cores ({machine.cpu}).",
    ]
    for server in seen:
        lines += [
            "",
            f"### {server.name}",
            "",
            *_table(server),
            "",
            *_counts(server),
            "",
            f"![{server.name}](soak-{server.name}.svg)",
        ]
        lines += [f"\nLeft out: {text}." for text in server.left_out]
        lines += [f"\nWRONG: {text}" for text in server.all_wrong]
    return "\n".join(lines) + "\n"


def _table(seen: Seen) -> Iterable[str]:
    yield "| | first, last third after the warm-up | allowed |"
    yield "|---|---|---|"
    for life in seen.lives:
        if life.rests:
            yield from _life(life)
    heard = _heard(seen.latencies)
    if heard:
        p50_ms, p99_ms = median(times.put_p50_ms for times in heard), median(times.put_p99_ms for times in heard)
        yield f"| puts: median of the intervals' p50 and p99 | {p50_ms:.1f} ms, {p99_ms:.1f} ms | |"
    if seen.starts_s:
        longest_s, usual_s = max(seen.starts_s), median(seen.starts_s)
        yield f"| {len(seen.starts_s)} starts to the greeting: median, longest | {usual_s:.2f} s, {longest_s:.2f} s | |"


def _life(life: Life) -> Iterable[str]:
    name = f"{life.name}, {(life.end_s - life.start_s) / 60:.1f} minutes, {len(life.rests)} rests"
    if not life.is_judged:
        yield f"| {name} | not judged: fewer than {RESTS_MIN} rests | |"
        return
    drift = life.drift
    yield f"| {name}: memory | {drift.rss_growth:+.2%} of {drift.rss_kb / 1024:.1f} MB | {RSS_GROWTH_MAX:+.0%} |"
    yield f"| descriptors | {drift.files:+.0f} | ±{FILES_GROWTH_MAX} |"
    yield f"| blocks on the disk | {drift.disk_kb:+,.0f} KB | |"


def _counts(seen: Seen) -> Iterable[str]:
    yield "| | memcache | text | thrift | workq |"
    yield "|---|---|---|---|---|"
    for prefix in KINDS:
        found = (f"{seen.counts[prefix + protocol]:,}" for protocol in PROTOCOLS)
        yield f"| {prefix.removesuffix(' in ')} | " + " | ".join(found) + " |"
    secure = (f"{seen.counts[f'connections in {protocol} under TLS']:,}" for protocol in PROTOCOLS)
    yield "| connections under TLS | " + " | ".join(secure) + " |"
    yield ""
    rest = sorted(name for name in seen.counts if not name.startswith(KINDS))
    yield "Besides: " + ", ".join(f"{name}: {seen.counts[name]:,}" for name in rest) + "."


def chart(seen: Seen) -> str:
    """Draw memory, descriptors, disk and latency over minutes, as SVG."""
    figures, latencies = seen.figures, seen.latencies
    rests = [rest for life in seen.lives for rest in life.rests]
    panels = [
        Panel("MB of memory", [
            Line("under load", _thin([(sample.at_s / 60, sample.rss_kb / 1024) for sample in figures])),
            Line("at rest", [(rest.at_s / 60, rest.rss_kb / 1024) for rest in rests]),
        ]),
        Panel("descriptors", [
            Line("under load", _thin([(sample.at_s / 60, float(sample.files)) for sample in figures])),
            Line("at rest", [(rest.at_s / 60, float(rest.files)) for rest in rests]),
        ]),
        Panel("MB on disk", [
            Line("under load", _thin([(sample.at_s / 60, sample.disk_kb / 1024) for sample in figures])),
        ]),
        Panel("ms, puts", _times(latencies, lambda latency: (latency.put_p50_ms, latency.put_p99_ms))),
        Panel("ms, closes", _times(latencies, lambda latency: (latency.close_p50_ms, latency.close_p99_ms))),
    ]  # fmt: skip
    panels = [Panel(panel.unit, [line for line in panel.lines if line.points]) for panel in panels]
    return over_time(f"Soak: {seen.name}", panels, _spans(seen), "minutes")


def _times(latencies: Sequence[Latency], of: Callable[[Latency], tuple[float, float]]) -> list[Line]:
    """Return the lines of valid latencies; the higher one first, so that both are visible."""
    both = [(latency.at_s / 60, *of(latency)) for latency in latencies if not math.isnan(of(latency)[0])]
    p99 = Line("p99", _thin([(at, p99_ms) for at, _, p99_ms in both]))
    return [p99, Line("p50", _thin([(at, p50_ms) for at, p50_ms, _ in both]))]


def _heard(latencies: Sequence[Latency]) -> list[Latency]:
    return [latency for latency in latencies if not math.isnan(latency.put_p50_ms)]


def _thin(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return the highest of each few neighbours, so that no peak is missing."""
    step = max(1, math.ceil(len(points) / POINTS_MAX))
    return [max(points[at : at + step], key=lambda point: point[1]) for at in range(0, len(points), step)]


def _spans(seen: Seen) -> list[Span]:
    """Return the spans of lives; consecutive lives that end in deaths are one span."""
    spans: list[Span] = []
    for life in seen.lives:
        end = life.end_s or (seen.figures[-1].at_s if seen.figures else life.start_s)
        if spans and spans[-1].name == life.name:
            spans[-1] = Span(life.name, spans[-1].start, end / 60)
        elif life.rests or life.name == "deaths":
            spans.append(Span(life.name, life.start_s / 60, end / 60))
    return spans
