"""From runs to figures: medians, ratios, spreads.  Pure arithmetic; refuses to know how they are measured or shown.

A ratio is taken within a round, between two runs that were minutes at most apart, and the median is taken over those
ratios.  The ratio of two medians would compare moments at which the machine ran at different speeds.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from msgspec import Struct

from staniel.bench.peers.generator import Latency, Report
from staniel.bench.peers.rounds import Run
from staniel.bench.peers.servers import OURS


class Spread(Struct, frozen=True):
    """A median with the least and the greatest of what it stands for."""

    median: float
    low: float
    high: float


class Side(Struct, frozen=True):
    """One contestant in one workload: thousands of operations a second, latency in ms, share of a core."""

    name: str
    kops: Spread
    p50_ms: float
    p99_ms: float
    p999_ms: float
    server_cpu: float


class Versus(Struct, frozen=True):
    """A peer, and ours divided by it (None where ours or the peer has no whole round)."""

    peer: Side
    ratio: Spread | None


class Row(Struct, frozen=True):
    workload: str
    ours: Side | None
    peers: tuple[Versus, ...]


def spread(values: Sequence[float]) -> Spread:
    return Spread(median(values), min(values), max(values))


def rows(runs: Sequence[Run], workloads: Sequence[str], peers: Sequence[str]) -> list[Row]:
    """A row for each workload of which anything was measured, in the order given."""
    made = (_row(name, [run for run in runs if run.workload == name], peers) for name in workloads)
    return [row for row in made if row.ours or row.peers]


def _row(workload: str, runs: Sequence[Run], peers: Sequence[str]) -> Row:
    by_name = {name: _reports(runs, name) for name in (OURS, *peers)}
    mine = by_name[OURS]
    versus = (
        Versus(side(name, [*by_name[name].values()]), ratio(mine, by_name[name])) for name in peers if by_name[name]
    )
    return Row(workload, side(OURS, [*mine.values()]) if mine else None, tuple(versus))


def _reports(runs: Sequence[Run], name: str) -> dict[int, Report]:
    return {run.round: run.report for run in runs if run.contestant == name and run.report is not None}


def ratio(ours: dict[int, Report], peer: dict[int, Report]) -> Spread | None:
    """Ours / peer, round by round, over the rounds that both finished."""
    shared = [speed(ours[number]) / speed(peer[number]) for number in ours if number in peer]
    return spread(shared) if shared else None


def speed(report: Report) -> float:
    """Operations a second; where the load sets those, one over the p50: above 1 ours is faster, as everywhere."""
    return 1 / latency(report).p50 if report.mode == "pingpong" else report.ops_per_s


def side(name: str, reports: Sequence[Report]) -> Side:
    delays = [latency(report) for report in reports]
    return Side(
        name=name,
        kops=spread([report.ops_per_s / 1000 for report in reports]),
        p50_ms=median(delay.p50 for delay in delays) / 1000,
        p99_ms=median(delay.p99 for delay in delays) / 1000,
        p999_ms=median(delay.p999 for delay in delays) / 1000,
        server_cpu=median(report.server_cpu for report in reports),
    )


def latency(report: Report) -> Latency:
    """The latency that the row is about: of the puts, of the gets, or in a flood from put sent to item received."""
    chosen = {"put": report.put_us, "get": report.get_us, "pingpong": report.get_us}.get(report.mode, report.e2e_us)
    assert chosen is not None, f"a {report.mode} run without a latency"
    return chosen
