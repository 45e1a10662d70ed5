"""The table of kills of real Spark processes in kills.md, from the logs of tests/pipeline/test_kills.py and kills.py.

STANIEL_KILLS=long STANIEL_KILLS_LOG=/tmp/kills.log pytest tests/pipeline/test_kills.py
STANIEL_KILLS_LOG=/tmp/kills.log python -m tests.pipeline.kills --every 1
python -m tests.pipeline.kill_table /tmp/kills.log > tests/pipeline/kills.md
"""

from __future__ import annotations

import os
import sys
from collections import defaultdict
from pathlib import Path

import msgspec
from msgspec import Struct


class Kill(Struct, frozen=True):
    """One case: a process was killed at a step of a job, the job was run again, and its outcome compared."""

    job: str
    step: str
    who: str
    compared: int
    missing: int
    repeated: int


WHO = ("worker", "driver", "java", "server")
NAMES = {
    "drain": "drain of items",
    "lease": "drain of jobs",
    "sink": "sink of items with a guard",
    "once": "sink of items with keys",
    "add": "sink of jobs with a guard",
    "addonce": "sink of jobs with ids",
    "replay": "`replay --notes`",
}
HEAD = """# Kills of real Spark processes

Written by `python -m tests.pipeline.kill_table`. Each kill is a SIGKILL at a step of a job, after
which the job runs again; then all items, jobs, or records of an archive are compared. *Worker*: the
Python process that does the step.

| job, step | worker | driver | Java | server | compared | missing | repeated |
|---|---|---|---|---|---|---|---|"""


def note_kill(job: str, step: str, who: str, compared: int, missing: int, repeated: int) -> None:
    """Append a case to the log, if there is one."""
    if log := os.environ.get("STANIEL_KILLS_LOG"):
        with Path(log).open("ab") as file:
            file.write(msgspec.json.encode(Kill(job, step, who, compared, missing, repeated)) + b"\n")


def table(kills: list[Kill]) -> str:
    steps: dict[tuple[str, str], list[Kill]] = defaultdict(list)
    for kill in kills:
        steps[kill.job, kill.step].append(kill)
    lines = [HEAD]
    for (job, step), some in steps.items():
        counts = [sum(kill.who == who for kill in some) or "–" for who in WHO]
        sums = [sum(getattr(kill, name) for kill in some) for name in ("compared", "missing", "repeated")]
        cells = [f"{NAMES.get(job, f'`{job}`')}, {step}", *counts, *sums]
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


def main() -> None:
    lines = [line for path in sys.argv[1:] for line in Path(path).read_bytes().splitlines()]
    print(table([msgspec.json.decode(line, type=Kill) for line in lines]))


if __name__ == "__main__":
    main()
