"""Made-up figures of a fleet, as `gather` would find them, without a Spark.

python -m tests.pipeline.fleets FOLDER [HOSTS QUEUES]       # writes FOLDER/report.html
"""

from __future__ import annotations

import math
import random
import sys
from datetime import UTC, datetime
from pathlib import Path

from staniel.pipeline.report.figures import Count, ReportFigures, ReportRow, leading_rows, lines_of
from staniel.pipeline.report.page import write

STEP_S, STEPS = 432.0, 200
FIRST = int(1_774_000_000 / STEP_S)


def counts_of(chance: random.Random, busy: float, begin: int, end: int) -> list[Count]:
    counts = []
    for step in range(begin, end):
        wave = busy * (1 + math.sin(2 * math.pi * step / STEPS))
        added = max(0, round(chance.gauss(wave, wave / 5)))
        if added:
            counts.append((FIRST + step, added, round(added * chance.uniform(0.8, 1.1))))
    return counts or [(FIRST + begin, 1, 0)]


def row_of(chance: random.Random, name: str, counts: list[Count]) -> ReportRow:
    added = sum(count[1] for count in counts)
    removed = min(added, sum(count[2] or 0 for count in counts))
    wait_s = chance.lognormvariate(1, 1)
    sizes = sorted(round(chance.lognormvariate(6, 1)) for _ in range(3))
    return ReportRow(
        name, added * 300, added, removed, added - removed, 3, added // 50, *sizes, 40.0, 4000.0, wait_s, 9 * wait_s,
        added // 900,
    )  # fmt: skip


def fleet(hosts: list[str], queues: list[str], seed: int = 1, steps: dict[str, int] | None = None) -> ReportFigures:
    """A report of these hosts; [""] is one spool. `steps`: how far a host's journals reach, instead of to the end."""
    chance = random.Random(seed)
    counts: dict[str, list[Count]] = {}
    for host in hosts:
        for at, queue in enumerate(queues):
            end = (steps or {}).get(host, STEPS)
            begin = chance.randrange(0, end // 2)
            counts[f"{host}/{queue}" if host else queue] = counts_of(chance, 3000 / (1 + at), begin, end)
    rows = [row_of(chance, name, series) for name, series in counts.items()]
    rows.sort(key=lambda row: row.added, reverse=True)
    leading = [row.queue for row in leading_rows(rows)]
    series = lines_of(counts, leading, FIRST, hosts != [""])
    begin, end = (datetime.fromtimestamp((FIRST + step) * STEP_S, UTC) for step in (0, STEPS))
    powers = {power: 1 << (12 - abs(power - 6)) for power in range(3, 14)}
    times = begin, end, STEP_S, FIRST, STEPS
    path = "/data/{host}/spool" if hosts != [""] else "/var/lib/staniel"
    return ReportFigures(
        path, "kestrel", *times, rows, counts, series, powers, powers, {1: 90000, 2: 700, 3: 40}, powers,
        ("Records of removals carry no time.",),
    )  # fmt: skip


def main() -> None:
    hosts, queues = (int(word) for word in sys.argv[2:4] or ("200", "50"))
    names = [f"web{number:03d}.example.com" for number in range(hosts)]
    print(write(fleet(names, [f"queue-{number:02d}" for number in range(queues)]), Path(sys.argv[1])))


if __name__ == "__main__":
    main()
