"""Figures as text.  Knows columns and rounding; refuses to compute anything."""

from __future__ import annotations

from collections.abc import Sequence

from staniel.bench.harness.figures import Row, Side, Spread, Versus
from staniel.bench.harness.machine import Machine
from staniel.bench.peers.workloads import Sync, Workload

_NONE = "-"


def render(rows: Sequence[Row], peers: Sequence[str]) -> str:
    """The table: a line a workload; a peer's columns are its k/s and ours/peer with its least and greatest round."""
    head = ["workload", "ours k/s", "p50/p99/p99.9 ms"]
    for name in peers:
        head += [f"{name} k/s", f"ours/{name}"]
    return _aligned([head, *(_cells(row, peers) for row in rows)])


def _cells(row: Row, peers: Sequence[str]) -> list[str]:
    cells = [row.workload, _kops(row.ours), _latency(row.ours)]
    by_name = {versus.peer.name: versus for versus in row.peers}
    for name in peers:
        cells += _versus(by_name.get(name))
    return cells


def _versus(versus: Versus | None) -> list[str]:
    return [_NONE, _NONE] if versus is None else [_kops(versus.peer), ratio(versus.ratio)]


def _kops(side: Side | None) -> str:
    return _NONE if side is None else f"{side.kops.median:.1f}"


def _latency(side: Side | None) -> str:
    return _NONE if side is None else f"{side.p50_ms:.2f}/{side.p99_ms:.2f}/{side.p999_ms:.2f}"


def ratio(spread: Spread | None) -> str:
    """`0.95 (0.90..1.10)`, or `-`."""
    return _NONE if spread is None else f"{spread.median:.2f} ({spread.low:.2f}..{spread.high:.2f})"


def _aligned(lines: Sequence[Sequence[str]]) -> str:
    """Columns two blanks apart; the first to the left, the others to the right."""
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
