"""The journals whose reports are pictures in docs/pipeline.md: a day of three Kestrel queues, an hour of workq jobs.

    python -m tests.pipeline.pictures FOLDER        # then: staniel pipeline report FOLDER/kestrel, FOLDER/workq

Seeded, so the pictures can be made again.
"""

from __future__ import annotations

import argparse
import math
import random
from pathlib import Path

from staniel.queues.config import JournalDialect
from tests.pipeline.spools import write
from tests.support.job_world import JobWorld
from tests.support.records import Scribe
from tests.support.workq_log import files

MIDNIGHT_MS = 1_700_006_400_000
QUEUES = {"mail": (14, 18, 0.02), "thumbnails": (7, 8, 0.10), "audit": (2, 30, 0.0)}  # arrivals, capacity, failures


def day(chance: random.Random, arrivals: float, capacity: int, failures: float) -> Scribe:
    """A day in steps of 144 seconds: arrivals follow the sun, workers do what they can and hand some back."""
    scribe = Scribe(JournalDialect.DOCUMENTS)
    for step in range(600):
        now_ms = MIDNIGHT_MS + step * 144_000
        sun = 1 + math.sin(2 * math.pi * (step / 600 - 0.3))
        for at in range(round(chance.gauss(arrivals * sun, 2))):
            scribe.step(now_ms + at, "add", chance.randbytes(min(9000, round(chance.lognormvariate(5, 1.3)))), 0)
        for _ in range(capacity):
            scribe.step(now_ms + 1000, "open")
            scribe.step(now_ms + 1000, "abort" if chance.random() < failures else "confirm", 0)
    return scribe


def hour(chance: random.Random) -> JobWorld:
    """An hour of jobs in steps of two seconds: a burst in its middle makes them wait."""
    world = JobWorld("cmdlog_seg_size = 200000")
    client = world.worker()
    busy: list[int] = []
    number = 0
    for step in range(1800):
        world.turn(2000)
        burst = 4 if 800 < step < 1000 else 1
        while chance.random() < 0.45 * burst / (1 + 0.45 * burst):
            client.adds(number, "p" * chance.randrange(20, 600), ttr=600_000, ttl=7_200_000)
            number += 1
        for job in [job for job in busy if chance.random() < 0.3]:
            client.finishes(job, "ok", "fail" if chance.random() < 0.05 else "complete")
            busy.remove(job)
        while len(busy) < 3 and (told := client.leases()).isdigit():
            busy.append(int(told))
    return world


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Write the journals whose reports are the pictures in docs/pipeline.md."
    )
    parser.add_argument("folder", type=Path)
    folder, chance = parser.parse_args().folder, random.Random(7)
    for queue, (arrivals, capacity, failures) in QUEUES.items():
        write(folder / "kestrel", queue, day(chance, arrivals, capacity, failures), 4)
    (folder / "workq").mkdir(parents=True)
    for number, data in enumerate(files(hour(chance).disk), start=1):
        (folder / "workq" / f"{number:09}.log").write_bytes(data)


if __name__ == "__main__":
    main()
