"""The figures of runs, and their text: medians, ratios, spreads, and the printed table.

A ratio is taken within a round, between two runs at most minutes apart, and the median is taken over those ratios. The
ratio of two medians would compare moments at which the machine ran at different speeds.
"""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from msgspec import Struct

from staniel.bench.harness.contestant import Sync
from staniel.bench.harness.machine import Machine
from staniel.bench.peers.generator import Latency, Report
from staniel.bench.peers.rounds import Run
from staniel.bench.peers.servers import OURS
from staniel.bench.peers.workloads import Workload


class Spread(Struct, frozen=True):
    """A median with the least and the greatest of its values."""

    median: float
    low: float
    high: float


class Side(Struct, frozen=True):
    """A contestant in one workload: thousands of operations a second, latency in ms, share of a core."""

    name: str
    kops: Spread
    p50_ms: float
    p99_ms: float
    p999_ms: float
    server_cpu: float


class Versus(Struct, frozen=True):
    """A peer, and ours divided by it (None if ours or the peer has no whole round)."""

    peer: Side
    ratio: Spread | None


class Row(Struct, frozen=True):
    workload: str
    ours: Side | None
    peers: tuple[Versus, ...]


def spread(values: Sequence[float]) -> Spread:
    return Spread(median(values), min(values), max(values))


def rows(runs: Sequence[Run], workloads: Sequence[str], peers: Sequence[str]) -> list[Row]:
    """Return a row for each measured workload, in the given order."""
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
    """Return ours / peer, round by round, over the rounds that both finished."""
    shared = [speed(ours[number]) / speed(peer[number]) for number in ours if number in peer]
    return spread(shared) if shared else None


def speed(report: Report) -> float:
    """Return operations a second. If the load sets those, return one over the p50. In both cases above 1 means that
    ours is faster.
    """
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
    """Return the latency of the row: of the puts, of the gets, or in a flood from the send of the put to the receipt of
    the item.
    """
    chosen = {"put": report.put_us, "get": report.get_us, "pingpong": report.get_us}.get(report.mode, report.e2e_us)
    assert chosen is not None, f"a {report.mode} run without a latency"
    return chosen


# figures as text

_NONE = "-"


def render(rows: Sequence[Row], peers: Sequence[str]) -> str:
    """Return the table: a line for each workload; a peer's columns are its k/s and ours/peer with its least and
    greatest round.
    """
    head = ["workload", "ours k/s", "p50/p99/p99.9 ms"]
    for name in peers:
        head += [f"{name} k/s", f"ours/{name}"]
    return _aligned([head, *(_cells(row, peers) for row in rows)])


def _cells(row: Row, peers: Sequence[str]) -> list[str]:
    cells = [row.workload, _kops(row.ours), _percentiles(row.ours)]
    by_name = {versus.peer.name: versus for versus in row.peers}
    for name in peers:
        cells += _versus(by_name.get(name))
    return cells


def _versus(versus: Versus | None) -> list[str]:
    return [_NONE, _NONE] if versus is None else [_kops(versus.peer), shown_ratio(versus.ratio)]


def _kops(side: Side | None) -> str:
    return _NONE if side is None else f"{side.kops.median:.1f}"


def _percentiles(side: Side | None) -> str:
    return _NONE if side is None else f"{side.p50_ms:.2f}/{side.p99_ms:.2f}/{side.p999_ms:.2f}"


def shown_ratio(spread: Spread | None) -> str:
    """Return `0.95 (0.90..1.10)`, or `-`."""
    return _NONE if spread is None else f"{spread.median:.2f} ({spread.low:.2f}..{spread.high:.2f})"


def _aligned(lines: Sequence[Sequence[str]]) -> str:
    """Return lines with columns two blanks apart; the first aligned left, the others right."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(
            cell.rjust(width) if at else cell.ljust(width)
            for at, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        for line in lines
    )


def facts(machine: Machine) -> str:
    versions = "".join(f"\n  {name}: {text}" for name, text in machine.versions.items())
    return (
        f"{machine.date}  {machine.cpu}, {machine.cores} cores, Linux {machine.kernel}, {machine.python}\n"
        f"{machine.folder} on {machine.file_system}, load average {machine.load_average_1m}{versions}"
    )


def workload_list(workloads: Sequence[Workload]) -> str:
    head = ["name", "mode", "conns", "in flight", "bytes", "queues", "ops", "before an answer", "against"]
    return _aligned([head, *(_listed(one) for one in workloads)])


def _listed(one: Workload) -> list[str]:
    numbers = [one.conns, one.pipeline, one.size_bytes, one.queues, one.ops]
    promise = "fsync" if one.sync is Sync.DURABLE else "write"
    extra = "".join(
        f" {word}" for word, on in (("wait", one.wait), ("reliable", one.reliable), (f"{one.rate}/s", one.rate)) if on
    )
    return [one.name, one.mode.value + extra, *map(str, numbers), promise, " ".join(one.peers)]
