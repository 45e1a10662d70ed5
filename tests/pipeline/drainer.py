"""Drains one batch from a server into a spool and says how far it came; a process that tests kill between two steps.

    python -m tests.pipeline.drainer [--jobs] SERVER QUEUE SPOOL BATCH ITEMS [STEP]

With STEP it waits for ever behind that step, having said `at STEP`.
"""

from __future__ import annotations

import sys
import time

from staniel.pipeline.sources.drain import BatchLimits, Drain, DrainStep
from staniel.pipeline.sources.drain_spool import DrainSpool
from staniel.pipeline.sources.job_drain import JobDrain


def main() -> None:
    has_jobs = sys.argv[1] == "--jobs"
    server, queue, place, batch, items, *steps = sys.argv[1 + has_jobs :]
    stop_at = steps[0] if steps else ""

    def after(step: DrainStep) -> None:
        if step.value == stop_at:
            print("at", step.value, flush=True)
            while True:
                time.sleep(60)

    spool = DrainSpool(place)
    with spool:
        drain: Drain | JobDrain
        if has_jobs:
            drain = JobDrain([server], [queue], spool, after=after)
        else:
            drain = Drain([server], [queue], spool, connections=2, after=after)
        count = drain.fill(int(batch), BatchLimits(int(items), 1 << 40), 0)
    print("drained", count, flush=True)


if __name__ == "__main__":
    main()
